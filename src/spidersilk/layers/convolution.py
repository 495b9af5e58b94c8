"""Convolutions of one group: the gradient of some input channels of the weight needs those channels of x alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.layers.registry import Part, add_columns, autocast, keep, kept_by, rule


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: Any, part: Part, input: Tensor) -> Tensor | None:
    batched = input.dim() == module.weight.dim()
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str) or not batched:
        return None
    x, weight, bias = autocast(input, module.weight, module.bias)
    return _Convolution.apply(x, weight, bias, *part, module.stride, module.padding, module.dilation)[0]


class _Convolution(torch.autograd.Function):
    """The second output is the channels of x that backward needs: gradients of gradients come to x by way of them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, values: Tensor, indices: Tensor, dimension: int,
        stride: Any, padding: Any, dilation: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        y = torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), 1)
        channels = x.index_select(1, indices) if dimension == 1 else None
        keep(ctx, x if channels is None else channels, weight, indices)
        ctx.shape, ctx.dtype, ctx.dimension, ctx.options = x.shape, values.dtype, dimension, (stride, padding, dilation)
        return y, None if torch.compiler.is_compiling() else channels

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, delta: Tensor | None, of_channels: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        kept, weight, indices = kept_by(ctx)
        stride, padding, dilation = ctx.options
        common = (stride, padding, dilation, False, [0] * len(stride), 1)
        of_input = of_bias = of_values = None
        if delta is not None and ctx.needs_input_grad[0]:
            shaped = delta.new_empty(1).expand(ctx.shape)  # only its shape is needed
            of_input = torch.ops.aten.convolution_backward(
                delta, shaped, weight, None, *common, (True, False, False)
            )[0]  # fmt: skip
        if delta is not None:
            of_bias = delta.sum([0, *range(2, delta.dim())]) if ctx.needs_input_grad[2] else None
            outputs, part = delta, weight.index_select(ctx.dimension, indices)
            if ctx.dimension == 0:
                outputs = delta.index_select(1, indices)
            of_values = part
            if part.numel():
                of_values = torch.ops.aten.convolution_backward(
                    outputs, kept, part, None, *common, (False, True, False)
                )[1]  # fmt: skip
            of_values = of_values.to(ctx.dtype)
        if of_channels is not None:
            of_input = add_columns(of_input, of_channels, 1, ctx.shape, indices)
        return of_input, None, of_bias, of_values, *[None] * 5
