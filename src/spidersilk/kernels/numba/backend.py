"""The flat-vector operations on a CPU, compiled by numba: exact selection in two reads of M, updates in one pass.

Vectors are 1-D contiguous CPU tensors of float32, float64 or bfloat16. Loops over at least `PARALLEL_FROM` entries are
shared among `torch.get_num_threads()` threads; no result depends on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spidersilk.kernels import plain as torch_ops
from spidersilk.kernels.numba import selection as numba_selection
from spidersilk.kernels.numba import updates as numba_updates
from spidersilk.kernels.numba.scalars import BIN_BITS, BLOCK

draws_on_device = False
PARALLEL_FROM = 1 << 20
BINS = 1 << BIN_BITS
FORMS = {
    "recursive": numba_updates.RECURSIVE,
    "anchored": numba_updates.ANCHORED,
    "refresh": numba_updates.REFRESH,
    "fresh": numba_updates.FRESH,
}
_KEYS = {torch.float32: np.uint32, torch.float64: np.uint64, torch.bfloat16: np.uint16}
_NUMBERS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.float32}  # what is computed in
# The bits of half a unit in the last place of the largest float: a smaller summand cannot make a finite entry infinite.
_SAFE = {torch.float32: 0x73000000, torch.float64: 0x7C90000000000000, torch.bfloat16: 0x7B00}
_NOTHING = np.empty(0, np.int64)


def select(memory: Tensor, k1: int, k2: int, seed: int, histogram: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
    """The k1 largest of |memory| (ties: lower index first) and k2 uniform others; int64, ascending.

    The random ones depend on `seed` (its lowest 64 bits), on d and on which are the top ones. `histogram`: that of
    memory, from the `advance` that wrote it last, saves a read of it; a wrong one costs time, not exactness.
    """
    d = memory.numel()
    if min(k1, k2) < 0 or k1 + k2 > d:
        raise ValueError(f"k1 = {k1} and k2 = {k2} of d = {d} entries: both at least 0, and together at most d")
    mask = _mark_top(_bits(memory), k1, histogram) if k1 else np.zeros((d + 63) // 64, np.uint64)
    flipped = 2 * k2 > d - k1  # then those left out are fewer: draw them
    taken = mask.copy()
    if flipped and d % 64:
        taken[-1] |= np.uint64(2**64 - (1 << d % 64))  # there are no entries behind the last
    if drawn := d - k1 - k2 if flipped else k2:
        numba_selection.draw(taken, d, drawn, np.uint64(seed & (2**64 - 1)))
    both = torch.empty(k1 + k2, dtype=torch.int64)
    top, random = both[:k1], both[k1:]
    ranges = _ranges(d, 64)
    ends = np.zeros((len(ranges) + 1, 2), np.int64)
    ends[-1] = k1, k2
    if len(ranges) > 1:
        ends[1:] = np.cumsum(_share(numba_selection.count_marks, ranges, mask, taken, flipped), axis=0)
    each = [(part,) for part in range(len(ranges))]
    _share(numba_selection.list_marks, ranges, mask, taken, flipped, top.numpy(), random.numpy(), ends, each=each)
    return top, random


def _mark_top(bits: np.ndarray, k: int, histogram: np.ndarray | None) -> np.ndarray:
    """A bit for each of d entries, set for the k largest keys."""
    d = bits.size
    mask = np.empty((d + 63) // 64, np.uint64)
    if histogram is not None and (found := _bounds(histogram, k, bits)) and _mark(bits, k, *found, mask):
        return mask
    ranges = _ranges(d)
    rows = _rows(len(ranges), d)
    _share(numba_selection.count, ranges, bits, each=rows)
    found = _bounds(_total(rows), k, bits)
    assert found is not None
    _mark(bits, k, *found, mask)
    return mask


def _bounds(histogram: np.ndarray, k: int, bits: np.ndarray) -> tuple[int, int, int] | None:
    """The least and largest key of the bin of the k-th largest, and how many entries are in it."""
    at = int(numba_selection.find_bin(histogram, k))
    open_bits = 8 * bits.itemsize - 1 - BIN_BITS
    return None if at < 0 else (at << open_bits, (at + 1 << open_bits) - 1, int(histogram[at]))


def _mark(bits: np.ndarray, k: int, low: int, high: int, room: int, mask: np.ndarray) -> bool:
    """Mark the k largest keys, given that the k-th is in [low, high]; False if it is not or more than `room` are."""
    ranges = _ranges(bits.size)
    kind = bits.dtype.type
    rooms = [min(room, stop - start) for start, stop in ranges]  # pages that are not written to cost nothing
    lists = [(np.empty(n, kind), np.empty(n, np.int64)) for n in rooms]
    counts = _share(numba_selection.mark, ranges, bits, kind(low), kind(high), mask, each=lists)
    total, level = (sum(column) for column in zip(*counts, strict=True))
    if not total - level < k <= total or any(found > n for (_, found), n in zip(counts, rooms, strict=True)):
        return False
    if total > k:
        keys = np.concatenate([keys[:found] for (keys, _), (_, found) in zip(lists, counts, strict=True)])
        places = np.concatenate([places[:found] for (_, places), (_, found) in zip(lists, counts, strict=True)])
        numba_selection.refine(keys, places, k - total + level, (low ^ high).bit_length(), mask)
    return True


def advance(
    form: str,
    v: Tensor,
    v_anchor: Tensor | None,
    memory: Tensor,
    top: Tensor,
    random: Tensor,
    values: Tensor,
    scale: float | Tensor,
    decay: float,
    histogram: bool = True,
) -> tuple[bool, np.ndarray | None]:
    """Update v on the selection and M everywhere in one pass; whether all of v is finite, and M's histogram if wanted.

    With w = 1 for `top` and `scale` (one number, or one for each) for `random`, and k `values` in that order, `form` is
    - "recursive": v[selection] += w value;
    - "anchored": v = v_anchor, plus w value on the selection;
    - "refresh": v[selection] = v_anchor + w value there, the rest of v as it was;
    - "fresh": v = w value on the selection, 0 elsewhere.

    Then M = decay |v| + (1 - decay) M. If v is not finite, M and the histogram are worthless.
    """
    _check(form, v, v_anchor, memory, top, random, values, scale)
    changes, _ = _weighed(values, top.numel(), scale)
    nothing = _NOTHING, _NOTHING, _NOTHING, np.empty(0, _NUMBERS[v.dtype])
    return _advance(form, v, v_anchor, memory, _array(top), _array(random), changes, decay, histogram, *nothing)


def advance_and_move(
    form: str,
    v: Tensor,
    v_anchor: Tensor | None,
    memory: Tensor,
    top: Tensor,
    random: Tensor,
    values: Tensor,
    scale: float | Tensor,
    decay: float,
    params: Sequence[Tensor],
    lr: float | Sequence[float],
    gradients: Sequence[Tensor] | None = None,
    histogram: bool = True,
) -> tuple[bool, np.ndarray | None]:
    """`advance`, and x -= lr v in the same pass, and v into `gradients` if given.

    `params` and `gradients` are contiguous pieces of the flat vector, in order; `lr` is one number or one for each.
    What v builds on (v itself, or v_anchor) must be finite: then the k new entries decide. If one of them is not
    finite, nothing is written and (False, None) comes back.
    """
    _check(form, v, v_anchor, memory, top, random, values, scale)
    picked = _array(top), _array(random)
    changes, largest = _weighed(values, top.numel(), scale)
    if largest >= _SAFE[v.dtype]:
        base = {"recursive": v, "fresh": None}.get(form, v_anchor)
        if not numba_updates.stays_finite(_array(v[:0] if base is None else base), *picked, changes):
            return False, None
    x, offsets = _pieces(params, v.dtype, "params")
    g = _pieces(gradients, v.dtype, "gradients")[0] if gradients is not None else _NOTHING
    if offsets[-1] != v.numel() or g.size not in (0, x.size):
        raise ValueError(
            f"params and gradients do not make up the {v.numel()} entries of v: give all of them, in order"
        )
    rates = -np.broadcast_to(np.asarray(lr, _NUMBERS[v.dtype]), x.shape)
    return _advance(form, v, v_anchor, memory, *picked, changes, decay, histogram, x, g, offsets, rates)


def _check(
    form: str, v: Tensor, v_anchor: Tensor | None, memory: Tensor, top: Tensor, random: Tensor, values: Tensor,
    scale: float | Tensor,
) -> None:  # fmt: skip
    """A kernel writes where it is told to, so sizes that do not fit stop here."""
    if form not in FORMS or (v_anchor is None and form in ("anchored", "refresh")):
        raise ValueError(f"form = {form!r} is none of {', '.join(FORMS)}, or it needs v_anchor")
    vectors = [v, memory] if v_anchor is None else [v, v_anchor, memory]
    if any(t.numel() != v.numel() or t.dtype != v.dtype for t in vectors) or values.dtype != v.dtype:
        raise ValueError("v, v_anchor, memory and values must have one dtype, and the vectors one length")
    k, k2 = top.numel() + random.numel(), random.numel()
    if values.numel() != k or (isinstance(scale, Tensor) and scale.numel() != k2):
        raise ValueError(f"{values.numel()} values for {k} indices: one each, and one scale for all or each random one")


def _advance(
    form: str, v: Tensor, v_anchor: Tensor | None, memory: Tensor, top: np.ndarray, random: np.ndarray,
    changes: np.ndarray, decay: float, wants_histogram: bool,
    x: np.ndarray, gradients: np.ndarray, offsets: np.ndarray, rates: np.ndarray,
) -> tuple[bool, np.ndarray | None]:  # fmt: skip
    number = _NUMBERS[v.dtype]
    ranges = _ranges(v.numel())
    rows = _rows(len(ranges), v.numel(), BINS if wants_histogram else 0)
    finite = _share(
        numba_updates.advance, ranges, FORMS[form], _array(v), _array(v if v_anchor is None else v_anchor),
        _array(memory), top, random, changes, number(decay), number(1 - decay), _bits(memory),
        each=[(row, x, gradients, offsets, rates) for (row,) in rows],
    )  # fmt: skip
    return all(finite), _total(rows) if wants_histogram else None


def _weighed(values: Tensor, k1: int, scale: float | Tensor) -> tuple[np.ndarray, int]:
    """The values, the random ones times `scale`, and the largest bits among them, signs dropped.

    A number is first rounded as torch does where one multiplies a tensor.
    """
    if isinstance(scale, Tensor):
        scales = _array(scale.double())
    else:
        scales = np.array([scale], _NUMBERS[values.dtype]).astype(np.float64)
    own = _array(values)
    out = np.empty_like(own)
    return out, int(numba_updates.weigh(own, k1, scales, out, out.view(_KEYS[values.dtype])))


def gather(
    pieces: Sequence[Tensor | None], sizes: Sequence[int], indices: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The entries at flat `indices` of the pieces, as if concatenated; None counts as zeros (of `dtype` if all are).

    Indices in ascending runs are fast. A piece that is not contiguous is copied.
    """
    held = [None if p is None else (p if p.layout == torch.strided else p.to_dense()).contiguous() for p in pieces]
    if any(p is not None and p.numel() != size for p, size in zip(held, sizes, strict=True)):
        raise ValueError(f"pieces are not of the sizes {list(sizes)}: give one for each parameter, in order")
    dtype = next((p.dtype for p in held if p is not None), dtype)
    out = torch.empty(indices.numel(), dtype=dtype)
    addresses, offsets = _pieces(held, dtype, "pieces", sizes)
    _share(numba_updates.gather, _ranges(out.numel()), addresses, offsets, _array(indices), _bits(out))
    return out


