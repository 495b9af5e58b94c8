"""Selection on CUDA from the host's side: which kernels are launched, on which sizes.

Nothing here waits for the device and no output's size depends on data, so a CUDA graph can hold every call. Scratch
comes from torch's allocator at each call: inside a capture that is the graph's own pool, so nothing is shared.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from spidersilk.kernels.triton import draw as triton_draw
from spidersilk.kernels.triton import sample as triton_sample
from spidersilk.kernels.triton import select as triton_select
from spidersilk.kernels.triton import settle as triton_settle
from spidersilk.kernels.triton import write as triton_write
from spidersilk.kernels.triton.launch import ceil_div, launch, power_of_two

TILE = 1024  # coordinates that a program of `select` handles at a time; a power of two, 64 ... 16,384
WARPS = 4  # of such a program
BITS = 128  # 32 coordinates each that a program handles at a time in the passes that work with bitmaps
PROGRAMS = 924  # of a pass of `select`, at most 2047: 7 for each multiprocessor of an H200
REGISTERS: int | None = None  # at most for each thread; None: no limit. For float64 there is none
SAMPLES = (4096, 1024)  # keys that guess the threshold: alone, and before a large sample
OWN = 16  # of them ranked by each program
SPREAD = 8.0  # standard deviations of the number of coordinates drawn that its bounds allow for
LARGE = (64, 1 << 15, 1 << 20)  # the large sample: one key of so many, a power of two; none below the second; at most
CLEAR = 4096  # words of scratch that a program clears at a time

_WHOLE = tuple(side.value * (side.value + 1) for side in (triton_sample.SIDE0, triton_sample.SIDE))


def make_counter(seed: int, position: int, device: torch.device | str) -> Tensor:
    """[seed, position] for `select`. Copies from the host: make it once, outside of a graph."""
    return torch.tensor([seed, position], dtype=torch.int64).to(device, non_blocking=True)


def select(memory: Tensor, k1: int, k2: int, counter: Tensor) -> tuple[Tensor, Tensor]:
    """The k1 largest of |memory| (ties: lower index first), and k2 uniformly from the others; both ascending.

    The draw depends on `counter`, [seed, position] on the device, and on nothing else; it moves position on by one.

    The threshold of the top part is found exactly by counting keys in bins, each level within the bin that the last one
    left; samples guess where to begin, so that usually one level does all the work and few keys are counted one by one.
    """
    device = memory.device
    if k1 + k2 == 0:
        return counter[:0], counter[:0]
    tuning = (TILE, WARPS, PROGRAMS, BITS, SAMPLES, LARGE, REGISTERS, SPREAD)
    words, steps = _plan(memory.numel(), k1, k2, memory.dtype, device.index, tuning)
    scratch = torch.empty(words, dtype=torch.int64, device=device)
    out = torch.empty(k1 + k2, dtype=torch.int64, device=device)
    for step in steps:
        third = out if step.last else counter
        launch(step, step.kernel, step.grid, (memory, scratch, third), step.numbers, step.given)
    return out[:k1], out[k1:]


class _Step:
    """One launch of a selection. Its identity is the key under which the compiled kernel is kept."""

    def __init__(self, kernel: Any, grid: int, numbers: tuple[int, ...], last: bool = False, **options: Any):
        self.kernel, self.grid, self.numbers, self.last = kernel, grid, numbers, last
        self.given = lambda: options


@functools.cache
def _plan(
    d: int, k1: int, k2: int, dtype: torch.dtype, device: int | None, tuning: tuple[Any, ...]
) -> tuple[int, tuple[_Step, ...]]:
    """The words of scratch that a selection needs, and its launches."""
    tile, warps, most_programs, bits, samples, large, registers, spread = tuning
    width = 8 * dtype.itemsize - 1
    largest, levels = (1 << width) - 1, -(-width // 16) + 1
    big, tiles, many_tiles = d >= 1 << 31, ceil_div(d, tile), ceil_div(d, 32 * bits)
    entries = _WHOLE[0] + levels * _WHOLE[1]
    lists_at = triton_sample.TABLES.value + (entries if big else entries // 2)
    sure, span, shift, bins = _draw_bounds(d - k1, k2, spread)
    cleared = lists_at + (bins + 2) // 2
    bitmaps_at = cleared + bins * triton_draw.SLOTS.value + triton_draw.TIES.value
    most_programs = min(most_programs, triton_sample.ROW.value - 1)
    programs, runs = min(tiles, most_programs), min(many_tiles, most_programs)
    many = min(1 << max(d // large[0], 1).bit_length() - 1, large[2])
    refined = many >= large[1]
    sample = samples[1 if refined else 0]
    # Too high a bound costs one pass more; too low, a pass that counts nearly all keys one by one.
    small_ranks = _ranks(sample, k1, d, 6, 6) if refined else _ranks(sample, k1, d, 3, 5)
    common = {"MAX": largest, "num_warps": warps, "maxnreg": registers if width < 63 else None}
    options: dict[str, Any] = {"SAMPLE": sample, "OWN": OWN, "CHUNK": min(sample, 1024), "CLEAR": CLEAR, "MAX": largest}
    grid = sample // OWN + min(ceil_div(cleared, CLEAR), PROGRAMS)
    steps = [_Step(triton_sample.start, grid, (d, *small_ranks, cleared), num_warps=8, **options)]
    if refined:
        size = min(512, many)
        options = {"BLOCK": size, "SAMPLES": many, "MAX": largest, "BIG": big}
        ranks = _ranks(many, k1, d, 4, 5)
        steps.append(_Step(triton_sample.refine, many // size, (d, *ranks), num_warps=4, **options))
    options = {"BIG": big, "REFINED": refined, "WORDS": bits, **common}
    steps.append(_Step(triton_select.first_level, runs, (d, k1, many_tiles), **options))
    options = {"BIG": big, "TILE": tile, **common}
    steps += [_Step(triton_select.next_level, programs, (d,), LEVEL=level, **options) for level in range(1, levels)]
    steps.append(_Step(triton_draw.cut, programs, (d, tiles), LEVELS=levels, TILE=tile, **common))
    narrow = (many_tiles + 1) * runs < 1 << 31
    where = {"LISTS_AT": lists_at, "BITMAPS_AT": bitmaps_at, "BINS": bins, "WORDS": bits, "NARROW": narrow}
    index_bits, bins_each = (d - 1).bit_length(), min(bins, 16)
    assert index_bits + span.bit_length() < 64
    numbers = (d, many_tiles, sure, span, shift, index_bits)
    steps.append(_Step(triton_draw.draw, runs, numbers, LEVELS=levels, DRAWS=k2 > 0, **where, **common))
    if k2:
        numbers = (runs, many_tiles, k2, index_bits)
        steps.append(_Step(triton_settle.settle, bins // bins_each, numbers, OWN=bins_each, num_warps=8, **where))
    options = {"BITMAPS_AT": bitmaps_at, "WORDS": bits, "DRAWS": k2 > 0, "num_warps": warps}
    steps.append(_Step(triton_write.write, runs, (d, many_tiles, k1, k2), last=True, **options))
    return bitmaps_at + many_tiles * bits, tuple(steps)


def _ranks(sample: int, k1: int, d: int, up: float, down: float) -> tuple[int, int]:
    """Two ranks in a sample between which its (k1 / d)-quantile lies, but for so many standard deviations."""
    middle = sample * k1 / d
    spread = math.sqrt(max(middle * (1 - k1 / d), 1.0))
    return int(middle - up * spread) - 1 if middle > up * spread else -1, int(middle + down * spread) + 1


def _draw_bounds(n: int, k2: int, spread: float) -> tuple[int, int, int, int]:
    """Of n random numbers of 31 bits: up to where all are surely among the k2 smallest, and how many more to look at.

    Then how many low bits to drop for the bins of those, and how many bins: at most 16 numbers are expected in each.
    """
    if k2 in (0, n):
        return (1 << 31) - 1, 0, 0, 1
    margin = spread * (math.sqrt(k2 * (1 - k2 / n)) + 5)
    sure = max(math.floor((k2 - margin) / n * 2**31), 0) - 1
    most = min(math.ceil((k2 + margin) / n * 2**31), 1 << 31) - 1
    span = max(most - sure - 1, 0)
    shift = span.bit_length()
    while shift and n / 2**31 * (1 << shift) > 16:
        shift -= 1
    return sure, span, shift, power_of_two((span >> shift) + 1)
