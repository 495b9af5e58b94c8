"""Short trials of several methods on one model: from the same point, with the same queries, the same choice of lr."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spidersilk.loop.lengths import Adaptive, InnerLength, as_inner_length
from spidersilk.sparse.optimizers import SparseAdamW, SparseSGD
from spidersilk.sparse.sparse import Sparse
from spidersilk.variance.divergence import DivergenceError
from spidersilk.variance.optimizers import SVRG, SparseSVRG, SpiderBoost
from spidersilk.variance.variance_reduced import VarianceReduced

FACTORS = (0.5, 1.0, 2.0)
"""Each method is tried with these multiples of lr, for half of the budget; the best one for all of it, twice."""
FRESH = 50
"""Steps from one selection to the next in sparse training: a trial is short."""
_POINTS = 16  # evaluations in a whole budget


class Source(Protocol):
    """Where batches come from, and what the loss is; `batches` also puts a stateful model to its start."""

    samples: int
    anchor_size: int
    small_size: int

    def batches(self, inner: InnerLength, seed: int) -> Iterator[tuple[Any, Any]]: ...
    def loss(self, batch: Any, point: str | None) -> Tensor: ...
    def evaluate(self) -> float: ...

    def stepped(self) -> None:
        return None

    def prepare(self, reference: str | None) -> None:
        return None


@dataclass(frozen=True)
class Method:
    """A method to try: how to make it, and how long its loops are, None if it has no anchors.

    adam: its step sizes are AdamW's."""

    name: str
    make: Callable[[Sequence[Tensor], float], torch.optim.Optimizer]
    inner: Callable[[int, int], InnerLength] | None = None
    sparse: bool = False
    adam: bool = False


