"""Gradients of a closure on a step's selections, at one point or as a difference of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spidersilk.kernels.backends import Ops
from spidersilk.operator.selection import Selection
from spidersilk.variance.backprop import timing
from spidersilk.variance.backprop.context import Capture
from spidersilk.variance.backprop.wanted import Wanted
from spidersilk.variance.two_point import TwoPoint
from spidersilk.variance.vectors import Vectors

LARGE = 1 << 20  # entries of a weight from which whole rows of its gradient are surely the faster way
TRIALS = 3  # captures until the buffers in use are known
SETTLING = 50  # captures after which layers have found their ways, if not before


class Evaluated(NamedTuple):
    loss: Any  # what the closure returned at the current point
    before: Any  # and at the reference point, None without one
    values: list[Tensor]  # for each slab, on its selection


class Evaluator:
    """Evaluates closures; with a capture where that pays.

    `sparse`: "always" captures at every step, and each layer takes the way that the clock shows to be the fastest. True
    does so for a while, then tries captures and ordinary evaluations in turns, and goes on with what was faster. "auto"
    does not look at the clock, so that equal runs stay equal to the bit: it captures selections of whole rows on a CPU,
    if a weight has `LARGE` entries. False captures nothing. A closure that spoils a capture is evaluated again without
    one, from the same random state and buffers, and from then on always.
    """

    def __init__(self, points: TwoPoint, vectors: Vectors, ops: Ops, two_points: bool, sparse: bool | str):
        self.points, self.vectors, self.ops, self.two_points = points, vectors, ops, two_points
        on_cpu = all(slab.device.type == "cpu" for slab in vectors.slabs)
        self.auto = sparse == "auto"
        large = max(p.numel() if p.dim() > 1 else 0 for p in vectors.params) >= LARGE
        self.sparse = on_cpu and large if self.auto else bool(sparse)
        self._race = timing.Race(["dense", "sparse"], margin=0.97) if sparse is True else None
        self._captures = 0
        self._wanted: tuple[list[Selection], list[Wanted]] = [], []

    def evaluate(self, closure: Callable[[], Any], selections: Sequence[Selection | None]) -> Evaluated:
        chosen = [s for s in selections if s is not None]
        if not self.sparse or len(chosen) < len(selections) or (self.auto and any(s.picked is None for s in chosen)):
            return self._dense(closure, selections)
        if self._race is not None and self._settled and not torch.are_deterministic_algorithms_enabled():
            ways = {"dense": lambda: self._dense(closure, selections), "sparse": lambda: self._sparse(closure, chosen)}
            return self._race.run(ways, self.vectors.slabs[0].device)
        with timing.untimed() if self.auto else nullcontext():
            return self._sparse(closure, chosen)

    @property
    def _settled(self) -> bool:
        """Whether the layers have found their ways, so that captures can be compared with ordinary evaluations."""
        return self._captures >= SETTLING or (self._captures >= TRIALS and timing.settled())

    def _dense(
        self, closure: Callable[[], Any], selections: Sequence[Selection | None], again: bool = False
    ) -> Evaluated:
        at_current = self.points.at_current_again if again else self.points.at_current
        loss, before = at_current(closure, self.two_points), None
        values = self.vectors.read(selections, self.ops)
        if self.two_points:
            before = self.points.at_reference(closure, self.vectors.points)
            for here, there in zip(values, self.vectors.read(selections, self.ops), strict=True):
                here.sub_(there)
        return Evaluated(loss, before, values)

    def _sparse(self, closure: Callable[[], Any], selections: list[Selection]) -> Evaluated:
        capture = Capture(self._plan(selections), self.ops, shares=self.two_points)
        notice = self.two_points or self._captures < TRIALS  # what may have to be replayed, but need not be
        loss, before = self.points.at_current(closure, True, capture, notice), None
        self._captures += 1
        if self.two_points and not capture.spoiled:
            before = self.points.at_reference(closure, self.vectors.points, capture)
        if capture.spoiled:
            self.sparse = False
            return self._dense(closure, selections, again=True)
        return Evaluated(loss, before, capture.values())

    def _plan(self, selections: list[Selection]) -> list[Wanted]:
        """Made once for selections that stay."""
        held, plan = self._wanted
        if len(held) != len(selections) or any(a is not b for a, b in zip(held, selections, strict=True)):
            pairs = zip(self.vectors.slabs, selections, strict=True)
            plan = [Wanted(slab.params, selection.top, selection.random) for slab, selection in pairs]
            self._wanted = selections, plan
        return plan
