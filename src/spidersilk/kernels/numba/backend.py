"""The kernels on a CPU: exact selection in two reads of M, all updates of a step in one pass.

Tensors are contiguous and of float32, float64 or bfloat16. Loops over at least `PARALLEL_FROM` entries are shared among
`torch.get_num_threads()` threads; no result depends on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Form, Outcome, Seed, Tensors, Update
from spidersilk.kernels.numba import entries, selection, updates
from spidersilk.kernels.numba.scalars import BIN_BITS, BLOCK
from spidersilk.kernels.plain import PLAIN, is_grouped

PARALLEL_FROM = 1 << 20
BINS = 1 << BIN_BITS
FORMS = {form: getattr(updates, form.upper()) for form in get_args(Form)}
_KEYS = {torch.float32: np.uint32, torch.float64: np.uint64, torch.bfloat16: np.uint16}
_NUMBERS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.float32}  # what is computed in
# The bits of half a unit in the last place of the largest float: a smaller summand cannot make a finite entry infinite.
_SAFE = {torch.float32: 0x73000000, torch.float64: 0x7C90000000000000, torch.bfloat16: 0x7B00}
# The first bin of the histogram whose exponent is that of infinities and nan: all ones.
_NOT_FINITE = {np.uint16: 0xFF << BIN_BITS - 8, np.uint32: 0xFF << BIN_BITS - 8, np.uint64: 0x7FF << BIN_BITS - 11}
_NOTHING = np.empty(0, np.int64)


class NumbaKernels:
    """See `interface.Kernels`."""

    draws_on_device = False
    refuses_non_finite = True
    step = None

    def select(self, memory: Tensor, k1: int, k2: int, seed: Seed, hint: object = None) -> tuple[Tensor, Tensor]:
        """The hint is the histogram of M from the `advance` that wrote it; a wrong one costs time, not exactness."""
        d = memory.numel()
        if min(k1, k2) < 0 or k1 + k2 > d:
            raise ValueError(f"k1 = {k1} and k2 = {k2} of d = {d} entries: both at least 0, and together at most d")
        bits = _array(memory).view(_KEYS[memory.dtype])
        mask = _mark_top(bits, k1, hint) if k1 else np.zeros((d + 63) // 64, np.uint64)
        flipped = 2 * k2 > d - k1  # then those left out are fewer: draw them
        taken = mask.copy()
        if flipped and d % 64:
            taken[-1] |= np.uint64(2**64 - (1 << d % 64))  # there are no entries behind the last
        if drawn := d - k1 - k2 if flipped else k2:
            selection.draw(taken, d, drawn, np.uint64(int(seed) & (2**64 - 1)))
        both = torch.empty(k1 + k2, dtype=torch.int64)
        top, random = both[:k1], both[k1:]
        ranges = _ranges(d, 64)
        ends = np.zeros((len(ranges) + 1, 2), np.int64)
        ends[-1] = k1, k2
        if len(ranges) > 1:
            ends[1:] = np.cumsum(_share(selection.count_marks, ranges, mask, taken, flipped), axis=0)
        each = [(part,) for part in range(len(ranges))]
        _share(selection.list_marks, ranges, mask, taken, flipped, top.numpy(), random.numpy(), ends, each=each)
        return top, random

    def gather(self, tensors: Tensors, sizes: Sequence[int], indices: Tensor, dtype: torch.dtype) -> Tensor:
        """Indices in ascending runs are fast. A tensor that is not contiguous is copied."""
        full = [None if t is None else (t if t.layout == torch.strided else t.to_dense()).contiguous() for t in tensors]
        dtype = next((t.dtype for t in full if t is not None), dtype)
        out = torch.empty(indices.numel(), dtype=dtype)
        addresses, offsets = _addresses(full, dtype, sizes)
        bits = _array(out).view(_KEYS[dtype])
        _share(updates.gather, _ranges(out.numel()), addresses, offsets, _array(indices), bits)
        return out

    def scatter(self, tensors: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
        if not all(t.is_contiguous() for t in tensors):
            PLAIN.scatter(tensors, sizes, indices, values)
            return
        if indices.numel() != values.numel():
            raise ValueError(f"{indices.numel()} indices and {values.numel()} values: give one value for each index")
        addresses, offsets = _addresses(tensors, values.dtype, sizes)
        bits = _array(values).view(_KEYS[values.dtype])
        _share(updates.scatter, _ranges(values.numel()), addresses, offsets, _array(indices), bits)

    def advance(self, update: Update) -> Outcome:
        """The hint is the histogram of M. If v is not finite and x was to be moved, nothing is written.

        What v builds on (v itself, or v_anchor) must be finite: then its new entries decide.
        """
        v, memory, indices = update.v, update.memory, update.indices
        if update.form is None or memory is None or indices is None:
            return PLAIN.advance(update)
        _check_sizes(update, memory, indices)
        number, key = _NUMBERS[v.dtype], _KEYS[v.dtype]
        places = _array(indices)
        top, random = places[: update.k1], places[update.k1 :]
        changes = np.empty_like(_array(update.values))
        # A number is first rounded as torch does where one multiplies a tensor.
        scale = update.scale if isinstance(update.scale, Tensor) else np.array([update.scale], number)
        scales = np.asarray(scale, np.float64)
        largest = int(updates.weigh(_array(update.values), update.k1, scales, changes, changes.view(key)))
        start = v if update.v_anchor is None or update.form == "recursive" else update.v_anchor
        x = gradients = offsets = _NOTHING
        rates, made = np.empty(0, number), None
        if update.rates is not None:
            if largest >= _SAFE[v.dtype] and not updates.stays_finite(_array(start), top, random, changes):
                return Outcome(False)
            made = [torch.empty_like(p) for p in update.params]
            x, offsets = _addresses(update.params, v.dtype)
            gradients = _addresses(made, v.dtype)[0]
            if offsets[-1] != v.numel():
                raise ValueError(f"params do not make up the {v.numel()} entries of v: give all of them, in order")
            rates = -np.asarray(update.rates, number)
        ranges = _ranges(v.numel())
        counts = np.zeros((len(ranges), BINS), np.uint32 if v.numel() < 1 << 32 else np.int64)
        finite = _share(
            updates.advance, ranges, FORMS[update.form], _array(v), _array(start),
            _array(memory), top, random, changes, number(update.decay), number(1 - update.decay),
            _array(memory).view(key), each=[(row, x, gradients, offsets, rates) for row in counts],
        )  # fmt: skip
        return Outcome(all(finite), made, counts[0] if len(counts) == 1 else counts.sum(axis=0, dtype=np.int64))

    def take(self, source: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
        if is_grouped(out):
            PLAIN.take(source, indices, out, add)
            return
        flat = source.detach().as_strided((source.numel(),), (1,))
        _share(entries.take, _ranges(indices.numel()), _array(flat), _array(indices), _array(out), add)

    carry = PLAIN.carry

    def refresh(self, parts: Sequence[Entries]) -> None:
        for part in parts:
            if is_grouped(part.master):
                PLAIN.refresh([part])
            else:
                _share(entries.refresh, _ranges(part.indices.numel()), *map(_array, part))

    def write_through(self, parts: Sequence[Entries]) -> None:
        for part in parts:
            if is_grouped(part.master):
                PLAIN.write_through([part])
            else:
                _share(entries.write, _ranges(part.indices.numel()), *map(_array, part))


def _mark_top(bits: np.ndarray, k: int, hint: object) -> np.ndarray:
    """A bit for each of d entries, set for the k with the largest keys (a key is a float's bits without the sign)."""
    kind, ranges = bits.dtype.type, _ranges(bits.size)
    open_bits = 8 * bits.itemsize - 1 - BIN_BITS
    mask = np.empty((bits.size + 63) // 64, np.uint64)
    for histogram in (hint, _histogram):
        counts = histogram(bits, ranges) if callable(histogram) else histogram
        if not isinstance(counts, np.ndarray):
            continue
        at = BINS - 1 - int(np.searchsorted(np.cumsum(counts[::-1]), k))  # the bin of the k-th largest
        if at < 0:
            continue
        # Mark all from the bin of the k-th on, list those in the bin, and unmark those that are too many.
        low, high, room = at << open_bits, (at + 1 << open_bits) - 1, int(counts[at])
        rooms = [min(room, stop - start) for start, stop in ranges]  # pages that are not written to cost nothing
        lists = [(np.empty(n, kind), np.empty(n, np.int64)) for n in rooms]
        marked = _share(selection.mark, ranges, bits, kind(low), kind(high), mask, each=lists)
        total, level = (sum(column) for column in zip(*marked, strict=True))
        if not total - level < k <= total or any(n > most for (_, n), most in zip(marked, rooms, strict=True)):
            continue  # a wrong hint
        if total > k:
            keys = np.concatenate([keys[:n] for (keys, _), (_, n) in zip(lists, marked, strict=True)])
            places = np.concatenate([places[:n] for (_, places), (_, n) in zip(lists, marked, strict=True)])
            selection.refine(keys, places, k - total + level, (low ^ high).bit_length(), mask)
        break
    return mask


def _histogram(bits: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """How many entries have which leading bits; refuses infinities and nan, which have bins of their own."""
    rows = np.zeros((len(ranges), BINS), np.uint32 if bits.size < 1 << 32 else np.int64)
    _share(selection.count, ranges, bits, each=[(row,) for row in rows])
    counts: np.ndarray = rows[0] if len(rows) == 1 else rows.sum(axis=0, dtype=np.int64)
    if counts[_NOT_FINITE[bits.dtype.type] :].any():
        raise ValueError("memory has entries that are not finite: there is no order among them, so mend them first")
    return counts


def _check_sizes(update: Update, memory: Tensor, indices: Tensor) -> None:
    """A kernel writes where it is told to, so sizes that do not fit stop here."""
    v, anchor, k = update.v, update.v_anchor, indices.numel()
    if update.form not in FORMS or (anchor is None and update.form != "recursive"):
        raise ValueError(f"form = {update.form!r} is none of {', '.join(FORMS)}, or it needs v_anchor")
    vectors = [v, memory] if anchor is None else [v, anchor, memory]
    if any(t.numel() != v.numel() or t.dtype != v.dtype for t in vectors) or update.values.dtype != v.dtype:
        raise ValueError("v, v_anchor, memory and values must have one dtype, and the vectors one length")
    scales = update.scale.numel() if isinstance(update.scale, Tensor) else k - update.k1
    if update.values.numel() != k or scales != k - update.k1:
        raise ValueError(
            f"{update.values.numel()} values for {k} indices: one each, and one scale for all or each random one"
        )


# Tensors as arrays.


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory as an array, bfloat16 as its bits."""
    if not tensor.is_contiguous():
        raise ValueError(f"a vector has strides {tensor.stride()}: make it contiguous, or use backend='torch'")
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.uint16).numpy()
    return tensor.detach().numpy()


def _addresses(
    tensors: Tensors, dtype: torch.dtype, sizes: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Where each tensor lies in memory (0 for None), and where it begins in the flat vector, with the end behind."""
    for number, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if tensor.dtype != dtype or not tensor.is_contiguous() or not tensor.is_cpu:
            what = f"{tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
            raise ValueError(f"tensor {number} is {what}: give contiguous CPU tensors of {dtype}")
        if sizes is not None and tensor.numel() != sizes[number]:
            raise ValueError(f"tensors are not of the sizes {list(sizes)}: give one for each parameter, in order")
    if sizes is None:
        sizes = [0 if t is None else t.numel() for t in tensors]
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return np.array([0 if t is None else t.data_ptr() for t in tensors], np.int64), offsets


# Threads. Kernels run without the interpreter's lock, so Python's own threads do.

_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)  # a child has the pool but not its threads


def _ranges(n: int, per: int = 1) -> list[tuple[int, int]]:
    """[0, n) cut at multiples of a block, one range for each thread; counted in units of `per` entries."""
    threads = torch.get_num_threads() if n >= PARALLEL_FROM else 1
    blocks = -(-n // BLOCK)
    cuts = [min(blocks * i // threads * BLOCK, n) for i in range(threads + 1)]
    return [(-(-start // per), -(-stop // per)) for start, stop in pairwise(cuts)]


def _share(
    kernel: Callable[..., Any], ranges: list[tuple[int, int]], *arguments: Any, each: Sequence[tuple[Any, ...]] = ()
) -> list[Any]:
    """kernel(start, stop, *arguments, *each[i]) on every range, a thread for each; the results in order."""
    more = each or [()] * len(ranges)
    if len(ranges) == 1:
        return [kernel(*ranges[0], *arguments, *more[0])]
    pool = _pools.get(len(ranges))
    if pool is None:
        pool = _pools[len(ranges)] = ThreadPoolExecutor(len(ranges) - 1, "spidersilk")
    calls = [(*span, *arguments, *extra) for span, extra in zip(ranges, more, strict=True)]
    others = [pool.submit(kernel, *call) for call in calls[1:]]
    first = kernel(*calls[0])
    return [first, *(other.result() for other in others)]
