"""How sparse it is: the entropy of a memory, the energy that its top captures, the residuals of Theorem 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spidersilk.kernels.plain import top_indices
from spidersilk.operator.counts import Count, count_of, resolve_counts
from spidersilk.operator.rtop import check_pair

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
        m = piece.double()
        if float(m.min()) < 0:
            raise ValueError(f"memory has negative entries, such as {float(m.min()):g}: M is a mean of |v|")
        total += float(m.sum())
        weighted += float(torch.special.xlogy(m, m).sum()) / math.log(2)
    if not math.isfinite(total):
        raise ValueError("memory has entries that are not finite: its entropy is not defined")
    return max(math.log2(total) - weighted / total, 0.0) if total > 0 else math.nan


def captured_energy(memory: Tensor, y: Tensor, k1: Count) -> float:
    """The share of |y|^2 inside the k1 coordinates with the largest |memory|; nan if y is zero.

    >>> captured_energy(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([3.0, 1.0, 0.0]), 1)
    0.9
    """
    check_pair(memory, y)
    top = top_indices(memory.abs(), resolve_counts(k1, 0, memory.numel())[0])
    squares = y.double().square()
    total = float(squares.sum())
    return float(squares[top].sum()) / total if total > 0 else math.nan


def residuals(memory: Tensor, differences: Tensor, k1: Count) -> tuple[float, float]:
    """g_t and G_t of Theorem 2, exactly, from the differences grad f_i(x') - grad f_i(x) of all n samples, (n, d).

    g is the energy of their mean outside the top k1 of `memory`, G the mean of their energies there. R_j of a loop that
    ends here is the mean of g + G / b over its randomness.
    """
    if differences.dim() != 2:
        raise ValueError(f"differences has shape {tuple(differences.shape)}, not (n, d): one row for each sample")
    check_pair(memory, differences[0])
    top = top_indices(memory.abs(), count_of(k1, memory.numel()))
    outside = differences.double().index_fill(1, top, 0.0)
    return float(outside.mean(0).square().sum()), float(outside.square().sum(1).mean())
