"""R_j of Theorem 2 along a run, and the accuracy that the theorem still promises with them."""

from __future__ import annotations

import math
from statistics import fmean

from spidersilk.checks import check_number
from spidersilk.variance.measures import Measures
from spidersilk.variance.variance_reduced import VarianceReduced


class Residuals:
    """Estimates R_j = E g + E G / b, loop by loop, from what small steps read anyway: no gradient beyond theirs.

    A loop's residual is the energy outside the top k1 of the difference at its last small step, estimated from the k2
    random coordinates (`Measures.outside_energy`). Over batches its mean is g + (G - g)(n - b) / (b (n - 1)), which is
    what the proof needs and is below R_j. A loop without small steps has none. It watches from now on; each small step
    then waits for the device.

        residuals = silk.Residuals(optimizer)
        ...                                        # train
        residuals.mean, residuals.smallest_eps     # the mean R_j; Theorem 2 can promise E|grad f(x_out)| <= this eps
    """

    def __init__(self, optimizer: VarianceReduced):
        if not isinstance(optimizer, VarianceReduced) or not optimizer.method.is_recursive:
            name = type(optimizer).__name__
            raise ValueError(f"optimizer = {name}: Theorem 2 is about Algorithm 1, so give a SparseSpiderBoost")
        if not optimizer.method.errors_are_independent:
            raise ValueError(
                f"sparsity = {optimizer.sparsity}, choose = {optimizer.choose!r}: Theorem 2 needs scaling='unbiased', "
                "choose='step' and k2 above 0"
            )
        self.values: list[float] = []
        """One for each loop with a small step; the last may be that of a loop under way."""
        self._variances: list[float] = []  # that rtop adds at the same steps: (d - k1 - k2) / k2 times the residual
        self._optimizer = optimizer
        self._start = optimizer.steps, optimizer.anchors
        optimizer.register_measures_hook(self._add)

    def _add(self, measures: Measures) -> None:
        if measures.inner_step > 1 and self.values:
            self.values.pop()
            self._variances.pop()
        self.values.append(measures.outside_energy)
        self._variances.append(measures.rtop_variance)

    @property
    def mean(self) -> float:
        """The mean R_j so far; nan before the first small step."""
        return fmean(self.values) if self.values else math.nan

    @property
    def inner_steps(self) -> float:
        """m: updates for each loop since this watches; nan before the first."""
        steps, anchors = self._start
        loops = self._optimizer.anchors - anchors
        return (self._optimizer.steps - steps) / loops if loops else math.nan

    @property
    def smallest_eps(self) -> float:
        """For which the mean R_j meets Theorem 2's condition, that it is <= eps^2 k2 / (3 (d - k1 - k2) m)."""
        return math.sqrt(3 * self.inner_steps * fmean(self._variances)) if self.values else math.nan

    def hold(self, eps: float) -> bool:
        """Whether they meet it for this eps; False before the first small step."""
        check_number("eps", eps, "it is the gradient norm to reach", above_zero=True)
        return self.smallest_eps <= eps
