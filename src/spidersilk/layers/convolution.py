"""Convolutions of one group: the gradient of some input channels of the weight needs those channels of x alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.layers.registry import Part, autocast, rule


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: Any, part: Part, input: Tensor) -> Tensor | None:
    batched = input.dim() == module.weight.dim()
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str) or not batched:
        return None
    x, weight, bias = autocast(input, module.weight, module.bias)
    kept = x.index_select(1, part.indices) if part.dimension == 1 else None
    return _Convolution.apply(x, kept, weight, bias, *part, module.stride, module.padding, module.dilation)


class _Convolution(torch.autograd.Function):
    """`kept` is what backward needs of x, if that is not all of it; it comes apart for gradients of gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kept: Tensor | None, weight: Tensor, bias: Tensor | None, values: Tensor, indices: Tensor,
        dimension: int, stride: Any, padding: Any, dilation: Any,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x if kept is None else kept, weight, indices)
        ctx.shape, ctx.dtype, ctx.dimension, ctx.options = x.shape, values.dtype, dimension, (stride, padding, dilation)
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), 1)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept, weight, indices = ctx.saved_tensors
        stride, padding, dilation = ctx.options
        common = (stride, padding, dilation, False, [0] * len(stride), 1)
        of_input = None
        if ctx.needs_input_grad[0]:
            shaped = delta.new_empty(1).expand(ctx.shape)  # only its shape is needed
            of_input = torch.ops.aten.convolution_backward(
                delta, shaped, weight, None, *common, (True, False, False)
            )[0]  # fmt: skip
        of_bias = delta.sum([0, *range(2, delta.dim())]) if ctx.needs_input_grad[3] else None
        if ctx.dimension == 1:
            outputs, part = delta, weight.index_select(1, indices)
        else:
            outputs, part = delta.index_select(1, indices), weight.index_select(0, indices)
        of_values = part
        if part.numel():
            of_values = torch.ops.aten.convolution_backward(
                outputs, kept, part, None, *common, (False, True, False)
            )[1]  # fmt: skip
        return of_input, None, None, of_bias, of_values.to(ctx.dtype), *[None] * 5
