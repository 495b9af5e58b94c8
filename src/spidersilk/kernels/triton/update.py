"""Triton kernels of the updates of v and M."""

from __future__ import annotations

import triton
import triton.language as tl

RECURSIVE, ANCHORED, REFRESH = (tl.constexpr(i) for i in range(3))


@triton.jit
def _number(high, low, dtype: tl.constexpr):
    """A host float, which reaches a kernel in two float32 parts so that float64 loses (nearly) nothing."""
    return tl.cast(high, dtype) + tl.cast(low, dtype)


@triton.jit
def _blend(memory, v, decay):
    return decay * tl.abs(v) + (1 - decay) * memory


@triton.jit
def _round(list_ptr, found, width, target, LANES: tl.constexpr):
    """Look at LANES entries at even distances: where the entry that is sought lies between two of them."""
    step = tl.maximum((width + LANES - 1) // LANES, 1)
    place = (tl.arange(0, LANES) + 1) * step - 1
    probe = tl.load(list_ptr + found + place, mask=place < width, other=0)
    passed = tl.sum(((place < width) & (probe < target)).to(tl.int64), axis=0) * step
    return found + passed, tl.minimum(step - 1, width - passed)


@triton.jit
def _find(top_ptr, random_ptr, k1, k2, target, LANES: tl.constexpr):
    """How many entries of each of the two ascending lists are below the target."""
    found1, found2 = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
    width1, width2 = found1 + k1, found2 + k2
    while width1 + width2 > 0:
        found1, width1 = _round(top_ptr, found1, width1, target, LANES)
        found2, width2 = _round(random_ptr, found2, width2, target, LANES)
    return found1, found2


@triton.jit
def _finite(x, WORK: tl.constexpr):
    return tl.abs(x.to(WORK)) < float("inf")


@triton.jit
def _advance_tile(
    v_ptr, anchor_ptr, memory_ptr, top_ptr, random_ptr, values_ptr, scales_ptr, at, d, k1, k2, seen1, seen2, scale,
    decay, FORM: tl.constexpr, MANY_SCALES: tl.constexpr, WORK: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """One tile; CHUNK: how many of the next entries of each list to look at. Returns how many lay in the tile."""
    dtype = v_ptr.dtype.element_ty
    lanes = tl.arange(0, TILE)
    inside = None if FULL else lanes < d - at
    v_ptr, anchor_ptr, memory_ptr = v_ptr + at, anchor_ptr + at, memory_ptr + at
    memory = tl.load(memory_ptr + lanes, mask=inside)
    v = tl.zeros([TILE], dtype=dtype)
    if FORM == ANCHORED:
        v = tl.load(anchor_ptr + lanes) if FULL else tl.load(anchor_ptr + lanes, mask=inside, other=0)
    # The selected ones: the first half of `both` from the top part, the second half from the random part.
    both = tl.arange(0, 2 * CHUNK)
    in_top = both < CHUNK
    place = tl.where(in_top, seen1 + both, seen2 + both - CHUNK)
    mask = place < tl.where(in_top, tl.cast(k1, tl.int64), tl.cast(k2, tl.int64))
    index = tl.load(tl.where(in_top, top_ptr + place, random_ptr + place), mask=mask, other=0) - at
    mask = mask & (index < TILE)
    value = tl.load(values_ptr + tl.where(in_top, place, place + k1), mask=mask, other=0).to(WORK)
    if FORM != REFRESH:
        if MANY_SCALES:
            weight = tl.load(scales_ptr + place, mask=mask & (in_top == 0), other=1).to(WORK)
        else:
            weight = tl.where(in_top, tl.cast(1, WORK), scale)
        value = value * weight
    if FORM == RECURSIVE:
        value += tl.load(v_ptr + index, mask=mask, other=0).to(WORK)
    else:
        value += tl.load(anchor_ptr + index, mask=mask, other=0).to(WORK)
    new = value.to(dtype)
    bad = tl.zeros([TILE], dtype=tl.int32)
    if FORM == ANCHORED:
        # Dense stores in between: after all loads of the old, before the stores of the selected.
        chosen = tl.load(memory_ptr + index, mask=mask, other=0).to(WORK)
        chosen = _blend(chosen, new.to(WORK), decay).to(dtype)
        tl.debug_barrier()
        tl.store(v_ptr + lanes, v, mask=inside)
        tl.store(memory_ptr + lanes, _blend(memory.to(WORK), v.to(WORK), decay).to(dtype), mask=inside)
        tl.debug_barrier()
        tl.store(v_ptr + index, new, mask=mask)
        tl.store(memory_ptr + index, chosen, mask=mask)
        bad += tl.max((_finite(new, WORK) == 0).to(tl.int32), axis=0)
    else:
        tl.store(v_ptr + index, new, mask=mask)
        tl.debug_barrier()
        v = tl.load(v_ptr + lanes) if FULL else tl.load(v_ptr + lanes, mask=inside, other=0)
        tl.store(memory_ptr + lanes, _blend(memory.to(WORK), v.to(WORK), decay).to(dtype), mask=inside)
    bad += (_finite(v, WORK) == 0).to(tl.int32)
    used = tl.sum(tl.where(in_top, 1, 65536) * mask.to(tl.int32), axis=0)
    return used & 0xFFFF, used >> 16, bad


@triton.jit(do_not_specialize=["d", "k1", "k2", "tiles", "mark", "scale_high", "scale_low", "decay_high", "decay_low"])
def advance(
    v_ptr, anchor_ptr, memory_ptr, top_ptr, random_ptr, values_ptr, scales_ptr, flag_ptr, d, k1, k2, tiles, mark,
    scale_high, scale_low, decay_high, decay_low, FORM: tl.constexpr, MANY_SCALES: tl.constexpr,
    WORK: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """v on the selection (ANCHORED: everywhere), M := decay |v| + (1 - decay) M, and is v finite?

    Each program takes a run of neighbouring tiles and walks along the two lists, which ascend. It looks at CHUNK
    entries of each for a tile; where a tile has more, and at the end of v, it takes the tile in small parts.
    """
    pid = tl.program_id(0)
    begin = tl.cast(tiles, tl.int64) * pid // tl.num_programs(0)
    end = tl.cast(tiles, tl.int64) * (pid + 1) // tl.num_programs(0)
    decay = _number(decay_high, decay_low, WORK)
    scale = _number(scale_high, scale_low, WORK)
    seen1, seen2 = _find(top_ptr, random_ptr, k1, k2, begin * TILE, 1024)
    far1 = tl.cast(k1, tl.int64) - CHUNK
    far2 = tl.cast(k2, tl.int64) - CHUNK
    bad = tl.zeros([TILE], dtype=tl.int32)
    for tile in range(begin, end):
        at = tl.cast(tile, tl.int64) * TILE
        # If the entry after the next CHUNK is within the tile, CHUNK of them are too few.
        next1 = tl.load(top_ptr + seen1 + CHUNK, mask=seen1 < far1, other=9223372036854775807)
        next2 = tl.load(random_ptr + seen2 + CHUNK, mask=seen2 < far2, other=9223372036854775807)
        if (tl.minimum(next1, next2) >= at + TILE) & (at + TILE <= d):
            used1, used2, found = _advance_tile(
                v_ptr, anchor_ptr, memory_ptr, top_ptr, random_ptr, values_ptr, scales_ptr, at, d, k1, k2,
                seen1, seen2, scale, decay, FORM, MANY_SCALES, WORK, TILE, CHUNK, True,
            )  # fmt: skip
            seen1 += used1
            seen2 += used2
            bad |= found
        else:
            for part in range(0, TILE, PART):
                used1, used2, found = _advance_tile(
                    v_ptr, anchor_ptr, memory_ptr, top_ptr, random_ptr, values_ptr, scales_ptr, at + part, d, k1, k2,
                    seen1, seen2, scale, decay, FORM, MANY_SCALES, WORK, PART, PART, False,
                )  # fmt: skip
                seen1 += used1
                seen2 += used2
                bad |= tl.max(found, axis=0)
    tl.atomic_max(flag_ptr, tl.cast(mark, tl.int64), mask=tl.max(bad, axis=0) > 0, sem="relaxed")
