"""Triton kernels that draw the random part, once the threshold of the top part is known: `cut`, `draw`.

Every coordinate has a random number of 31 bits, a hash of its index and of the counter. The random part are the k2
coordinates outside the top part with the smallest pairs (random number, index). Their number below a value is binomial,
so all up to `sure` are drawn but for a chance below 1e-15, and the last one drawn is at most `span` + 1 behind. `draw`
marks the first and lists those in between, a few standard deviations; `settle.py` finds the last. Should chance have it
otherwise, the first k2 coordinates from the left are taken, so that sizes and indices hold in any case.

Of the coordinates at the threshold the first `wanted` are in the top part, up to the index CUT. Usually they are few:
then `draw` lists them too, and its last program finds CUT. Where they are many, `cut` does so before.

The result are two bitmaps, of the top part and of those drawn; each program of `draw` and `write` has a run of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spidersilk.kernels.triton.sample import (
    CUT,
    ROW,
    ROWS,
    TOTALS,
    is_last,
    load_keys,
    lowest,
    mix,
    ones,
    read,
    read_row,
    sum_up,
    words_of,
)

SLOTS = tl.constexpr(64)  # for the listed coordinates of a bin, of which 16 are expected
TIES = tl.constexpr(64)  # so many coordinates at the threshold are few


@triton.jit
def run_of(tiles, program, programs):
    """Where the tiles of a program begin."""
    return tl.cast(tiles, tl.int64) * program // programs


@triton.jit
def owner_of(index, programs, tiles, TILE: tl.constexpr, NARROW: tl.constexpr):
    """The program whose run has a coordinate. NARROW: 32 bits are enough, in which a division is much cheaper."""
    tile = (index // TILE).to(tl.int32) if NARROW else index // TILE
    return ((tile + 1) * programs - 1) // tiles


@triton.jit
def random_numbers(low, high, word0, word1):
    """Those of coordinates, 31 bits each, from the low and high 32 bits of their indices."""
    return (mix((low ^ (word0 + high * 0x9E3779B9)) * (word1 | 1)) >> 1).to(tl.int32)


@triton.jit(do_not_specialize=["d", "tiles"])
def cut(
    memory_ptr, scratch_ptr, counter_ptr, d, tiles, LEVELS: tl.constexpr, TILE: tl.constexpr, MAX: tl.constexpr
):  # fmt: skip
    """Where many coordinates are at the threshold: find the last of them in the top part."""
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    row = scratch_ptr + ROWS + 4 * LEVELS
    wanted = tl.load(row + 2)
    if (wanted > 0) & (tl.load(row + 3) > TIES):
        lanes = tl.arange(0, TILE)
        dtype = tl.int64 if MAX > 2147483647 else tl.int32
        threshold = tl.load(row + 1).to(dtype)
        level = tl.zeros([TILE], dtype=tl.int32)
        for tile in range(run_of(tiles, pid, programs), run_of(tiles, pid + 1, programs)):
            at = tl.cast(tile, tl.int64) * TILE
            level += (load_keys(memory_ptr + at, lanes, d - at, MAX, False) == threshold).to(tl.int32)
        totals = scratch_ptr + TOTALS + 2 * ROW
        tl.store(totals + pid, tl.sum(level.to(tl.int64), axis=0))
        if is_last(scratch_ptr, 8):
            counts_of_runs = read_row(totals, programs)
            run = tl.sum((tl.cumsum(counts_of_runs, axis=0) < wanted).to(tl.int32), axis=0)  # the run that has it
            left = wanted - tl.sum(tl.where(tl.arange(0, ROW) < run, counts_of_runs, 0), axis=0)
            tl.debug_barrier()
            tl.store(totals + tl.arange(0, ROW), counts_of_runs * 0)  # for `settle`
            tile = run_of(tiles, run, programs)
            here = tl.full([], 0, tl.int64)
            while here < left:
                at = tl.cast(tile, tl.int64) * TILE
                inside = (load_keys(memory_ptr + at, lanes, d - at, MAX, False) == threshold).to(tl.int32)
                number = tl.sum(inside, axis=0)
                if here + number >= left:
                    is_it = (inside > 0) & (tl.cumsum(inside, axis=0) == left - here)
                    tl.store(scratch_ptr + CUT, at + tl.sum(tl.where(is_it, lanes, 0), axis=0))
                here += number
                tile += 1


@triton.jit
def lists_of(scratch_ptr, LISTS_AT: tl.constexpr, BINS: tl.constexpr):
    """How many coordinates are listed in each bin, and the lists; the last one is of those at the threshold."""
    counts = (scratch_ptr + LISTS_AT).to(tl.pointer_type(tl.int32))
    return counts, scratch_ptr + LISTS_AT + (BINS + 2) // 2


@triton.jit
def bitmaps(scratch_ptr, BITMAPS_AT: tl.constexpr, tiles, WORDS: tl.constexpr):
    """That of the top part, and that of the coordinates drawn."""
    top = (scratch_ptr + BITMAPS_AT).to(tl.pointer_type(tl.int32))
    return top, top + tl.cast(tiles, tl.int64) * WORDS


@triton.jit
def mark(bitmap_ptr, index, which):
    """Set the bits of some coordinates."""
    bit = tl.full(index.shape, 1, tl.int32) << (index & 31).to(tl.int32)
    tl.atomic_or(bitmap_ptr + (index >> 5), bit, mask=which, sem="relaxed")


@triton.jit
def _list(place, index, which, shift, index_bits, counts_ptr, lists_ptr):
    """Put the pairs (place, index) into the lists of their bins, where `which` says so."""
    bins = tl.where(which, place >> shift, 0)
    slot = tl.atomic_add(counts_ptr + bins, tl.full(bins.shape, 1, tl.int32), mask=which, sem="relaxed")
    pair = (place.to(tl.int64) << index_bits) | index
    tl.store(lists_ptr + bins * SLOTS + slot, pair, mask=which & (slot < SLOTS))


@triton.jit
def _draw_tile(
    memory_ptr, at, left, threshold, lower, tie, open_, cut_index, sure, span, shift, index_bits, word0, word1,
    counts, lists, top_bits, drawn_bits,
    BINS: tl.constexpr, WORDS: tl.constexpr, MAX: tl.constexpr, DRAWS: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One tile of 32 WORDS coordinates: each thread looks at 32 neighbours, a bit for each.

    Those that are at the threshold or may be drawn are few: they are taken up again, one for each word at a time.
    Returns how many of each word are in the top part, and how many are surely drawn.
    """
    rows = tl.arange(0, WORDS)
    columns = tl.arange(0, 4)[None, :]
    tops = tl.zeros([WORDS], dtype=tl.uint32)
    draws = tl.zeros([WORDS], dtype=tl.uint32)
    open_ones = tl.zeros([WORDS], dtype=tl.uint32)
    low_word = (at & 0xFFFFFFFF).to(tl.uint32)
    high_word = (at >> 32).to(tl.uint32)
    for j in tl.static_range(0, 32, 4):
        lanes = rows[:, None] * 32 + (columns + j)
        keys = load_keys(memory_ptr + at, lanes, left, MAX, FULL)
        bit = (columns + j).to(tl.uint32)
        tops |= tl.sum((keys > threshold).to(tl.uint32) << bit, axis=1)
        again = keys == tie
        if DRAWS:
            place = random_numbers(low_word + lanes.to(tl.uint32), high_word, word0, word1) - sure - 1
            rest = (keys <= lower) if FULL else (keys <= lower) & (keys >= 0)
            draws |= tl.sum((rest & (place < 0)).to(tl.uint32) << bit, axis=1)
            again = again | (rest & (place >= 0) & (place <= span))
        open_ones |= tl.sum(again.to(tl.uint32) << bit, axis=1)
    while tl.max((open_ones != 0).to(tl.int32), axis=0) > 0:
        there = open_ones != 0
        which, open_ones = lowest(open_ones)
        lane = tl.where(there, rows * 32 + which, 0)
        index = at + lane
        level = there & (load_keys(memory_ptr + at, lane, left, MAX, True) == tie)
        slot = tl.atomic_add(counts + BINS + rows * 0, rows * 0 + 1, mask=level & open_, sem="relaxed")
        tl.store(lists + BINS * SLOTS + slot, index, mask=level & open_ & (slot < TIES))
        known = level & (open_ == 0)
        tops |= (known & (index <= cut_index)).to(tl.uint32) << which.to(tl.uint32)
        if DRAWS:
            number = random_numbers(low_word + lane.to(tl.uint32), high_word, word0, word1) - sure - 1
            free = there & ((level == 0) | (known & (index > cut_index)))
            draws |= (free & (number < 0)).to(tl.uint32) << which.to(tl.uint32)
            _list(number, index, free & (number >= 0) & (number <= span), shift, index_bits, counts, lists)
    here = at // 32 + rows
    tl.store(top_bits + here, tops.to(tl.int32, bitcast=True))
    if DRAWS:
        tl.store(drawn_bits + here, draws.to(tl.int32, bitcast=True))
    return ones(tops), ones(draws)


