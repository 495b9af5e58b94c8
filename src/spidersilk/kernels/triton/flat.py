"""Triton kernels that read and write parameters that lie in several tensors, seen as one vector.

starts: where each tensor begins in the vector, then the largest int64 up to TENSORS entries.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spidersilk.kernels.triton.update import _number


@triton.jit
def _address(table_ptr, starts_ptr, index, mask, like_ptr, TENSORS: tl.constexpr, LOG: tl.constexpr):
    """Pointers to the coordinates `index`, and where there is a tensor to point into."""
    tensor = tl.zeros(index.shape, dtype=tl.int32)
    for i in tl.static_range(LOG):
        candidate = tensor + (TENSORS >> (i + 1))
        tensor = tl.where(tl.load(starts_ptr + candidate) <= index, candidate, tensor)
    base = tl.load(table_ptr + tensor)
    inner = index - tl.load(starts_ptr + tensor)
    width: tl.constexpr = like_ptr.dtype.element_ty.primitive_bitwidth // 8
    return (base + inner * width).to(like_ptr.dtype), mask & (base != 0)


@triton.jit(do_not_specialize=["k"])
def transfer(
    table_ptr, starts_ptr, indices_ptr, values_ptr, k, WRITE: tl.constexpr, TENSORS: tl.constexpr, LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """values := what the tensors have at the indices, where a tensor that is not there counts as zeros; or WRITE it."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < k
    index = tl.load(indices_ptr + place, mask=mask, other=0)
    pointer, there = _address(table_ptr, starts_ptr, index, mask, values_ptr, TENSORS, LOG)
    if WRITE:
        tl.store(pointer, tl.load(values_ptr + place, mask=mask, other=0), mask=there)
    else:
        tl.store(values_ptr + place, tl.load(pointer, mask=there, other=0), mask=mask)


@triton.jit
def _move_tile(
    x_address, grad_ptr, v_ptr, at, size, rate, WORK: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    offsets = at + tl.arange(0, TILE)
    mask = None if FULL else offsets < size
    x_ptr = x_address.to(v_ptr.dtype)
    if FULL:
        x_ptr = tl.multiple_of(x_ptr, 16)
    v = tl.load(v_ptr + offsets, mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask).to(WORK)
    tl.store(x_ptr + offsets, (x - rate * v.to(WORK)).to(v.dtype), mask=mask)
    tl.store(grad_ptr + offsets, v, mask=mask)


@triton.jit(do_not_specialize=["rate_high", "rate_low"])
def move(
    table_ptr, starts_ptr, sizes_ptr, first_tiles_ptr, grad_ptr, v_ptr, flag_ptr, rate_high, rate_low,
    TENSORS: tl.constexpr, WORK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of one tensor: x := x - rate v and gradient := v; if the flag is up, x stays and the gradient is 0."""
    pid = tl.program_id(0)
    tensor = tl.sum((tl.load(first_tiles_ptr + tl.arange(0, TENSORS)) <= pid).to(tl.int32), axis=0) - 1
    at = (pid - tl.load(first_tiles_ptr + tensor)) * TILE
    size = tl.load(sizes_ptr + tensor)
    start = tl.load(starts_ptr + tensor)
    address = tl.load(table_ptr + tensor)
    rate = _number(rate_high, rate_low, WORK)
    if tl.load(flag_ptr) == 0:
        # Rounding a start that is a multiple of 16 already tells the compiler so: wide loads and stores.
        if ((address | start) & 15 == 0) & (at + TILE <= size):
            start = start // 16 * 16
            _move_tile(address, grad_ptr + start, v_ptr + start, at, size, rate, WORK, TILE, True)
        else:
            _move_tile(address, grad_ptr + start, v_ptr + start, at, size, rate, WORK, TILE, False)
    else:
        offsets = at + tl.arange(0, TILE)
        nothing = tl.zeros([TILE], dtype=grad_ptr.dtype.element_ty)
        tl.store(grad_ptr + start + offsets, nothing, mask=offsets < size)


_ADDRESSES = [f"a{i}" for i in range(32)]


@triton.jit(do_not_specialize=["count", *_ADDRESSES])
def fill_table(
    table_ptr, count,
    a0: tl.int64, a1: tl.int64, a2: tl.int64, a3: tl.int64, a4: tl.int64, a5: tl.int64,
    a6: tl.int64, a7: tl.int64, a8: tl.int64, a9: tl.int64, a10: tl.int64, a11: tl.int64,
    a12: tl.int64, a13: tl.int64, a14: tl.int64, a15: tl.int64, a16: tl.int64, a17: tl.int64,
    a18: tl.int64, a19: tl.int64, a20: tl.int64, a21: tl.int64, a22: tl.int64, a23: tl.int64,
    a24: tl.int64, a25: tl.int64, a26: tl.int64, a27: tl.int64, a28: tl.int64, a29: tl.int64,
    a30: tl.int64, a31: tl.int64,
):  # fmt: skip
    """Write up to 32 addresses that travel as arguments: nothing to copy from the host, so a graph can hold it."""
    addresses = (
        a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
        a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31,
    )  # fmt: skip
    for i in tl.static_range(32):
        tl.store(table_ptr + i, addresses[i], mask=count > i)
