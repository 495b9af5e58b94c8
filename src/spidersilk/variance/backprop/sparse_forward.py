"""An experiment: the sparse forward pass of Section 2.1, rtop on activations and on weights. Nothing else uses it.

One draw S for both, as printed, scales a product of two random coordinates twice: x_i w_i comes out (d - k1) / k2 times
too large. With independent draws E[rtop(x)^T rtop(w)] = x^T w, so a linear layer is unbiased. What follows a
non-linearity is not: E[f(z)] differs from f(E[z]). `docs/backprop.md` has measured numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spidersilk.operator.counts import Count, resolve_counts


def rtop_rows(x: Tensor, k1: Count, k2: Count, generator: torch.Generator | None = None) -> Tensor:
    """rtop(|x|, x) of each row by itself: the k1 largest entries, and k2 random others scaled by (d - k1) / k2."""
    d = x.shape[-1]
    top, random = resolve_counts(k1, k2, d)
    order = x.abs().argsort(dim=-1, descending=True)
    scale = torch.zeros_like(x).scatter_(-1, order[..., :top], 1.0)
    if random:
        keys = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        drawn = keys.masked_fill_(scale > 0, 2.0).argsort(dim=-1)[..., :random]
        scale.scatter_(-1, drawn, (d - top) / random)
    return x * scale


def sparse_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    k1: Count,
    k2: Count,
    generator: torch.Generator | None = None,
    one_draw: bool = False,
) -> Tensor:
    """x weight^T + bias with rtop on both, drawn independently; or, for comparison, with `one_draw` for both.

    One draw: the coordinates of a sample's activations are those of each row of the weight, as in the paper.
    """
    if one_draw:
        drawn = rtop_rows(x, k1, k2, generator)
        scale = torch.where(x == 0, torch.zeros_like(x), drawn / x)
        out = (drawn * scale) @ weight.t()  # x_i s_i w_i s_i
    else:
        out = rtop_rows(x, k1, k2, generator) @ rtop_rows(weight, k1, k2, generator).t()
    return out if bias is None else out + bias


def relative_bias(exact: Tensor, draw: Callable[[], Tensor], draws: int) -> tuple[float, float]:
    """|mean of draws - exact| / |exact|, and the part of it that the finite number of draws would explain."""
    total, squares = torch.zeros_like(exact), torch.zeros_like(exact)
    for _ in range(draws):
        value = draw()
        total += value
        squares += value.square()
    mean = total / draws
    error = ((squares / draws - mean.square()).clamp(min=0) / draws).sum().sqrt()
    size = float(exact.norm())
    return float((mean - exact).norm()) / size, float(error) / size
