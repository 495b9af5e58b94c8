"""Embedding tables: the gradient is delta, added up over the positions at which a row was looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.layers.registry import Part, rule


@rule(nn.Embedding)
def embedding(module: nn.Embedding, part: Part, input: Tensor) -> Tensor | None:
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return None
    return _Embedding.apply(input, module.weight, module.padding_idx, *part)


class _Embedding(torch.autograd.Function):
    """Of columns (features): those of delta, for all rows; of rows: delta where one of these was looked up."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, values: Tensor, indices: Tensor, dimension: int
    ) -> Tensor:
        ctx.save_for_backward(ids, indices)
        ctx.shape, ctx.dtype, ctx.dimension = values.shape, values.dtype, dimension
        ctx.padding = -1 if padding is None else padding
        return F.embedding(ids, weight, padding)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids, indices = ctx.saved_tensors
        rows, width = ctx.shape
        if not rows or not width:
            of_values = delta.new_zeros(ctx.shape, dtype=ctx.dtype)
        elif ctx.dimension == 1:
            of_columns = delta.index_select(-1, indices).to(ctx.dtype)
            of_values = torch.ops.aten.embedding_dense_backward(of_columns, ids, rows, ctx.padding, False)
        else:
            flat = ids.reshape(-1).to(indices.dtype)
            place = torch.searchsorted(indices, flat).clamp(max=rows - 1)
            found = (indices.index_select(0, place) == flat) & (flat != ctx.padding)
            totals = torch.zeros(rows + 1, width, dtype=ctx.dtype, device=delta.device)
            where = torch.where(found, place, rows)  # the last row is for all that is not selected
            of_values = totals.index_add(0, where, delta.reshape(-1, width).to(ctx.dtype))[:rows]
        return None, None, None, of_values, None, None
