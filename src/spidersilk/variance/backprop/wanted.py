"""Which rows of each parameter a selection consists of, and where their values go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from spidersilk.operator.selection import Selection


class Part:
    """The selected rows of `p`, which begins at `begin` of the flat vector; slices of the selection's coordinates."""

    def __init__(self, p: Tensor, begin: int, selection: Selection, top: slice, random: slice):
        self.size, self._width, self._begin = p.numel(), p.shape[1:].numel(), begin
        self._coordinates = selection.top[top], selection.random[random]
        self.count = sum(entries.numel() for entries in self._coordinates)
        self._places = top, slice(selection.k1 + random.start, selection.k1 + random.stop)

    @cached_property
    def rows(self) -> Tensor:
        """The top ones ascending, then the random ones ascending."""
        starts = torch.cat([entries[:: self._width] for entries in self._coordinates])
        return (starts - self._begin) // self._width

    def add(self, values: Tensor, gradient: Tensor, sign: float) -> None:
        """values += sign times the gradient of `rows`; `values` are the k of the selection."""
        parts = gradient.reshape(self.count).split([entries.numel() for entries in self._coordinates])
        for place, part in zip(self._places, parts, strict=True):
            values[place].add_(part, alpha=sign)


class Wanted:
    """The part of a selection of whole rows for each of `params`, which make up its flat vector in this order."""

    def __init__(self, params: Sequence[Tensor], selection: Selection):
        if selection.picked is None:
            raise ValueError('the selection does not consist of whole rows: select with groups="rows"')
        self.params, self.selection, self.k = list(params), selection, selection.k
        ends = torch.tensor([0, *accumulate(p.numel() for p in self.params)])
        cuts = [torch.searchsorted(c, ends.to(c.device)).tolist() for c in (selection.top, selection.random)]
        tops, randoms = ([slice(a, b) for a, b in pairwise(each)] for each in cuts)
        places = zip(self.params, ends.tolist(), tops, randoms, strict=False)
        self.parts = [Part(p, begin, selection, top, random) for p, begin, top, random in places]
