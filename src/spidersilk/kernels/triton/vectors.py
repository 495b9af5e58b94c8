"""Updates, gathers and scatters on CUDA from the host's side: which kernels are launched, on which sizes.

Tensors are contiguous and of float64, float32, float16 or bfloat16. Nothing here waits for the device, so a CUDA graph
can hold every call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton.language as tl
from torch import Tensor

from spidersilk.kernels.triton import flat as triton_flat
from spidersilk.kernels.triton import update as triton_update
from spidersilk.kernels.triton.launch import ceil_div, launch, power_of_two

ADVANCE_TILE, ADVANCE_WARPS, ADVANCE_PROGRAMS, ADVANCE_REGISTERS = 2048, 8, 528, 64  # coordinates, of a program
MOVE_TILE, MOVE_WARPS = 4096, 8  # of `move`
BLOCK = 1024  # selected coordinates for each program

_FORMS = {form: getattr(triton_update, form.upper()).value for form in ("recursive", "anchored", "refresh")}


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
    "anchored": v := v_anchor everywhere, plus w value on the selection.
    "refresh": v := v_anchor + value on the selection.
    Where v is not finite, flag (int64, one entry) becomes the larger of itself and `mark`, which is at least 2^31: with
    a mark that falls from step to step it tells the first bad one.
    """
    assert v_anchor is not None or form == "recursive"
    d, k1, k2, tile = v.numel(), top.numel(), random.numel(), ADVANCE_TILE
    number, scales = (1.0, scale) if isinstance(scale, Tensor) else (float(scale), values)
    tiles = ceil_div(d, tile)
    grid = min(tiles, ADVANCE_PROGRAMS)
    many = isinstance(scale, Tensor)
    kind = (v.dtype, values.dtype, v.get_device(), scales.dtype, form, many)
    launch(
        ("advance", d, k1, k2, tile, grid, ADVANCE_WARPS, ADVANCE_REGISTERS, kind),
        triton_update.advance,
        grid,
        (v, v if v_anchor is None else v_anchor, memory, top, random, values, scales, flag),
        (d, k1, k2, tiles, mark, *_parts(number), *_parts(decay)),
        lambda: {
            "FORM": _FORMS[form],
            "MANY_SCALES": many,
            "WORK": _work(v),
            "TILE": tile,
            "CHUNK": min(max(power_of_two(int(1.5 * tile * max(k1, k2) / d) + 8), 16), tile),
            "PART": min(256, tile),
            "num_warps": ADVANCE_WARPS,
            "maxnreg": ADVANCE_REGISTERS if v.dtype != torch.float64 else None,
        },
    )


class FlatTensors:
    """Tensors of one device and dtype, each contiguous, seen as one vector of length d; None stands for zeros.

    `sizes` are their numbers of entries. Made outside of a graph: it copies from the host.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device | str):
        self.sizes, self.d, self.count = list(sizes), sum(sizes), len(sizes)
        self.padded = power_of_two(max(self.count, 2))
        starts = [0, *accumulate(sizes)]
        tiles = [0, *accumulate(ceil_div(size, MOVE_TILE) for size in sizes)]
        self.tiles, self.tile = tiles[-1], MOVE_TILE
        padding = [(1 << 63) - 1] * (self.padded - self.count)
        table = [starts[:-1] + padding, tiles[:-1] + padding, self.sizes + [0] * len(padding)]
        self.starts, self.first_tiles, self.tensor_sizes = torch.tensor(table, dtype=torch.int64).to(device).unbind(0)
        self._addresses = torch.zeros(self.padded, dtype=torch.int64, device=device)
        self._known: list[int] = []

    def table(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The addresses of these tensors on the device; the caller keeps them alive while the table is in use.

        It is written only if an address changed since the last call; within the capture of a graph always, to a table
        of the graph's own.
        """
        addresses = []
        for tensor, size in zip(tensors, self.sizes, strict=True):
            if tensor is not None and (tensor.numel() != size or not tensor.is_contiguous()):
                raise ValueError(f"a tensor of shape {tuple(tensor.shape)} must be contiguous and have {size} entries")
            addresses.append(0 if tensor is None else tensor.data_ptr())
        if self._addresses.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._write(torch.zeros_like(self._addresses), addresses)
        if addresses != self._known:
            self._known = addresses
            self._write(self._addresses, addresses)
        return self._addresses

    def _write(self, table: Tensor, addresses: list[int]) -> Tensor:
        for at in range(0, self.count, 32):
            part = addresses[at : at + 32]
            key = ("fill", len(part), table.get_device())
            launch(key, triton_flat.fill_table, 1, (table[at:],), (len(part), *part, *[0] * (32 - len(part))), dict)
        return table


def transfer(flat: FlatTensors, table: Tensor, indices: Tensor, values: Tensor, write: bool) -> None:
    """values := the entries of the tensors at `indices` (any order); with `write` the reverse, for distinct indices."""
    k, padded = indices.numel(), flat.padded
    if k:
        launch(
            ("transfer", write, k, padded, values.dtype, values.get_device(), BLOCK),
            triton_flat.transfer,
            ceil_div(k, BLOCK),
            (table, flat.starts, indices, values),
            (k,),
            lambda: {"WRITE": write, "TENSORS": padded, "LOG": padded.bit_length() - 1, "BLOCK": BLOCK},
        )


def move(x: FlatTensors, table: Tensor, gradient: Tensor, v: Tensor, rate: float, flag: Tensor) -> None:
    """x -= rate v, and `gradient`, a vector, := v. Where flag (int64, one entry) is not 0, x stays and it is 0."""
    if x.tiles:
        launch(
            ("move", x.tiles, x.padded, x.tile, v.dtype, v.get_device()),
            triton_flat.move,
            x.tiles,
            (table, x.starts, x.tensor_sizes, x.first_tiles, gradient, v, flag),
            _parts(rate),
            lambda: {"TENSORS": x.padded, "WORK": _work(v), "TILE": x.tile, "num_warps": MOVE_WARPS},
        )


def _work(tensor: Tensor) -> tl.dtype:
    """The dtype to compute in."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def _parts(value: float) -> tuple[float, float]:
    """The value as a sum of two float32, which is how a kernel takes it."""
    high = struct.unpack("f", struct.pack("f", value))[0]
    return high, value - high
