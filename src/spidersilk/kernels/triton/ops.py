"""The flat-vector operations as Triton kernels: CUDA tensors, contiguous, of float64, float32, float16 or bfloat16.

Nothing here waits for the device and no output's size depends on data, so a CUDA graph can hold every call. Scratch
comes from torch's allocator at each call: inside a capture that is the graph's own pool, so nothing is shared.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from spidersilk.kernels.triton import draw as triton_draw
from spidersilk.kernels.triton import pieces as triton_pieces
from spidersilk.kernels.triton import sample as triton_sample
from spidersilk.kernels.triton import select as triton_select
from spidersilk.kernels.triton import update as triton_update
from spidersilk.kernels.triton import write as triton_write
from spidersilk.kernels.triton.launch import launch

TILE = 1024  # coordinates that a program of `select` handles at a time; a power of two, 64 ... 16,384
WARPS = 4  # of such a program
BITS = 128  # 32 coordinates each that a program handles at a time in the passes that work with bitmaps
PROGRAMS = 924  # of a pass of `select`, at most 2047: 7 for each multiprocessor of an H200
REGISTERS: int | None = None  # at most for each thread; None: no limit. For float64 there is none
ADVANCE_TILE, ADVANCE_WARPS, ADVANCE_PROGRAMS, ADVANCE_REGISTERS = 2048, 8, 528, 64  # the same of `advance`
MOVE_TILE, MOVE_WARPS = 4096, 8  # of `move`
BLOCK = 1024  # selected coordinates for each program
SAMPLES = (4096, 1024)  # keys that guess the threshold: alone, and before a large sample
OWN = 16  # of them ranked by each program
SPREAD = 8.0  # standard deviations of the number of coordinates drawn that its bounds allow for
LARGE = (64, 1 << 15, 1 << 20)  # the large sample: one key of so many, a power of two; none below the second; at most
CLEAR = 4096  # words of scratch that a program clears at a time

_FORMS = {
    "recursive": triton_update.RECURSIVE.value,
    "anchored": triton_update.ANCHORED.value,
    "refresh": triton_update.REFRESH.value,
}
_WHOLE = (
    triton_sample.SIDE0.value * (triton_sample.SIDE0.value + 1),
    triton_sample.SIDE.value * (triton_sample.SIDE.value + 1),
)


def make_counter(seed: int, position: int, device: torch.device | str) -> Tensor:
    """[seed, position] for `select`. Copies from the host: make it once, outside of a graph."""
    return torch.tensor([seed, position], dtype=torch.int64, device=device)


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
    big, tiles, many_tiles = d >= 1 << 31, _ceil(d, tile), _ceil(d, 32 * bits)
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
    grid = sample // OWN + min(_ceil(cleared, CLEAR), PROGRAMS)
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
    index_bits, own = (d - 1).bit_length(), min(bins, 16)
    assert index_bits + span.bit_length() < 64
    numbers = (d, many_tiles, sure, span, shift, index_bits)
    steps.append(_Step(triton_draw.draw, runs, numbers, LEVELS=levels, DRAWS=k2 > 0, **where, **common))
    if k2:
        numbers = (runs, many_tiles, k2, index_bits)
        steps.append(_Step(triton_draw.settle, bins // own, numbers, OWN=own, num_warps=8, **where))
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
    return sure, span, shift, _power((span >> shift) + 1)


def advance(
    v: Tensor,
    v_anchor: Tensor | None,
    memory: Tensor,
    top: Tensor,
    random: Tensor,
    values: Tensor,
    scale: float | Tensor,
    decay: float,
    form: str,
    flag: Tensor,
    mark: int,
) -> None:
    """Update v on the selection and M everywhere, M := decay |v| + (1 - decay) M, in place.

    `top` and `random` ascend and are disjoint, as `select` leaves them. `values` are those of `top`, then those of
    `random`; w is 1 on the top part and `scale` (one, or one for each random coordinate) on the other. By `form`:
    "recursive": v += w value on the selection.
    "anchored": v := v_anchor everywhere (0 if None), plus w value on the selection.
    "refresh": v := v_anchor + value on the selection (0 if None).
    Where v is not finite, flag (int64, one entry) becomes the larger of itself and `mark`, which is at least 2^31: with
    a mark that falls from step to step it tells the first bad one.
    """
    d, k1, k2, tile = v.numel(), top.numel(), random.numel(), ADVANCE_TILE
    number, scales = (1.0, scale) if isinstance(scale, Tensor) else (float(scale), values)
    tiles = -(-d // tile)
    grid = min(tiles, ADVANCE_PROGRAMS)
    many = isinstance(scale, Tensor)
    kind = (v.dtype, values.dtype, v.get_device(), scales.dtype, form, v_anchor is None, many)
    launch(
        ("advance", d, k1, k2, tile, grid, ADVANCE_WARPS, ADVANCE_REGISTERS, kind),
        triton_update.advance,
        grid,
        (v, v if v_anchor is None else v_anchor, memory, top, random, values, scales, flag),
        (d, k1, k2, tiles, mark, *_parts(number), *_parts(decay)),
        lambda: {
            "FORM": _FORMS[form],
            "HAS_ANCHOR": v_anchor is not None,
            "MANY_SCALES": many,
            "WORK": _work(v),
            "TILE": tile,
            "CHUNK": min(max(_power(int(1.5 * tile * max(k1, k2) / d) + 8), 16), tile),
            "PART": min(256, tile),
            "num_warps": ADVANCE_WARPS,
            "maxnreg": ADVANCE_REGISTERS if v.dtype != torch.float64 else None,
        },
    )


class Pieces:
    """Tensors of one device and dtype, each contiguous, seen as one vector of length d; None stands for zeros.

    `sizes` are their numbers of entries. Made outside of a graph: it copies from the host.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device | str):
        self.sizes, self.d, self.count = list(sizes), sum(sizes), len(sizes)
        self.padded = _power(max(self.count, 2))
        starts, tiles = [0], [0]
        for size in sizes:
            starts.append(starts[-1] + size)
            tiles.append(tiles[-1] + _ceil(size, MOVE_TILE))
        self.tiles, self.tile = tiles[-1], MOVE_TILE
        padding = [(1 << 63) - 1] * (self.padded - self.count)
        table = torch.tensor(
            [starts[:-1] + padding, tiles[:-1] + padding, self.sizes + [0] * len(padding)], dtype=torch.int64
        ).to(device)
        self.starts, self.first_tiles, self.piece_sizes = table.unbind(0)
        self._addresses = torch.zeros(self.padded, dtype=torch.int64, device=device)
        self._held: list[int] = []

    def table(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The addresses of these tensors on the device; the caller keeps them alive while the table is in use.

        It is written only if an address changed since the last call; within the capture of a graph always, to a table
        of the graph's own.
        """
        held = []
        for tensor, size in zip(tensors, self.sizes, strict=True):
            if tensor is not None and (tensor.numel() != size or not tensor.is_contiguous()):
                raise ValueError(f"a piece of shape {tuple(tensor.shape)} must be contiguous and have {size} entries")
            held.append(0 if tensor is None else tensor.data_ptr())
        if self._addresses.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._write(torch.zeros_like(self._addresses), held)
        if held != self._held:
            self._held = held
            self._write(self._addresses, held)
        return self._addresses

    def _write(self, table: Tensor, addresses: list[int]) -> Tensor:
        for at in range(0, self.count, 32):
            part = addresses[at : at + 32]
            key = ("fill", len(part), table.get_device())
            launch(key, triton_pieces.fill_table, 1, (table[at:],), (len(part), *part, *[0] * (32 - len(part))), dict)
        return table


def gather(pieces: Pieces, table: Tensor, indices: Tensor, out: Tensor) -> Tensor:
    """out := the entries of the pieces at `indices` (any order). Returns out."""
    _over(triton_pieces.gather, (table, pieces.starts, indices, out), out, indices, None, pieces)
    return out


def scatter(pieces: Pieces, table: Tensor, indices: Tensor, values: Tensor) -> None:
    """The entries of the pieces at `indices`, distinct ones, := values."""
    tensors = (table, pieces.starts, indices, values)
    _over(triton_pieces.scatter, tensors, values, indices, None, pieces)


def move(x: Pieces, table: Tensor, gradient: Tensor | None, v: Tensor, lr: float | Tensor, flag: Tensor) -> None:
    """x -= lr v, and `gradient`, a vector, := v. Where flag (int64, one entry) is not 0, x stays and `gradient` is 0.

    lr is a float, or a tensor of one entry on the device, which a graph reads anew at each replay.
    """
    number, rate = (0.0, lr) if isinstance(lr, Tensor) else (lr, v)
    if x.tiles:
        on_device = isinstance(lr, Tensor)
        launch(
            ("move", x.tiles, x.padded, x.tile, v.dtype, v.get_device(), rate.dtype, gradient is None, on_device),
            triton_pieces.move,
            x.tiles,
            (table, x.starts, x.piece_sizes, x.first_tiles, v if gradient is None else gradient, v, flag, rate),
            _parts(number),
            lambda: {
                "HAS_GRAD": gradient is not None,
                "RATE_ON_DEVICE": on_device,
                "PIECES": x.padded,
                "WORK": _work(v),
                "TILE": x.tile,
                "num_warps": MOVE_WARPS,
            },
        )


def add_at(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """target[indices] += values, for distinct indices."""
    _over(triton_update.write_at, (target, indices, values), target, indices, ("ADD", True))


def put_at(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """target[indices] = values, for distinct indices."""
    _over(triton_update.write_at, (target, indices, values), target, indices, ("ADD", False))


def blend_at(memory: Tensor, indices: Tensor, values: Tensor, decay: float) -> None:
    """memory = decay |value| + (1 - decay) memory at the indices."""
    _over(triton_update.blend_at, (memory, indices, values), memory, indices, None, None, _parts(decay))


def _over(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    like: Tensor,
    indices: Tensor,
    option: tuple[str, bool] | None,
    pieces: Pieces | None = None,
    numbers: tuple[float, ...] = (),
) -> None:
    """Launch a kernel over the entries of `indices`, for numbers of the dtype of `like`."""
    k, padded = indices.numel(), 0 if pieces is None else pieces.padded
    if k:
        launch(
            (id(kernel), k, padded, option, like.dtype, tensors[-1].dtype, like.get_device(), BLOCK),
            kernel,
            -(-k // BLOCK),
            tensors,
            (k, *numbers),
            lambda: {
                **({"PIECES": padded, "LOG": padded.bit_length() - 1} if padded else {"WORK": _work(like)}),
                **dict([option] if option else []),
                "BLOCK": BLOCK,
            },
        )


def _ceil(n: int, size: int) -> int:
    return -(-n // size)


def _power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _work(tensor: Tensor) -> tl.dtype:
    """The dtype to compute in."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def _parts(value: float) -> tuple[float, float]:
    """The value as a sum of two float32, which is how a kernel takes it."""
    high = struct.unpack("f", struct.pack("f", value))[0]
    return high, value - high
