"""The flat-vector operations in plain torch: readable, on any device, the yardstick of every faster backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

draws_on_device = False


def top_indices(scores: Tensor, k: int) -> Tensor:
    """The k largest of `scores`, equal ones by lower index first; indices ascending, without a host synchronisation."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    threshold = torch.topk(scores, k, sorted=False).values.amin()
    above = scores > threshold
    level = scores == threshold
    wanted = k - above.sum()  # torch.topk breaks ties as it likes, so ties are counted from the left here
    chosen = above | (level & (level.cumsum(0) <= wanted))
    # Scores that are not finite may leave fewer than k: any valid index will do then, as the step is not taken.
    return torch.nonzero_static(chosen, size=k, fill_value=0).squeeze(1)


def select(memory: Tensor, k1: int, k2: int, seed: int, hint: object = None) -> tuple[Tensor, Tensor]:
    """The k1 largest of |memory|, and k2 drawn uniformly without replacement from the others; both ascending.

    The same seed draws the same. `hint` is what this backend's `advance` gave back with that memory, to save time.
    """
    d = memory.numel()
    top = top_indices(memory.abs(), k1)
    if k2 == 0:
        return top, torch.empty(0, dtype=torch.int64, device=memory.device)
    is_rest = torch.ones(d, dtype=torch.bool, device=memory.device).index_fill_(0, top, False)
    rest = torch.nonzero_static(is_rest, size=d - k1, fill_value=0).squeeze(1)
    generator = torch.Generator(memory.device).manual_seed(seed)
    drawn = torch.randperm(d - k1, generator=generator, device=memory.device)[:k2]
    return top, rest[drawn].sort().values


def gather(pieces: Sequence[Tensor | None], sizes: Sequence[int], indices: Tensor, dtype: torch.dtype) -> Tensor:
    """The entries at flat `indices` of the pieces, as if concatenated; None counts as zeros."""
    flat = [
        torch.zeros(size, dtype=dtype, device=indices.device)
        if piece is None
        else (piece if piece.layout == torch.strided else piece.to_dense()).reshape(-1)
        for piece, size in zip(pieces, sizes, strict=True)
    ]
    return torch.cat(flat)[indices]


def scatter(pieces: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
    """Write `values` at flat `indices`, distinct ones, into the pieces, as if concatenated."""
    flat = torch.cat([piece.reshape(-1) for piece in pieces])
    flat[indices] = values
    for piece, part in zip(pieces, flat.split(list(sizes)), strict=True):
        piece.copy_(part.view(piece.shape))


def add_at(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """target[indices] += values, for distinct indices."""
    target.index_add_(0, indices, values)


def put_at(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """target[indices] = values, for distinct indices."""
    target.index_copy_(0, indices, values)


def blend(memory: Tensor, estimate: Tensor, decay: float) -> None:
    """memory = decay |estimate| + (1 - decay) memory."""
    memory.mul_(1 - decay).add_(estimate.abs(), alpha=decay)


def blend_at(memory: Tensor, indices: Tensor, values: Tensor, decay: float) -> None:
    """`blend` on the coordinates `indices` alone, where the estimate has `values`."""
    memory[indices] = memory[indices].mul_(1 - decay).add_(values.abs(), alpha=decay)
