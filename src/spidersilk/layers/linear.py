"""Linear layers: the gradient of columns of the weight is delta^T x[:, columns], that of rows delta[:, rows]^T x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.layers.registry import Part, autocast, rule


@rule(nn.Linear)
def linear(module: nn.Linear, part: Part, input: Tensor) -> Tensor | None:
    if input.layout != torch.strided:  # sparse or nested
        return None
    x, weight, bias = autocast(input, module.weight, module.bias)
    kept = x.index_select(-1, part.indices) if part.dimension == 1 else None
    return _Linear.apply(x, kept, weight, bias, *part)


@rule("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: Any, part: Part, x: Tensor) -> Tensor | None:
    """Its weight is that of a linear layer, transposed."""
    turned = Part(part.values.t(), part.indices, 1 - part.dimension)
    x, weight, bias = autocast(x, module.weight, module.bias)
    kept = x.index_select(-1, part.indices) if turned.dimension == 1 else None
    return _Linear.apply(x, kept, weight.t(), bias, *turned)


class _Linear(torch.autograd.Function):
    """`kept` is what backward needs of x, if that is not all of it; it comes apart for gradients of gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kept: Tensor | None, weight: Tensor, bias: Tensor | None, values: Tensor, indices: Tensor,
        dimension: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x if kept is None else kept, weight, indices)
        ctx.dtype, ctx.dimension = values.dtype, dimension
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept, weight, indices = ctx.saved_tensors
        of_input = delta @ weight if ctx.needs_input_grad[0] else None
        flat = delta.reshape(-1, delta.shape[-1])
        of_bias = flat.sum(0) if ctx.needs_input_grad[3] else None
        x = kept.reshape(flat.shape[0], kept.shape[-1])
        if ctx.dimension == 1:  # the smaller side first, which is a third faster on a CPU
            of_values = (x.t() @ flat).t().to(ctx.dtype, memory_format=torch.contiguous_format)
        else:
            of_values = (flat.index_select(1, indices).t() @ x).to(ctx.dtype)
        return of_input, None, None, of_bias, of_values, None, None
