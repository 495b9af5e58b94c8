"""The bias of the sparse forward pass of Section 2.1: rtop on activations and on weights. No optimizer uses it.

python benchmarks/sparse_forward.py --save

One linear layer, and two with a ReLU between them. One draw S for both, as printed, scales a product of two random
coordinates twice: x_i w_i comes out (d - k1) / k2 times too large. With independent draws E[rtop(x)^T rtop(w)] = x^T w,
so a linear layer is unbiased. What follows a non-linearity is not: E[f(z)] differs from f(E[z]).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from record import save
from torch import Tensor, nn
from torch.nn import functional as F

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--share", type=float, default=0.1, help="half of it top, half random")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    half = given.share / 2
    first, second = nn.Linear(100, 50).double(), nn.Linear(50, 10).double()
    x, y = torch.randn(8, 100, dtype=torch.float64), torch.randint(10, (8,))
    params = [*first.parameters(), *second.parameters()]

    def layer(x: Tensor, linear: nn.Linear, one_draw: bool) -> Tensor:
        return sparse_linear(x, linear.weight, linear.bias, half, half, one_draw=one_draw)

    def gradient(out: Tensor) -> Tensor:
        grads = torch.autograd.grad(F.cross_entropy(out, y), params)
        return torch.cat([g.reshape(-1) for g in grads])

    def two(one_draw: bool) -> Tensor:
        return layer(torch.relu(layer(x, first, one_draw)), second, one_draw)

    figures: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        linear, output = first(x), second(torch.relu(first(x)))
    exact = {
        "one layer": linear,
        "two layers and a ReLU": output,
        "their gradient": gradient(second(torch.relu(first(x)))),
    }
    for draws_of in (False, True):
        ways = {
            "one layer": lambda one=draws_of: layer(x, first, one).detach(),
            "two layers and a ReLU": lambda one=draws_of: two(one).detach(),
            "their gradient": lambda one=draws_of: gradient(two(one)),
        }
        for name, draw in ways.items():
            bias, error = relative_bias(exact[name], draw, given.draws)
            kind = "one draw for both" if draws_of else "independent draws"
            figures.setdefault(kind, {})[name] = round(bias, 3)
            figures[kind][f"{name}, explained by the number of draws"] = round(error, 3)
            print(f"{kind:18} {name:22} relative bias {bias:8.3f}  (noise of the mean {error:.3f})", flush=True)
    if given.save:
        save("sparse_forward", [0], {"draws": given.draws, "share": given.share, **figures})


if __name__ == "__main__":
    main()