METHODS = (
    Method("SGD", lambda p, lr: torch.optim.SGD(p, lr)),
    Method("AdamW", lambda p, lr: torch.optim.AdamW(p, lr), adam=True),
    Method("SpiderBoost", SpiderBoost, lambda anchor, small: as_inner_length(max(2, anchor // small))),
    Method("SVRG", SVRG, lambda anchor, small: as_inner_length(max(2, anchor // small))),
    Method("SparseSVRG", SparseSVRG, lambda *_: Adaptive(), True),
    Method("SparseSVRG, selected", lambda p, lr: SparseSVRG(p, lr, move="selected"), lambda *_: Adaptive(), True),
    Method("SparseSGD", lambda p, lr: SparseSGD(p, lr, inner_steps=FRESH), sparse=True),
    Method("SparseAdamW", lambda p, lr: SparseAdamW(p, lr, inner_steps=FRESH), sparse=True, adam=True),
)


@dataclass
class Trial:
    """The best of a method's trials: losses at each evaluation, by queries and seconds, from the start on."""

    method: str
    sparse: bool
    lr: float
    queries: list[float]
    seconds: list[float]
    losses: list[float]

    @property
    def lowest(self) -> float:
        """The lowest loss on the way; inf from a divergence on."""
        return math.inf if math.isinf(self.losses[-1]) else min(self.losses)

    def reach(self, target: float) -> tuple[float, float]:
        """Queries and seconds at which the loss first was at most `target`, between points along lines; else inf."""
        for i, loss in enumerate(self.losses):
            if loss <= target:
                if i == 0:
                    return self.queries[0], self.seconds[0]
                share = (self.losses[i - 1] - target) / (self.losses[i - 1] - loss)
                at = [x[i - 1] + share * (x[i] - x[i - 1]) for x in (self.queries, self.seconds)]
                return at[0], at[1]
        return math.inf, math.inf


def compare(
    model: nn.Module,
    source: Source,
    lr: float,
    adam_lr: float | None,
    budget: float,
    report: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """One trial for each of METHODS, all from the model's present point; `budget` is in gradient queries.

    Without `adam_lr` AdamW and SparseAdamW are left out."""
    trials = []
    for method in METHODS:
        centre = adam_lr if method.adam else lr
        if centre is None:
            continue
        report(method.name)
        rates = [factor * centre for factor in FACTORS]
        halves = [_Run(model, source, method, rate).go(budget / 2, budget / _POINTS) for rate in rates]
        best_first = sorted(halves, key=lambda trial: trial.lowest)
        trials.append(_finish(model, source, method, [trial.lr for trial in best_first], budget))
    return trials


def _finish(model: nn.Module, source: Source, method: Method, rates: Sequence[float], budget: float) -> Trial:
    """Train with the best step size to the end, from two seeds; the worse of the two counts. If the other seed fails, a
    step size that happened to work was no good: take the next best."""
    ended = []
    for lr in rates:
        one, other = (_Run(model, source, method, lr, seed).go(budget, budget / _POINTS) for seed in (0, 1))
        ended.append(max(one, other, key=lambda trial: trial.lowest))
        fall = one.losses[0] - one.lowest
        if other.losses[0] - other.lowest >= 0.5 * fall:
            break
    return min(ended, key=lambda trial: trial.lowest)


class _Run:
    """A training run from the model's present point on."""

    def __init__(self, model: nn.Module, source: Source, method: Method, lr: float, seed: int = 0):
        self.model, self.source, self.method, self.lr, self.seed = model, source, method, lr, seed
        self.trial = Trial(method.name, method.sparse, lr, [], [], [])
        self.spent, self.seconds = 0.0, 0.0
        self.diverged = False

    def go(self, budget: float, every: float) -> Trial:
        """Train for so many queries, and look at the loss each time that so many were spent."""
        params = [p for p in self.model.parameters() if p.requires_grad]
        self.device = params[0].device
        with undisturbed(self.model):
            torch.manual_seed(self.seed)
            self.optimizer = self.method.make(params, self.lr)
            # A sparse optimizer has the weights to itself: it must let others train them afterwards.
            with closing(self.optimizer) if isinstance(self.optimizer, Sparse) else nullcontext():
                self.source.prepare(getattr(self.optimizer, "reference", None))
                batches = self._batches()
                self._look()
                while not self.diverged and self.spent < budget:
                    self._step(*next(batches))
                    if not self.diverged and self.spent >= min(self.trial.queries[-1] + every, budget):
                        self._look()
        return self.trial

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        if self.method.inner is not None:
            inner = self.method.inner(self.source.anchor_size, self.source.small_size)
            return self.source.batches(inner, self.seed)
        both = self.source.batches(as_inner_length(10**9), self.seed)
        return (pair for pair in both if not pair[1])

    def _step(self, batch: Any, is_anchor: Any) -> None:
        size = self.source.anchor_size if is_anchor else self.source.small_size
        optimizer = self.optimizer
        closure = closure_of(self.source, optimizer, batch)
        wait(self.device)
        start = time.perf_counter()
        try:
            if isinstance(optimizer, VarianceReduced):
                optimizer.step(closure, anchor=is_anchor, samples=size)
                self.spent = optimizer.gradient_queries
            elif isinstance(optimizer, Sparse):
                closure()
                optimizer.step(samples=size)
                self.spent = optimizer.gradient_queries
            else:
                closure()
                optimizer.step()
                self.spent += size
        except DivergenceError:
            self._note(math.inf)
        self.source.stepped()
        wait(self.device)
        self.seconds += time.perf_counter() - start

    def _look(self) -> None:
        with torch.no_grad():
            value = self.source.evaluate()
        self._note(value if math.isfinite(value) else math.inf)

    def _note(self, loss: float) -> None:
        self.diverged = math.isinf(loss)
        self.trial.queries.append(self.spent)
        self.trial.seconds.append(self.seconds)
        self.trial.losses.append(loss)


def closure_of(source: Source, optimizer: torch.optim.Optimizer, batch: Any) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = source.loss(batch, getattr(optimizer, "evaluating", None))
        loss.backward()
        return loss.detach()

    return closure


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Parameters, buffers, gradients, modes and random state are afterwards as before; it begins without gradients."""
    values = snapshot(model)
    gradients = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    modes = [m.training for m in model.modules()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            restore(model, values)
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.grad = g
            for module, training in zip(model.modules(), modes, strict=True):
                module.training = training


def snapshot(model: nn.Module) -> list[Tensor]:
    """The values of all parameters and buffers, also of those that a state_dict leaves out."""
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


@torch.no_grad()
def restore(model: nn.Module, values: list[Tensor]) -> None:
    for t, value in zip((*model.parameters(), *model.buffers()), values, strict=True):
        t.copy_(value)
