"""The optimizers of the experiments by name; `register` adds one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.lab import peers
from spidersilk.lab.run.team import team
from spidersilk.lab.settings import Number, Setting, check_all, nearest
from spidersilk.lab.tasks import find as find_task
from spidersilk.loop.lengths import Adaptive, Geometric, InnerLength, as_inner_length
from spidersilk.operator.counts import Count
from spidersilk.theory.planner import theorem_2_inner_steps

Params = Iterable[Tensor]


@dataclass(frozen=True)
class Method:
    """How to make an optimizer of parameters, a `RunConfig` (where None is the optimizer's default) and a generator.

    A `plain` one is torch's and steps on small batches alone. `settings` hold for this method whatever the task says.
    `like` names a method whose step sizes suit this one, for tasks that have none for it. `ignores` are settings of a
    run that have no effect on it, and `arguments` what its `arguments` may have; `written` are those that a run writes
    down if it is not given them, since they were others once. With `of_model` it is made of the model in place of
    parameters. The state of one without `resumes` cannot be saved: a run begins anew.
    """

    about: str
    make: Callable[[Any, Any, torch.Generator], Any]
    plain: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    like: str = ""
    ignores: tuple[str, ...] = ()
    arguments: Mapping[str, Setting] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    of_model: bool = False
    resumes: bool = True

    def build(self, model: nn.Module, values: Any, generator: torch.Generator) -> Any:
        return self.make(model if self.of_model else list(model.parameters()), values, generator)


SPARSE = ("memory_decay", "memory_reset", "scaling", "per_tensor", "k1", "k2", "groups")
LOOPS = ("inner_steps", "lengths", "output", "adaptive", "anchor_batch_size", "inner_lr_end", "max_norm", "measures")
STEP_SCALE: Mapping[str, Setting] = {
    "step_scale": Number(above=0, optional=True, about="steps of selected parts over lr: one over their share, if None")
}
Split = Callable[[Count, Count], tuple[Count, Count]]  # k1 and k2 of the run -> those of the optimizer


def _plain(about: str, kind: Callable[..., torch.optim.Optimizer], **fixed: Any) -> Method:
    make = lambda params, values, _: kind(params, values.lr, **fixed)  # noqa: E731
    return Method(about, make, True, {"inner_steps": 1}, ignores=(*SPARSE, *LOOPS))


def _of_adam(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as torch's AdamW takes them."""
    rest = {name: value for name, value in given.items() if name != "beta2"}
    return rest | ({"betas": (0.9, given["beta2"])} if "beta2" in given else {})


def _adamw(params: Params, values: Any, _: torch.Generator) -> torch.optim.Optimizer:
    params = list(params)
    fused = params[0].is_cuda or None  # as the sparse form has it, so that seconds can be compared
    return torch.optim.AdamW(params, values.lr, fused=fused, **_of_adam(values.arguments))


def _rival(name: str, like: str = "") -> Method:
    """One of `peers`, in one process."""
    peer = peers.find(name)

    def make(model: nn.Module, values: Any, generator: torch.Generator) -> Any:
        if team().world > 1:
            raise ValueError(f"{name} trains in one process here: start it without torchrun")
        blocks = find_task(values.task).blocks
        if peer.blocks and not blocks:
            raise ValueError(f"{name} trains transformer blocks, and the task {values.task} has none: take finetune")
        try:
            return peers.make(name, model, values.lr, blocks, **values.arguments)
        except ImportError as error:
            raise ValueError(str(error)) from error

    ignores, fixed = (*SPARSE, *LOOPS), {"inner_steps": 1}
    return Method(peer.about, make, True, fixed, like, ignores, peer.settings, of_model=True, resumes=peer.resumes)


def _reduced(
    about: str, kind: Callable[..., torch.optim.Optimizer], sparse: bool = True, like: str = "",
    split: Split | None = None, ignores: tuple[str, ...] = (), **fixed: Any,
) -> Method:  # fmt: skip
    """`fixed` are arguments of `kind` that a run cannot change; `split` shares out k1 + k2 in another way."""

    def make(params: Params, values: Any, generator: torch.Generator) -> torch.optim.Optimizer:
        names = ("max_norm", *SPARSE) if sparse else ("max_norm",)
        given = {name: getattr(values, name) for name in names if getattr(values, name) is not None} | fixed
        if split is not None:
            given["k1"], given["k2"] = split(given.get("k1", silk.RTop.k1), given.get("k2", silk.RTop.k2))
        return kind(params, values.lr, generator=generator, process_group=team().group, **given)

    return Method(about, make, like=like, ignores=(*ignores, *fixed) if sparse else SPARSE)


def _total(k1: Count, k2: Count) -> Count:
    """k = k1 + k2, in the unit of both."""
    if not (k1 and k2):
        return k1 or k2
    if isinstance(k1, float) != isinstance(k2, float):
        raise ValueError(f"k1 = {k1} and k2 = {k2} cannot be added up: set both to counts, or both to fractions")
    return k1 + k2


def _all_random(k1: Count, k2: Count) -> tuple[Count, Count]:
    return 0, _total(k1, k2)


def _all_top(k1: Count, k2: Count) -> tuple[Count, Count]:
    return _total(k1, k2), 0


def _fresh(
    about: str, kind: Callable[..., torch.optim.Optimizer], like: str = "", adam: bool = False, **fixed: Any
) -> Method:
    """Sparse training: an anchor is a batch like the others, at which a new selection is made."""
    arguments = {**STEP_SCALE, **(peers.ADAM if adam else {})}
    written = {"step_scale": None} | ({"beta2": 0.95} if adam else {})

    def make(params: Params, values: Any, generator: torch.Generator) -> torch.optim.Optimizer:
        names = ("k1", "k2", "max_norm", "groups")
        given = {name: getattr(values, name) for name in names if getattr(values, name) is not None}
        given |= fixed | _of_adam(values.arguments)
        return kind(params, values.lr, generator=generator, process_group=team().group, **given)

    ignores = ("memory_decay", "memory_reset", "scaling", "per_tensor", "track_memory", "lengths", "output")
    ignores = (*ignores, "adaptive", "inner_lr_end", "measures", *fixed)
    return Method(about, make, like=like, ignores=ignores, arguments=arguments, written=written)


METHODS: dict[str, Method] = {
    "sgd": _plain("SGD", torch.optim.SGD),
    "momentum": _plain("SGD, momentum 0.9", torch.optim.SGD, momentum=0.9),
    "adamw": Method("AdamW", _adamw, True, {"inner_steps": 1}, ignores=(*SPARSE, *LOOPS), arguments=peers.ADAM),
    "spiderboost": _reduced("SpiderBoost, dense", silk.SpiderBoost, sparse=False),
    "sparse-spiderboost": _reduced("Algorithm 1 of the paper, as printed", silk.SparseSpiderBoost),
    "svrg": _reduced("SVRG, dense", silk.SVRG, sparse=False),
    "sparse-svrg": _reduced("anchored differences, unbiased rtop", silk.SparseSVRG),
    "sparse-svrg-refresh": _reduced(
        "anchored, refreshed coordinates are kept", silk.SparseSVRG, like="sparse-svrg", scaling="refresh"
    ),
    "sparse-svrg-selected": _reduced(
        "anchored, only selected coordinates move",
        silk.SparseSVRG,
        like="sparse-svrg",
        ignores=("scaling", "memory_reset"),
        move="selected",
    ),
    "sparse-sgd": _fresh("SGD on the selected entries of each weight", silk.SparseSGD),
    "sparse-sgd-momentum": _fresh("the same with momentum 0.9", silk.SparseSGD, like="momentum", momentum=0.9),
    "sparse-adamw": _fresh("AdamW on the selected entries of each weight", silk.SparseAdamW, adam=True),
    "sparse-adamw-columns": _fresh(
        "the same on whole columns", silk.SparseAdamW, "sparse-adamw", adam=True, groups="columns"
    ),
    "random-k": _reduced(
        "anchored, k1 + k2 random coordinates", silk.SparseSVRG, like="sparse-svrg", split=_all_random
    ),
    "top-k": _reduced("anchored, k1 + k2 top coordinates", silk.SparseSVRG, like="sparse-svrg", split=_all_top),
    "in-backward": _rival("in-backward", "adamw"),
    "adamw-8bit": _rival("adamw-8bit", "adamw"),
    **{name: _rival(name) for name in ("lora", "galore", "apollo-mini", "badam")},
}


def register(name: str, method: Method) -> None:
    METHODS[name] = method


def find(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"there is no optimizer {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def check_arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The `arguments` of a run, each as it is used."""
    known = find(name).arguments
    if given and not known:
        raise ValueError(f"arguments = {dict(given)}: {name} takes none: leave them out")
    return check_all(given, known, f"is no argument of {name}", "arguments: ")


def inner_length(values: Any, optimizer: torch.optim.Optimizer, anchor: int, small: int) -> InnerLength:
    """How long the loops of a run are; `anchor` and `small` are its batches."""
    inner = 1 if find(values.optimizer).plain else values.inner_steps or 1
    if inner == "theorem-2":
        inner = theorem_2_inner_steps(anchor, small, _density(optimizer))
    geometric = values.lengths == "geometric" and isinstance(optimizer, silk.VarianceReduced)
    length = Geometric(inner) if geometric else as_inner_length(inner)
    if not isinstance(length, Adaptive):
        return length
    if isinstance(optimizer, silk.Sparse):
        raise ValueError(
            f"inner_steps = 'auto' with {values.optimizer}: it has no difference whose variance could end a loop, so "
            "give a number"
        )
    return Adaptive(**values.adaptive)


def _density(optimizer: torch.optim.Optimizer) -> float:
    """k/d of an optimizer."""
    if isinstance(optimizer, silk.Sparse):
        return optimizer.density
    sparsity = getattr(optimizer, "sparsity", None)
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    return 1.0 if sparsity is None else sparsity.density(shapes)
