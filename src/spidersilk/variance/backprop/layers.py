"""The rules of the library: linear layers, convolutions in two dimensions, embedding tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from spidersilk.variance.backprop import registry
from spidersilk.variance.backprop.registry import Operands, Rule, rule

Size = int | Sequence[int]


@rule(F.linear)
class Linear(Rule):
    """x weight^T + bias."""

    def read(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operands | None:
        return (input, weight, bias) if weight.dim() == 2 else None

    def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return _matrix(delta).index_select(1, rows).t() @ _matrix(x)

    def input_gradient(self, delta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return delta @ weight

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return _matrix(delta).sum(0)


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


@rule(torch.conv2d)
class Conv2d(Rule):
    """Convolutions of one group. A row is an output channel."""

    def read(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> Operands | None:
        self.options: Any = stride, padding, dilation
        self.row_shape = weight.shape[1:]
        return None if groups != 1 or isinstance(padding, str) or input.dim() != 4 else (input, weight, bias)

    def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return conv2d_weight(x, (rows.numel(), *self.row_shape), delta.index_select(1, rows), *self.options)

    def input_gradient(self, delta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return conv2d_input(x.shape, weight, delta, *self.options)

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return delta.sum((0, 2, 3))


@rule(F.embedding)
class Embedding(Rule):
    """Rows of a table, summed up by token."""

    def read(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Operands | None:
        self.padding, self.length = padding_idx, weight.shape[0]
        small = weight.numel() < 64 * registry.SMALLEST  # torch adds up a small table faster than `places` is made
        return None if small or max_norm is not None or scale_grad_by_freq or sparse else (input, weight, None)

    def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        nowhere = rows.numel()
        places = rows.new_full((self.length,), nowhere)  # of each row of the table among `rows`
        places[rows] = torch.arange(nowhere, device=rows.device)
        if self.padding is not None:
            places[self.padding] = nowhere
        return torch.ops.aten.embedding_dense_backward(delta, places[x], nowhere, nowhere, False)
