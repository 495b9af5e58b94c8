"""The named optimizers: each is a choice of reference, scaling and move over torch's SGD or AdamW, and nothing else."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import torch
from torch.optim import SGD, AdamW
from torch.optim.optimizer import ParamsT

from spidersilk.checks import Count
from spidersilk.loop.lengths import InnerLength
from spidersilk.operator.selection import RTop
from spidersilk.parallel.workers import Group
from spidersilk.variance.variance_reduced import VarianceReduced

__all__ = ["SVRG", "SparseAdamW", "SparseSGD", "SparseSVRG", "SparseSpiderBoost", "SpiderBoost", "VarianceReduced"]


class Shared(TypedDict, total=False):
    """Keywords that every named optimizer hands on; `VarianceReduced` describes them."""

    inner_steps: int | str | InnerLength | None
    max_norm: float | None
    backend: str
    sparse_backward: bool | str
    generator: torch.Generator | None
    process_group: Group


class Common(Shared, total=False):
    """Those that are over SGD take its own as well."""

    momentum: float
    weight_decay: float


def _check(remedies: dict[str, str], **values: float) -> None:
    for name, value in values.items():
        if not 0 <= float(value) < float("inf"):
            raise ValueError(f"{name} = {value} must be a finite number of at least 0: {remedies[name]}")


def _sgd(params: ParamsT, lr: float, common: Common) -> tuple[SGD, dict[str, Any]]:
    """The base optimizer, and the keywords that are left for VarianceReduced."""
    rest: dict[str, Any] = dict(common)
    momentum, weight_decay = rest.pop("momentum", 0.0), rest.pop("weight_decay", 0.0)
    remedies = {"lr": "0.1 is a common start", "momentum": "0 turns it off", "weight_decay": "0 turns it off"}
    _check(remedies, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay), rest


class SpiderBoost(VarianceReduced):
    """SpiderBoost: v := v + g(x_t) - g(x_{t-1}), dense, started anew at each anchor."""

    def __init__(self, params: ParamsT, lr: float, **common: Unpack[Common]):
        base, rest = _sgd(params, lr, common)
        super().__init__(base, "previous", **rest)


class SparseSpiderBoost(VarianceReduced):
    """Algorithm 1 of the paper: v := v + rtop(M, g(x_t) - g(x_{t-1})).

    The unbiased scaling needs a small step size (Theorem 1: lr L = sqrt(k2 / (6 d m))); far beyond it, it diverges.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        k1: Count = 0.05,
        k2: Count = 0.05,
        memory_decay: float = 0.5,
        memory_reset: bool = False,
        scaling: str = "unbiased",
        choose: str = "step",
        per_tensor: bool = False,
        groups: str | None = None,
        **common: Unpack[Common],
    ):
        sparsity = RTop(k1, k2, scaling, memory_decay, memory_reset, per_tensor, groups)
        base, rest = _sgd(params, lr, common)
        super().__init__(base, "previous", choose=choose, sparsity=sparsity, **rest)


class SVRG(VarianceReduced):
    """SVRG: v := v_anchor + g(x_t) - g(x_anchor), dense."""

    def __init__(self, params: ParamsT, lr: float, **common: Unpack[Common]):
        base, rest = _sgd(params, lr, common)
        super().__init__(base, "anchor", **rest)


class SparseSVRG(VarianceReduced):
    """v := v_anchor + rtop(M, g(x_t) - g(x_anchor)): the noise of rtop is fresh at each step and never compounds.

    scaling: None or "unbiased" for move="all", "none", or "refresh" (a selected coordinate of v becomes v_anchor +
        difference, unscaled, and stays so until it is selected again or a new anchor comes).
    move="selected": only the selected coordinates move, by v_anchor + difference, unscaled; stable at larger steps.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        k1: Count = 0.05,
        k2: Count = 0.05,
        memory_decay: float = 0.5,
        memory_reset: bool = False,
        scaling: str | None = None,
        move: str = "all",
        choose: str = "step",
        anchor_move: str = "all",
        per_tensor: bool = False,
        groups: str | None = None,
        **common: Unpack[Common],
    ):
        sparsity = RTop(k1, k2, scaling, memory_decay, memory_reset, per_tensor, groups)
        base, rest = _sgd(params, lr, common)
        super().__init__(base, "anchor", move=move, choose=choose, anchor_move=anchor_move, sparsity=sparsity, **rest)


class SparseSGD(VarianceReduced):
    """A fresh gradient, of which only the selected coordinates move: one evaluation a step, b k/d queries."""

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        k1: Count = 0.1,
        k2: Count = 0.0,
        memory_decay: float = 0.5,
        choose: str = "anchor",
        anchor_move: str = "all",
        per_tensor: bool = False,
        groups: str | None = None,
        **common: Unpack[Common],
    ):
        sparsity = RTop(k1, k2, None, memory_decay, False, per_tensor, groups)
        base, rest = _sgd(params, lr, common)
        options: dict[str, Any] = {"move": "selected", "choose": choose, "anchor_move": anchor_move, **rest}
        super().__init__(base, None, sparsity=sparsity, **options)


class SparseAdamW(VarianceReduced):
    """`SparseSGD` over AdamW: a small step is one of AdamW's on the selected coordinates, with their moments.

    What is not selected keeps its moments until an anchor moves it. torch counts steps for a whole parameter, small
    ones too, so its correction of a young second moment is too weak for a coordinate that has moved at anchors alone:
    by AdamW's formula and beta2 = 0.999 it moves up to five times as far as AdamW by itself would move it, at the first
    few hundred anchors and right after it is first selected.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        k1: Count = 0.1,
        k2: Count = 0.0,
        memory_decay: float = 0.5,
        choose: str = "anchor",
        anchor_move: str = "all",
        per_tensor: bool = False,
        groups: str | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        **shared: Unpack[Shared],
    ):
        remedies = {"lr": "0.001 is a common start", "weight_decay": "0 turns it off"}
        _check(remedies, lr=lr, weight_decay=weight_decay)
        sparsity = RTop(k1, k2, None, memory_decay, False, per_tensor, groups)
        base = AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        options: dict[str, Any] = {"move": "selected", "choose": choose, "anchor_move": anchor_move, **shared}
        super().__init__(base, None, sparsity=sparsity, **options)
