"""Gradients of a closure on a step's selections, at one point or as a difference of two."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spidersilk.backprop.context import Capture
from spidersilk.backprop.rules import SMALLEST
from spidersilk.backprop.wanted import Wanted
from spidersilk.kernels.dispatch import Ops
from spidersilk.selection import Selection
from spidersilk.two_point import TwoPoint
from spidersilk.vectors import Vectors

TRIALS = 3  # of each way


class Evaluated(NamedTuple):
    loss: Any  # what the closure returned at the current point
    before: Any  # and at the reference point, None without one
    values: list[Tensor]  # for each slab, on its selection


class Evaluator:
    """Evaluates closures; with a capture where that pays.

    `sparse`: True captures at every step, False at none. "auto" does so on the CPU, if a few steps taken in turns show
    it to be the faster way; under `torch.use_deterministic_algorithms` it does not look at the clock. A closure that
    spoils a capture is evaluated again without one, from the same random state and buffers, and from then on always.
    """

    def __init__(self, points: TwoPoint, vectors: Vectors, ops: Ops, two_points: bool, sparse: bool | str):
        self.points, self.vectors, self.ops, self.two_points = points, vectors, ops, two_points
        on_cpu = all(slab.device.type == "cpu" for slab in vectors.slabs)
        large = max(p.numel() for p in vectors.params) >= SMALLEST
        self.sparse = (on_cpu and large) if sparse == "auto" else bool(sparse)
        self._undecided = sparse == "auto" and self.sparse
        self._spent: dict[bool, list[float]] = {True: [], False: []}
        self._captures = 0
        self._wanted: tuple[list[Selection], list[Wanted]] = [], []

    def evaluate(self, closure: Callable[[], Any], selections: Sequence[Selection | None]) -> Evaluated:
        chosen = [s for s in selections if s is not None]
        if not self.sparse or len(chosen) < len(selections):
            return self._dense(closure, selections)
        if not self._undecided or torch.are_deterministic_algorithms_enabled():
            return self._sparse(closure, chosen)
        ours, theirs = self._spent[True], self._spent[False]
        way = len(ours) <= len(theirs)
        start = time.perf_counter()
        found = self._sparse(closure, chosen) if way else self._dense(closure, selections)
        self._spent[way].append(time.perf_counter() - start)
        if len(theirs) > TRIALS and self.sparse:  # the first of each is a warm-up
            self._undecided, self.sparse = False, min(ours[1:]) <= min(theirs[1:])
        return found

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
