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


CHANGED = (
    "a weight or its selection was modified by an inplace operation between the forward and the backward pass "
    "(by optimizer.step() or load_state_dict()?): call backward() before it"
)
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


def is_watched() -> bool:
    """Whether somebody looks at single operations: a compiler, or a mode such as a tracer's."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def autocast(input: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The tensors in the dtype that autocast would take for a product of them."""
    given = (input, *others)
    if not torch._C._is_any_autocast_enabled():  # the usual case, in one call
        return given
    device = input.device.type
    left = any(t is not None and (t.dtype == torch.float64 or not t.is_floating_point()) for t in given)
    if left or not torch.is_autocast_enabled(device):
        return given
    return tuple([t if t is None else t.to(torch.get_autocast_dtype(device)) for t in given])


def keep(ctx: Any, kept: Tensor, weight: Tensor, indices: Tensor) -> None:
    """Keep for backward what it needs of the input, and the weight and indices, which are there anyway.

    Those are attributes: hooks on saved tensors, as checkpointing has, would cost more than the layer's launches. A
    compiled graph looks only at what is saved for changes.
    """
    if torch.compiler.is_compiling():
        ctx.save_for_backward(kept, weight, indices)
        ctx.held = ()
    elif weight.is_leaf:
        ctx.save_for_backward(kept)
        ctx.held = (weight, indices)
    else:  # a copy that autocast has made
        ctx.save_for_backward(kept, weight)
        ctx.held = (indices,)
    ctx.versions = [tensor._version for tensor in ctx.held]
    ctx.set_materialize_grads(False)


def kept_by(ctx: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What was kept; refused if the weight or the selection has changed since, as torch does."""
    if not torch.compiler.is_compiling() and [tensor._version for tensor in ctx.held] != ctx.versions:
        raise RuntimeError(CHANGED)
    kept, weight, indices = (*ctx.saved_tensors, *ctx.held)
    return kept, weight, indices


def add_columns(of_input: Tensor | None, of_columns: Tensor, dimension: int, shape: Any, indices: Tensor) -> Tensor:
    """The gradient of an input, with that of its selected columns added."""
    total = of_columns.new_zeros(shape) if of_input is None else of_input
    return total.index_add(dimension, indices, of_columns)
