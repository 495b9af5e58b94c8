"""Updates of v, M and x in one pass, and the k entries of a selection, compiled.

Loops work on [start, stop), so that threads can share them; nothing in a result depends on where a range is cut.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from spidersilk.kernels.numba.scalars import (
    BLOCK,
    bin_of,
    compiled,
    fused,
    key_of,
    piece_at,
    prefetch,
    to_entry,
    to_number,
)

RECURSIVE, ANCHORED, REFRESH = range(3)


@register_jitable
def _copy(source, target) -> None:
    for i in range(source.size):  # an assignment of slices would first ask whether they overlap
        target[i] = source[i]


@compiled
def weigh(values, k1, scales, out, bits):
    """out = values, those from k1 on times `scales` (one for all, or one for each); the largest key among them.

    `bits` are those of `out`. The key of infinity is larger than those of numbers, that of nan larger still.
    """
    _copy(values[:k1], out[:k1])
    rest, weighed = values[k1:], out[k1:]
    if scales.size == 1:
        for i in range(rest.size):
            weighed[i] = to_entry(np.float64(to_number(rest[i])) * scales[0], rest[i])
    else:
        for i in range(rest.size):
            weighed[i] = to_entry(np.float64(to_number(rest[i])) * scales[i], rest[i])
    largest = key_of(bits[0]) if bits.size else bits.dtype.type(0)
    for i in range(bits.size):
        largest = max(largest, key_of(bits[i]))
    return largest


@compiled
def stays_finite(base, top, random, changes) -> bool:
    """Whether base + changes is finite on the selection."""
    for i in range(changes.size):
        at = top[i] if i < top.size else random[i - top.size]
        if not abs(to_number(to_entry(to_number(base[at]) + to_number(changes[i]), base[at]))) < np.inf:
            return False
    return True


@register_jitable
def _change(form, v, anchor, indices, changes, i, stop):
    """Update v at the indices from the i-th on that are below `stop`; where that ends."""
    end = i + np.searchsorted(indices[i : i + BLOCK], stop)
    places, by = indices[i:end], changes[i:end]
    if form == REFRESH:
        for j in range(places.size):
            at = np.uint64(places[j])
            v[at] = to_entry(to_number(anchor[at]) + to_number(by[j]), by[j])
    else:
        for j in range(places.size):
            at = np.uint64(places[j])
            v[at] = to_entry(to_number(v[at]) + to_number(by[j]), by[j])
    return end


@register_jitable
def _blend_block(v, memory, decay, keep) -> bool:
    """memory = decay |v| + keep memory; whether v is finite."""
    bad = False
    for i in range(v.size):
        size = abs(to_number(v[i]))
        bad |= not size < np.inf
        memory[i] = to_entry(fused(size, decay, keep * to_number(memory[i])), memory[i])
    return not bad


@register_jitable
def _count_block(bits, histogram, ahead) -> None:
    """Add to `histogram` how many entries have which leading bits.

    That leaves the memory idle, so as many bytes from each of the addresses `ahead` on are fetched meanwhile.
    """
    whole = bits.size - bits.size % 16
    for begin in range(0, whole, 16):
        for address in ahead:
            if address:
                prefetch(address + begin * bits.itemsize)
        part = bits[begin : begin + 16]
        for i in range(16):
            histogram[bin_of(part[i])] += 1
    for i in range(whole, bits.size):
        histogram[bin_of(bits[i])] += 1


@register_jitable
def _move_block(v, start, x, gradients, offsets, rates, at):
    """x += rate v and gradient = v for the block of v that begins at `start`; `at` is the piece it begins in."""
    done, stop = start, start + v.size
    while done < stop:
        while offsets[at + 1] <= done:
            at += 1
        n = min(offsets[at + 1], stop) - done
        part, skipped, size = v[done - start : done - start + n], done - offsets[at], offsets[at + 1] - offsets[at]
        target = piece_at(x[at], size, v)[skipped : skipped + n]
        rate = rates[at]
        for i in range(n):
            target[i] = to_entry(fused(to_number(part[i]), rate, to_number(target[i])), target[i])
        _copy(part, piece_at(gradients[at], size, v)[skipped : skipped + n])
        done += n
    return at


@compiled
def advance(
    start, stop, form, v, anchor, memory, top, random, changes,
    decay, keep, bits, histogram,
    x, gradients, offsets, rates,
) -> bool:  # fmt: skip
    """One pass over [start, stop) of v, M (with its histogram) and x (addresses of its pieces; none: it stays).

    Whether all of v is finite comes back.
    """
    for indices in (top, random):
        if indices.size and (indices[0] < 0 or indices[-1] >= v.size):
            raise IndexError("an index is outside the vector")
    finite = True
    of_top, of_random = changes[: top.size], changes[top.size :]
    i, j = np.searchsorted(top, start), np.searchsorted(random, start)
    at = max(np.searchsorted(offsets, start, "right") - 1, 0)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        part = v[begin:end]
        if form == ANCHORED:
            _copy(anchor[begin:end], part)
        i = _change(form, v, anchor, top, of_top, i, end)
        j = _change(form, v, anchor, random, of_random, j, end)
        finite &= _blend_block(part, memory[begin:end], decay, keep)
        ahead, here = bits.itemsize * end, bits.itemsize * (begin - (offsets[at] if offsets.size else 0))
        addresses = (
            v.ctypes.data + ahead,
            bits.ctypes.data + ahead,
            anchor.ctypes.data + ahead if form in (ANCHORED, REFRESH) else 0,
            x[at] + here if x.size else 0,
            gradients[at] + here if x.size else 0,
        )
        _count_block(bits[begin:end], histogram, addresses)
        if offsets.size:
            at = _move_block(part, begin, x, gradients, offsets, rates, at)
    return finite


# The k entries of a selection.


@register_jitable
def _piece_of(index, addresses, offsets, like):
    """Of the piece that has a flat index: where it begins, its size, its address, and its entries."""
    if index < 0 or index >= offsets[-1]:
        raise IndexError("an index is outside the flat vector")
    at = np.searchsorted(offsets, index, "right") - 1
    size = offsets[at + 1] - offsets[at]
    return offsets[at], np.uint64(size), addresses[at], piece_at(addresses[at], size, like)


@compiled
def gather(start, stop, addresses, offsets, indices, out) -> None:
    """out[i] = the entry at the flat index; an address of 0 stands for zeros. Fast for indices in ascending runs."""
    begin, size, address, piece = 0, np.uint64(0), 0, out
    for i in range(start, stop):
        place = np.uint64(indices[i] - begin)
        if place >= size:  # also where the index is below `begin`
            begin, size, address, piece = _piece_of(indices[i], addresses, offsets, out)
            place = np.uint64(indices[i] - begin)
        if address:
            out[i] = piece[place]
        else:  # not one expression: numba would make a float of a uint64 and a 0
            out[i] = 0


@compiled
def scatter(start, stop, addresses, offsets, indices, values) -> None:
    """The entry at the flat index = values[i]."""
    begin, size, piece = 0, np.uint64(0), values
    for i in range(start, stop):
        place = np.uint64(indices[i] - begin)
        if place >= size:
            begin, size, _, piece = _piece_of(indices[i], addresses, offsets, values)
            place = np.uint64(indices[i] - begin)
        piece[place] = values[i]