def scatter(pieces: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
    """Write `values` at flat `indices`, distinct ones, into the pieces, as if concatenated."""
    if not all(p.is_contiguous() for p in pieces):
        torch_ops.scatter(pieces, sizes, indices, values)
        return
    _check_pairs(indices, values)
    addresses, offsets = _pieces(pieces, values.dtype, "pieces", sizes)
    _share(numba_updates.scatter, _ranges(values.numel()), addresses, offsets, _array(indices), _bits(values))


def add_at(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """target[indices] += values, for distinct indices."""
    _check_pairs(indices, values, target)
    _share(numba_updates.add_at, _ranges(values.numel()), _array(target), _array(indices), _array(values))


def put_at(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """target[indices] = values, for distinct indices."""
    scatter([target], [target.numel()], indices, values)


def blend(memory: Tensor, estimate: Tensor, decay: float) -> np.ndarray | None:
    """memory = decay |estimate| + (1 - decay) memory; its histogram comes back."""
    nothing = torch.empty(0, dtype=torch.int64)
    return advance("recursive", estimate, None, memory, nothing, nothing, estimate[:0], 1.0, decay)[1]


def blend_at(memory: Tensor, indices: Tensor, values: Tensor, decay: float) -> None:
    """`blend` on the coordinates `indices` alone, where the estimate has `values`."""
    _check_pairs(indices, values, memory)
    number = _NUMBERS[memory.dtype]
    arrays = _array(memory), _array(indices), _array(values)
    _share(numba_updates.blend_at, _ranges(values.numel()), *arrays, number(decay), number(1 - decay))


def _check_pairs(indices: Tensor, values: Tensor, target: Tensor | None = None) -> None:
    if indices.numel() != values.numel() or (target is not None and target.dtype != values.dtype):
        raise ValueError(f"{indices.numel()} indices and {values.numel()} values: one each, of the target's dtype")


# Tensors as arrays.


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory as an array, bfloat16 as its bits."""
    if not tensor.is_contiguous():
        raise ValueError(f"a vector has strides {tensor.stride()}: make it contiguous, or use backend='torch'")
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.uint16).numpy()
    return tensor.detach().numpy()


def _bits(tensor: Tensor) -> np.ndarray:
    return _array(tensor).view(_KEYS[tensor.dtype])


def _pieces(
    pieces: Sequence[Tensor | None], dtype: torch.dtype, name: str, sizes: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Where each piece lies in memory (0 for None), and where it begins in the flat vector, with the end behind."""
    for number, piece in enumerate(pieces):
        if piece is not None and (piece.dtype != dtype or not piece.is_contiguous() or not piece.is_cpu):
            what = f"{piece.dtype} on {piece.device} with strides {piece.stride()}"
            raise ValueError(f"{name}[{number}] is {what}: give contiguous CPU tensors of {dtype}")
    if sizes is None:
        sizes = [0 if p is None else p.numel() for p in pieces]
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return np.array([0 if p is None else p.data_ptr() for p in pieces], np.int64), offsets


def _rows(n: int, d: int, bins: int = BINS) -> list[tuple[np.ndarray]]:
    """A histogram for each of n ranges of d entries."""
    return [(np.zeros(bins, np.uint32 if d < 1 << 32 else np.int64),) for _ in range(n)]


def _total(rows: list[tuple[np.ndarray]]) -> np.ndarray:
    return rows[0][0] if len(rows) == 1 else np.sum([row for (row,) in rows], axis=0, dtype=rows[0][0].dtype)


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
    own = each or [()] * len(ranges)
    if len(ranges) == 1:
        return [kernel(*ranges[0], *arguments, *own[0])]
    pool = _pools.get(len(ranges))
    if pool is None:
        pool = _pools[len(ranges)] = ThreadPoolExecutor(len(ranges) - 1, "spidersilk")
    calls = [(*span, *arguments, *extra) for span, extra in zip(ranges, own, strict=True)]
    others = [pool.submit(kernel, *call) for call in calls[1:]]
    first = kernel(*calls[0])
    return [first, *(other.result() for other in others)]
