"""The optimizers of the experiments by name; `register` adds one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import spidersilk as silk
from spidersilk.lab.run.team import team
from spidersilk.lab.settings import nearest

Params = Iterable[Tensor]


@dataclass(frozen=True)
class Method:
    """How to make an optimizer of parameters, a `RunConfig` (where None is the optimizer's default) and a generator.

    A `plain` one is torch's and steps on small batches alone. `settings` hold for this method whatever the task says.
    `like` names a method whose step sizes suit this one, for tasks that have none for it. `ignores` are settings of a
    run that have no effect on it.
    """

    about: str
    make: Callable[[Params, Any, torch.Generator], torch.optim.Optimizer]
    plain: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    like: str = ""
    ignores: tuple[str, ...] = ()


SPARSE = ("memory_decay", "k1", "k2", "groups")
LOOPS = ("inner_steps", "adaptive", "anchor_batch_size", "inner_lr_end", "max_norm", "measures")


def _plain(about: str, kind: Callable[..., torch.optim.Optimizer], **fixed: Any) -> Method:
    make = lambda params, values, _: kind(params, values.lr, **fixed)  # noqa: E731
    return Method(about, make, True, {"inner_steps": 1}, ignores=(*SPARSE, *LOOPS))


def _reduced(
    about: str, kind: Callable[..., torch.optim.Optimizer], sparse: bool = True, like: str = "", **fixed: Any
) -> Method:
    """`fixed` are arguments of `kind` that a run cannot change."""

    def make(params: Params, values: Any, generator: torch.Generator) -> torch.optim.Optimizer:
        names = ("max_norm", *SPARSE) if sparse else ("max_norm",)
        given = {name: getattr(values, name) for name in names if getattr(values, name) is not None}
        return kind(params, values.lr, generator=generator, process_group=team().group, **(given | fixed))

    return Method(about, make, like=like, ignores=tuple(fixed) if sparse else SPARSE)


METHODS: dict[str, Method] = {
    "sgd": _plain("SGD", torch.optim.SGD),
    "momentum": _plain("SGD, momentum 0.9", torch.optim.SGD, momentum=0.9),
    "adamw": _plain("AdamW", torch.optim.AdamW),
    "spiderboost": _reduced("SpiderBoost, dense", silk.SpiderBoost, sparse=False),
    "sparse-spiderboost": _reduced("Algorithm 1 of the paper, as printed", silk.SparseSpiderBoost),
    "svrg": _reduced("SVRG, dense", silk.SVRG, sparse=False),
    "sparse-svrg": _reduced("anchored differences, unbiased rtop", silk.SparseSVRG),
    "sparse-svrg-refresh": _reduced(
        "anchored, refreshed coordinates are kept", silk.SparseSVRG, like="sparse-svrg", scaling="refresh"
    ),
    "sparse-svrg-selected": _reduced(
        "anchored, only selected coordinates move", silk.SparseSVRG, like="sparse-svrg", move="selected"
    ),
    "sparse-sgd": _reduced("a fresh gradient, only selected coordinates move", silk.SparseSGD),
    "sparse-sgd-momentum": _reduced(
        "the same over SGD with momentum 0.9", silk.SparseSGD, like="momentum", momentum=0.9
    ),
    "sparse-adamw": _reduced("the same over AdamW", silk.SparseAdamW),
    "sparse-adamw-step": _reduced(
        "the same, selected at every step", silk.SparseAdamW, like="sparse-adamw", choose="step"
    ),
    "random-k": _reduced("anchored, k random coordinates (k1 = 0)", silk.SparseSVRG, like="sparse-svrg", k1=0),
    "top-k": _reduced("anchored, k top coordinates (k2 = 0)", silk.SparseSVRG, like="sparse-svrg", k2=0),
}


def register(name: str, method: Method) -> None:
    METHODS[name] = method


def find(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"there is no optimizer {name!r}{nearest(name, METHODS)}")
    return METHODS[name]
