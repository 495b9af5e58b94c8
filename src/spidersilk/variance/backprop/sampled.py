"""Wanted entries of a product left^T right: by dot products, or from tiles of it that are never all in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spidersilk.variance.backprop import timing
from spidersilk.variance.backprop.wanted import Part

TILE = 1 << 18  # entries of a tile: it should stay in a cache while it is read


def case_of(part: Part, n: int, like: Tensor) -> Hashable:
    """What the fastest way depends on: the sizes of the product (n, rows, width), how many entries, and where."""
    return "entries", n, part.shape, like.dtype, like.device.type, timing.level(part.density)


def add_entries(part: Part, left: Tensor, right: Tensor, sign: float, into: Tensor) -> None:
    """into += sign times the wanted entries of left^T right; left is (n, rows), right (n, width)."""
    if left.shape[0] == 0:
        return
    ways: dict[str, Callable[[], None]] = {"whole": lambda: _whole(part, left, right, sign, into)}
    if left.device.type == "cpu" and left.dtype in (torch.float32, torch.float64):
        ways["tiles"] = lambda: _tiles(part, left, right, sign, into)
        ways["dots"] = lambda: _dots(part, left, right, sign, into)
    timing.run(case_of(part, left.shape[0], left), ways, left.device)


def _whole(part: Part, left: Tensor, right: Tensor, sign: float, into: Tensor) -> None:
    into.add_((left.t() @ right).reshape(-1).index_select(0, part.local), alpha=sign)


def _dots(part: Part, left: Tensor, right: Tensor, sign: float, into: Tensor) -> None:
    columns, others = left.t().contiguous().numpy(), right.t().contiguous().numpy()
    top = part.top.numel()
    for places, out in ((part.top, into[:top]), (part.random, into[top:])):
        if places.numel():
            _kernels().dots(columns, others, places.numpy(), part.begin, columns.dtype.type(sign), out.numpy())


def _tiles(part: Part, left: Tensor, right: Tensor, sign: float, into: Tensor) -> None:
    width, top = part.width, part.top.numel()
    height = max(min(TILE // width, left.shape[1]), 1)
    tile = torch.empty(height, width, dtype=left.dtype)
    lists = [(part.top.numpy(), into[:top].numpy(), 0), (part.random.numpy(), into[top:].numpy(), 0)]
    lists = [entry for entry in lists if entry[0].size]
    sign = tile.numpy().dtype.type(sign)
    for row in range(0, left.shape[1], height):
        stop = min(row + height, left.shape[1])
        begin, end = part.begin + row * width, part.begin + stop * width
        if all(done == places.size or places[done] >= end for places, _, done in lists):
            continue
        block = tile[: stop - row]
        torch.mm(left[:, row:stop].t(), right, out=block)
        flat = block.view(-1).numpy()
        lists = [
            (places, out, _kernels().read_tile(flat, places, done, begin, sign, out)) for places, out, done in lists
        ]


def add_shifted(part: Part, left: Tensor, right: Tensor, shifts: list[int], into: Tensor) -> None:
    """into += the wanted entries of the weight gradient of a convolution of stride 1, by dot products.

    left is (output channels, the wanted ones if `part` has rows; n), right (input channels, n + the largest shift):
    images one after the other, each row of an image as long in both, with zeros in left where there is no output. A tap
    of the kernel is a shift of right.
    """
    lists = [(part.top, into[: part.tops]), (part.random, into[part.tops :])]
    if part.rows is not None:
        lists = [(torch.arange(part.begin, part.begin + part.count), into)]
    one, moves = left.numpy().dtype.type(1), np.array(shifts, np.int64)
    for places, out in lists:
        if places.numel():
            arrays = left.numpy(), right.numpy(), places.numpy()
            _kernels().shifted_dots(*arrays, part.begin, len(shifts), moves, one, out.numpy())


@cache
def _kernels() -> Any:
    from spidersilk.kernels.numba import products as numba_products  # not before it is needed: the import takes a while

    return numba_products
