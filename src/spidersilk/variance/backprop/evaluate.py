"""Gradients of a closure on a step's selections, at one point or as a difference of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from spidersilk.kernels.backends import Ops
from spidersilk.operator.selection import Selection
from spidersilk.variance.backprop.capture import Capture
from spidersilk.variance.backprop.wanted import Wanted
from spidersilk.variance.two_point import TwoPoint
from spidersilk.variance.vectors import Vectors


class Evaluated(NamedTuple):
    loss: Any  # what the closure returned at the current point
    before: Any  # and at the reference point, None without one
    values: list[Tensor]  # for each slab, on its selection


class Evaluator:
    """Evaluates closures: with a capture if `sparse` is set and every selection consists of whole rows.

    A closure that spoils a capture is evaluated again without one, on the same terms, and from then on always.
    """

    def __init__(self, points: TwoPoint, vectors: Vectors, ops: Ops, two_points: bool, sparse: bool):
        self.points, self.vectors, self.ops, self.two_points, self.sparse = points, vectors, ops, two_points, sparse
        self._captures = 0
        self._wanted: list[Wanted] = []  # made once for selections that stay

    def evaluate(self, closure: Callable[[], Any], selections: Sequence[Selection | None]) -> Evaluated:
        of_rows = [s for s in selections if s is not None and s.picked is not None]
        if not self.sparse or len(of_rows) < len(selections):
            return self._dense(closure, selections, self.points.at_current)
        if [id(w.selection) for w in self._wanted] != [id(s) for s in of_rows]:
            self._wanted = [Wanted(slab.params, s) for slab, s in zip(self.vectors.slabs, of_rows, strict=True)]
        capture = Capture(self._wanted)
        self._captures += 1
        loss, before = self.points.at_current(closure, True, capture), None
        if self.two_points and not capture.spoiled:
            before = self.points.at_reference(closure, self.vectors.points, capture)
        if not capture.spoiled:
            return Evaluated(loss, before, capture.values())
        self.sparse = False
        return self._dense(closure, selections, self.points.at_current_again)

    def _dense(
        self, closure: Callable[[], Any], selections: Sequence[Selection | None], at_current: Callable[..., Any]
    ) -> Evaluated:
        loss, before = at_current(closure, self.two_points), None
        values = self.vectors.read(selections, self.ops)
        if self.two_points:
            before = self.points.at_reference(closure, self.vectors.points)
            for here, there in zip(values, self.vectors.read(selections, self.ops), strict=True):
                here.sub_(there)
        return Evaluated(loss, before, values)
