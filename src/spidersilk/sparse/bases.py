"""What is known of base optimizers: which can step a part of a weight, and whose steps kernels do in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, AdamW, Optimizer, SparseAdam

from spidersilk.kernels.interface import Entries, Rule, Step
from spidersilk.sparse.sharded import is_sharded
from spidersilk.sparse.weights import Weights
from spidersilk.variance.saving import Saves

Groups = Sequence[dict[str, Any]]
RULES: dict[type[Optimizer], Rule] = {SGD: "sgd", AdamW: "adamw"}


def check_base(base_class: object) -> None:
    if not isinstance(base_class, type) or not issubclass(base_class, Optimizer):
        raise ValueError(f"base_class = {base_class!r} must be a class of torch.optim, such as torch.optim.AdamW")
    if issubclass(base_class, Saves):
        raise ValueError(f"base_class = {base_class.__name__} is not a class of torch.optim: use AdamW or the like")
    if issubclass(base_class, LBFGS | SparseAdam) or base_class.__name__ in ("Adafactor", "Muon"):
        raise ValueError(f"base_class = {base_class.__name__} cannot step single entries: use SGD, AdamW or the like")


def step(base: Optimizer, weights: Weights, stepped: Sequence[Tensor]) -> None:
    """Refresh, let the base step, with a group for each step size, and write through: in one pass if kernels can."""
    groups = base.param_groups
    parts = [weights.by_step_size(group) for group in groups]
    given = [_values(group) for group in groups]
    base.param_groups = [part for cut in parts for part in cut]
    try:
        kernels = weights.first_kernels
        found = None if kernels is None or kernels.step is None else steps_of(base, weights.entries_of)
        if kernels is not None and kernels.step is not None and found is not None:
            kernels.step(*found)
        else:
            copies = weights.parts(stepped)
            for kernels, entries in copies:
                kernels.refresh(entries)
            base.step()
            for kernels, entries in copies:
                kernels.write_through(entries)
    finally:
        base.param_groups = groups
    for group, cut, before in zip(groups, parts, given, strict=True):
        if any(part is not group and _values(part) != before for part in cut):
            name = next(n for part in cut for n, value in _values(part).items() if before.get(n) != value)
            raise ValueError(
                f"{name!r} of a parameter group changed while {type(base).__name__} stepped, in a copy of the group: "
                "they are cut by step size, so give step_scale=1.0 and a larger lr"
            )


def _values(group: dict[str, Any]) -> dict[str, Any]:
    """What a group holds besides parameters and lr: other values are other objects, or tensors changed in place."""
    rest = {name: value for name, value in group.items() if name not in ("params", "lr")}
    return {n: (id(x), x._version if isinstance(x, Tensor) else 0) for n, x in rest.items()}


def steps_of(base: Optimizer, entries_of: Callable[[Tensor], Entries | None]) -> tuple[Rule, list[Step]] | None:
    """What `base.step()` would do; None if it is another base, has no state yet, or is asked for something special."""
    rule = RULES.get(type(base))
    if rule is None or base._optimizer_step_pre_hooks or base._optimizer_step_post_hooks:
        return None
    steps: list[Step] = []
    for group in base.param_groups:
        numbers, names = _numbers(rule, group), _names(rule, group)
        if numbers is None:
            return None
        for p in group["params"]:
            gradient = p.grad
            if gradient is None:
                continue
            held = base.state.get(p, {})
            state = tuple([held.get(name) for name in names])
            if not _is_plain(p, gradient, state):
                return None
            steps.append(Step(p, gradient, state, entries_of(p), numbers))
    return (rule, steps) if len({given.param.get_device() for given in steps}) == 1 else None


def arguments_for(base_class: type[Optimizer], groups: Groups, given: dict[str, Any]) -> dict[str, Any]:
    """What the base is made with: torch's fused form on CUDA, where one pass is possible, unless another is given."""
    forms = ("fused", "foreach", "capturable", "differentiable")
    if base_class not in RULES or any(given.get(name) is not None for name in forms):
        return given
    params = [p for group in groups for p in group["params"]]
    return given | {"fused": True} if all(p.is_cuda and not is_sharded(p) for p in params) else given


def _numbers(rule: Rule, group: dict[str, Any]) -> tuple[float, ...] | None:
    """None: the group wants more than these."""
    if isinstance(group["lr"], Tensor) or any(group.get(n) for n in ("differentiable", "capturable", "amsgrad")):
        return None
    sign = -1.0 if group["maximize"] else 1.0
    if rule == "adamw":
        return group["lr"], *group["betas"], group["eps"], group["weight_decay"], sign
    nesterov = float(group["nesterov"])
    return group["lr"], group["momentum"], group["dampening"], group["weight_decay"], nesterov, sign


def _names(rule: Rule, group: dict[str, Any]) -> tuple[str, ...]:
    """Of the state, the count of steps last."""
    if rule == "adamw":
        return "exp_avg", "exp_avg_sq", "step"
    return ("momentum_buffer",) if group["momentum"] else ()


def _is_plain(p: Tensor, gradient: Tensor, state: Sequence[Tensor | None]) -> bool:
    """Whether all of it is there, on one device, value by value."""
    device = p.get_device()
    for x in state:
        if x is None or x.get_device() != device:
            return False
    plain = gradient.dtype == p.dtype and p.is_contiguous() and gradient.is_contiguous()
    return plain and gradient.layout == torch.strided and not is_sharded(p)
