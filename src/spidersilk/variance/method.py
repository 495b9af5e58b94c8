"""Which combinations of the choices make a method, and which base optimizers can carry one."""

from __future__ import annotations

from torch.optim import LBFGS, SGD, Optimizer, SparseAdam

from spidersilk.checks import check_choice
from spidersilk.operator.selection import RTop
from spidersilk.parallel.ddp import refuse_sharded


def check_choices(reference: str | None, move: str, choose: str, anchor_move: str, sparsity: RTop | None) -> str:
    """Refuse combinations that estimate nothing; returns the scaling, "unbiased" or "none" where it was left open."""
    check_choice("reference", reference, ("previous", "anchor", None))
    check_choice("move", move, ("all", "selected"))
    check_choice("choose", choose, ("step", "anchor"))
    check_choice("anchor_move", anchor_move, ("all", "selected"))
    scaling = None if sparsity is None else sparsity.scaling
    if scaling == "refresh" and reference != "anchor":
        raise ValueError(
            f"scaling = 'refresh' with reference = {reference!r}: only reference='anchor' has a v to refresh"
        )
    if anchor_move == "selected" and move != "selected":
        raise ValueError(f"anchor_move = 'selected' with move = {move!r}: it needs move='selected'")
    if move == "all":
        return scaling or "unbiased"
    if sparsity is None:
        raise ValueError("move = 'selected' without sparsity: say what to select with sparsity=RTop(k1, k2)")
    if reference == "previous":
        raise ValueError(
            "reference = 'previous' with move = 'selected': v on a new coordinate would be stale; use 'anchor' or None"
        )
    if scaling == "unbiased":
        raise ValueError("scaling = 'unbiased' with move = 'selected' diverges: leave scaling=None")
    if scaling == "refresh":
        raise ValueError(
            "scaling = 'refresh' says what unselected coordinates of v hold, and with move = 'selected' these "
            "do not move: leave scaling=None"
        )
    return "none"


def errors_are_independent(scaling: str, choose: str, sparsity: RTop | None) -> bool:
    """Whether the errors that sparsity adds to v at successive steps have mean zero and do not repeat."""
    return sparsity is None or (scaling == "unbiased" and choose == "step" and sparsity.k2 > 0)


def check_adaptive(reference: str | None, scaling: str, choose: str, sparsity: RTop | None) -> None:
    """Adaptive loops go by differences; a recursive v must also know the variance that it gathers."""
    if reference == "previous" and not errors_are_independent(scaling, choose, sparsity):
        raise ValueError(
            "inner_steps = 'auto' with reference = 'previous' needs scaling='unbiased', choose='step' and k2 above 0: "
            "otherwise the error of v cannot be estimated from a step, so give a number"
        )
    if reference is None:
        raise ValueError(
            "inner_steps = 'auto' with reference = None: there is no difference whose variance could end a loop, so "
            "give a number"
        )


def check_base(base: object, move: str, anchor_move: str) -> None:
    if not isinstance(base, Optimizer):
        raise ValueError(f"base = {type(base).__name__} must be a torch.optim optimizer, such as SGD(params, lr=0.1)")
    if hasattr(base, "base"):
        raise ValueError(f"base = {type(base).__name__} wraps an optimizer itself: give the plain one")
    if isinstance(base, LBFGS | SparseAdam):
        raise ValueError(
            f"base = {type(base).__name__} cannot step with v: use SGD, AdamW or another first-order optimizer"
        )
    refuse_sharded([p for group in base.param_groups for p in group["params"]])
    name = type(base).__name__
    if move == "selected" and (name in ("Adafactor", "Muon") or (name == "Rprop" and anchor_move == "selected")):
        raise ValueError(
            f"base = {name} has state for rows or signs, not for coordinates that come and go: use move='all'"
        )


def moves_by_gradient_alone(base: Optimizer) -> bool:
    """Whether a zero gradient leaves x as it is, bit for bit: plain SGD."""
    return type(base) is SGD and all(g["momentum"] == 0 and g["weight_decay"] == 0 for g in base.param_groups)
