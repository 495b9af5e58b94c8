"""A small problem for sparse training, and its steps compared with plain lines, on any backend and device."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.reference import SparseTraining
from spidersilk.sparse.sparse import Sparse

X = torch.randn(40, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))
BASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.99)}),
}


def network(dtype: torch.dtype = torch.float64, device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 3)).to(device, dtype)


def loss_of(model: nn.Module, part: slice = slice(None)) -> Tensor:
    first = next(model.parameters())
    return F.cross_entropy(model(X[part].to(first.device, first.dtype)).double(), Y[part].to(first.device))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def batch(step: int) -> slice:
    return slice(step * 7 % 30, step * 7 % 30 + 10)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        loss_of(model, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def flat(model: nn.Module) -> Tensor:
    weights = [p for name, p in model.named_parameters() if not name.endswith("_compact")]
    return torch.cat([p.detach().reshape(-1) for p in weights])


def follows_the_oracle(
    base: str, k1: float, k2: float, backend: str, steps: int = 200, device: str = "cpu", groups: Any = None
) -> None:
    """Gradients come from the model itself, before and after each step; what is selected is read off the optimizer."""
    model, (kind, options) = network(device=device), BASES[base]
    given: Any = {"k1": k1, "k2": k2, "groups": groups, "inner_steps": steps // 5, "backend": backend} | options
    optimizer = Sparse(model, kind, generator=seeded(), **given)
    weights = [model[0].weight, model[2].weight]
    names = {k: v for k, v in options.items() if k != "lr"}
    dimension = {"rows": 0, "columns": 1, None: None}[groups]
    oracles = [SparseTraining(w.detach().clone(), options["lr"], **names, dimension=dimension) for w in weights]
    seen = set()
    for step in range(steps):
        plain = copy.deepcopy(model)  # whose weights have whole gradients
        wanted = torch.autograd.grad(loss_of(plain, batch(step)), [plain[0].weight, plain[2].weight])
        loss_of(model, batch(step)).backward()
        compacts = {id(c.weight): c for c in optimizer._weights}
        for weight, oracle, gradient in zip(weights, oracles, wanted, strict=True):
            assert weight.grad is None
            compact = compacts[id(weight)]
            selected = torch.zeros(compact.n, dtype=torch.bool, device=device)
            selected[compact.indices.long()] = True
            assert selected.sum() == compact.k1 + compact.k2
            seen.add((id(weight), tuple(compact.indices.tolist())))
            shape = (-1, 1) if dimension == 0 else (1, -1) if dimension == 1 else weight.shape
            oracle.select(selected.view(shape).expand_as(weight))
            oracle.update(gradient)
        before = [w.detach().clone() for w in weights]
        optimizer.step()
        optimizer.zero_grad()
        for weight, oracle, old in zip(weights, oracles, before, strict=True):
            torch.testing.assert_close(weight.detach(), oracle.x, rtol=1e-12, atol=1e-12)
            assert torch.equal(weight[~oracle.selected], old[~oracle.selected])
    least = 10 if groups is None else 5  # five selections of two weights; of few groups the same may come again
    assert least <= len(seen) <= 10
    optimizer.close()
