"""Embedding tables: delta summed over the positions of wanted rows, never a table of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spidersilk.backprop.wanted import Part

if TYPE_CHECKING:
    from spidersilk.backprop.context import Capture


class Table:
    """The rows of delta, summed by token; tokens equal to `padding` count for nothing."""

    def __init__(self, padding: int):
        self.padding = padding

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return delta.reshape(-1, part.width), x.reshape(-1)

    def is_whole(self, part: Part, x: Tensor) -> bool:
        """Whether a sum over the whole table is cheaper than finding which wanted entries were touched."""
        return part.rows is None and part.shape.numel() <= 4 * (part.count + x.numel() * part.width)

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        if part.rows is None and not self.is_whole(part, x):
            into = delta.new_zeros(part.count) if into is None else into
            self._add_entries(part, delta, x, sign, into[: part.count])
            return into
        # One more row than asked for takes what is not wanted.
        size = part.shape.numel() if part.rows is None else part.count
        if into is None or into.numel() == size:
            into = torch.cat([delta.new_zeros(size) if into is None else into, delta.new_zeros(part.width)])
        rows = x if part.rows is None else part.places[x]
        if self.padding >= 0:
            rows = rows.masked_fill(x == self.padding, size // part.width)
        into.view(-1, part.width).index_add_(0, rows, delta, alpha=sign)
        return into

    def _add_entries(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor) -> None:
        kept = (x != self.padding).nonzero().squeeze(1)
        tokens, number = x[kept].unique(return_inverse=True)
        sums = delta.new_zeros(tokens.numel(), part.width)
        sums.index_add_(0, number, delta[kept])
        places = torch.full((part.shape[0],), -1, dtype=torch.int64, device=delta.device)
        places[tokens] = torch.arange(tokens.numel(), device=delta.device)
        rows, columns = part.grid
        row = places[rows]
        met = (row >= 0).nonzero().squeeze(1)
        into.index_add_(0, met, sums[row[met], columns[met]], alpha=sign)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, padding: int, capture: Capture, part: Part) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        ctx.capture, ctx.part, ctx.rule = capture, part, Table(padding)
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tokens, weight = ctx.saved_tensors
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
    if part is None or max_norm is not None or scale_grad_by_freq or sparse or weight.dim() != 2:
        if max_norm is None:  # it changes the table in place
            weight = capture.cut(weight)
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return _Embedding.apply(input, weight, padding, capture, part)  # pyright: ignore[reportReturnType]
