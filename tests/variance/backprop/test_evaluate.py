"""Optimizers step alike with and without a capture, also where a closure spoils it."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.variance.backprop import registry

ROWS = {"k1": 0.3, "k2": 0.2, "groups": "rows", "backend": "torch"}  # no kernels to compile
SPARSE = [name for name in cases.METHODS if name.startswith("sparse")]


@pytest.fixture(autouse=True)
def _take_small_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SMALLEST", 0)


def trajectory(
    problem: cases.Problem, optimizer: silk.VarianceReduced, extra: Any = None, steps: int = 12
) -> list[Tensor]:
    """x after each update, in loops of four."""
    points = []
    for step in range(steps):
        size = 30 if step % 4 == 0 else 5
        batch = torch.randperm(problem.samples, generator=torch.Generator().manual_seed(step))[:size]
        closure = problem.closure(optimizer, batch)
        optimizer.step((lambda run=closure: extra(run)) if extra else closure, anchor=step % 4 == 0, samples=size)
        points.append(problem.flat_x())
    return points


@pytest.mark.parametrize(
    ("method", "problem"), [*((m, "mlp") for m in SPARSE), ("sparse-svrg", "quadratic"), ("sparse-svrg", "logistic")]
)
def test_trajectories_agree(method: str, problem: str) -> None:
    runs = []
    for sparse in (True, False):
        at = cases.PROBLEMS[problem]()
        seed = torch.Generator().manual_seed(7)
        make = cases.METHODS[method].make
        optimizer = make(at.model.parameters(), at.lr, generator=seed, sparse_backward=sparse, **ROWS)
        runs.append(trajectory(at, optimizer))
        assert optimizer._engine.sparse_backward is sparse
        assert (optimizer._engine.captures > 0) is sparse
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_selection_of_entries_is_never_captured() -> None:
    at = cases.mlp()
    optimizer = silk.SparseSVRG(at.model.parameters(), 0.01, k1=0.3, k2=0.2, sparse_backward=True)
    trajectory(at, optimizer)
    assert optimizer._engine.sparse_backward
    assert not optimizer._engine.captures


@pytest.mark.parametrize(
    ("method", "misuse"),
    [(m, use) for m in ("sparse-svrg", "sparse-svrg, selected", "sparse-spiderboost") for use in ("reads", "drops")],
)
def test_a_closure_that_uses_gradients_is_evaluated_densely(method: str, misuse: str) -> None:
    params: list[Tensor] = []

    def extra(run: Any) -> Any:
        if misuse == "drops":
            run()
            for p in params:
                if p.grad is not None:
                    p.grad = None
        loss = run()
        for p in params:
            if p.grad is not None:
                p.grad.norm()
        return loss

    runs = []
    for sparse in (True, False):
        at = cases.mlp()
        params[:] = list(at.model.parameters())
        generator = torch.Generator().manual_seed(7)
        optimizer = cases.METHODS[method].make(params, at.lr, generator=generator, sparse_backward=sparse, **ROWS)
        runs.append(trajectory(at, optimizer, extra))
        assert not optimizer._engine.sparse_backward
        assert optimizer._engine.captures == int(sparse)
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_randomness_and_buffers_are_as_after_one_evaluation_when_a_capture_is_spoiled() -> None:
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2)).double()
        x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(2, (8,))
        options: Any = {"k1": 0.5, "k2": 0.0, "move": "selected", "groups": "rows", "sparse_backward": sparse}
        optimizer = silk.SparseSVRG(model.parameters(), 0.1, **options)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
            return loss

        for step in range(6):
            optimizer.step(closure, anchor=step % 3 == 0)
        ends.append(torch.cat([t.double().reshape(-1) for t in (*model.state_dict().values(), torch.rand(3))]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_small_weights_are_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    at = cases.mlp()
    optimizer = silk.SparseSVRG(at.model.parameters(), lr=0.01, sparse_backward=True, **ROWS)
    seen: list[bool] = []

    def extra(run: Any) -> Any:
        loss = run()
        seen.append(all(p.grad is not None for p in at.model.parameters() if p.dim() == 2))
        return loss

    trajectory(at, optimizer, extra)
    assert optimizer._engine.captures
    assert all(seen)
