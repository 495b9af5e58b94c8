"""Selection, compiled: a histogram of the leading bits of |M|, marks in a mask of d bits, indices from the mask.

Loops over d work on [start, stop), so that threads can share them; nothing in a result depends on where a range is cut.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from spidersilk.kernels.numba.scalars import bin_of, bit_count, compiled, key_of, lowest_bit, mixed

RADIX = 10  # bits settled by one pass of `refine`


@compiled
def count(start, stop, bits, histogram) -> None:
    """Add to `histogram` how many entries have which leading bits."""
    part = bits[start:stop]
    for i in range(part.size):
        histogram[bin_of(part[i])] += 1


@compiled
def mark(start, stop, bits, low, high, mask, keys, places):
    """Set the mask's bit of each entry with key >= low; list those with key <= high too, ascending; how many of each.

    `start` is a multiple of 64. Those that the list has no room for are counted alone.
    """
    total, in_bin, n = 0, 0, 0
    for word in range(start // 64, (stop + 63) // 64):
        part = bits[word * 64 : min(word * 64 + 64, stop)]
        marked, below = np.uint64(0), np.uint64(0)
        if part.size == 64:
            for j in range(64):
                key = key_of(part[j])
                marked |= np.uint64(key >= low) << np.uint64(j)
                below |= np.uint64(key <= high) << np.uint64(j)
        else:
            for j in range(part.size):
                key = key_of(part[j])
                marked |= np.uint64(key >= low) << np.uint64(j)
                below |= np.uint64(key <= high) << np.uint64(j)
        mask[word] = marked
        total += bit_count(marked)
        level = marked & below
        in_bin += bit_count(level)
        while level != 0 and n < keys.size:
            j = lowest_bit(level)
            keys[n] = key_of(part[j])
            places[n] = word * 64 + j
            n += 1
            level &= level - np.uint64(1)
    return total, in_bin


@compiled
def refine(keys, places, wanted, open_bits, mask) -> None:
    """Keep the mask's bits of the `wanted` largest keys, equal ones by lower place, and clear the others'.

    `places` ascend. The keys differ in their lowest `open_bits` bits alone.
    """
    left, active, missing = open_bits, keys, wanted
    while left > 0:
        width = min(left, RADIX)
        shift = keys.dtype.type(left - width)
        digit = keys.dtype.type((1 << width) - 1)
        histogram = np.zeros(1 << width, np.int64)
        for i in range(active.size):
            histogram[(active[i] >> shift) & digit] += 1
        at = histogram.size - 1
        while histogram[at] < missing:
            missing -= histogram[at]
            at -= 1
        kept = np.empty(histogram[at], keys.dtype)
        n = 0
        for i in range(active.size):
            if (active[i] >> shift) & digit == at:
                kept[n] = active[i]
                n += 1
        left, active = left - width, kept
    threshold = active[0]
    for i in range(keys.size):
        if keys[i] == threshold and missing > 0:
            missing -= 1
        elif keys[i] <= threshold:
            mask[places[i] >> 6] &= ~(np.uint64(1) << np.uint64(places[i] & 63))


@compiled
def draw(mask, d, k, seed) -> None:
    """Set k of the clear bits among the first d, uniformly: numbers from splitmix64, taken bits drawn again."""
    golden, half, low_half = np.uint64(0x9E3779B97F4A7C15), np.uint64(32), np.uint64(0xFFFFFFFF)
    state = mixed(seed ^ golden)
    span = np.uint64(d)
    if d > 0xFFFFFFFF:
        cover = np.uint64(1)
        while cover < span:
            cover <<= np.uint64(1)
        while k > 0:
            state += golden
            at = mixed(state) & (cover - np.uint64(1))
            if at < span:
                bit = np.uint64(1) << (at & np.uint64(63))
                k -= (mask[at >> np.uint64(6)] & bit) == 0
                mask[at >> np.uint64(6)] |= bit
        return
    surplus = (low_half + np.uint64(1)) % span  # Lemire: products with a lower half below this would be one too many
    while k > 0:
        state += golden
        number = mixed(state)
        for product in ((number >> half) * span, (number & low_half) * span):
            if product & low_half >= surplus and k > 0:
                at = product >> half
                bit = np.uint64(1) << (at & np.uint64(63))
                k -= (mask[at >> np.uint64(6)] & bit) == 0
                mask[at >> np.uint64(6)] |= bit


@compiled
def count_marks(start, stop, top, taken, flipped):
    """How many indices `list_marks` will write into each list, for words [start, stop)."""
    in_top, in_random = 0, 0
    for word in range(start, stop):
        in_top += bit_count(top[word])
        in_random += bit_count(~taken[word] if flipped else taken[word] ^ top[word])
    return in_top, in_random


@register_jitable
def _list_word(word, base, indices, n, end):
    """The set bits of a word as indices from indices[n] on, none from `end` on; where that ends.

    n and end are unsigned, as numba asks of each signed index whether it is negative.
    """
    one, eight = np.uint64(1), np.uint64(8)
    total = n + np.uint64(bit_count(word))
    if n + eight <= end:
        # Eight at once, also those that the next word writes over: cheaper than a loop of unknown length.
        for j in range(eight):
            indices[n + j] = base + lowest_bit(word)
            word &= word - one
        n += eight
    while n < total:
        indices[n] = base + lowest_bit(word)
        word &= word - one
        n += one
    return total


@compiled
def list_marks(start, stop, top, taken, flipped, indices, others, ends, part) -> None:
    """The bits of `top` as `indices`, those of `taken` alone (flipped: not taken) as `others`, for words [start, stop).

    They go between ends[part] and ends[part + 1], which are a place in `indices` and one in `others`.
    """
    n, m = np.uint64(ends[part, 0]), np.uint64(ends[part, 1])
    n_end, m_end = np.uint64(ends[part + 1, 0]), np.uint64(ends[part + 1, 1])
    for word in range(start, stop):
        n = _list_word(top[word], word * 64, indices, n, n_end)
        m = _list_word(~taken[word] if flipped else taken[word] ^ top[word], word * 64, others, m, m_end)
