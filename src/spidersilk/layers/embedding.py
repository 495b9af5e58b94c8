"""Embedding tables: the gradient of some rows is delta, added up over the positions at which these were looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.layers.registry import Part, rule


@rule(nn.Embedding)
def embedding(module: nn.Embedding, part: Part, input: Tensor) -> Tensor | None:
    if part.dimension != 0 or module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return None
    return _Embedding.apply(input, module.weight, module.padding_idx, part.values, part.indices)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, values: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(ids, indices)
        ctx.shape, ctx.dtype, ctx.padding = values.shape, values.dtype, padding
        return F.embedding(ids, weight, padding)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids, indices = ctx.saved_tensors
        count, width = ctx.shape
        if not count:
            return None, None, None, delta.new_zeros(ctx.shape, dtype=ctx.dtype), None
        flat = ids.reshape(-1).to(indices.dtype)
        place = torch.searchsorted(indices, flat).clamp(max=count - 1)
        found = indices.index_select(0, place) == flat
        if ctx.padding is not None:
            found = found & (flat != ctx.padding)
        totals = torch.zeros(count + 1, width, dtype=ctx.dtype, device=delta.device)
        where = torch.where(found, place, count)  # the last row is for all that is not selected
        totals = totals.index_add(0, where, delta.reshape(-1, width).to(ctx.dtype))
        return None, None, None, totals[:count], None
