"""The Triton kernel that ends a draw: it finds the last listed coordinate to be drawn, and marks those up to it."""

from __future__ import annotations

import triton
import triton.language as tl

from spidersilk.kernels.triton.draw import SLOTS, bitmaps, lists_of, mark, owner_of
from spidersilk.kernels.triton.sample import FAILED, ROW, TOTALS, is_last, read_row, sum_up


@triton.jit(do_not_specialize=["programs", "tiles", "k2", "index_bits"])
def settle(
    memory_ptr, scratch_ptr, counter_ptr, programs, tiles, k2, index_bits, LISTS_AT: tl.constexpr,
    BITMAPS_AT: tl.constexpr, BINS: tl.constexpr, NARROW: tl.constexpr, OWN: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Find the last coordinate drawn, and mark the listed ones up to it. Each program of this pass takes OWN bins.

    Also moves the counter on.
    """
    pid = tl.program_id(0)
    counts_ptr, lists = lists_of(scratch_ptr, LISTS_AT, BINS)
    row = scratch_ptr + TOTALS + ROW
    wanted = k2 - tl.sum(read_row(row, programs), axis=0)
    counts = tl.load(counts_ptr + tl.arange(0, BINS))
    at = tl.minimum(tl.sum((tl.cumsum(counts, axis=0) < wanted).to(tl.int32), axis=0), BINS - 1)
    left = wanted - tl.sum(tl.where(tl.arange(0, BINS) < at, counts, 0), axis=0)
    failed = (wanted < 0) | (tl.sum(counts, axis=0) < wanted) | (tl.max(counts, axis=0) > SLOTS)
    lanes = tl.arange(0, SLOTS)
    there = lanes < tl.load(counts_ptr + at)
    pairs = tl.load(lists + at * SLOTS + lanes, mask=there, other=9223372036854775807)
    rank = tl.sum((pairs[None, :] < pairs[:, None]).to(tl.int32), axis=1)
    last = tl.sum(tl.where(there & (rank == left - 1), pairs, 0), axis=0)
    last = tl.where(wanted > 0, last, -1)  # the listed pairs up to this one are drawn
    if pid == 0:
        tl.store(scratch_ptr + FAILED, failed.to(tl.int64))
        tl.store(counter_ptr + 1, tl.load(counter_ptr + 1) + 1)
    bins = pid * OWN + tl.arange(0, OWN)
    listed = tl.minimum(tl.load(counts_ptr + bins, mask=bins < BINS, other=0), SLOTS)
    pair = tl.load(lists + bins[:, None] * SLOTS + lanes[None, :], mask=lanes[None, :] < listed[:, None], other=-1)
    chosen = (pair >= 0) & (pair <= last)
    index = tl.where(chosen, pair & ((tl.full([], 1, tl.int64) << index_bits) - 1), 0)
    _, drawn_bits = bitmaps(scratch_ptr, BITMAPS_AT, tiles, WORDS)
    mark(drawn_bits, index, chosen)
    target = row + ROW + owner_of(index, programs, tiles, 32 * WORDS, NARROW)
    tl.atomic_add(target, tl.full(index.shape, 1, tl.int64), mask=chosen, sem="relaxed")
    if is_last(scratch_ptr, 10):
        sum_up(row, read_row(row, programs) + read_row(row + ROW, programs))
