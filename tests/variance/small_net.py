"""A small classifier, its data and its training, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import METHODS
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

DATA = torch.Generator().manual_seed(0)

X = torch.randn(64, 6, generator=DATA, dtype=torch.float64)

Y = torch.randint(3, (64,), generator=DATA)

TWO_POINT = [
    "spiderboost",
    "svrg",
    "sparse-spiderboost",
    "sparse-svrg",
    "sparse-svrg, refresh",
    "sparse-svrg, selected",
]


def net(*layers: nn.Module, seed: int = 0) -> nn.Module:
    """A small classifier with `layers` in the middle, its weights fixed by the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 3)).double()


def train(
    optimizer: silk.VarianceReduced,
    closure_for: Callable[[Tensor], Callable[[], Tensor]],
    steps: int = 24,
    inner: int = 6,
    start: int = 0,
) -> list[float]:
    """Anchors of all 64 samples, small steps of 8; the losses."""
    losses = []
    for t in range(start, steps):
        is_anchor = t % inner == 0
        g = torch.Generator().manual_seed(1000 + t)
        batch = torch.arange(64) if is_anchor else torch.randperm(64, generator=g)[:8]
        losses.append(float(optimizer.step(closure_for(batch), anchor=is_anchor, samples=len(batch))))
    return losses


def simple(model: nn.Module, optimizer: torch.optim.Optimizer, set_to_none: bool = True):
    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = F.cross_entropy(model(X[batch]), Y[batch])
            loss.backward()
            return loss.detach()

        return closure

    return closure_for


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def make(name: str, model: nn.Module, lr: float = 0.05, **rest) -> silk.VarianceReduced:
    return METHODS[name].make(model.parameters(), lr, generator=torch.Generator().manual_seed(2), **rest)


def base_of(params, which: str) -> torch.optim.Optimizer:
    if which == "momentum":
        return torch.optim.SGD(params, 0.05, momentum=0.9)
    return torch.optim.AdamW(params, 0.01)


def resumable(name: str, base: str) -> tuple[nn.Module, silk.VarianceReduced, silk.AnchorLoader]:
    model = net(nn.BatchNorm1d(8), nn.Dropout(0.3))
    made = make(name, model, k1=10, k2=5)
    if base != "sgd":
        made = silk.VarianceReduced(
            base_of(model.parameters(), base),
            made.reference,
            move=made.move,
            choose=made.choose,
            anchor_move=made.anchor_move,
            sparsity=made.sparsity,
            generator=torch.Generator().manual_seed(2),
        )
    loader = silk.AnchorLoader(
        (X, Y), 40, 8, silk.Geometric(5), loops=8, micro_batch_size=16, generator=torch.Generator().manual_seed(1)
    )
    return model, made, loader


def continue_training(
    model: nn.Module, optimizer: silk.VarianceReduced, loader: silk.AnchorLoader, batches: int = 10**9
) -> None:
    """Train on what the loader gives, at most `batches` of it."""
    for number, ((x, y), is_anchor) in enumerate(loader):

        def closure(x=x, y=y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        optimizer.step(closure, anchor=is_anchor, samples=len(x))
        if number + 1 == batches:
            return
