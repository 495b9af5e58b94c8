"""The bias of the sparse forward pass (Section 2.1): one linear layer, and two with a ReLU between them.

python benchmarks/sparse_forward.py --save
"""

from __future__ import annotations

import argparse

import torch
from record import save
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.variance.backprop.sparse_forward import relative_bias, sparse_linear


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