@triton.jit(do_not_specialize=["d", "tiles", "sure", "span", "shift", "index_bits"])
def draw(
    memory_ptr, scratch_ptr, counter_ptr, d, tiles, sure, span, shift, index_bits, LISTS_AT: tl.constexpr,
    BITMAPS_AT: tl.constexpr, BINS: tl.constexpr, NARROW: tl.constexpr, LEVELS: tl.constexpr, WORDS: tl.constexpr,
    MAX: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """Mark and count, for each program's run, the top part and those outside it that are surely drawn; list others."""
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    dtype = tl.int64 if MAX > 2147483647 else tl.int32
    row = scratch_ptr + ROWS + 4 * LEVELS
    threshold, wanted = tl.load(row + 1).to(dtype), tl.load(row + 2)
    open_ = (wanted > 0) & (tl.load(row + 3) <= TIES)  # the cut is not known yet
    cut_index = tl.load(scratch_ptr + CUT)
    tie = tl.where(wanted > 0, threshold, -2)
    lower = tl.where(wanted > 0, threshold - 1, threshold)
    _, _, word0, word1 = words_of(counter_ptr)
    counts, lists = lists_of(scratch_ptr, LISTS_AT, BINS)
    top_bits, drawn_bits = bitmaps(scratch_ptr, BITMAPS_AT, tiles, WORDS)
    tops = tl.zeros([WORDS], dtype=tl.int32)
    draws = tl.zeros([WORDS], dtype=tl.int32)
    for tile in range(run_of(tiles, pid, programs), run_of(tiles, pid + 1, programs)):
        at = tl.cast(tile, tl.int64) * (32 * WORDS)
        if d - at >= 32 * WORDS:
            new_tops, new_draws = _draw_tile(
                memory_ptr, at, d - at, threshold, lower, tie, open_, cut_index, sure, span, shift, index_bits, word0,
                word1, counts, lists, top_bits, drawn_bits, BINS, WORDS, MAX, DRAWS, True,
            )  # fmt: skip
        else:
            new_tops, new_draws = _draw_tile(
                memory_ptr, at, d - at, threshold, lower, tie, open_, cut_index, sure, span, shift, index_bits, word0,
                word1, counts, lists, top_bits, drawn_bits, BINS, WORDS, MAX, DRAWS, False,
            )  # fmt: skip
        tops += new_tops
        draws += new_draws
    tl.store(scratch_ptr + TOTALS + pid, tl.sum(tops.to(tl.int64), axis=0))
    tl.store(scratch_ptr + TOTALS + ROW + pid, tl.sum(draws.to(tl.int64), axis=0))
    if is_last(scratch_ptr, 9):
        if open_:
            # Give the few coordinates at the threshold to the top part, to those surely drawn, or to the lists.
            lanes = tl.arange(0, TIES)
            there = lanes < read(counts + BINS)
            index = tl.load(lists + BINS * SLOTS + lanes, mask=there, other=9223372036854775807, cache_modifier=".cg")
            rank = tl.sum((index[None, :] < index[:, None]).to(tl.int32), axis=1)
            index = tl.where(there, index, 0)
            owner = owner_of(index, programs, tiles, 32 * WORDS, NARROW)
            one = tl.full([TIES], 1, tl.int64)
            is_top = there & (rank < wanted)
            mark(top_bits, index, is_top)
            tl.atomic_add(scratch_ptr + TOTALS + owner, one, mask=is_top, sem="relaxed")
            if DRAWS:
                low, high = (index & 0xFFFFFFFF).to(tl.uint32), (index >> 32).to(tl.uint32)
                place = random_numbers(low, high, word0, word1) - sure - 1
                drawn = there & (rank >= wanted) & (place < 0)
                mark(drawn_bits, index, drawn)
                tl.atomic_add(scratch_ptr + TOTALS + ROW + owner, one, mask=drawn, sem="relaxed")
                listed = there & (rank >= wanted) & (place >= 0) & (place <= span)
                _list(place, index, listed, shift, index_bits, counts, lists)
            tl.debug_barrier()
        sum_up(scratch_ptr + TOTALS, read_row(scratch_ptr + TOTALS, programs))
