"""Would it fit, and would it pay? Predicts bytes, measures steps, tries the methods for a while, and says yes or no."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.checks import check_number
from spidersilk.loop.datasets import count_samples
from spidersilk.loop.lengths import InnerLength, as_inner_length
from spidersilk.loop.loader import AnchorLoader
from spidersilk.operator.sparsity import captured_energy, entropy
from spidersilk.theory.footprint import capacity, footprints, name_of
from spidersilk.theory.planner import variance_factor
from spidersilk.theory.step_seconds import adamw_seconds, step_seconds
from spidersilk.theory.trials import Source, Trial, closure_of, compare, undisturbed
from spidersilk.variance.divergence import DivergenceError
from spidersilk.variance.optimizers import SVRG

GRID = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
LONGEST = 1000  # N, of a trial
WORTH = 0.8
"""A sparse method pays if it needs at most this share: of the best dense one's queries, of AdamW's bytes or seconds."""
COLUMNS = name_of(0.1, True)


@dataclass(frozen=True)
class Inspection:
    """What `inspect` shares. Shares are by k as a fraction of d; seconds are of one step, here."""

    d: int
    samples: int
    entropy: float
    """Of M at an anchor, in bits; log2 d without any structure."""
    captured: dict[float, float]
    """The share of a difference's energy inside the k largest coordinates of M."""
    captured_gradient: dict[float, float]
    """The same for the gradient of a small batch."""
    variance_factor: dict[float, float]
    """The variance that rtop with k1 = k2 = k / 2 adds to a difference, over the difference's energy."""
    seconds: dict[str, float]
    trials: list[Trial]
    bytes: dict[str, int] = field(default_factory=dict)
    """At the peak of a training step, predicted: of AdamW, SparseAdamW by k, and LoRA by rank."""
    capacity: int = 0
    """Bytes of the memory here."""

    @property
    def memory_verdict(self) -> str:
        """Would it fit?"""
        dense, columns, there = self.bytes["AdamW"], self.bytes[COLUMNS], self.capacity
        share = f"{COLUMNS} needs {columns / dense:.2f} of AdamW's bytes"
        sizes = f"{_gib(columns)} and {_gib(dense)}, of {_gib(there)} here"
        if dense > there:
            fitting = " and ".join(name for name, size in self.bytes.items() if size <= there)
            answer = "yes" if columns <= there else "no"
            return f"{answer}: AdamW does not fit, and {fitting or 'none'} would ({sizes})"
        return f"{'yes' if columns <= WORTH * dense else 'no'}: {share} ({sizes})"

    @property
    def seconds_verdict(self) -> str:
        """Would it pay in seconds a step?"""
        dense, columns = self.seconds["AdamW"], self.seconds["columns"]
        answer = "yes" if columns <= WORTH * dense else "hardly" if columns < dense else "no"
        times = f"{1e3 * columns:.3g} and {1e3 * dense:.3g} ms"
        return f"{answer}: a step of {COLUMNS} takes {columns / dense:.2f} of AdamW's time here ({times})"

    @property
    def best_dense(self) -> Trial:
        return min((t for t in self.trials if not t.sparse), key=lambda t: t.lowest)

    def queries(self, trial: Trial) -> float:
        """Queries to the best dense method's lowest loss, as a share of those that it took; inf if not reached."""
        best = self.best_dense
        taken = best.reach(best.lowest)[0]
        return trial.reach(best.lowest)[0] / taken if self.has_verdict else math.nan

    def time(self, trial: Trial) -> float:
        """The same in seconds of training, to the seconds of the dense method that was there first."""
        target = self.best_dense.lowest
        first = min(t.reach(target)[1] for t in self.trials if not t.sparse)
        return trial.reach(target)[1] / first if self.has_verdict else math.nan

    @property
    def has_verdict(self) -> bool:
        """Whether a dense method made progress, to compare with."""
        return self.best_dense.lowest < self.best_dense.losses[0]

    @property
    def best_sparse(self) -> Trial:
        sparse = (t for t in self.trials if t.sparse)
        return min(sparse, key=lambda t: (self.queries(t) if self.has_verdict else 0.0, t.lowest))

    @property
    def pays(self) -> bool:
        """Whether a sparse method needs clearly fewer queries than the best dense one."""
        return self.has_verdict and self.queries(self.best_sparse) <= WORTH

    @property
    def verdict(self) -> str:
        sparse, dense = self.best_sparse, self.best_dense
        if not self.has_verdict:
            return "no verdict: no dense method came below the loss at the start; lower lr, or raise the budget"
        share = self.queries(sparse)
        if math.isinf(share):
            return (
                f"no: {dense.method} (lr {dense.lr:g}) came to a loss of {dense.lowest:.4g}, and no sparse method did "
                f"with the same queries; the nearest, {sparse.method} (lr {sparse.lr:g}), to {sparse.lowest:.4g}"
            )
        comparison = (
            f"{sparse.method} (lr {sparse.lr:g}) needed {share:.2f} of the queries of {dense.method} (lr {dense.lr:g}) "
            f"to a loss of {dense.lowest:.4g}"
        )
        seconds = self.time(sparse)
        if share > WORTH:
            return f"no: {comparison}, and {seconds:.2f} of the seconds of the fastest dense method"
        more = f"{seconds:.2f} of the seconds of the fastest dense method here"
        if seconds < 1:
            return f"yes: {comparison}, and {more}"
        return f"yes in queries, no in time: {comparison}, but {more}"


