"""One small problem, every named optimizer over it, and the plain loop that a trainer must agree with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

Make = Callable[[nn.Module], Any]
TWO_POINTS: dict[str, Make] = {
    "SpiderBoost": lambda model: silk.SpiderBoost(model.parameters(), 0.1, inner_steps=3),
    "SparseSpiderBoost": lambda model: silk.SparseSpiderBoost(model.parameters(), 0.01, **seeded()),
    "SVRG": lambda model: silk.SVRG(model.parameters(), 0.1, inner_steps=3),
    "SparseSVRG": lambda model: silk.SparseSVRG(model.parameters(), 0.05, **seeded()),
    "SparseSVRG, selected": lambda model: silk.SparseSVRG(model.parameters(), 0.1, move="selected", **seeded()),
}
ONE_EVALUATION: dict[str, Make] = {
    "SparseSGD": lambda model: silk.SparseSGD(model.parameters(), 0.1, k1=0.2, k2=0.2, **seeded()),
    "SparseAdamW": lambda model: silk.SparseAdamW(model.parameters(), 0.01, k1=0.2, k2=0.2, **seeded()),
}
EVERY = TWO_POINTS | ONE_EVALUATION
LAZY: dict[str, Make] = {"LazySVRG": lambda model: silk.LazySVRG(model, 0.1)}
SIZE, COUNT = 16, 12  # of a batch, and batches


def seeded() -> dict[str, Any]:
    return {"inner_steps": 3, "generator": torch.Generator().manual_seed(3)}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE * COUNT, 8, generator=generator)
    return x, (x @ torch.randn(8, 3, generator=generator)).argmax(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def plain_loop(make: Make, accumulate: int = 1, clip: float | None = None, bf16: bool = False) -> tuple[Tensor, float]:
    """The parameters after one pass over the data in order, and the last loss."""
    model = network()
    optimizer = make(model)
    x, y = data()
    loss = torch.zeros(())
    for start in range(0, len(x), SIZE * accumulate):

        def closure() -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros(())
            for i in range(start, start + SIZE * accumulate, SIZE):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = F.cross_entropy(model(x[i : i + SIZE]), y[i : i + SIZE]) / accumulate
                loss.backward()
                total += loss.detach().float()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            return total

        loss = optimizer.step(closure)
    return flat(model), float(loss)
