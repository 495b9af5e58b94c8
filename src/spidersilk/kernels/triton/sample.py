"""Triton kernels that begin a selection: samples of M guess between which two keys its threshold lies.

Keys: the bits of |x| as an integer, in the order of |x|.

One scratch tensor of int64 holds, in this order: the state (64 words), three rows of totals, the tables of counts (of
int32, or of int64 from 2^31 coordinates on), how long the lists of the draw are, the lists, and two bitmaps. `start`
clears it up to the lists: nothing has to be zero before.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Places in the state. The bounds guessed by the small sample, and by the large one; what the first pass has counted:
HIGH0, LOW0, SAMPLED_ABOVE, SAMPLED_AT_HIGH, HIGH, LOW, ABOVE, AT_HIGH, AT_LOW = (tl.constexpr(i) for i in range(9))
# the last coordinate at the threshold that is in the top part; whether the draw failed.
CUT, FAILED = (tl.constexpr(9 + i) for i in range(2))
DONE = tl.constexpr(16)  # from here on: how many programs of each pass have finished
ROWS = tl.constexpr(32)  # from here on, for each level: the first and last possible key, its place, how many there are
# Three rows of totals: for each program, how many coordinates before its own (at first: of its own) are in the top part
# and how many are drawn. The third: its own at the threshold, for `cut`; then drawn of those listed, for `settle`.
TOTALS, ROW = tl.constexpr(64), tl.constexpr(2048)  # where they begin, and how long a row is
TABLES = tl.constexpr(64 + 3 * 2048)  # where the tables begin: that of the large sample, of level 0, 1, ...
SIDE0, SIDE = tl.constexpr(512), tl.constexpr(256)  # a table: SIDE coarse bins, then SIDE^2 bins. SIDE0: level 0


@triton.jit
def table(scratch_ptr, LEVEL: tl.constexpr, BIG: tl.constexpr):
    """The table of a level; -1: of the large sample."""
    size: tl.constexpr = SIDE + SIDE * SIDE
    at: tl.constexpr = 0 if LEVEL < 0 else (size if LEVEL == 0 else LEVEL * size + SIDE0 + SIDE0 * SIDE0)
    return (scratch_ptr + TABLES).to(tl.pointer_type(tl.int64 if BIG else tl.int32)) + at


@triton.jit
def is_last(scratch_ptr, PASS: tl.constexpr):
    """Whether all other programs of this pass have finished: what they have counted can then be read, past the L1."""
    tl.debug_barrier()
    before = tl.atomic_add(scratch_ptr + DONE + PASS, tl.full([], 1, tl.int64), sem="acq_rel")
    tl.debug_barrier()
    return before == tl.num_programs(0) - 1


@triton.jit
def read(pointer):
    """A load that sees what other programs of the same pass have written."""
    return tl.load(pointer, cache_modifier=".cg")


@triton.jit
def read_row(row_ptr, programs):
    """A row of totals that other programs of the same pass have written."""
    slots = tl.arange(0, ROW)
    return tl.load(row_ptr + slots, mask=slots < programs, other=0, cache_modifier=".cg")


@triton.jit
def sum_up(row_ptr, values):
    """Write how many there are before each program, for `own` of them in each."""
    slots = tl.arange(0, ROW)
    tl.debug_barrier()  # what is overwritten has been read
    tl.store(row_ptr + 1 + slots, tl.cumsum(values, axis=0), mask=slots < ROW - 1)
    tl.store(row_ptr, tl.full([], 0, tl.int64))


@triton.jit
def shift_of(first, last, BITS: tl.constexpr):
    """How many low bits of last - key to drop so that at most 2^BITS bins are left."""
    ladder = tl.minimum(BITS + tl.arange(0, 64), 63)
    return tl.sum(((last - first) >> ladder > 0).to(tl.int32), axis=0)


@triton.jit
def tally(keys, first, last, shift, table_ptr, SIDES: tl.constexpr):
    """Count the keys of the interval in their bins, the largest keys in bin 0."""
    inside = (keys >= first) & (keys <= last)
    bins = (tl.where(inside, last - keys, 0) >> shift).to(tl.int32)
    one = tl.full(keys.shape, 1, table_ptr.dtype.element_ty)
    tl.atomic_add(table_ptr + bins // SIDES, one, mask=inside, sem="relaxed")
    tl.atomic_add(table_ptr + SIDES + bins, one, mask=inside, sem="relaxed")


@triton.jit
def narrow(first, last, wanted, table_ptr, SIDES: tl.constexpr, BITS: tl.constexpr):
    """The bin in which the key that is `wanted`-th in the interval lies, its place there, and how many lie there."""
    shift = shift_of(first, last, BITS)
    lanes = tl.arange(0, SIDES)
    counts = read(table_ptr + lanes).to(tl.int64)
    coarse = tl.minimum(tl.sum((tl.cumsum(counts, axis=0) < wanted).to(tl.int32), axis=0), SIDES - 1)
    left = wanted - tl.sum(tl.where(lanes < coarse, counts, 0), axis=0)
    counts = read(table_ptr + SIDES + coarse * SIDES + lanes).to(tl.int64)
    fine = tl.minimum(tl.sum((tl.cumsum(counts, axis=0) < left).to(tl.int32), axis=0), SIDES - 1)
    left = left - tl.sum(tl.where(lanes < fine, counts, 0), axis=0)
    size = tl.sum(tl.where(lanes == fine, counts, 0), axis=0)
    one = tl.full([], 1, tl.int64)
    new_last = last - ((coarse * SIDES + fine).to(tl.int64) << shift)
    new_first = tl.maximum(first, new_last - (one << shift) + 1)
    return new_first, new_last, left, size


@triton.jit
def window(low, high, MAX: tl.constexpr):
    """The open interval between two bounds, as its first and last key; last < first if it is empty."""
    return tl.minimum(low, MAX - 1) + 1, high - 1


@triton.jit
def scattered(d, SIZE: tl.constexpr):
    """0 ... SIZE - 1, but the compiler cannot know: neighbours go to neighbouring threads, as for scattered stores."""
    return tl.arange(0, SIZE) ^ (d < 0).to(tl.int32)


@triton.jit
def ones(words):
    """The number of set bits of each uint32."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lowest(words):
    """The place of the lowest set bit of each uint32, and the words without it."""
    without = words & (words - 1)
    return ones((words ^ without) - 1), without


