"""Whole rows as the unit of selection: a draw of rows, expanded to the coordinates that they are made of.

A row is an index along the first dimension of a tensor of two or more dimensions: a row of a Linear weight or of an
embedding table, an output channel of a convolution. Each entry of a vector (a bias, a norm) is a row of length 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from spidersilk.kernels.interface import Kernels, Seed
from spidersilk.operator.counts import Count, counts_within
from spidersilk.operator.random_stream import mix

Shapes = Sequence[Sequence[int]]
"""The shapes of the tensors that a flat vector is made of, in order."""


@dataclass(frozen=True)
class PickedRows:
    """Rows of several tensors: `numbers`, ascending, count through the rows of all; `shapes` are (rows, length)."""

    numbers: Tensor
    shapes: tuple[tuple[int, int], ...]

    def split(self) -> tuple[Tensor, ...]:
        """For each tensor the indices of its picked rows, ascending. How many these are is data: it waits for CUDA."""
        ends = list(accumulate(rows for rows, _ in self.shapes))
        cuts = torch.searchsorted(self.numbers, torch.tensor([0, *ends], device=self.numbers.device)).tolist()
        firsts = [0, *ends[:-1]]
        return tuple(self.numbers[a:b] - first for a, b, first in zip(cuts, cuts[1:], firsts, strict=False))

    def between(self, start: int, stop: int, device: torch.device) -> PickedRows:
        """Those of the tensors that make up the coordinates [start, stop)."""
        begins = [0, *accumulate(rows * length for rows, length in self.shapes)]
        kept = [i for i, begin in enumerate(begins[:-1]) if start <= begin < stop]
        first = sum(rows for rows, _ in self.shapes[: kept[0]])
        shapes = self.shapes[kept[0] : kept[-1] + 1]
        inside = (self.numbers >= first) & (self.numbers < first + sum(rows for rows, _ in shapes))
        return PickedRows((self.numbers[inside] - first).to(device), shapes)

    def state_dict(self) -> dict[str, object]:
        return {"numbers": self.numbers, "shapes": [list(shape) for shape in self.shapes]}

    @classmethod
    def from_state_dict(cls, state: dict[str, object], device: torch.device) -> PickedRows:
        numbers, shapes = cast(Tensor, state["numbers"]), cast(list[list[int]], state["shapes"])
        return cls(numbers.to(device), tuple((rows, length) for rows, length in shapes))


@dataclass(frozen=True)
class RowClass:
    """Rows of one length, which one draw chooses among."""

    length: int
    pieces: list[tuple[int, int]]  # of the flat vector: where the rows of a tensor begin, and how many there are
    starts: Tensor  # of each row in the flat vector, ascending
    numbers: Tensor  # of each row among all rows

    @property
    def count(self) -> int:
        return self.starts.numel()

    def scores(self, memory: Tensor) -> Tensor:
        """The sum of |memory| over each row. Rows compared have one length: their means are in the same order."""
        dtype = torch.float32 if memory.dtype in (torch.float16, torch.bfloat16) else memory.dtype
        sums = [
            torch.linalg.vector_norm(memory[at : at + n * self.length].reshape(n, self.length), 1, dim=1, dtype=dtype)
            for at, n in self.pieces
        ]
        return (sums[0] if len(sums) == 1 else torch.cat(sums)).clamp(max=torch.finfo(dtype).max)


class RowLayout:
    """The rows of tensors with `shapes` in the flat vector of all their entries, in classes of equal length.

    A class has the rows of all tensors, or with `per_tensor` those of one.
    """

    def __init__(self, shapes: Shapes, device: torch.device, per_tensor: bool = False):
        self.shapes = tuple((s[0], math.prod(s[1:])) if len(s) > 1 else (math.prod(s), 1) for s in shapes)
        self.d = sum(rows * length for rows, length in self.shapes)
        by_length: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        at = number = 0
        for tensor, (rows, length) in enumerate(self.shapes):
            if rows * length:
                by_length[length, tensor if per_tensor else 0].append((at, number, rows))
            at, number = at + rows * length, number + rows
        self.classes = [
            RowClass(
                length,
                [(at, rows) for at, _, rows in parts],
                torch.cat([torch.arange(rows, device=device) * length + at for at, _, rows in parts]),
                torch.cat([torch.arange(rows, device=device) + number for _, number, rows in parts]),
            )
            for (length, _), parts in by_length.items()
        ]

    def counts(self, k1: Count, k2: Count) -> list[tuple[int, int]]:
        """For each class how many rows k1 and k2 mean."""
        return [counts_within(k1, k2, of_class.count) for of_class in self.classes]

    def draw(
        self, memory: Tensor, counts: Sequence[tuple[int, int]], seed: Seed, kernels: Kernels
    ) -> tuple[Tensor, Tensor, float | Tensor, int, PickedRows]:
        """For each class its (g1, g2): the g1 rows with the largest scores and g2 random others.

        The fields of a Selection come back: coordinates, ascending, the scale (G - g1) / g2 of each random one, d, and
        the rows.
        """
        top_rows, random_rows, numbers, scales = [], [], [], []
        for number, (of_class, (g1, g2)) in enumerate(zip(self.classes, counts, strict=True)):
            of_rows = mix(seed, number) if isinstance(seed, int) else seed
            top, random = kernels.select(of_class.scores(memory), g1, g2, of_rows)
            top_rows.append((of_class.starts[top], of_class.length))
            random_rows.append((of_class.starts[random], of_class.length))
            numbers += [of_class.numbers[top], of_class.numbers[random]]
            scales.append((of_class.count - g1) / g2 if g2 else 1.0)
        picked = PickedRows(torch.cat(numbers).sort().values, self.shapes)
        if len(scales) == 1:
            return _coordinates(top_rows)[0], _coordinates(random_rows)[0], scales[0], self.d, picked
        return _coordinates(top_rows)[0], *_coordinates(random_rows, scales), self.d, picked


def _coordinates(parts: Sequence[tuple[Tensor, int]], values: Sequence[float] = ()) -> tuple[Tensor, Tensor]:
    """The coordinates, ascending, of rows that begin at `starts`, for pairs (starts, length); and of each its value."""
    device = parts[0][0].device
    if len(parts) == 1:
        starts, length = parts[0]
        return (starts[:, None] + torch.arange(length, device=device)).view(-1), starts[:0]
    k = sum(starts.numel() * length for starts, length in parts)  # known here, so that nothing waits for the device
    starts, order = torch.cat([starts for starts, _ in parts]).sort()
    lengths = torch.cat([torch.full_like(s, length) for s, length in parts])[order]
    shifts = starts - (lengths.cumsum(0) - lengths)
    coordinates = shifts.repeat_interleave(lengths, output_size=k).add_(torch.arange(k, device=device))
    if not values:
        return coordinates, starts[:0]
    pairs = zip(parts, values, strict=True)
    of_rows = torch.cat([torch.full_like(s, value, dtype=torch.float64) for (s, _), value in pairs])[order]
    return coordinates, of_rows.repeat_interleave(lengths, output_size=k)
