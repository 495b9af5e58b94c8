"""Linear layers: the gradient of columns of the weight is delta^T x[:, columns], that of rows delta[:, rows]^T x."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.kernels import backends
from spidersilk.kernels.interface import Kernels
from spidersilk.layers.registry import Part, add_columns, autocast, is_watched, keep, kept_by, rule


@rule(nn.Linear)
def linear(module: nn.Linear, part: Part, input: Tensor) -> Tensor | None:
    x, weight, bias = autocast(input, module.weight, module.bias)
    return _product(x, weight, bias, *part)


@rule("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: Any, part: Part, x: Tensor) -> Tensor | None:
    """Its weight is that of a linear layer, transposed."""
    x, weight, bias = autocast(x, module.weight, module.bias)
    return _product(x, weight.t(), bias, part.values.t(), part.indices, 1 - part.dimension)


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, values: Tensor, indices: Tensor, dimension: int
) -> Tensor | None:
    """The output of the layer; None for inputs that are sparse or nested, or not of its shape, and for no outputs."""
    fits = x.layout == torch.strided and x.shape[-1:] == weight.shape[1:] and x.device == weight.device
    if not fits or not weight.shape[0]:
        return None
    later = not is_watched()
    output = _Linear.apply(x, weight, bias, values, indices, dimension, later)[0]
    if later:
        _compute(output.detach(), x, weight, bias)
    return output


@torch.no_grad()
def _compute(output: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    rows, out = x.reshape(-1, x.shape[-1]), output.view(-1, output.shape[-1])
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


class _Linear(torch.autograd.Function):
    """With `later` it gives an output that is not computed yet.

    It is computed when what backward needs has been kept: so the recomputation of a checkpoint ends before its last
    product, as it does with torch's own layers. The second output is the columns of x that backward needs: gradients of
    gradients come to x by way of them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, values: Tensor, indices: Tensor, dimension: int,
        later: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        y = x.new_empty((*x.shape[:-1], weight.shape[0])) if later else F.linear(x, weight, bias)
        if not later and bias is not None and y.dim() != 2:  # a view, which nobody could change in place
            y = torch.ops.aten._unsafe_view.default(y, y.shape)
        columns = columns_of(x, indices) if dimension == 1 else None
        keep(ctx, x if columns is None else columns, weight, indices)
        ctx.shape, ctx.dtype, ctx.dimension = x.shape, values.dtype, dimension
        if torch.compiler.is_compiling():
            columns = None  # a compiler would add zeros to the input's gradient
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
            of_input = (flat @ weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
            of_bias = flat.sum(0) if ctx.needs_input_grad[2] else None
            outputs = flat if ctx.dimension == 1 else flat.index_select(1, indices)
            of_values = _of_values(outputs, x, ctx.dtype, ctx.dimension)
        if of_columns is not None:
            of_input = add_columns(of_input, of_columns, -1, ctx.shape, indices)
        return of_input, None, of_bias, of_values, None, None, None


def _of_values(outputs: Tensor, x: Tensor, dtype: torch.dtype, dimension: int) -> Tensor:
    """outputs^T x in this dtype."""
    if dimension == 1 and x.device.type == "cpu":  # the smaller side first is a third faster there
        return (x.t() @ outputs).t().to(dtype, memory_format=torch.contiguous_format)
    usual = x.is_cuda and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if usual and dtype == torch.float32 and x.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(outputs.t(), x, out_dtype=dtype)  # without a pass that converts
    return (outputs.t() @ x).to(dtype)


def columns_of(x: Tensor, indices: Tensor) -> Tensor:
    """x[..., indices]."""
    rows, shape = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], indices.numel())
    kernels = _kernels_for(x)
    if kernels is None:
        return rows.index_select(1, indices).view(shape)  # of a matrix: of more dimensions torch copies more slowly
    columns = x.new_empty(len(rows), indices.numel(), 1)
    kernels.take(rows[:, :, None], indices, columns, False)
    return columns.view(shape)


def _kernels_for(x: Tensor) -> Kernels | None:
    """Ours on CUDA; None: torch's own, which a compiler fuses with what is around it, and a tracer sees."""
    usual = x.is_cuda and x.is_contiguous() and x.numel() > 0
    return _found(x.device, x.dtype) if usual and not is_watched() else None


@functools.cache
def _found(device: torch.device, dtype: torch.dtype) -> Kernels:
    return backends.find("auto", [(device, dtype)])
