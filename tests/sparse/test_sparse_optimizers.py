"""SparseSGD and SparseAdamW are torch's SGD and AdamW under Sparse, with the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spidersilk as silk

NAMED: dict[str, tuple[type[silk.Sparse], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (silk.SparseSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (silk.SparseSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.1}),
    "nesterov": (silk.SparseSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "adamw": (silk.SparseAdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3}),
    "amsgrad": (
        silk.SparseAdamW,
        torch.optim.AdamW,
        {"lr": 0.01, "betas": (0.9, 0.99), "amsgrad": True, "weight_decay": 0.1},
    ),
    "maximize": (silk.SparseAdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.95), "maximize": True}),
}
SHARED: dict[str, Any] = {"k1": 0.1, "k2": 0.2, "inner_steps": 4, "max_norm": 0.5}


def trained(make: Any, steps: int = 15) -> tuple[Tensor, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = make(model)
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        model(torch.randn(10, 6, generator=data, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1) for p in (*model[0].parameters(), *model[2].parameters())]), optimizer


@pytest.mark.parametrize("name", NAMED)
def test_the_same_as_sparse_over_the_base(name: str) -> None:
    named, base, options = NAMED[name]
    ends = []
    for kind in (named, lambda model, **rest: silk.Sparse(model, base, **rest)):
        generator = torch.Generator().manual_seed(3)
        end, optimizer = trained(lambda m, k=kind, g=generator: k(m, **options, **SHARED, generator=g))
        assert {n: optimizer.param_groups[0][n] for n in options} == options
        assert (optimizer.inner_steps, optimizer.max_norm) == (4, 0.5)
        assert isinstance(optimizer.base, base)
        ends.append(end)
    assert torch.equal(*ends)


@pytest.mark.parametrize("named", [silk.SparseSGD, silk.SparseAdamW])
def test_defaults_are_those_of_torch_and_of_sparse_but_for_beta2(named: type[silk.Sparse]) -> None:
    base, own = (
        (torch.optim.SGD, {"lr": 0.1})
        if named is silk.SparseSGD
        else (torch.optim.AdamW, {"lr": 0.001, "betas": (0.9, 0.95)})
    )
    _, optimizer = trained(named, steps=1)
    _, other = trained(lambda model: silk.Sparse(model, base, **own), steps=1)
    assert optimizer.defaults == other.defaults
    assert (optimizer.k, optimizer.inner_steps) == (other.k, other.inner_steps)
