"""The optimizers of the experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import spidersilk as silk
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import nearest

if TYPE_CHECKING:
    from spidersilk.lab.run.config import RunConfig

Params = Iterable[Tensor]


@dataclass(frozen=True)
class Method:
    """How to make an optimizer from a config; `plain` ones are torch's own, stepped on small batches alone.

    `settings` are those of the run that this method has of its own, whatever the task's are.
    """

    about: str
    make: Callable[[Params, RunConfig, torch.Generator], torch.optim.Optimizer]
    plain: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def _plain(about: str, make: Callable[[Params, float], torch.optim.Optimizer], **settings: Any) -> Method:
    return Method(about, lambda params, config, _: make(params, _lr(config)), True, {"inner_steps": 1, **settings})


def _lr(config: RunConfig) -> float:
    assert config.lr is not None
    return config.lr


def _reduced(about: str, kind: Any, sparse: bool = True, **own: Any) -> Method:
    """`own` may fix k1 or k2."""

    def make(params: Params, config: RunConfig, generator: torch.Generator) -> torch.optim.Optimizer:
        options: dict[str, Any] = {"generator": generator, "max_norm": config.max_norm, "process_group": team().group}
        if sparse:
            options |= {"memory_decay": config.memory_decay}
            options |= {k: getattr(config, k) for k in ("k1", "k2", "groups") if getattr(config, k) is not None}
        return kind(params, _lr(config), **(options | own))

    return Method(about, make)


METHODS: dict[str, Method] = {
    "sgd": _plain("SGD", lambda params, lr: torch.optim.SGD(params, lr)),
    "momentum": _plain("SGD, momentum 0.9", lambda params, lr: torch.optim.SGD(params, lr, momentum=0.9)),
    "adamw": _plain("AdamW", lambda params, lr: torch.optim.AdamW(params, lr)),
    "spiderboost": _reduced("SpiderBoost, dense", silk.SpiderBoost, sparse=False),
    "sparse-spiderboost": _reduced("Algorithm 1 of the paper, as printed", silk.SparseSpiderBoost),
    "svrg": _reduced("SVRG, dense", silk.SVRG, sparse=False),
    "sparse-svrg": _reduced("anchored differences, unbiased rtop", silk.SparseSVRG),
    "sparse-svrg-refresh": _reduced("anchored, refreshed coordinates are kept", silk.SparseSVRG, scaling="refresh"),
    "sparse-svrg-selected": _reduced("anchored, only the selected move", silk.SparseSVRG, move="selected"),
    "sparse-sgd": _reduced("a fresh gradient, only the selected move", silk.SparseSGD),
    "sparse-sgd-momentum": _reduced("the same over SGD with momentum 0.9", silk.SparseSGD, momentum=0.9),
    "sparse-adamw": _reduced("the same over AdamW", silk.SparseAdamW),
    "sparse-adamw-step": _reduced("the same, selected at every step", silk.SparseAdamW, choose="step"),
    "random-k": _reduced("anchored, k random coordinates (k1 = 0)", silk.SparseSVRG, k1=0),
    "top-k": _reduced("anchored, k top coordinates (k2 = 0)", silk.SparseSVRG, k2=0),
}


def register(name: str, method: Method) -> None:
    """Make an optimizer known to the lab."""
    METHODS[name] = method


def find(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"there is no optimizer {name!r}{nearest(name, METHODS)}")
    return METHODS[name]
