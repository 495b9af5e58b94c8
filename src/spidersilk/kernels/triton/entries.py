"""Triton kernels for single entries of weights and their gradients, and their launches.

One launch goes over the copied parts of many weights: a table on the device has a row for each, with addresses and
sizes; another says for each tile of values which part it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from spidersilk.kernels.interface import Entries
from spidersilk.kernels.plain import is_grouped
from spidersilk.kernels.triton.launch import ceil_div, launch

TILE = 1024
ROWS, ACROSS = 16, 128  # of a tile of groups


@triton.jit(do_not_specialize=["k"])
def take(vector_ptr, indices_ptr, out_ptr, k, ADD: tl.constexpr, TILE: tl.constexpr):
    """out := (or +=) the vector's entries at the indices."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = place < k
    index = tl.load(indices_ptr + place, mask=mask, other=0).to(tl.int64)
    value = tl.load(vector_ptr + index, mask=mask, other=0).to(out_ptr.dtype.element_ty)
    if ADD:
        value += tl.load(out_ptr + place, mask=mask, other=0)
    tl.store(out_ptr + place, value, mask=mask)


@triton.jit(do_not_specialize=["outer", "k", "stride", "step"])
def take_groups(
    source_ptr, indices_ptr, out_ptr, outer, k, stride, step, ADD: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """out[row, place] := (or +=) source[row, indices[place]]; both steps of the source are in entries."""
    across = tl.cdiv(k, TILE)
    place = tl.program_id(0) % across * TILE + tl.arange(0, TILE)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = tl.load(indices_ptr + place, mask=place < k, other=0).to(tl.int64)
    mask = (row < outer)[:, None] & (place < k)[None, :]
    value = tl.load(source_ptr + row[:, None] * stride + index[None, :] * step, mask=mask, other=0)
    out = out_ptr + row[:, None] * k + place[None, :]
    value = value.to(out_ptr.dtype.element_ty)
    if ADD:
        value += tl.load(out, mask=mask, other=0)
    tl.store(out, value, mask=mask)


@triton.jit(do_not_specialize=["k_old", "k"])
def find(old_ptr, new_ptr, place_ptr, k_old, k, STEPS: tl.constexpr, TILE: tl.constexpr):
    """For each new index its place among the old ones, -1 if it is not there; both ascend."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < k
    wanted = tl.load(new_ptr + at, mask=mask, other=0)
    low = tl.zeros([TILE], dtype=tl.int32)
    high = low + k_old
    for _ in range(STEPS):
        middle = (low + high) // 2
        below = (middle < high) & (tl.load(old_ptr + middle, mask=mask & (middle < k_old), other=0) < wanted)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    there = mask & (low < k_old)
    found = there & (tl.load(old_ptr + low, mask=there, other=0) == wanted)
    tl.store(place_ptr + at, tl.where(found, low, -1), mask=mask)


@triton.jit(do_not_specialize=["k"])
def bring(place_ptr, value_ptr, entering_ptr, out_ptr, k, ONE: tl.constexpr, TILE: tl.constexpr):
    """out := the value at its place, or what is entering (ONE number for all) where the place is -1."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < k
    place = tl.load(place_ptr + at, mask=mask, other=-1)
    stays = place >= 0
    value = tl.load(value_ptr + place, mask=mask & stays, other=0)
    other = tl.load(entering_ptr) if ONE else tl.load(entering_ptr + at, mask=mask & ~stays, other=0)
    tl.store(out_ptr + at, tl.where(stays, value, other), mask=mask)


COLUMNS: tl.constexpr = tl.constexpr(9)  # of a table that says where copies come from


@triton.jit
def origin(row, start, lanes, mask, indices_ptr, GROUPED: tl.constexpr):
    """Where in its weight each value of a tile of a copy comes from, in entries from the weight's beginning.

    A row of the table has the weight's address, that of the indices, the copy's, how many values that has; and if these
    are groups: how many are selected, entries inside, and three strides of the weight.
    """
    indices = tl.load(row + 1).to(indices_ptr.dtype)
    if GROUPED:
        within, inner = tl.load(row + 4), tl.load(row + 5)
        # Each tile divides in 64 bits once, and its lanes in 32, which is far cheaper.
        place = (start % inner).to(tl.int32) + lanes
        group = (start // inner % within).to(tl.int32) + place // inner.to(tl.int32)
        outside = start // inner // within + group // within.to(tl.int32)
        index = tl.load(indices + group % within.to(tl.int32), mask=mask, other=0).to(tl.int64)
        inside = (place % inner.to(tl.int32)).to(tl.int64)
        at = outside * tl.load(row + 6) + index * tl.load(row + 7) + inside * tl.load(row + 8)
    else:
        at = tl.load(indices + start + lanes, mask=mask, other=0).to(tl.int64)
    return at


@triton.jit
def through(
    tiles_ptr, table_ptr, weight_ptr, indices_ptr, master_ptr, WRITE: tl.constexpr, GROUPED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Write masters to weights; or let masters that are not what the weights hold, rounded, become that.

    The last three pointers say which dtypes there are.
    """
    row = table_ptr + COLUMNS * tl.load(tiles_ptr + 2 * tl.program_id(0))
    start, lanes = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1), tl.arange(0, TILE)
    place = start + lanes
    mask = place < tl.load(row + 3)
    entry = tl.load(row).to(weight_ptr.dtype) + origin(row, start, lanes, mask, indices_ptr, GROUPED)
    masters = tl.load(row + 2).to(master_ptr.dtype) + place
    master = tl.load(masters, mask=mask, other=0)
    rounded = master.to(weight_ptr.dtype.element_ty)
    if WRITE:
        tl.store(entry, rounded, mask=mask)
    else:
        held = tl.load(entry, mask=mask, other=0)
        tl.store(masters, held.to(master_ptr.dtype.element_ty), mask=mask & (rounded != held))


def take_entries(vector: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
    k = indices.numel()
    if k:
        key = ("take", k, vector.dtype, indices.dtype, out.dtype, add, vector.get_device())
        launch(key, take, ceil_div(k, TILE), (vector, indices, out), (k,), lambda: {"ADD": add, "TILE": TILE})


def take_single_groups(source: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
    """Of [outer, groups, 1]; `out` is contiguous."""
    outer, k, _ = out.shape
    if out.numel():
        grid = ceil_div(outer, ROWS) * ceil_div(k, ACROSS)
        numbers = outer, k, source.stride(0), source.stride(1)
        far = tuple(number >= 2**31 for number in numbers)
        key = ("take_groups", grid, source.dtype, indices.dtype, out.dtype, add, far, source.get_device())
        options = {"ADD": add, "ROWS": ROWS, "TILE": ACROSS}
        launch(key, take_groups, grid, (source, indices, out), numbers, lambda: options)


def carry_values(old: Tensor, new: Tensor, values: Sequence[Tensor], entering: Sequence[Tensor]) -> list[Tensor]:
    k, device = new.numel(), new.get_device()
    place = torch.empty(k, dtype=torch.int32, device=new.device)
    steps = old.numel().bit_length()
    key = ("find", old.numel(), k, old.dtype, device)
    options = {"STEPS": steps, "TILE": TILE}
    launch(key, find, ceil_div(k, TILE), (old, new, place), (old.numel(), k), lambda: options)
    brought = []
    for value, other in zip(values, entering, strict=True):
        out = torch.empty_like(value)
        one = other.numel() == 1 and k != 1
        key = ("bring", k, value.dtype, other.dtype, one, device)
        options = {"ONE": one, "TILE": TILE}
        launch(key, bring, ceil_div(k, TILE), (place, value, other, out), (k,), lambda given=options: given)
        brought.append(out)
    return brought


def tiles_of(sizes: Sequence[int], tile: int) -> np.ndarray:
    """For each tile of vectors of these sizes: which vector it is of, and where it begins there."""
    tiles = -(-np.array(sizes) // tile)
    numbers = np.repeat(np.arange(len(tiles)), tiles)
    starts = (np.arange(len(numbers)) - (np.cumsum(tiles) - tiles)[numbers]) * tile
    return np.stack([numbers, starts], 1)


Kinds = tuple[torch.dtype, torch.dtype, torch.dtype, bool]


def dtypes_of(part: Entries) -> Kinds:
    """Of weight, indices and master, and whether they are groups: parts with the same can share a table."""
    return part.weight.dtype, part.indices.dtype, part.master.dtype, is_grouped(part.master)


class Table:
    """A table with a row for each of many parts of one kind, and for each tile of values which row it is of.

    It holds addresses and no tensors, or those that nobody else needs any more would stay. In each row the fourth entry
    is the number of values; what else is in it is the kernels' affair.
    """

    def __init__(self, rows: list[list[int]], kinds: Kinds, device: torch.device):
        self.given, self.kinds, self.tile = rows, kinds, TILE
        self.rows = torch.tensor(rows, dtype=torch.int64).to(device)
        self.tiles = torch.from_numpy(tiles_of([row[3] for row in rows], TILE)).to(device)
        self.like = tuple(torch.empty(0, dtype=dtype, device=device) for dtype in kinds[:3])


def pass_through(table: Table, write: bool) -> None:
    """See `through`; the rows are those of `row_of`."""
    programs = len(table.tiles)
    if programs:
        key = "through", write, programs, table.kinds, table.rows.get_device()
        options = {"WRITE": write, "GROUPED": table.kinds[3], "TILE": table.tile}
        launch(key, through, programs, (table.tiles, table.rows, *table.like), (), lambda: options)


def row_of(part: Entries) -> list[int]:
    """Of a table; see `origin`."""
    weight, indices, master = part
    row = [weight.data_ptr(), indices.data_ptr(), master.data_ptr(), master.numel()]
    return [*row, *master.shape[1:], *weight.stride()] if is_grouped(master) else [*row, 0, 0, 0, 0, 0]
