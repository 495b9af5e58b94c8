"""Layer rules by registration.

A rule is a function in the place of a module's `forward`: rule(module, part, *inputs). It returns what the module
would, by an autograd function that gives the gradients of inputs and bias as always, that of `part.values`, and none to
the weight. It returns None where it does not apply: then the module's own forward runs, and what arrives at the weight
is read there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Part(NamedTuple):
    """Of a module's weight."""

    values: Tensor
    """The parameter that holds the selected groups, shaped as the weight with fewer of them."""
    indices: Tensor
    """Which they are, ascending."""
    dimension: int
    """Of the weight, along which they are selected."""


Rule = Callable[..., Tensor | None]
_RULES: dict[type[nn.Module] | str, Rule] = {}


def rule(*kinds: type[nn.Module] | str) -> Callable[[Rule], Rule]:
    """Register a rule for modules of exactly these classes; a name stands for a class that may not be installed."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            _RULES[kind] = function
        return function

    return register


def rule_for(module: nn.Module) -> Rule | None:
    """Subclasses may compute something else, so they have none of their own accord."""
    kind = type(module)
    return _RULES.get(kind) or _RULES.get(f"{kind.__module__}.{kind.__qualname__}")


def autocast(*tensors: Tensor | None) -> list[Any]:
    """The tensors in the dtype that autocast would take for a product of them."""
    device = next(t.device.type for t in tensors if t is not None)
    if not torch.is_autocast_enabled(device) or any(t is not None and t.dtype == torch.float64 for t in tensors):
        return list(tensors)
    return [t if t is None else t.to(torch.get_autocast_dtype(device)) for t in tensors]
