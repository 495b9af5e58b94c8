"""Method: the choices that make a variance-reduced method, checked once; and which base optimizers can carry one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from spidersilk.checks import check_choice, check_number
from spidersilk.operator.counts import check_meant, resolve_counts
from spidersilk.operator.settings import RTop, Scaling
from spidersilk.parallel.ddp_wrappers import refuse_sharded
from spidersilk.variance.estimators import Estimator, find

Move = Literal["all", "selected"]
Choose = Literal["step", "anchor"]


@dataclass(frozen=True)
class Method:
    """What makes a method; `VarianceReduced` describes each choice. Combinations that estimate nothing are refused."""

    reference: str
    move: Move = "all"
    choose: Choose = "step"
    anchor_move: Move = "all"
    sparsity: RTop | None = None
    max_norm: float | None = None

    def __post_init__(self) -> None:
        check_choice("move", self.move, ("all", "selected"))
        check_choice("choose", self.choose, ("step", "anchor"))
        check_choice("anchor_move", self.anchor_move, ("all", "selected"))
        if self.max_norm is not None:
            check_number("max_norm", self.max_norm, "None turns clipping off", above_zero=True)
        if self.anchor_move == "selected" and self.move != "selected":
            raise ValueError(f"anchor_move = 'selected' with move = {self.move!r}: it needs move='selected'")
        if self.move == "selected":
            self._check_selected()
        find(self.reference, self.scaling)

    def _check_selected(self) -> None:
        if self.sparsity is None:
            raise ValueError("move = 'selected' without sparsity: say what to select with sparsity=RTop(k1, k2)")
        if self.sparsity.scaling == "unbiased":
            raise ValueError("scaling = 'unbiased' with move = 'selected' diverges: leave scaling=None")
        if self.sparsity.scaling == "refresh":
            raise ValueError(
                "scaling = 'refresh' says what unselected coordinates of v hold, and with move = 'selected' these "
                "do not move: leave scaling=None"
            )
        if find(self.reference, "none").on_selection is None:
            raise ValueError(
                f"reference = {self.reference!r} with move = 'selected': v on a new coordinate would be stale; use "
                "'anchor'"
            )

    @property
    def estimator(self) -> Estimator:
        return find(self.reference, self.scaling)

    @property
    def scaling(self) -> Scaling:
        """Of the random part; where it was left open, none for the selected coordinates and else unbiased."""
        if self.sparsity is not None and self.sparsity.scaling is not None:
            return self.sparsity.scaling
        return "none" if self.move == "selected" else "unbiased"

    @property
    def moves_selected(self) -> bool:
        """Whether a small step moves the selected coordinates alone."""
        return self.move == "selected"

    @property
    def is_recursive(self) -> bool:
        """Whether v builds on the v of the step before, so that its errors add up."""
        return self.estimator.point == "previous"

    @property
    def keeps_anchor_estimate(self) -> bool:
        """Whether the anchor's v is kept apart. Where only the selected move, v itself is never updated."""
        return self.estimator.point == "anchor" and not self.moves_selected

    @property
    def errors_are_independent(self) -> bool:
        """Whether the errors that sparsity adds to v at successive steps have mean zero and do not repeat."""
        return self.sparsity is None or (self.scaling == "unbiased" and self.choose == "step" and self.sparsity.k2 > 0)

    def check_counts(self, d: int) -> None:
        """Refuse k1 and k2 that d coordinates do not have."""
        if self.sparsity is None:
            return
        check_meant(self.sparsity.k1, self.sparsity.k2, d)
        if not self.sparsity.per_tensor:
            resolve_counts(self.sparsity.k1, self.sparsity.k2, d)

    def check_adaptive(self) -> None:
        """Adaptive loops go by differences; a recursive v must also know the variance that it gathers."""
        if self.is_recursive and not self.errors_are_independent:
            raise ValueError(
                "inner_steps = 'auto' with reference = 'previous' needs scaling='unbiased', choose='step' and k2 above "
                "0: otherwise the error of v cannot be estimated from a step, so give a number"
            )

    def settings(self) -> dict[str, Any]:
        """What must be equal for a saved state to fit."""
        settings: dict[str, Any] = asdict(self) | {"scaling": self.scaling}
        del settings["max_norm"]
        if self.sparsity is not None and self.sparsity.groups is None:
            del settings["sparsity"]["groups"]  # as in states that were saved before there were groups
        return settings


def check_model(model: object, param_groups: Sequence[dict[str, Any]]) -> None:
    """Refuse a `model=` whose buffers are not those of what is trained."""
    if model is None:
        return
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {type(model).__name__} must be the nn.Module that holds the parameters, or None")
    inside = {id(p) for p in model.parameters()}
    if any(id(p) not in inside for group in param_groups for p in group["params"]):
        raise ValueError("model: it does not hold all the parameters, so give the module around all of them, or None")


def check_base(base: object, method: Method) -> None:
    """Refuse base optimizers that cannot step with v."""
    if not isinstance(base, Optimizer):
        raise ValueError(f"base = {type(base).__name__} must be a torch.optim optimizer, such as SGD(params, lr=0.1)")
    name = type(base).__name__
    if hasattr(base, "base"):
        raise ValueError(f"base = {name} wraps an optimizer itself: give the plain one")
    if isinstance(base, LBFGS | SparseAdam):
        raise ValueError(f"base = {name} cannot step with v: use SGD, AdamW or another first-order optimizer")
    refuse_sharded([p for group in base.param_groups for p in group["params"]])
    by_sign = name == "Rprop" and method.anchor_move == "selected"
    if method.moves_selected and (name in ("Adafactor", "Muon") or by_sign):
        raise ValueError(
            f"base = {name} has state for rows or signs, not for coordinates that come and go: use move='all'"
        )
