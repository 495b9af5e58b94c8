"""One small problem, every named optimizer over it, and the plain loops that a trainer must agree with."""

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
SPARSE_TRAINING: dict[str, Make] = {
    "SparseSGD": lambda model: silk.SparseSGD(model, 0.1, momentum=0.9, **seeded()),
    "SparseAdamW": lambda model: silk.SparseAdamW(model, 0.01, **seeded()),
    "SparseAdamW, by gradient": lambda model: silk.SparseAdamW(model, 0.01, k1=0.2, k2=0.1, **seeded()),
    "Sparse over RMSprop": lambda model: silk.Sparse(model, torch.optim.RMSprop, lr=0.01, k2=0.3, **seeded()),
}
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
    """The weights; a state_dict leaves compact parameters out."""
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()])


def closure_loop(make: Make, bf16: bool = False) -> Tensor:
    """The weights after one pass over the data in order, by step(closure)."""
    model = network()
    optimizer = make(model)
    x, y = data()
    for i in range(0, len(x), SIZE):

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x[i : i + SIZE]), y[i : i + SIZE])
            loss.backward()
            return loss

        optimizer.step(closure)
    return flat(model)


def plain_loop(make: Make, accumulate: int = 1, clip: float | None = None, bf16: bool = False) -> Tensor:
    """The same for an optimizer of sparse training, by backward(), step() and zero_grad()."""
    model = network()
    optimizer = make(model)
    x, y = data()
    for number, i in enumerate(range(0, len(x), SIZE)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(x[i : i + SIZE]), y[i : i + SIZE]) / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0:
            if clip is not None:
                assert nn.utils.clip_grad_norm_(model.parameters(), clip) > clip
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)
