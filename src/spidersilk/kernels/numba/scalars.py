"""What the numba kernels share: how they are compiled, and what they do with single values.

Floats are ordered by their bits with the sign dropped ("key"): positive floats sort as their bits do. bfloat16 comes as
uint16 bits.
"""
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as typed_intrinsic
from numba.extending import overload, register_jitable

from spidersilk.kernels.compiling import compiling

intrinsic: Any = typed_intrinsic  # its callers leave out the first argument

BLOCK = 2048  # entries worked on while they are in the first-level cache; a multiple of 64
BIN_BITS = 13  # of a float's bits after the sign, settled by the histogram: 32 KiB of counts


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled for each kind of argument when first called; without a cache where none can be kept."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        kernel: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to write to
        return _announced(numba.njit(**options)(function))
    cache = kernel._cache
    files = getattr(cache, "_cache_file", None)
    if files is not None:  # numba looks for changes in a kernel's own file alone: let it look in this one too
        files._source_stamp = files._source_stamp, _own_stamp()
        save = cache.save_overload

        def save_if_possible(signature: Any, data: Any) -> None:
            with contextlib.suppress(OSError):  # the folder would not take it: a full disk, or gone since
                save(signature, data)

        cache.save_overload = save_if_possible
    return _announced(kernel)


def _announced(kernel: Any) -> Any:
    """Numba calls this method when a kernel meets a kind of argument for the first time."""
    compile_for = kernel._compile_for_args

    def compile_and_say(*args: Any, **kws: Any) -> Any:
        with compiling():
            return compile_for(*args, **kws)

    kernel._compile_for_args = compile_and_say
    return kernel


def _own_stamp() -> str:
    try:
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    except OSError:  # in an archive
        return ""


@intrinsic
def _pointer(typing_context, address):
    kind = ir.IntType(8).as_pointer()
    return types.voidptr(types.intp), lambda _context, builder, _kinds, given: builder.inttoptr(given[0], kind)


@intrinsic
def prefetch(typing_context, address):
    """Ask for a cache line that is needed soon; an address that is not ours does no harm."""

    def generate(context, builder, signature, arguments):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def fused(typing_context, x, y, z):
    """x * y + z, rounded once, as torch's `add_(other, alpha=...)` does."""
    return z(z, z, z), lambda _context, builder, _kinds, given: builder.fma(*given)


@intrinsic
def lowest_bit(typing_context, word):
    """The place of the lowest set bit, 64 if there is none."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda _context, builder, _kinds, given: builder.cttz(given[0], no)


@intrinsic
def bit_count(typing_context, word):
    """How many bits are set."""
    return types.int64(types.uint64), lambda _context, builder, _kinds, given: builder.ctpop(given[0])


def by_type(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """A function for compiled code alone, whose body `implementation` makes from the types of the arguments."""

    def function(*_: Any) -> Any:
        raise TypeError("for compiled code alone")

    overload(function, strict=False)(implementation)
    return function


@by_type
def key_of(bits):
    """A float's bits without the sign."""
    kind, magnitude = getattr(np, f"uint{bits.bitwidth}"), (1 << (bits.bitwidth - 1)) - 1
    return lambda bits: kind(bits & kind(magnitude))


@by_type
def bin_of(bits):
    """The leading bits of the key; constants, because a shift known only at run time costs a third more."""
    kind, shift = getattr(np, f"uint{bits.bitwidth}"), bits.bitwidth - 1 - BIN_BITS
    return lambda bits: key_of(bits) >> kind(shift)


@by_type
def to_number(entry):
    """An array's entry as a number: bfloat16 bits as float32, others as they are."""
    if isinstance(entry, types.Integer):
        return lambda entry: np.uint32(np.uint32(entry) << np.uint32(16)).view(np.float32)
    return lambda entry: entry


@by_type
def to_entry(number, like):
    """A number as an entry of the kind of `like`, bfloat16 rounded to nearest even."""
    if not isinstance(like, types.Integer):
        kind = np.float32 if like is types.float32 else np.float64
        return lambda number, like: kind(number)

    def round_to_even(number, like):
        bits = np.float32(number).view(np.uint32)
        rounded = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
        return rounded if number == number else np.uint16(0x7FC0)

    return round_to_even


@register_jitable
def mixed(state):
    """The finaliser of splitmix64."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@register_jitable
def piece_at(address, size, like):
    """The memory from `address` on as an array of `size` entries of the kind of those of `like`."""
    return numba.carray(_pointer(address), (size,), like.dtype)
