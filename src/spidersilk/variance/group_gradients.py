"""Gradients of selected groups: while a closure runs, layers with a rule give them here and none to their weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, nn

from spidersilk.find_modules import Owned, owners_of
from spidersilk.layers import Part, rule_for
from spidersilk.layers.dressing import Dressed, Ruled, dress, undress
from spidersilk.layers.registry import Rule
from spidersilk.operator.selection import Selection


class WeightGroups:
    """The selected groups of one weight, which begins at `begin` of the flat vector; slices of the coordinates there.

    The coordinates of groups ascend, so that they are those of a tensor (outer, groups, inner) in its order.
    """

    def __init__(self, weight: Tensor, dimension: int, begin: int, selection: Selection, top: slice, random: slice):
        self.weight, self.dimension = weight, dimension
        shape = weight.shape
        self._outer, self._inner = math.prod(shape[:dimension]), math.prod(shape[dimension + 1 :])
        self._places = top, slice(selection.k1 + random.start, selection.k1 + random.stop)
        length = self._outer * self._inner
        firsts = [
            of.view(self._outer, of.numel() // length, self._inner)[0, :, 0]
            for of in (selection.top[top], selection.random[random])
        ]
        self._counts = [of.numel() for of in firsts]
        self.indices, self._order = ((torch.cat(firsts) - begin) // self._inner).sort()
        values = weight.new_empty((*shape[:dimension], sum(self._counts), *shape[dimension + 1 :]))
        self._part = Part(values.requires_grad_(), self.indices, dimension)

    def part(self) -> Part:
        return self._part

    @property
    def gradient(self) -> Tensor | None:
        return self._part.values.grad

    def forget(self) -> None:
        self._part.values.grad = None

    def add_to(self, values: Tensor) -> None:
        """Add the gradient to the k values of the selection."""
        if self.gradient is not None:
            groups = self.gradient.new_empty(self._outer, sum(self._counts), self._inner)
            groups[:, self._order] = self.gradient.detach().reshape(groups.shape)
            for place, of in zip(self._places, groups.split(self._counts, 1), strict=True):
                values[place].add_(of.reshape(-1))


class GroupGradients:
    """The selected groups of all weights that belong to a layer with a rule.

    slabs: the parameters of each flat vector, in order. dimensions: of all of them, along which groups are counted.
    model: whose modules to look through; without one, those around the parameters are searched for.
    `is_compared`: whether rules have been seen to give what autograd gives, with this closure.
    """

    def __init__(self, slabs: Sequence[Sequence[Tensor]], dimensions: Sequence[int], model: nn.Module | None):
        following = iter(dimensions)
        self._params = [[(p, next(following)) for p in slab] for slab in slabs]
        self._model = model
        self._owned: Owned | None = None
        self._selections: list[Selection] = []
        self._slabs: list[list[WeightGroups]] = []
        self.is_compared = False

    def select(self, selections: Sequence[Selection]) -> None:
        """One for each slab, of whole groups."""
        if self._owned is None:
            self._owned = owners_of([p for slab in self._params for p, _ in slab], self._model)
        if [*map(id, self._selections)] != [*map(id, selections)]:
            pairs = zip(self._params, selections, strict=True)
            self._slabs = [list(self._groups_of(params, selection)) for params, selection in pairs]
            self._selections = list(selections)

    def _groups_of(self, params: Sequence[tuple[Tensor, int]], selection: Selection) -> Iterator[WeightGroups]:
        *begins, d = accumulate((p.numel() for p, _ in params), initial=0)
        ends = torch.tensor([*begins, d])
        tops, randoms = (torch.searchsorted(c, ends.to(c.device)).tolist() for c in (selection.top, selection.random))
        slices = zip(map(slice, tops, tops[1:]), map(slice, randoms, randoms[1:]), strict=True)
        for (p, dimension), begin, (top, random) in zip(params, begins, slices, strict=True):
            if p.dim() > 1 and p.numel() and self._layers_of(p):
                yield WeightGroups(p, dimension, begin, selection, top, random)

    def _layers_of(self, weight: Tensor) -> list[tuple[nn.Module, Rule]]:
        """Those with a rule that nobody else has dressed."""
        owners = [] if self._owned is None else self._owned[id(weight)]
        free = [module for module, name in owners if name == "weight" and not isinstance(module, Dressed)]
        found = [(module, rule_for(module)) for module in free]
        return [(module, rule) for module, rule in found if rule is not None]

    @property
    def arrived(self) -> bool:
        """Whether the last evaluation has left a gradient here."""
        return any(groups.gradient is not None for slab in self._slabs for groups in slab)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Around an evaluation. A weight with a hook gets its whole gradient, for the hook to see."""
        dressed = []
        try:
            for groups in (groups for slab in self._slabs for groups in slab):
                groups.forget()
                if not (groups.weight._backward_hooks or groups.weight._post_accumulate_grad_hooks):
                    for module, rule in self._layers_of(groups.weight):
                        dress(module, Ruled, source=groups, rule=rule)
                        dressed.append(module)
            yield
        finally:
            for module in dressed:
                undress(module)

    def add_to(self, values: Sequence[Tensor]) -> None:
        """Add them to the k values of each slab."""
        for slab, of_slab in zip(self._slabs, values, strict=True):
            for groups in slab:
                groups.add_to(of_slab)
                groups.forget()
