"""SparseSGD and SparseAdamW: torch's SGD and AdamW on the selected entries of each weight."""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.optimizer import ParamsT

from spidersilk.checks import check_number
from spidersilk.operator.counts import Count
from spidersilk.operator.groups import Groups
from spidersilk.parallel.workers import Group
from spidersilk.sparse.sparse import Sparse


class Shared(TypedDict, total=False):
    """Keywords that the named optimizers hand on; `Sparse` describes them, and torch the last five."""

    groups: Groups | None
    step_scale: float | None
    inner_steps: int | None
    max_norm: float | None
    backend: str
    generator: torch.Generator | None
    process_group: Group
    maximize: bool
    foreach: bool | None
    fused: bool | None
    differentiable: bool


class SparseSGD(Sparse):
    """torch's SGD on the selected entries of each weight. `Sparse` has the other arguments."""

    def __init__(
        self,
        model_or_params: nn.Module | ParamsT,
        lr: float = 0.1,
        k1: Count = 0.0,
        k2: Count = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **shared: Unpack[Shared],
    ):
        check_number("lr", lr, "0.1 is a common start")
        check_number("momentum", momentum, "0 turns it off")
        check_number("weight_decay", weight_decay, "0 turns it off")
        given = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(model_or_params, SGD, lr=lr, k1=k1, k2=k2, **given, **shared)


class SparseAdamW(Sparse):
    """torch's AdamW on the selected entries of each weight. `Sparse` has the other arguments.

    lr is about AdamW's (see step_scale). beta2 is 0.95, where torch has 0.999: a second moment has to follow what newly
    selected entries need long before the next selection.
    """

    def __init__(
        self,
        model_or_params: nn.Module | ParamsT,
        lr: float = 0.001,
        k1: Count = 0.0,
        k2: Count = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        **shared: Unpack[Shared],
    ):
        check_number("lr", lr, "0.001 is a common start")
        check_number("weight_decay", weight_decay, "0 turns it off")
        given = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(model_or_params, AdamW, lr=lr, k1=k1, k2=k2, **given, **shared)
