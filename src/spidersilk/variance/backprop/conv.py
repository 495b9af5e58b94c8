"""Convolutions in two dimensions: the weight gradient of wanted output channels, or of all and then a gather."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spidersilk.variance.backprop import rules, timing
from spidersilk.variance.backprop.sampled import add_shifted
from spidersilk.variance.backprop.wanted import Part

if TYPE_CHECKING:
    from spidersilk.variance.backprop.context import Capture

Pair = tuple[int, int]


class Conv:
    """The weight gradient of a convolution with these strides, paddings and dilations."""

    def __init__(self, stride: Pair, padding: Pair, dilation: Pair):
        self.form = stride, padding, dilation

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if part.rows is None:
            return delta, x
        if delta.is_contiguous(memory_format=torch.channels_last):
            return delta.permute(0, 2, 3, 1).index_select(3, part.padded_rows).permute(0, 3, 1, 2), x
        return delta.index_select(1, part.padded_rows), x

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        ways: dict[str, Callable[[], Tensor]] = {"product": lambda: self._product(part, delta, x)}
        if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and self.form[0] == (1, 1) and len(x):
            ways["shifts"] = lambda: self._shifts(part, delta, x)
        found = timing.run(self.case(part, x), ways, x.device)
        if into is None:
            return found if sign == 1 else found.neg_()
        return into.add_(found, alpha=sign)

    def case(self, part: Part, x: Tensor) -> Hashable:
        """What the fastest way depends on."""
        level = timing.level(part.density)
        return "conv", self.form, x.shape, part.shape, part.rows is None, level, x.dtype, x.device.type

    def _product(self, part: Part, delta: Tensor, x: Tensor) -> Tensor:
        """The gradient of all channels in delta, and from it what is wanted."""
        weight = x.new_empty(()).expand(delta.shape[1], *part.shape[1:])  # its shape counts, not its values
        gradient = _backward(self.form, delta, x, weight, (False, True, False))[1]
        assert gradient is not None
        if part.rows is None:
            return gradient.reshape(-1).index_select(0, part.local)
        return gradient[: part.rows.numel()].reshape(-1)

    def _shifts(self, part: Part, delta: Tensor, x: Tensor) -> Tensor:
        """A dot product for each wanted entry: outputs and inputs in rows of one length, so that a tap is a shift."""
        _, (up, left), (down, right) = self.form
        n, channels, height, width = x.shape
        height, width = height + 2 * up, width + 2 * left
        shifts = [i * down * width + j * right for i in range(part.shape[2]) for j in range(part.shape[3])]
        inputs = x.new_zeros(channels, n * height * width + shifts[-1])
        view = inputs[:, : n * height * width].view(channels, n, height, width)
        view[:, :, up : height - up, left : width - left] = x.transpose(0, 1)
        outputs = delta.new_zeros(delta.shape[1], n, height, width)
        outputs[:, :, : delta.shape[2], : delta.shape[3]] = delta.transpose(0, 1)
        found = delta.new_zeros(part.count)
        add_shifted(part, outputs.view(delta.shape[1], -1), inputs, shifts, found)
        return found


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
        with torch._C.DisableTorchFunction():  # of our own calls the mode has nothing to see
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
    known = not isinstance(padding, str) and groups == 1 and input.dim() == 4
    if part is None or not known or part.shape.numel() < rules.SMALLEST // 16:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)  # pyright: ignore
    rule = Conv(_pair(stride), _pair(padding), _pair(dilation))  # pyright: ignore[reportArgumentType]
    if input.requires_grad and part.rows is None and timing.found(rule.case(part, input)) == "product":
        return torch.conv2d(input, weight, bias, *rule.form)  # nothing is gained: autograd does that product too
    return _Conv2d.apply(input, weight, bias, rule, capture, part)  # pyright: ignore[reportReturnType]


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
