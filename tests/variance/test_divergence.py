"""A v that is not finite, and closures that fail."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from cases import METHODS, mlp
from small_net import X, flat, make, net, simple, train
from torch import Tensor

import spidersilk as silk


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at_anchor", [True, False])
def test_divergence_leaves_x_as_it_was_and_training_can_go_on(name: str, at_anchor: bool) -> None:
    model = net()
    optimizer = make(name, model, lr=0.05)
    closure_for = simple(model, optimizer)
    train(optimizer, closure_for, steps=9)
    before = flat(model)

    def bad() -> Tensor:
        loss = closure_for(torch.arange(8))()
        with torch.no_grad():
            for p in model.parameters():
                p.grad.mul_(float("inf"))  # type: ignore[union-attr]
        return loss

    with pytest.raises(silk.DivergenceError) as caught:
        optimizer.step(bad, anchor=at_anchor)
    assert torch.equal(flat(model), before)
    error = caught.value
    assert error.step == 9
    assert error.inner_step == (0 if at_anchor else 3)
    assert error.norms["x"] == pytest.approx(float(before.norm()))
    assert "Theorem 1" in str(error)
    if optimizer.reference is not None:
        assert error.theorem_1_lr is not None
        assert 0 < error.theorem_1_lr < 10
        assert f"{0.0 + error.theorem_1_lr:.2g}" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), repr(again.norms)) == (str(error), repr(error.norms))
    with pytest.raises(RuntimeError, match="anchor"):
        optimizer.step(closure_for(torch.arange(8)), anchor=False)
    losses = train(optimizer, closure_for, steps=24, start=12)
    assert losses[-6] < losses[0]


def test_divergence_comes_from_a_large_step_too() -> None:
    """Algorithm 1 at a step size far above Theorem 1's, in float32: it raises, and x is finite."""
    problem = mlp()
    model = problem.model.float()
    optimizer = silk.SparseSpiderBoost(model.parameters(), lr=50.0, k1=2, k2=2, inner_steps=1000)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(X[:, :5].float()).square().mean()
        loss.backward()
        return loss.detach()

    with pytest.raises(silk.DivergenceError, match="this run's secants give L >="):
        for _ in range(1000):
            optimizer.step(closure)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_a_first_difference_that_is_not_finite_says_nothing_of_the_smoothness() -> None:
    model = net()
    optimizer = make("sparse-svrg", model, inner_steps=10)
    closure_for = simple(model, optimizer)
    optimizer.step(closure_for(torch.arange(64)))

    def bad() -> Tensor:
        closure_for(torch.arange(8))()
        loss = sum(p.sum() for p in model.parameters()) * (math.inf if optimizer.evaluating == "current" else 1.0)
        loss.backward()
        return loss

    with pytest.raises(silk.DivergenceError) as caught:
        optimizer.step(bad)
    assert caught.value.theorem_1_lr is None
    assert "L >=" not in str(caught.value)


def test_a_closure_that_fails_at_an_anchor_leaves_the_count_as_it_was() -> None:
    model = net()
    optimizer = make("svrg", model, inner_steps=silk.Geometric(4))
    closure_for = simple(model, optimizer)
    good = closure_for(torch.arange(8))
    seen = []
    for _ in range(60):
        due = optimizer.next_is_anchor()
        if due:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
            assert optimizer.next_is_anchor()
        optimizer.step(good)
        seen.append(due)
    assert 5 < sum(seen) < 40
