"""What is wanted of each parameter's gradient, found once from the coordinates of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


class Part:
    """The wanted entries of one parameter: `count` of them, the top ones first, then the random ones.

    `top` and `random` are their places in the slab's vector, in which the parameter begins at `begin`. `rows` holds
    their row numbers where they make up whole rows (output channels, rows of a table), else None.
    """

    def __init__(self, shape: torch.Size, begin: int, top: Tensor, random: Tensor, slots: tuple[slice, slice]):
        self.shape, self.begin, self.top, self.random, self.slots = shape, begin, top, random, slots
        self.count = top.numel() + random.numel()
        self.width = shape[1:].numel()
        self.rows = self._rows() if len(shape) > 1 and self.count else None

    @property
    def density(self) -> float:
        return self.count / max(self.shape.numel(), 1)

    @cached_property
    def local(self) -> Tensor:
        """The wanted entries, counted from the parameter's beginning."""
        return torch.cat([self.top, self.random]) - self.begin

    @cached_property
    def places(self) -> Tensor:
        """For each row of the parameter its number among `rows`, -1 where it is not wanted."""
        assert self.rows is not None
        places = torch.full((self.shape[0],), -1, dtype=torch.int64, device=self.rows.device)
        places[self.rows] = torch.arange(self.rows.numel(), device=self.rows.device)
        return places

    @cached_property
    def grid(self) -> tuple[Tensor, Tensor]:
        """Row and place in the row of each wanted entry."""
        rows = self.local // max(self.width, 1)
        return rows, self.local - rows * self.width

    def _rows(self) -> Tensor | None:
        rows = []
        for places in (self.top, self.random):
            if places.numel() % self.width:
                return None
            first = places[:: self.width] - self.begin
            last = places[self.width - 1 :: self.width] - self.begin
            # Places ascend and differ, so a stretch of one width that begins and ends with a row is that row.
            if not bool(((first % self.width == 0) & (last - first == self.width - 1)).all()):
                return None
            rows.append(first // self.width)
        return torch.cat(rows)


class Wanted:
    """The parts of a selection's coordinates that fall on each of `params`, which make up one vector in this order.

    `top` and `random` are the coordinates in that vector, each ascending; k values are read in their order.
    """

    def __init__(self, params: Sequence[Tensor], top: Tensor, random: Tensor):
        self.params, self.top, self.random = list(params), top, random
        self.sizes = [p.numel() for p in self.params]
        ends = torch.tensor([0, *accumulate(self.sizes)], device=top.device)
        tops, randoms = torch.searchsorted(top, ends).tolist(), torch.searchsorted(random, ends).tolist()
        k1, begin = top.numel(), 0
        self.parts: list[Part] = []
        for number, p in enumerate(self.params):
            (t0, t1), (r0, r1) = tops[number : number + 2], randoms[number : number + 2]
            slots = slice(t0, t1), slice(k1 + r0, k1 + r1)
            self.parts.append(Part(p.shape, begin, top[t0:t1], random[r0:r1], slots))
            begin += p.numel()

    @cached_property
    def indices(self) -> Tensor:
        return torch.cat([self.top, self.random])
