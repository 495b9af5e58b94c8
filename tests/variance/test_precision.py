"""Autocast, and models in low precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import METHODS
from small_net import TWO_POINT, X, Y, flat, make, net, train
from torch import Tensor
from torch.nn import functional as F


@pytest.mark.parametrize("name", METHODS)
def test_bf16_autocast(name: str) -> None:
    model = net().float()
    optimizer = make(name, model)

    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(X[batch].float()), Y[batch])
            loss.backward()
            return loss.detach()

        return closure

    losses = train(optimizer, closure_for, steps=60)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses[-6] < losses[0]


@pytest.mark.parametrize("name", TWO_POINT)
def test_autocast_around_the_step(name: str) -> None:
    """Autocast keeps casts of weights: the reference must not be evaluated with those of the current point."""
    results = []
    for outside in (False, True):
        model = net().float()
        optimizer = make(name, model, lr=0.5)

        def closure_for(batch: Tensor, model=model, optimizer=optimizer):
            def closure() -> Tensor:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(X[batch].float()), Y[batch])
                loss.backward()
                return loss.detach()

            return closure

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outside):
            train(optimizer, closure_for)
        results.append(flat(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whole_model_in_low_precision(name: str, dtype: torch.dtype) -> None:
    model = net().to(dtype)
    optimizer = make(name, model)

    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X[batch].to(dtype)), Y[batch])
            loss.backward()
            return loss.detach()

        return closure

    losses = train(optimizer, closure_for, steps=60)
    assert losses[-6] < losses[0]  # the last anchor against the first, on all samples
    assert all(p.dtype == dtype for p in model.parameters())
