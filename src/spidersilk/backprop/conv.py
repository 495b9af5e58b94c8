"""Convolutions in two dimensions: the weight gradient of wanted output channels, or of all and then a gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spidersilk.backprop import rules
from spidersilk.backprop.wanted import Part

if TYPE_CHECKING:
    from spidersilk.backprop.context import Capture

Pair = tuple[int, int]


class Conv:
    """The weight gradient of a convolution with these strides, paddings and dilations."""

    def __init__(self, stride: Pair, padding: Pair, dilation: Pair):
        self.form = stride, padding, dilation

    def is_whole(self, part: Part, x: Tensor) -> bool:
        return False

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return delta if part.rows is None else delta.index_select(1, part.rows), x

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        shape = (delta.shape[1], *part.shape[1:])
        gradient = _backward(self.form, delta, x, x.new_empty(()).expand(shape), (False, True, False))[1]
        assert gradient is not None
        found = gradient.reshape(-1)
        if part.rows is None:
            found = found[part.local]
        if into is None:
            return found if sign == 1 else found.neg_()
        into[: part.count].add_(found, alpha=sign)
        return into


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rule: Conv, capture: Capture, part: Part
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.capture, ctx.part, ctx.rule = capture, part, rule
        return torch.conv2d(x, weight, bias, *rule.form)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        at_x, at_weight, at_bias = ctx.needs_input_grad[:3]
        taken = at_weight and ctx.capture.take(ctx, 1, ctx.rule, ctx.part, delta, x)
        mask = at_x, at_weight and not taken, False
        dx, dw, _ = _backward(ctx.rule.form, delta, x, weight, mask) if any(mask) else (None, None, None)
        db = delta.sum((0, 2, 3)) if at_bias else None  # oneDNN would compute the weight's gradient for it
        return dx if at_x else None, dw if mask[1] else None, db, None, None, None


def _backward(
    form: tuple[Pair, Pair, Pair], delta: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    stride, padding, dilation = form
    return torch.ops.aten.convolution_backward(
        delta, x, weight, [weight.shape[0]], stride, padding, dilation, False, [0, 0], 1, mask
    )


def conv2d(
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d`, which hands the weight's gradient to `capture` where it can."""
    weight, bias = capture.cut(weight), capture.cut(bias)
    part = capture.part_of(weight)
    # Single entries of a hidden layer's weight gradient cost as much as all: autograd's own backward does both at once.
    pays = part is not None and (part.rows is not None or (capture.shares and not input.requires_grad))
    known = not isinstance(padding, str) and groups == 1 and input.dim() == 4
    if part is None or not pays or not known or part.shape.numel() < rules.SMALLEST // 16:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)  # pyright: ignore
    rule = Conv(_pair(stride), _pair(padding), _pair(dilation))  # pyright: ignore[reportArgumentType]
    return _Conv2d.apply(input, weight, bias, rule, capture, part)  # pyright: ignore[reportReturnType]


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
