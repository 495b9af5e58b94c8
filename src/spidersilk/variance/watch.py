"""A small step that is looked at: measured for hooks, and for the rule that decides when an adaptive loop ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from spidersilk.kernels.interface import Flag
from spidersilk.kernels.plain import all_finite
from spidersilk.loop.counter import LoopCounter
from spidersilk.loop.markers import Batch, Small
from spidersilk.parallel.workers import Alone
from spidersilk.variance.divergence import DivergenceError
from spidersilk.variance.engine import Engine, Evaluated, Selections
from spidersilk.variance.measures import Measures, Meter
from spidersilk.variance.method import Method
from spidersilk.variance.two_point import loss_of


class Watch:
    """Measures small steps, calls `hooks`, and ends adaptive loops (the rule itself is `loop/lengths.py: Adaptive`)."""

    def __init__(self, method: Method, divergence: Callable[[int, int], DivergenceError]):
        self.meter = Meter(method)
        self.hooks: dict[int, Callable[[Measures], None]] = OrderedDict()
        self._recursive = method.is_recursive
        self._divergence = divergence

    def step(
        self,
        engine: Engine,
        evaluated: Evaluated,
        selections: Selections,
        batch: Batch,
        loop: LoopCounter,
        workers: Alone,
        flag: Flag | None,
    ) -> None:
        """What follows the evaluations of a small step: v, a look at it, and, if it may be taken, M and x."""
        values, small, inner_step = evaluated.values, batch.adaptive, loop.inner_step + 1
        estimates = engine.estimate(values, selections)
        if not all_finite(estimates, flag):
            if small is not None:
                loop.end_loop(small)
            raise self._divergence(loop.steps, inner_step)
        change = workers.mean(loss_of(evaluated.loss) - loss_of(evaluated.before), batch.share)
        size = batch.share.samples if small is None else small.samples
        where, memory = (loop.steps, inner_step), engine.vectors.memory
        measures = self.meter.measure(where, values, selections, estimates, change, memory, size)
        for hook in list(self.hooks.values()):
            hook(measures)
        if small is not None and self._recursive and not small.rule.is_safe(inner_step, measures.noise):
            loop.end_loop(small)
            for p in engine.vectors.params:
                p.grad = None  # v has become too noisy and is not taken
            return
        engine.take(estimates, flag)
        loop.done(inner_step)
        if small is not None and not self._goes_on(small, inner_step, sum(x.numel() for x in values) / engine.d):
            loop.end_loop(small)

    def _goes_on(self, small: Small, inner_step: int, density: float) -> bool:
        """Whether an adaptive loop goes on after small step `inner_step`."""
        price = small.anchor_samples / (2 * small.samples * density)  # of an anchor, in small steps
        pays = self._recursive or small.rule.pays(self.meter.changes, price)
        return pays and not small.rule.is_over(inner_step + 1, price)
