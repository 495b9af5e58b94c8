"""The named optimizers: each is a choice of reference, scaling and move over torch's SGD, and nothing else."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from spidersilk.checks import check_number
from spidersilk.loop.lengths import InnerLength
from spidersilk.operator.counts import Count
from spidersilk.operator.settings import Groups, RTop, Scaling
from spidersilk.parallel.workers import Group
from spidersilk.variance.method import Choose, Move
from spidersilk.variance.variance_reduced import VarianceReduced


class Shared(TypedDict, total=False):
    """Keywords that every named optimizer hands on; `VarianceReduced` describes them."""

    inner_steps: int | str | InnerLength | None
    max_norm: float | None
    backend: str
    sparse_backward: bool
    model: nn.Module | None
    generator: torch.Generator | None
    process_group: Group


class Common(Shared, total=False):
    """Those that are over SGD take its own as well."""

    momentum: float
    weight_decay: float


def check_rates(remedies: dict[str, str], **values: float) -> None:
    for name, value in values.items():
        check_number(name, value, remedies[name])


def sgd(params: ParamsT, lr: float, common: Common) -> tuple[SGD, dict[str, Any]]:
    """The base optimizer, and the keywords that are left for VarianceReduced."""
    rest: dict[str, Any] = dict(common)
    momentum, weight_decay = rest.pop("momentum", 0.0), rest.pop("weight_decay", 0.0)
    remedies = {"lr": "0.1 is a common start", "momentum": "0 turns it off", "weight_decay": "0 turns it off"}
    check_rates(remedies, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay), rest


class SpiderBoost(VarianceReduced):
    """SpiderBoost: v := v + g(x_t) - g(x_{t-1}), dense, started anew at each anchor."""

    def __init__(self, params: ParamsT, lr: float, **common: Unpack[Common]):
        base, rest = sgd(params, lr, common)
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
        scaling: Scaling = "unbiased",
        choose: Choose = "step",
        per_tensor: bool = False,
        groups: Groups | None = None,
        **common: Unpack[Common],
    ):
        sparsity = RTop(k1, k2, scaling, memory_decay, memory_reset, per_tensor, groups)
        base, rest = sgd(params, lr, common)
        super().__init__(base, "previous", choose=choose, sparsity=sparsity, **rest)


class SVRG(VarianceReduced):
    """SVRG: v := v_anchor + g(x_t) - g(x_anchor), dense."""

    def __init__(self, params: ParamsT, lr: float, **common: Unpack[Common]):
        base, rest = sgd(params, lr, common)
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
        scaling: Scaling | None = None,
        move: Move = "all",
        choose: Choose = "step",
        anchor_move: Move = "all",
        per_tensor: bool = False,
        groups: Groups | None = None,
        **common: Unpack[Common],
    ):
        sparsity = RTop(k1, k2, scaling, memory_decay, memory_reset, per_tensor, groups)
        base, rest = sgd(params, lr, common)
        super().__init__(base, "anchor", move=move, choose=choose, anchor_move=anchor_move, sparsity=sparsity, **rest)
