"""Triton kernels that find the threshold of a selection, the k1-th largest key.

It is searched in an interval that each level cuts into bins (2^18 at level 0, 65,536 later) and counts in a table; the
last program of a level reads from the table what is left of the interval.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spidersilk.kernels.triton.sample import (
    ABOVE,
    AT_HIGH,
    AT_LOW,
    HIGH,
    HIGH0,
    LOW,
    LOW0,
    ROWS,
    SIDE,
    SIDE0,
    is_last,
    load_keys,
    lowest,
    narrow,
    read,
    scattered,
    shift_of,
    table,
    tally,
    window,
)


@triton.jit
def _settle(first, last, wanted, table_ptr, SIDES: tl.constexpr, BITS: tl.constexpr):
    """Narrow the interval to one bin. If all of the bin are wanted, the key below it is as good as the threshold.

    Returns a zone: its first and last key, the place of the threshold among those there, and how many there are.
    """
    first, last, left, size = narrow(first, last, wanted, table_ptr, SIDES, BITS)
    return _either(left == size, (first - 1, first - 1, 0, size), (first, last, left, size))


@triton.jit
def _either(condition, zone, other):
    """Of two zones the first if the condition holds."""
    first, last = tl.where(condition, zone[0], other[0]), tl.where(condition, zone[1], other[1])
    return first, last, tl.where(condition, zone[2], other[2]), tl.where(condition, zone[3], other[3])


@triton.jit
def _put(scratch_ptr, zone, LEVEL: tl.constexpr):
    """What is known of the threshold before LEVEL."""
    for i in tl.static_range(4):
        tl.store(scratch_ptr + ROWS + 4 * LEVEL + i, zone[i])


@triton.jit
def _after_first(scratch_ptr, low, high, k1, counts, MAX: tl.constexpr):
    """The zone of the threshold: above the guessed bounds, at the higher, between (a bin), at the lower, or below."""
    first, last = window(low, high, MAX)
    to_above = read(scratch_ptr + ABOVE)
    to_high = to_above + read(scratch_ptr + AT_HIGH)
    to_window = to_high + tl.sum(read(counts + tl.arange(0, SIDE0)).to(tl.int64), axis=0)
    to_low = to_window + read(scratch_ptr + AT_LOW)
    wanted = tl.full([], 0, tl.int64) + k1
    unknown = tl.full([], 1, tl.int64) << 62  # how many there are: taken for many
    zone = _settle(first, last, wanted - to_high, counts, SIDE0, 18)
    # A window of a single key, or of none, is no bin.
    zone = _either(first >= last, (first, first, wanted - to_high, to_window - to_high), zone)
    # The other zones, one after the other; then none wanted.
    zone = _either(wanted > to_window, (low, low, wanted - to_window, to_low - to_window), zone)
    zone = _either(wanted > to_low, (low * 0, low - 1, wanted - to_low, unknown), zone)
    zone = _either(wanted <= to_high, (high, high, wanted - to_above, to_high - to_above), zone)
    top = tl.full([], MAX, tl.int64)
    zone = _either(wanted <= to_above, (tl.minimum(high, MAX - 1) + 1, top, wanted, unknown), zone)
    zone = _either(wanted == 0, (zone[1], zone[1], zone[2], wanted), zone)
    _put(scratch_ptr, zone, 1)


@triton.jit
def _first_tile(
    memory_ptr, left, low, high, first, last, shift, counts_ptr, above, at_high, at_low,
    WORDS: tl.constexpr, MAX: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One tile of 32 WORDS keys, of which `left` are there: each thread looks at 32 neighbours, a bit for each.

    Those between the bounds are few: they are taken up again, one for each word at a time, and counted by bins.
    """
    rows = tl.arange(0, WORDS)[:, None] * 32
    columns = tl.arange(0, 4)[None, :]
    inside = tl.zeros([WORDS], dtype=tl.uint32)
    for j in tl.static_range(0, 32, 4):
        keys = load_keys(memory_ptr, rows + (columns + j), left, MAX, FULL)
        above += tl.sum((keys > high).to(tl.int32), axis=1)
        at_high += tl.sum((keys == high).to(tl.int32), axis=1)
        at_low += tl.sum((keys == low).to(tl.int32), axis=1)
        between = ((keys >= first) & (keys <= last)).to(tl.uint32)
        inside |= tl.sum(between << (columns + j).to(tl.uint32), axis=1)
    while tl.max((inside != 0).to(tl.int32), axis=0) > 0:
        there = inside != 0
        bit, inside = lowest(inside)
        place = tl.where(there, tl.arange(0, WORDS) * 32 + bit, 0)
        found = load_keys(memory_ptr, place, left, MAX, True)
        tally(tl.where(there, found, -1), first, last, shift, counts_ptr, SIDE0)
    return above, at_high, at_low


