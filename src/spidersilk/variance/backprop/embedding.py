"""Embedding tables: delta summed over the positions of wanted rows, never a table of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spidersilk.variance.backprop import rules
from spidersilk.variance.backprop.wanted import Part

if TYPE_CHECKING:
    from spidersilk.variance.backprop.context import Capture


class Table:
    """The rows of delta, summed by token; tokens equal to `padding` count for nothing."""

    def __init__(self, padding: int):
        self.padding = padding

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return delta.reshape(-1, part.width), x.reshape(-1)

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        if part.rows is not None:
            count = part.rows.numel()
            places = part.places if self.padding < 0 else part.places.index_fill(0, self._padding(x), count)
            found = _sums(delta, places[x], count, count).view(-1)
        elif part.shape.numel() <= 4 * (part.count + x.numel() * part.width):
            found = _sums(delta, x, part.shape[0], self.padding).view(-1).index_select(0, part.local)
        else:
            found = self._touched(part, delta, x)
        if into is None:
            return found if sign == 1 else found.neg_()
        return into.add_(found, alpha=sign)

    def _touched(self, part: Part, delta: Tensor, x: Tensor) -> Tensor:
        """By way of the tokens that occur, for a table that is large beside what is wanted."""
        tokens, number = x.unique(return_inverse=True)
        sums = _sums(delta, number, tokens.numel() + 1, -1)
        if self.padding >= 0:
            sums[:-1][tokens == self.padding] = 0
        places = torch.full((part.shape[0],), tokens.numel(), dtype=torch.int64, device=delta.device)
        places[tokens] = torch.arange(tokens.numel(), device=delta.device)
        rows, columns = part.grid
        return sums[places[rows], columns]  # the last row of the sums is zero

    def _padding(self, x: Tensor) -> Tensor:
        return torch.tensor([self.padding], device=x.device)


def _sums(delta: Tensor, rows: Tensor, count: int, padding: int) -> Tensor:
    """The rows of delta summed up into `count` rows; those that belong to row `padding` are left out."""
    return torch.ops.aten.embedding_dense_backward(delta, rows, count, padding, False)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, padding: int, capture: Capture, part: Part) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        ctx.capture, ctx.part, ctx.rule = capture, part, Table(padding)
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tokens, weight = ctx.saved_tensors
        with torch._C.DisableTorchFunction():  # of our own calls the mode has nothing to see
            dw = None
            if ctx.needs_input_grad[1] and not ctx.capture.take(ctx, 1, ctx.rule, ctx.part, delta, tokens):
                dw = torch.ops.aten.embedding_dense_backward(delta, tokens, weight.shape[0], ctx.rule.padding, False)
            return None, dw, None, None, None


def embedding(
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`torch.nn.functional.embedding`, which hands the table's gradient to `capture` where it can."""
    part = capture.part_of(weight)
    plain = max_norm is None and not scale_grad_by_freq and not sparse and weight.dim() == 2
    if part is None or not plain or part.shape.numel() < 64 * rules.SMALLEST:
        if max_norm is None:  # it changes the table in place
            weight = capture.cut(weight)
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return _Embedding.apply(input, weight, padding, capture, part)  # pyright: ignore[reportReturnType]
