"""Whole rows or columns as the unit of selection: a draw of groups, expanded to the coordinates they are made of.

A tensor is seen as (outer, count, inner), and a group is an index along `count`: its coordinates in the flat vector are
begin + (o * count + group) * inner + i for all o < outer and i < inner. A row is an index along the first dimension: a
row of a Linear weight or of an embedding table, an output channel of a convolution. A column is one along the second:
an input of a Linear weight, an input channel of a convolution. Each entry of a vector (a bias, a norm) is a group of
length 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from spidersilk.kernels.interface import Kernels, Seed
from spidersilk.operator.counts import Count, counts_within
from spidersilk.operator.random_stream import mix

Groups = Literal["rows", "columns"]
Shapes = Sequence[Sequence[int]]
"""The shapes of the tensors that a flat vector is made of, in order."""
RowShapes = tuple[tuple[int, int], ...]
"""The same tensors as (rows, length of a row)."""


@dataclass(frozen=True)
class Grouped:
    """A tensor that begins at `begin` of the flat vector, seen as (outer, count, inner)."""

    begin: int
    outer: int
    count: int
    inner: int

    @property
    def length(self) -> int:
        return self.outer * self.inner

    @property
    def size(self) -> int:
        return self.count * self.length


def _seen(begin: int, shape: Sequence[int], dimension: int) -> Grouped:
    if len(shape) < 2:
        return Grouped(begin, 1, math.prod(shape), 1)
    if not 0 <= dimension < len(shape):
        raise ValueError(f"dimension = {dimension} of a tensor of shape {tuple(shape)}: give one below {len(shape)}")
    return Grouped(begin, math.prod(shape[:dimension]), shape[dimension], math.prod(shape[dimension + 1 :]))


@dataclass(frozen=True)
class GroupClass:
    """Groups of one length, which one draw chooses among."""

    length: int
    tensors: list[Grouped]
    starts: Tensor  # of each group: its first coordinate in the flat vector
    runs: Tensor  # three rows: for each tensor the groups up to its end, `inner`, and the entries between two runs

    @property
    def count(self) -> int:
        return self.starts.numel()

    @property
    def is_contiguous(self) -> bool:
        """Whether each group is one run."""
        return all(tensor.outer == 1 for tensor in self.tensors)

    def scores(self, memory: Tensor) -> Tensor:
        """The sum of |memory| over each group. Groups compared have one length: their means are in the same order."""
        dtype = torch.float32 if memory.dtype in (torch.float16, torch.bfloat16) else memory.dtype
        parts = [memory[t.begin : t.begin + t.size].reshape(t.outer, t.count, t.inner) for t in self.tensors]
        sums = [  # on a CPU vector_norm is ten times slower than sum where groups are not contiguous
            torch.linalg.vector_norm(part[0], 1, dim=1, dtype=dtype)
            if part.shape[0] == 1
            else part.abs().sum((0, 2), dtype=dtype)
            for part in parts
        ]
        return (sums[0] if len(sums) == 1 else torch.cat(sums)).clamp(max=torch.finfo(dtype).max)

    def coordinates(self, groups: Tensor) -> Tensor:
        """Those of each of `groups`, (groups, length): `outer` runs of `inner` coordinates each."""
        ends, inner, between = self.runs
        of_group = torch.bucketize(groups, ends, right=True)
        places = torch.arange(self.length, device=groups.device)
        run = places // inner[of_group].unsqueeze(1)
        return run.mul_(between[of_group].unsqueeze(1)).add_(self.starts[groups].unsqueeze(1)).add_(places)


class GroupLayout:
    """The groups of tensors with `shapes` in the flat vector of all their entries, in classes of equal length.

    A class has the groups of all tensors, or with `per_tensor` those of one. `dimensions` says for each tensor along
    which dimension its columns are counted, where that is not the second.
    """

    def __init__(
        self,
        shapes: Shapes,
        device: torch.device,
        groups: Groups = "rows",
        per_tensor: bool = False,
        dimensions: Sequence[int] | None = None,
    ):
        self.groups: Groups = groups
        if groups == "rows" or dimensions is None:
            dimensions = [0 if groups == "rows" else 1] * len(shapes)
        *begins, self.d = accumulate((math.prod(shape) for shape in shapes), initial=0)
        self.tensors = [_seen(*of) for of in zip(begins, shapes, dimensions, strict=True)]
        classes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, tensor in enumerate(self.tensors):
            if tensor.size:
                classes[tensor.length, number if per_tensor else 0].append(number)

        self.classes = []
        for (length, _), members in classes.items():
            tensors = [self.tensors[number] for number in members]
            every = [torch.arange(tensor.count, device=device) for tensor in tensors]
            starts = [each * tensor.inner + tensor.begin for each, tensor in zip(every, tensors, strict=True)]
            ends = accumulate(tensor.count for tensor in tensors)
            runs = [(end, t.inner, (t.count - 1) * t.inner) for end, t in zip(ends, tensors, strict=True)]
            by_tensor = torch.tensor(runs, device=device).t().contiguous()
            self.classes.append(GroupClass(length, tensors, torch.cat(starts), by_tensor))

    def counts(self, k1: Count, k2: Count) -> list[tuple[int, int]]:
        """For each class how many groups k1 and k2 mean."""
        return [counts_within(k1, k2, of_class.count) for of_class in self.classes]

    def draw(
        self, memory: Tensor, counts: Sequence[tuple[int, int]], seed: Seed, kernels: Kernels
    ) -> tuple[Tensor, Tensor, float | Tensor, int, RowShapes | None]:
        """For each class its (g1, g2): the g1 groups with the largest scores and g2 random others.

        The fields of a Selection come back: coordinates, ascending, the scale (G - g1) / g2 of each random one, d, and
        the tensors' rows, where groups are rows.
        """
        tops, randoms, scales = [], [], []
        for number, (of_class, (g1, g2)) in enumerate(zip(self.classes, counts, strict=True)):
            of_groups = mix(seed, number) if isinstance(seed, int) else seed
            top, random = kernels.select(of_class.scores(memory), g1, g2, of_groups)
            tops.append((of_class, top))
            randoms.append((of_class, random))
            scales.append((of_class.count - g1) / g2 if g2 else 1.0)
        rows = tuple((t.count, t.inner) for t in self.tensors) if self.groups == "rows" else None
        if len(scales) == 1:
            return _coordinates(tops)[0], _coordinates(randoms)[0], scales[0], self.d, rows
        return _coordinates(tops)[0], *_coordinates(randoms, scales), self.d, rows


def _coordinates(parts: Sequence[tuple[GroupClass, Tensor]], values: Sequence[float] = ()) -> tuple[Tensor, Tensor]:
    """The coordinates, ascending, of some groups of each class; and for each its class's value, where there are any.

    How many there are is known here, so that nothing waits for the device.
    """
    if all(of_class.is_contiguous for of_class, _ in parts):
        return _adjacent([(of_class.starts[groups], of_class.length) for of_class, groups in parts], values)
    coordinates, order = torch.cat([of_class.coordinates(groups).view(-1) for of_class, groups in parts]).sort()
    if not values:
        return coordinates, coordinates[:0]
    sizes = [groups.numel() * of_class.length for of_class, groups in parts]
    of_parts = [
        torch.full((n,), v, dtype=torch.float64, device=order.device) for n, v in zip(sizes, values, strict=True)
    ]
    return coordinates, torch.cat(of_parts)[order]


def _adjacent(parts: Sequence[tuple[Tensor, int]], values: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The same for pairs (starts, length) of groups that are one run each: only the groups have to be sorted."""
    device = parts[0][0].device
    if len(parts) == 1:
        starts, length = parts[0]
        return (starts[:, None] + torch.arange(length, device=device)).view(-1), starts[:0]
    k = sum(starts.numel() * length for starts, length in parts)
    starts, order = torch.cat([starts for starts, _ in parts]).sort()
    lengths = torch.cat([torch.full_like(s, length) for s, length in parts])[order]
    shifts = starts - (lengths.cumsum(0) - lengths)
    coordinates = shifts.repeat_interleave(lengths, output_size=k).add_(torch.arange(k, device=device))
    if not values:
        return coordinates, starts[:0]
    pairs = zip(parts, values, strict=True)
    of_groups = torch.cat([torch.full_like(s, value, dtype=torch.float64) for (s, _), value in pairs])[order]
    return coordinates, of_groups.repeat_interleave(lengths, output_size=k)
