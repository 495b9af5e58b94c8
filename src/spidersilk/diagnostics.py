"""Measures of sparsity, and the count of gradient queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_CHUNK = 1 << 24


def entropy(memory: Tensor) -> float:
    """The entropy in bits of p = |memory| / sum |memory|: log2 d without structure, 0 with one entry alone.

    Summed in float64, in pieces. A memory of zeros has no distribution: nan.

    >>> entropy(torch.tensor([1.0, 1.0, 1.0, 1.0]))
    2.0
    """
    if memory.numel() == 0 or not memory.is_floating_point():
        raise ValueError(
            f"memory has {memory.numel()} entries of {memory.dtype}: give at least one floating-point value"
        )
    total, weighted = 0.0, 0.0  # sum m and sum m log2 m: the entropy is log2(total) - weighted / total
    for piece in memory.reshape(-1).split(_CHUNK):
        m = piece.double().abs()
        total += float(m.sum())
        weighted += float(torch.special.xlogy(m, m).sum()) / math.log(2)
    if not math.isfinite(total):
        raise ValueError("memory has entries that are not finite: its entropy is not defined")
    return max(math.log2(total) - weighted / total, 0.0) if total > 0 else math.nan


class QueryCounter:
    """Gradient queries: one sample's full gradient is one; k of its d coordinates are k/d (the paper's accounting)."""

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, samples: int | None, evaluations: int, density: float) -> None:
        """`samples` None means nobody said how many: from then on the count is unknown, nan."""
        self.total += math.nan if samples is None else samples * evaluations * density
