"""The step outside the gradient, in units of one copy of d floats measured in turn with it; medians.

python benchmarks/step.py --save        # one thread; --threads 2 for two

"whole step" is everything that a small step of SparseSVRG (k1 = k2 = 5 %, plain SGD as base) does apart from the two
gradients: select, read the selected values twice, update v, M and x, write p.grad.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from record import save
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.kernels import numba_ops, torch_ops

SIZES = (62_006, 308_310, 11_173_962)


def in_copies(work: Callable[[], object], copy: Callable[[], object], seconds: float) -> float:
    """The median time of `work` over that of `copy`, taken in turns."""
    work()
    ours, theirs = [], []
    start = time.perf_counter()
    while len(ours) < 5 or (time.perf_counter() - start < seconds and len(ours) < 300):
        copy()  # so that both find the caches as a copy leaves them
        theirs.append(_clock(copy))
        ours.append(_clock(work))
    return statistics.median(ours) / statistics.median(theirs)


def _clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Still(nn.Module):
    """d parameters in 20 tensors whose gradients are there already: a closure that costs nothing."""

    def __init__(self, d: int):
        super().__init__()
        sizes = [d // 20] * 19 + [d - 19 * (d // 20)]
        self.pieces = nn.ParameterList(nn.Parameter(x.clone()) for x in torch.randn(d).split(sizes))
        self.given = [torch.randn_like(p) for p in self.pieces]


def whole_step(d: int, backend: str) -> Callable[[], object]:
    model = Still(d)
    optimizer = silk.SparseSVRG(model.parameters(), lr=1e-6, backend=backend)

    def closure() -> Tensor:
        for p, g in zip(model.pieces, model.given, strict=True):
            p.grad = g
        return torch.zeros(())

    optimizer.step(closure, anchor=True)
    return lambda: optimizer.step(closure, anchor=False)


def works(d: int) -> dict[str, Callable[[], object]]:
    memory, k = torch.randn(d).abs(), -(-d // 20)
    array = memory.numpy()
    x = nn.Parameter(torch.randn(d))
    x.grad = torch.randn(d)
    sgd, adam = torch.optim.SGD([x], 1e-6, fused=True), torch.optim.Adam([x], 1e-6, fused=True)

    def random_keys() -> Any:
        top = torch.topk(memory, k, sorted=False).indices
        keys = torch.rand(d).index_fill_(0, top, 2.0)
        return top, torch.topk(keys, k, largest=False, sorted=False).indices

    return {
        "select, numba": lambda: numba_ops.select(memory, k, k, 1),
        "select, torch backend": lambda: torch_ops.select(memory, k, k, 1),
        "torch.topk and random keys": random_keys,
        "torch.topk": lambda: torch.topk(memory, k, sorted=False),
        "torch.kthvalue": lambda: torch.kthvalue(memory, d - k),
        "np.argpartition": lambda: np.argpartition(array, d - k),
        "SGD, fused": sgd.step,
        "Adam, fused": adam.step,
        "whole step, numba": whole_step(d, "numba"),
        "whole step, torch backend": whole_step(d, "torch"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each entry of the table")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    figures: dict[str, dict[str, float]] = {}
    for d in given.sizes:
        source, target = torch.randn(d), torch.empty(d)
        for name, work in works(d).items():
            units = in_copies(work, lambda s=source, t=target: t.copy_(s), given.seconds)
            figures.setdefault(name, {})[str(d)] = round(units, 2)
            print(f"d = {d:>10,}  {name:28} {units:8.2f} copies", flush=True)
    if given.save:
        save(f"step_cpu_{given.threads}", [0], {"threads": given.threads, "unit": "copies of d floats", **figures})


if __name__ == "__main__":
    main()
