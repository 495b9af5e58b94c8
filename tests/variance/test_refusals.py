"""What others do to gradients around a step: taken into account, or refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_net import net
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (32,), generator=torch.Generator().manual_seed(2))
TWO_POINTS: dict[str, Callable[..., silk.VarianceReduced]] = {
    "SpiderBoost": silk.SpiderBoost,
    "SparseSpiderBoost": silk.SparseSpiderBoost,
    "SVRG": silk.SVRG,
    "SparseSVRG": silk.SparseSVRG,
    "SparseSVRG, selected": lambda params, lr, **k: silk.SparseSVRG(params, lr, move="selected", **k),
}


def loss_of(model: nn.Module, part: slice = slice(None)) -> Tensor:
    return F.cross_entropy(model(X[part]), Y[part])


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer, zero: bool = True) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        if zero:
            optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    return closure


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("name", TWO_POINTS)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_gradient_from_before_the_step_is_not_lost(name: str, steps: int) -> None:
    model = small_model()
    optimizer = TWO_POINTS[name](model.parameters(), 0.1, inner_steps=3)
    for _ in range(steps):
        optimizer.step(closure_of(model, optimizer))
    optimizer.zero_grad()
    loss_of(model, slice(8)).backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"a gradient was there before step\(closure\).*accumulation.*zero_grad"):
        optimizer.step(closure_of(model, optimizer, zero=False))
    assert all(map(torch.equal, before, model.parameters()))
    optimizer.zero_grad()
    optimizer.step(closure_of(model, optimizer))  # the remedy


def test_a_gradient_added_to_the_v_that_a_step_left_is_refused() -> None:
    model = small_model()
    optimizer = silk.SVRG(model.parameters(), 0.1, inner_steps=3)
    optimizer.step(closure_of(model, optimizer))
    loss_of(model).backward()  # adds to v
    with pytest.raises(RuntimeError, match="added to the v that the last step left"):
        optimizer.step(closure_of(model, optimizer))


def test_the_v_that_a_step_left_is_no_foreign_gradient() -> None:
    """Neither as it is, nor zeroed in place, nor after a closure that failed or a v that was not finite."""
    model = small_model()
    optimizer = silk.SVRG(model.parameters(), 0.1, inner_steps=2)
    optimizer.step(closure_of(model, optimizer, zero=False))
    assert all(p.grad is not None for p in model.parameters())
    optimizer.step(closure_of(model, optimizer, zero=False))
    optimizer.zero_grad(set_to_none=False)
    optimizer.step(closure_of(model, optimizer, zero=False))

    def fails() -> Tensor:
        loss_of(model).backward()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(fails)
    optimizer.step(closure_of(model, optimizer))

    def diverges() -> Tensor:
        loss = loss_of(model) * torch.inf
        loss.backward()
        return loss

    with pytest.raises(silk.DivergenceError):
        optimizer.step(diverges)
    optimizer.step(closure_of(model, optimizer))


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "clip by norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clip by a norm that is not reached": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e6),
    "clip by value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01),
    "new tensors": lambda model: [setattr(p, "grad", p.grad * 0.5) for p in model.parameters()],  # type: ignore
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TWO_POINTS)
def test_gradients_that_change_in_a_closure_at_two_points_are_refused(name: str, change: str) -> None:
    model = small_model()
    optimizer = TWO_POINTS[name](model.parameters(), 0.1, inner_steps=3)
    whole = closure_of(model, optimizer)

    def closure() -> Tensor:
        loss = whole()
        CHANGES[change](model)
        return loss

    optimizer.step(closure)
    with pytest.raises(RuntimeError, match=r"changed gradients after backward\(\).*max_norm="):
        optimizer.step(closure)


def test_several_backward_calls_in_a_closure_are_no_change() -> None:
    model = small_model()
    optimizer = silk.SVRG(model.parameters(), 0.1, inner_steps=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = [loss_of(model, slice(i, i + 16)) / 2 for i in (0, 16)]
        for loss in losses:
            loss.backward()
        return sum(losses)  # type: ignore[return-value]

    for _ in range(4):
        optimizer.step(closure)


@pytest.mark.parametrize("kind", TWO_POINTS.values())
@pytest.mark.parametrize("unscales", [False, True])
def test_a_grad_scaler_is_refused(kind: Callable[..., silk.VarianceReduced], unscales: bool) -> None:
    model = small_model()
    optimizer = kind(model.parameters(), 0.1, inner_steps=3)
    scaler = torch.amp.GradScaler("cpu")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        return loss

    scaler.scale(loss_of(model)).backward()
    if unscales:
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"GradScaler.*call optimizer.step\(closure\) itself.*bfloat16"):
        scaler.step(optimizer, closure)
    optimizer.zero_grad()
    torch.amp.GradScaler("cpu", enabled=False).step(optimizer, closure_of(model, optimizer))


def test_lazy_svrg_refuses_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))
    optimizer = silk.LazySVRG(model, 0.1)
    tokens = torch.randint(8, (4, 2))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens), Y[:4])
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="without a closure"):
        optimizer.step(anchor=True)
    closure()
    with pytest.raises(RuntimeError, match="a gradient was there before"):
        optimizer.step(closure, anchor=True)
    optimizer.zero_grad()
    optimizer.step(closure, anchor=True)
    optimizer.step(closure, anchor=False)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="GradScaler"):
        scaler.step(optimizer, closure, False)
    model.double()
    with pytest.raises(RuntimeError, match="another device or dtype"):
        optimizer.step(closure, anchor=False)


@pytest.mark.parametrize("kind", TWO_POINTS.values())
def test_a_model_in_another_dtype_is_noticed(kind: Callable[..., silk.VarianceReduced]) -> None:
    model = small_model()
    optimizer = kind(model.parameters(), 0.1, inner_steps=3)
    optimizer.step(closure_of(model, optimizer))
    model.double()
    with pytest.raises(RuntimeError, match=r"another device or dtype.*make a new optimizer"):
        optimizer.step(closure_of(model, optimizer))


def test_parameters_that_overflowed_in_a_move_are_told_apart() -> None:
    """A v of 2e38 is finite, and with momentum its moves overflow x; no later step can mend that, and each says so."""
    p = nn.Parameter(torch.ones(4))
    optimizer = silk.SVRG([p], 1.0, momentum=0.9, inner_steps=1)
    steepness = [2e38, 2e38, 1.0, 1.0]  # gradients of the first two do not depend on p

    def closure() -> Tensor:
        optimizer.zero_grad()
        slope = steepness[min(optimizer.steps, 3)]
        loss = (p * slope).sum() if slope > 1 else (p * p).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert not torch.isfinite(p).any()
    for _ in range(2):
        with pytest.raises(silk.DivergenceError) as caught:
            optimizer.step(closure)
        assert not caught.value.x_is_finite
        assert "parameters themselves are not finite" in str(caught.value)
        assert "max_norm" in str(caught.value)
        assert "x is as it was" not in str(caught.value)


def test_a_divergence_with_good_parameters_says_so() -> None:
    model = net()
    optimizer = silk.SVRG(model.parameters(), 0.1, inner_steps=2)

    def closure() -> Tensor:
        loss = sum(q.sum() for q in model.parameters()) * torch.inf
        loss.backward()
        return loss

    with pytest.raises(silk.DivergenceError, match="x is as it was") as caught:
        optimizer.step(closure)
    assert caught.value.x_is_finite
