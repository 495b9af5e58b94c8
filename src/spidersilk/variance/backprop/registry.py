"""Layer rules: how the weight gradient of a torch function is computed on selected rows, and what all rules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from spidersilk.variance.backprop.wanted import Part

SMALLEST = 4096  # entries of a weight below which the Python code of a rule takes longer than it saves
Operands = tuple[Tensor, Tensor, Tensor | None]  # input, weight and bias


class Rule(ABC):
    """The gradients of one torch function. There is an instance for each call.

    `delta` is the gradient of the output. All methods use differentiable functions, so that gradients of gradients are
    right, and the tensors that they are given: `read` keeps none.
    """

    @abstractmethod
    def read(self, *args: Any, **kwargs: Any) -> Operands | None:
        """Has the signature of the function. None where the rule does not apply: the function is then called as is."""

    @abstractmethod
    def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        """The weight's gradient on `rows` of its first dimension, in this order: (len(rows), *weight.shape[1:])."""

    def input_gradient(self, delta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Left out where an input never has a gradient, as the tokens of an embedding."""
        raise TypeError(f"{type(self).__name__}: the input requires a gradient, so the rule needs an input_gradient")

    def bias_gradient(self, delta: Tensor) -> Tensor:
        """Left out where there is never a bias."""
        raise TypeError(f"{type(self).__name__}: the bias requires a gradient, so the rule needs a bias_gradient")


RULES: dict[Callable[..., Any], type[Rule]] = {}
RuleType = TypeVar("RuleType", bound=type[Rule])


def rule(function: Callable[..., Any]) -> Callable[[RuleType], RuleType]:
    """Register a `Rule` for `function`: one of torch, or one of yours that calls `torch.overrides`."""

    def register(rule_type: RuleType) -> RuleType:
        RULES[function] = rule_type
        return rule_type

    return register


class Receiver(Protocol):
    """Who takes gradients of selected rows: a `Capture`."""

    sign: float
    """Of the evaluation under way, 0 outside of one."""

    def part_of(self, weight: Tensor) -> Part | None: ...
    def take(self, part: Part, gradient: Tensor) -> None: ...


def call(capture: Receiver, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function`, which has a rule; the weight's gradient goes to `capture` where that is possible."""
    applied = RULES[function]()
    operands = applied.read(*args, **kwargs)
    part = None if operands is None else capture.part_of(operands[1])
    if operands is None or part is None or part.size < SMALLEST:
        return function(*args, **kwargs)
    return _Layer.apply(*operands, partial(function, *args, **kwargs), applied, capture, part)


class _Layer(torch.autograd.Function):
    """A call of a function with a rule. Forward is the function itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, function: Any, *rest: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rule, ctx.capture, ctx.part = rest
        return function()

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        with torch._C.DisableTorchFunction():  # the capture need not see the calls made here
            for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
            dx = ctx.rule.input_gradient(delta, x, weight) if for_x else None
            dw = _weight_gradient(ctx, delta, x, weight) if for_weight else None
            db = ctx.rule.bias_gradient(delta) if for_bias else None
            return dx, dw, db, None, None, None, None


def _weight_gradient(ctx: Any, delta: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    """The ordinary gradient, or None where the selected rows of it were handed to the capture."""
    try:
        is_due = torch._C._will_engine_execute_node(ctx.next_functions[1][0])  # by accumulation in p.grad
    except RuntimeError:  # this pass returns it to the caller (`torch.autograd.grad`)
        is_due = None
    if is_due is None or not ctx.capture.sign or torch.is_grad_enabled():
        rows = torch.arange(weight.shape[0], device=weight.device)
        return ctx.rule.rows_gradient(delta, x, rows).reshape(weight.shape)
    if is_due:
        ctx.capture.take(ctx.part, ctx.rule.rows_gradient(delta, x, ctx.part.rows))
    return None
