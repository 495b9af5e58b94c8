"""Seconds of whole training steps here, of methods that take turns, with step sizes of 0."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from spidersilk.loop.lengths import as_inner_length
from spidersilk.sparse.optimizers import SparseAdamW, SparseSGD
from spidersilk.theory.trials import Source, closure_of, wait
from spidersilk.variance.optimizers import SVRG, SparseSVRG


def step_seconds(params: Sequence[Tensor], source: Source, repeats: int = 5) -> dict[str, float]:
    """Median seconds of one step of each kind, taken in turns, with a step size of 0."""
    dense, sparse, sgd = SVRG(params, lr=0.0), SparseSVRG(params, lr=0.0), torch.optim.SGD(params, lr=0.0)
    source.prepare("anchor")
    batches = source.batches(as_inner_length(2), 0)

    timed = partial(_timed, params)
    taken: dict[str, list[float]] = defaultdict(list)
    for turn in range(repeats + 1):
        anchor, small = (closure_of(source, sgd, next(batches)[0]) for _ in range(2))
        timed(lambda c=anchor: sparse.step(c, anchor=True))
        kinds: dict[str, Callable[[], Any]] = {
            "anchor": lambda c=anchor: dense.step(c, anchor=True),
            "SGD": lambda c=small: (c(), sgd.step()),
            "dense": lambda c=small: dense.step(c, anchor=False),
            "sparse": lambda c=small: sparse.step(c, anchor=False),
        }
        for name, step in kinds.items():
            spent = timed(step)
            if turn:
                taken[name].append(spent)
        with closing(SparseSGD(params, lr=0.0, inner_steps=None)) as fresh:  # it takes the gradients of the others
            spent = timed(partial(fresh.step, small))
        if turn:
            taken["SparseSGD"].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def _timed(params: Sequence[Tensor], step: Callable[[], Any]) -> float:
    for p in params:
        p.grad = None
    wait(params[0].device)
    start = time.perf_counter()
    step()
    wait(params[0].device)
    return time.perf_counter() - start


def adamw_seconds(params: Sequence[Tensor], source: Source, repeats: int = 3) -> dict[str, float]:
    """Median seconds of whole steps of AdamW and of SparseAdamW with columns, which take turns; steps of size 0."""
    given: dict[str, Any] = {"lr": 0.0, "weight_decay": 0.0, "fused": params[0].is_cuda or None}
    dense = torch.optim.AdamW(params, **given)
    source.prepare(None)
    batches = (batch for batch, is_anchor in source.batches(as_inner_length(10**9), 0) if not is_anchor)
    taken: dict[str, list[float]] = {"AdamW": [], "columns": []}

    def go(name: str, optimizer: torch.optim.Optimizer, of: Sequence[Tensor]) -> None:
        for number, batch in enumerate(islice(batches, 3)):  # the first one makes states, and compiles
            closure = closure_of(source, optimizer, batch)
            spent = _timed(of, lambda c=closure: (c(), optimizer.step()))
            source.stepped()
            taken[name] += [spent] if number else []

    for _ in range(repeats):
        go("AdamW", dense, params)
        with closing(SparseAdamW(params, groups="columns", inner_steps=None, **given)) as columns:
            go("columns", columns, [p for group in columns.param_groups for p in group["params"]])
    return {name: statistics.median(times) for name, times in taken.items()}
