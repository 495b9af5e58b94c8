"""What is wanted of each parameter's gradient, found once from the coordinates of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor


class Part:
    """The wanted entries of one parameter: `count` of them, the top ones first, then the random ones.

    `top` and `random` are their places in the slab's vector, in which the parameter begins at `begin`.
    """

    def __init__(self, wanted: Wanted, p: Tensor, begin: int, top: slice, random: slice):
        self.address = id(p)
        self.shape, self.begin, self._wanted, self._slices = p.shape, begin, wanted, (top, random)
        self.tops, self.randoms = top.stop - top.start, random.stop - random.start
        self.count = self.tops + self.randoms
        self.top_places = top  # among the k values
        self.random_places = slice(wanted.top.numel() + random.start, wanted.top.numel() + random.stop)

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self.shape[1:].numel()

    @property
    def density(self) -> float:
        return self.count / max(self.shape.numel(), 1)

    @cached_property
    def top(self) -> Tensor:
        return self._wanted.top[self._slices[0]]

    @cached_property
    def random(self) -> Tensor:
        return self._wanted.random[self._slices[1]]

    @cached_property
    def local(self) -> Tensor:
        """The wanted entries, counted from the parameter's beginning."""
        return torch.cat([self.top, self.random]) - self.begin

    @cached_property
    def rows(self) -> Tensor | None:
        """The rows (output channels, rows of a table) that the wanted entries make up; None if they do not."""
        if len(self.shape) < 2 or not self.count:
            return None
        rows, width = [], self.width
        for places, own in zip((self._wanted.top, self._wanted.random), self._slices, strict=True):
            if (own.stop - own.start) % width:
                return None
            first = _on_host(places[own.start : own.stop : width]) - self.begin
            last = _on_host(places[own.start + width - 1 : own.stop : width]) - self.begin
            # Places ascend and differ, so a stretch of one width that begins and ends with a row is that row.
            if (first % width).any() or (last - first != width - 1).any():
                return None
            rows.append(first // width)
        return torch.from_numpy(np.concatenate(rows)).to(self._wanted.top.device)

    @cached_property
    def padded_rows(self) -> Tensor:
        """`rows`, on CUDA followed by some row until their number is a multiple of 8: tensor cores want that."""
        assert self.rows is not None
        missing = -self.rows.numel() % 8 if self.rows.is_cuda else 0
        return torch.cat([self.rows, self.rows[:1].expand(missing)]) if missing else self.rows

    @cached_property
    def places(self) -> Tensor:
        """For each row of the parameter its number among `rows`; for one that is not wanted, the number of those."""
        assert self.rows is not None
        places = torch.full((self.shape[0],), self.rows.numel(), dtype=torch.int64, device=self.rows.device)
        places[self.rows] = torch.arange(self.rows.numel(), device=self.rows.device)
        return places

    @cached_property
    def grid(self) -> tuple[Tensor, Tensor]:
        """Row and place in the row of each wanted entry."""
        rows = self.local // max(self.width, 1)
        return rows, self.local - rows * self.width


class Wanted:
    """The parts of a selection's coordinates that fall on each of `params`, which make up one vector in this order.

    `top` and `random` are the coordinates in that vector, each ascending; k values are read in their order. Whether
    they make up whole rows is found out here.
    """

    def __init__(self, params: Sequence[Tensor], top: Tensor, random: Tensor):
        self.params, self.top, self.random = list(params), top, random
        self.k = top.numel() + random.numel()
        self.sizes = [p.numel() for p in self.params]
        ends = [0, *accumulate(self.sizes)]
        tops, randoms = _count_below(top, ends), _count_below(random, ends)
        self._joined: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self.parts = [
            Part(self, p, ends[i], slice(tops[i], tops[i + 1]), slice(randoms[i], randoms[i + 1]))
            for i, p in enumerate(self.params)
        ]

    @cached_property
    def indices(self) -> Tensor:
        return torch.cat([self.top, self.random])

    def join(self, numbers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Of the parameters of these numbers, one behind the other: the wanted entries, and their places in the k."""
        if numbers not in self._joined:
            entries, places, begin = [], [], 0
            for part in (self.parts[i] for i in numbers):
                for coordinates, own, first in (
                    (self.top, part._slices[0], 0),
                    (self.random, part._slices[1], self.top.numel()),
                ):
                    if own.stop > own.start:
                        entries.append(coordinates[own] + (begin - part.begin))
                        places.append(torch.arange(first + own.start, first + own.stop, device=coordinates.device))
                begin += part.shape.numel()
            self._joined[numbers] = torch.cat(entries), torch.cat(places)
        return self._joined[numbers]


def _count_below(places: Tensor, ends: list[int]) -> list[int]:
    if places.device.type == "cpu":
        return places.numpy().searchsorted(ends).tolist()
    return torch.searchsorted(places, torch.tensor(ends, device=places.device)).tolist()


def _on_host(places: Tensor) -> np.ndarray:
    return places.cpu().numpy()