@triton.jit(do_not_specialize=["d", "k1", "tiles"])
def first_level(
    memory_ptr, scratch_ptr, counter_ptr, d, k1, tiles, WORDS: tl.constexpr, MAX: tl.constexpr, BIG: tl.constexpr,
    REFINED: tl.constexpr,
):  # fmt: skip
    """Count the keys above, at, between and at the other of the guessed bounds; those between by bins."""
    pid = tl.program_id(0)
    dtype = tl.int64 if MAX > 2147483647 else tl.int32
    low_key = tl.load(scratch_ptr + (LOW if REFINED else LOW0))
    high_key = tl.load(scratch_ptr + (HIGH if REFINED else HIGH0))
    first, last = window(low_key, high_key, MAX)
    shift = shift_of(first, last, 18).to(dtype)
    first, last, low, high = first.to(dtype), last.to(dtype), low_key.to(dtype), high_key.to(dtype)
    counts = table(scratch_ptr, 0, BIG)
    above = tl.zeros([WORDS], dtype=tl.int32)
    at_high = tl.zeros([WORDS], dtype=tl.int32)
    at_low = tl.zeros([WORDS], dtype=tl.int32)
    for tile in range(pid, tiles, tl.num_programs(0)):
        at = tl.cast(tile, tl.int64) * (32 * WORDS)
        left = d - at
        if left >= 32 * WORDS:
            above, at_high, at_low = _first_tile(
                memory_ptr + at, left, low, high, first, last, shift, counts, above, at_high, at_low, WORDS, MAX, True
            )
        else:
            above, at_high, at_low = _first_tile(
                memory_ptr + at, left, low, high, first, last, shift, counts, above, at_high, at_low, WORDS, MAX, False
            )
    tl.atomic_add(scratch_ptr + ABOVE, tl.sum(above.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(scratch_ptr + AT_HIGH, tl.sum(at_high.to(tl.int64), axis=0), sem="relaxed")
    low_count = tl.where(low < high, tl.sum(at_low.to(tl.int64), axis=0), 0)
    tl.atomic_add(scratch_ptr + AT_LOW, low_count, sem="relaxed")
    if is_last(scratch_ptr, 1):
        _after_first(scratch_ptr, low_key, high_key, k1, counts, MAX)


@triton.jit(do_not_specialize=["d"])
def next_level(
    memory_ptr, scratch_ptr, counter_ptr, d, LEVEL: tl.constexpr, TILE: tl.constexpr, MAX: tl.constexpr,
    BIG: tl.constexpr,
):  # fmt: skip
    """Count the keys of the interval by bins; nothing to do once it is a single key."""
    pid = tl.program_id(0)
    row = scratch_ptr + ROWS + 4 * LEVEL
    first, last, wanted, size = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    if first < last:
        lanes = scattered(d, TILE)
        dtype = tl.int64 if MAX > 2147483647 else tl.int32
        counts = table(scratch_ptr, LEVEL, BIG)
        shift = shift_of(first, last, 16).to(dtype)
        least, most = first.to(dtype), last.to(dtype)
        for tile in range(pid, (tl.cast(d, tl.int64) + (TILE - 1)) // TILE, tl.num_programs(0)):
            at = tl.cast(tile, tl.int64) * TILE
            tally(load_keys(memory_ptr + at, lanes, d - at, MAX, False), least, most, shift, counts, SIDE)
        if is_last(scratch_ptr, 1 + LEVEL):
            _put(scratch_ptr, _settle(first, last, wanted, counts, SIDE, 16), LEVEL + 1)
    elif pid == 0:
        _put(scratch_ptr, (first, last, wanted, size), LEVEL + 1)