def inspect(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    data: Any,
    *,
    lr: float = 0.1,
    adam_lr: float | None = 0.001,
    anchor_batch_size: int | None = None,
    batch_size: int | None = None,
    budget: float | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Inspection:
    """Measure whether sparse gradients would pay for this model on this data, here: in bytes, in seconds, and in loss.

    loss(model, batch): the mean loss over a batch. data: what an `AnchorLoader` takes: tensors or a map-style data set.
    lr, adam_lr: about those that SGD and AdamW train well with; each method is tried with half of its own, with
        it, and with twice it, and goes on with what was best. adam_lr=None leaves AdamW and SparseAdamW out.
    anchor_batch_size, batch_size: B and b; None is 1000 and 100, or less for less data.
    budget: of each method's trial, in N: 1 is as many gradient queries as there are samples. None is 1, or 20 anchors
        if that is more.
    report: is called with what is being done.

    The model is as before afterwards. A verdict is about the stretch of training that the trials saw: give the model as
    it is when it matters to you, and a budget to match.
    """
    n = count_samples(data)
    anchor = min(1000, n) if anchor_batch_size is None else anchor_batch_size
    small = max(1, min(100, n // 10)) if batch_size is None else batch_size
    return measure(model, _Own(model, loss, data, n, anchor, small), lr, budget, report, adam_lr)


class _Own(Source):
    """A user's model, loss and data."""

    def __init__(self, model: nn.Module, loss: Callable, data: Any, samples: int, anchor: int, small: int):
        self.model, self._loss, self.data = model, loss, data
        self.samples, self.anchor_size, self.small_size = samples, anchor, small
        evaluated = AnchorLoader(data, min(2000, samples), 1, 1, loops=1, generator=torch.Generator().manual_seed(1))
        self._evaluated = next(iter(evaluated))[0]

    def batches(self, inner: InnerLength, seed: int) -> Iterator[tuple[Any, Any]]:
        generator = torch.Generator().manual_seed(seed)
        return iter(AnchorLoader(self.data, self.anchor_size, self.small_size, inner, loops=10**9, generator=generator))

    def loss(self, batch: Any, point: str | None) -> Tensor:
        return self._loss(self.model, batch)

    def evaluate(self) -> float:
        """In eval mode, so that dropout does not blur it and BatchNorm's statistics stay."""
        with undisturbed(self.model):
            self.model.eval()
            return float(self._loss(self.model, self._evaluated))


def measure(
    model: nn.Module,
    source: Source,
    lr: float,
    budget: float | None = None,
    report: Callable[[str], None] = lambda _: None,
    adam_lr: float | None = None,
) -> Inspection:
    """`inspect` for a model whose batches and losses come from a `Source`."""
    check_number("lr", lr, "about what SGD trains well with", above_zero=True)
    if adam_lr is not None:
        check_number("adam_lr", adam_lr, "about what AdamW trains well with, or None", above_zero=True)
    anchor = source.anchor_size / source.samples  # in N
    budget = max(1.0, 20 * anchor) if budget is None else budget
    if not 4 * anchor <= budget <= max(LONGEST, 20 * anchor):
        raise ValueError(f"budget = {budget:g} N must be at least four anchors, {4 * anchor:g} N, at most {LONGEST} N")
    spend = budget * source.samples
    params = [p for p in model.parameters() if p.requires_grad]
    d = sum(p.numel() for p in params)
    report("memory")
    batches = source.batches(as_inner_length(10**9), 0)
    batch = next(batch for batch, is_anchor in batches if not is_anchor)
    source.prepare(None)
    sizes = footprints(model, lambda: source.loss(batch, None))
    report("gradients")
    with undisturbed(model):
        try:
            shares, bits = _captured(params, source, lr)
        except DivergenceError as error:
            raise ValueError(f"lr = {lr:g}: the gradients already overflow in a few steps of SVRG; lower it") from error
    with undisturbed(model):
        seconds = step_seconds(params, source)
    with undisturbed(model):
        seconds |= adamw_seconds(params, source)
    factors = {k: variance_factor(d, *_halves(k, d)) * (1 - shares["half"][k]) for k in GRID}
    trials = compare(model, source, lr, adam_lr, spend, report)
    shown = shares["difference"], shares["gradient"], factors, seconds, trials
    return Inspection(d, source.samples, bits, *shown, sizes, capacity(params[0].device))


def _captured(params: Sequence[Tensor], source: Source, lr: float) -> tuple[dict, float]:
    """Mean shares of energy inside the top of M, over three loops of dense SVRG, and the mean entropy of M."""
    optimizer = SVRG(params, lr)
    shares: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    bits: list[float] = []
    memory = torch.zeros(())
    source.prepare("anchor")
    batches = source.batches(as_inner_length(10), 0)
    for batch, is_anchor in islice(batches, 30):
        seen: list[Tensor] = []
        evaluate = closure_of(source, optimizer, batch)

        def closure(evaluate: Callable[[], Tensor] = evaluate, seen: list[Tensor] = seen) -> Tensor:
            value = evaluate()
            seen.append(_flat(params))
            return value

        optimizer.step(closure, anchor=is_anchor)
        source.stepped()
        if is_anchor:
            memory = seen[0].abs()
            bits.append(entropy(memory))
            continue
        difference = seen[0] - seen[1]
        for k in GRID:
            shares["difference"][k].append(captured_energy(memory, difference, k))
            shares["gradient"][k].append(captured_energy(memory, seen[0], k))
            shares["half"][k].append(captured_energy(memory, difference, _halves(k, memory.numel())[0]))
    return {name: {k: _mean(v) for k, v in table.items()} for name, table in shares.items()}, statistics.fmean(bits)


def _flat(params: Sequence[Tensor]) -> Tensor:
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    return torch.cat([(g.to_dense() if g.is_sparse else g).reshape(-1).float() for g in parts])


def _mean(values: list[float]) -> float:
    known = [x for x in values if not math.isnan(x)]
    return statistics.fmean(known) if known else math.nan


def _halves(k: float, d: int) -> tuple[int, int]:
    """k1 and k2 as halves of a fraction k of d."""
    k1 = max(1, round(k * d / 2))
    return min(k1, d), min(k1, d - min(k1, d))


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**28 else f"{size / 2**20:.3g} MiB"