@triton.jit
def load_keys(memory_ptr, offsets, d, MAX: tl.constexpr, FULL: tl.constexpr):
    """|x| as an integer, and -1 beyond d. With FULL every offset is below d, so that loads can be wide."""
    x = tl.load(memory_ptr + offsets) if FULL else tl.load(memory_ptr + offsets, mask=offsets < d, other=0)
    if x.dtype.primitive_bitwidth == 64:
        bits = x.to(tl.int64, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        bits = x.to(tl.int32, bitcast=True)
    else:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    keys = bits & MAX
    if not FULL:
        keys = tl.where(offsets < d, keys, -1)
    return keys


@triton.jit
def mix(x):
    """A well-mixed 32-bit hash of uint32, one to one (two multiplications, "lowbias32")."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def words_of(counter_ptr):
    """Four random words for this position of the counter."""
    seed = tl.load(counter_ptr)
    position = tl.load(counter_ptr + 1)
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, low, high, low * 0, low * 0)


@triton.jit
def _sample(memory_ptr, i, d, word, MAX: tl.constexpr, SAMPLES: tl.constexpr):
    """The key of a coordinate near i d / SAMPLES."""
    i = i.to(tl.int64)
    start = i * d // SAMPLES
    room = (i + 1) * d // SAMPLES - start
    jitter = (mix(i.to(tl.uint32) ^ word) >> 8).to(tl.int64) * room >> 24
    return load_keys(memory_ptr, tl.minimum(start + jitter, d - 1), d, MAX, False)


@triton.jit(do_not_specialize=["d", "high_rank", "low_rank", "words"])
def start(
    memory_ptr, scratch_ptr, counter_ptr, d, high_rank, low_rank, words, SAMPLE: tl.constexpr, OWN: tl.constexpr,
    CHUNK: tl.constexpr, CLEAR: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    """Guess bounds of the threshold (the first SAMPLE / OWN programs); clear the scratch (the others).

    Each of the first ranks OWN of SAMPLE keys among all of them; those with the two given ranks become the bounds.
    """
    pid = tl.program_id(0)
    if pid < SAMPLE // OWN:
        word, _, _, _ = words_of(counter_ptr)
        mine = pid * OWN + tl.arange(0, OWN)
        keys = _sample(memory_ptr, mine, d, word, MAX, SAMPLE)
        rank = tl.zeros([OWN], dtype=tl.int32)
        for start in tl.static_range(0, SAMPLE, CHUNK):
            others = start + tl.arange(0, CHUNK)
            other_keys = _sample(memory_ptr, others, d, word, MAX, SAMPLE)
            larger = other_keys[None, :] > keys[:, None]
            before = (other_keys[None, :] == keys[:, None]) & (others[None, :] < mine[:, None])
            rank += tl.sum((larger | before).to(tl.int32), axis=1)
        nothing = mine * 0
        tl.store(scratch_ptr + HIGH0 + nothing, keys.to(tl.int64), mask=rank == high_rank)
        tl.store(scratch_ptr + LOW0 + nothing, keys.to(tl.int64), mask=rank == low_rank)
        if pid == 0:
            tl.store(scratch_ptr + HIGH0, tl.full([], MAX, tl.int64), mask=high_rank < 0)
            tl.store(scratch_ptr + LOW0, tl.full([], 0, tl.int64), mask=low_rank >= SAMPLE)
    else:
        zeros = tl.zeros([CLEAR], dtype=tl.int64)
        for at in range((pid - SAMPLE // OWN) * CLEAR, words, (tl.num_programs(0) - SAMPLE // OWN) * CLEAR):
            here = at + tl.arange(0, CLEAR)
            tl.store(scratch_ptr + here, zeros, mask=(here > LOW0) & (here < words))


@triton.jit(do_not_specialize=["d", "high_rank", "low_rank"])
def refine(
    memory_ptr, scratch_ptr, counter_ptr, d, high_rank, low_rank, BLOCK: tl.constexpr, SAMPLES: tl.constexpr,
    MAX: tl.constexpr, BIG: tl.constexpr,
):  # fmt: skip
    """Count BLOCK keys of a large sample: above the small sample's bounds, at the upper one, and between them by bins.

    The last program reads narrower bounds from that: where the two ranks of the large sample lie.
    """
    dtype = tl.int64 if MAX > 2147483647 else tl.int32
    _, word, _, _ = words_of(counter_ptr)
    keys = _sample(memory_ptr, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), d, word, MAX, SAMPLES)
    low, high = tl.load(scratch_ptr + LOW0), tl.load(scratch_ptr + HIGH0)
    first, last = window(low, high, MAX)
    shift = shift_of(first, last, 16).to(dtype)
    counts = table(scratch_ptr, -1, BIG)
    tally(keys, first.to(dtype), last.to(dtype), shift, counts, SIDE)
    above = tl.sum((keys > high.to(dtype)).to(tl.int32), axis=0).to(tl.int64)
    tl.atomic_add(scratch_ptr + SAMPLED_ABOVE, above, sem="relaxed")
    level = tl.sum((keys == high.to(dtype)).to(tl.int32), axis=0).to(tl.int64)
    tl.atomic_add(scratch_ptr + SAMPLED_AT_HIGH, level, sem="relaxed")
    if is_last(scratch_ptr, 0):
        to_high = read(scratch_ptr + SAMPLED_ABOVE) + read(scratch_ptr + SAMPLED_AT_HIGH)
        to_window = to_high + tl.sum(read(counts + tl.arange(0, SIDE)).to(tl.int64), axis=0)
        _first, upper, _left, _size = narrow(first, last, high_rank + 1 - to_high, counts, SIDE, 16)
        lower, _last, _left, _size = narrow(first, last, low_rank + 1 - to_high, counts, SIDE, 16)
        upper = tl.where(high_rank < to_high, high, tl.where(high_rank < to_window, upper, low))
        lower = tl.where(low_rank < to_high, high, tl.where(low_rank < to_window, lower, low))
        tl.store(scratch_ptr + HIGH, upper)
        tl.store(scratch_ptr + LOW, tl.minimum(lower, upper))
