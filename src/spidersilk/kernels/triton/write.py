"""The Triton kernel that writes a selection from its bitmaps: the coordinates of each part, ascending."""

from __future__ import annotations

import triton
import triton.language as tl

from spidersilk.kernels.triton.draw import bitmaps, run_of
from spidersilk.kernels.triton.sample import FAILED, ROW, TOTALS, lowest, ones


@triton.jit
def _write(out_ptr, words, place, at, end, WORDS: tl.constexpr):
    """Write the coordinates of the set bits, those of each word from `place` on, as far as `end`."""
    rows = tl.arange(0, WORDS)
    while tl.max((words != 0).to(tl.int32), axis=0) > 0:
        there = words != 0
        bit, words = lowest(words)
        tl.store(out_ptr + place, at + (rows * 32 + bit), mask=there & (place < end))
        place += 1


@triton.jit(do_not_specialize=["d", "tiles", "k1", "k2"])
def write(
    memory_ptr, scratch_ptr, out_ptr, d, tiles, k1, k2, BITMAPS_AT: tl.constexpr, WORDS: tl.constexpr,
    DRAWS: tl.constexpr,
):  # fmt: skip
    """Write the coordinates of each program's run of tiles: of the top part from 0 on, those drawn from k1 on."""
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    rows = tl.arange(0, WORDS)
    top_bits, drawn_bits = bitmaps(scratch_ptr, BITMAPS_AT, tiles, WORDS)
    begin, end = run_of(tiles, pid, programs), run_of(tiles, pid + 1, programs)
    # What the programs before this one write.
    tops = tl.load(scratch_ptr + TOTALS + pid)
    others = tl.cast(k1, tl.int64)
    failed = tl.load(scratch_ptr + FAILED) != 0
    if DRAWS:
        from_left = tl.minimum(begin * (32 * WORDS) - tops, tl.cast(k2, tl.int64))
        others += tl.where(failed, from_left, tl.load(scratch_ptr + TOTALS + ROW + pid))
    for tile in range(begin, end):
        at = tl.cast(tile, tl.int64) * (32 * WORDS)
        words = tl.load(top_bits + at // 32 + rows).to(tl.uint32, bitcast=True)
        drawn = tl.zeros([WORDS], dtype=tl.uint32)
        if DRAWS:
            drawn = tl.load(drawn_bits + at // 32 + rows).to(tl.uint32, bitcast=True)
            if failed:
                inside = tl.minimum(tl.maximum(d - at - rows * 32, 0), 32).to(tl.uint32)
                all_ = tl.where(inside == 32, 0xFFFFFFFF, (tl.full([WORDS], 1, tl.uint32) << (inside & 31)) - 1)
                drawn = (words ^ 0xFFFFFFFF) & all_.to(tl.uint32)
        both = ones(words) + (ones(drawn) << 16)
        before = tl.cumsum(both, axis=0) - both
        _write(out_ptr, words, tops + (before & 0xFFFF), at, tl.cast(k1, tl.int64), WORDS)
        new = tl.sum(both, axis=0)
        tops += new & 0xFFFF
        if DRAWS:
            _write(out_ptr, drawn, others + (before >> 16), at, tl.cast(k1, tl.int64) + k2, WORDS)
            others += new >> 16
