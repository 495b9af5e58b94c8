"""Linear layers: the gradient of columns of the weight is delta^T x[:, columns], that of rows delta[:, rows]^T x."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.kernels import backends
from spidersilk.kernels.interface import Kernels
from spidersilk.layers.registry import Part, add_columns, autocast, keep, kept_by, rule


@rule(nn.Linear)
def linear(module: nn.Linear, part: Part, input: Tensor) -> Tensor | None:
    if input.layout != torch.strided:  # sparse or nested
        return None
    x, weight, bias = autocast(input, module.weight, module.bias)
    return _Linear.apply(x, weight, bias, *part)[0]


@rule("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: Any, part: Part, x: Tensor) -> Tensor | None:
    """Its weight is that of a linear layer, transposed."""
    x, weight, bias = autocast(x, module.weight, module.bias)
    return _Linear.apply(x, weight.t(), bias, part.values.t(), part.indices, 1 - part.dimension)[0]


class _Linear(torch.autograd.Function):
    """The second output is the columns of x that backward needs: gradients of gradients come to x by way of them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, values: Tensor, indices: Tensor, dimension: int
    ) -> tuple[Tensor, Tensor | None]:
        y = F.linear(x, weight, bias)  # first: it checks shapes and devices
        if bias is not None and y.dim() != 2:  # a view, which nobody could change in place
            y = torch.ops.aten._unsafe_view.default(y, y.shape)
        columns = columns_of(x, indices) if dimension == 1 else None
        keep(ctx, x if columns is None else columns, weight, indices)
        ctx.shape, ctx.dtype, ctx.dimension = x.shape, values.dtype, dimension
        return y, columns

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, delta: Tensor | None, of_columns: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        kept, weight, indices = kept_by(ctx)
        of_input = of_bias = of_values = None
        if delta is not None:
            flat = delta.reshape(-1, delta.shape[-1])
            x = kept.reshape(flat.shape[0], kept.shape[-1])
            of_input = delta @ weight if ctx.needs_input_grad[0] else None
            of_bias = flat.sum(0) if ctx.needs_input_grad[2] else None
            outputs = flat if ctx.dimension == 1 else flat.index_select(1, indices)
            if ctx.dimension == 1 and flat.device.type == "cpu":  # the smaller side first is a third faster there
                of_values = (x.t() @ outputs).t().to(ctx.dtype, memory_format=torch.contiguous_format)
            else:
                of_values = (outputs.t() @ x).to(ctx.dtype)
        if of_columns is not None:
            of_input = add_columns(of_input, of_columns, -1, ctx.shape, indices)
        return of_input, None, of_bias, of_values, None, None


def columns_of(x: Tensor, indices: Tensor) -> Tensor:
    """x[..., indices]."""
    kernels = _kernels_for(x)
    if kernels is None:
        return x.index_select(-1, indices)
    rows = x.view(-1, x.shape[-1], 1)
    columns = x.new_empty(len(rows), indices.numel(), 1)
    kernels.take(rows, indices, columns, False)
    return columns.view(*x.shape[:-1], indices.numel())


def _kernels_for(x: Tensor) -> Kernels | None:
    """Ours on CUDA; None: torch's own, which a compiler fuses with what is around it."""
    usual = type(x) in (Tensor, nn.Parameter) and x.is_contiguous() and x.numel() > 0
    return _found(x.device, x.dtype) if x.is_cuda and usual and not torch.compiler.is_compiling() else None


@functools.cache
def _found(device: torch.device, dtype: torch.dtype) -> Kernels:
    return backends.find("auto", [(device, dtype)])
