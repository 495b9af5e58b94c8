"""Optimizers step alike with and without a capture, also where a closure spoils it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cases
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.variance.backprop import evaluate, rules, timing
from spidersilk.variance.backprop.sparse_forward import relative_bias, rtop_rows, sparse_linear


@pytest.fixture(autouse=True)
def _take_small_weights_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rules, "SMALLEST", 0)
    yield
    timing.forget()


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


def pair(method: str, problem: str = "mlp", **options: Any) -> tuple[list[Tensor], list[Tensor], Any]:
    runs, optimizers = [], []
    extra, steps = options.pop("extra", None), options.pop("steps", 12)
    for sparse in (options.pop("sparse", "always"), False):
        at = cases.PROBLEMS[problem]()
        generator = torch.Generator().manual_seed(7)
        optimizer = cases.METHODS[method].make(
            at.model.parameters(), at.lr, generator=generator, sparse_backward=sparse, **options
        )
        runs.append(trajectory(at, optimizer, extra, steps))
        optimizers.append(optimizer)
    return runs[0], runs[1], optimizers[0]


@pytest.mark.parametrize("problem", cases.PROBLEMS)
@pytest.mark.parametrize("method", cases.METHODS)
def test_trajectories_agree(method: str, problem: str) -> None:
    ours, theirs, optimizer = pair(method, problem)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert optimizer._evaluator.sparse


@pytest.mark.parametrize("winner", ["dense", "sparse"])
def test_true_goes_on_with_what_was_faster(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing, "_clock", lambda *_: lambda: now[0])
    for way in ("dense", "sparse"):
        original = getattr(evaluate.Evaluator, f"_{way}")

        def slowed(self: Any, *given: Any, run: Any = original, way: str = way, **named: Any) -> Any:
            now[0] += 1.0 if way == winner else 1.5
            return run(self, *given, **named)

        monkeypatch.setattr(evaluate.Evaluator, f"_{way}", slowed)
    ours, theirs, optimizer = pair("sparse-svrg", sparse=True, steps=120)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert optimizer._evaluator._race.winner == winner
    assert (optimizer._evaluator._captures < 60) is (winner == "dense")  # of 90 small steps


@pytest.mark.parametrize("method", ["sparse-svrg", "sparse-sgd", "sparse-spiderboost"])
@pytest.mark.parametrize("misuse", ["reads", "drops"])
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
                p.grad.mul_(0.5)
        return loss

    runs = []
    for sparse in (True, False):
        at = cases.mlp()
        params[:] = list(at.model.parameters())
        generator = torch.Generator().manual_seed(7)
        optimizer = cases.METHODS[method].make(params, at.lr, generator=generator, sparse_backward=sparse)
        runs.append(trajectory(at, optimizer, extra))
        assert not optimizer._evaluator.sparse
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_randomness_and_buffers_are_as_after_one_evaluation_when_a_capture_is_spoiled() -> None:
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2)).double()
        x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(2, (8,))
        optimizer = silk.SparseSGD(model.parameters(), lr=0.1, k1=0.5, sparse_backward=sparse)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        for step in range(6):
            optimizer.step(closure, anchor=step % 3 == 0)
        ends.append(torch.cat([t.double().reshape(-1) for t in (*model.state_dict().values(), torch.rand(3))]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_auto_captures_rows_of_large_weights_and_never_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_clock", lambda *_: pytest.fail("timed"))
    for groups, large, captures in (("rows", 0, True), (None, 0, False), ("rows", 10**6, False)):
        monkeypatch.setattr(evaluate, "LARGE", large)
        runs = []
        for sparse in ("auto", False):
            at = cases.mlp()
            seed = torch.Generator().manual_seed(7)
            optimizer = silk.SparseSVRG(
                at.model.parameters(), 0.01, groups=groups, generator=seed, sparse_backward=sparse
            )
            runs.append(trajectory(at, optimizer))
            assert (optimizer._evaluator._captures > 0) is (captures and sparse == "auto")
        for a, b in zip(*runs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_small_models_are_left_to_autograd_and_unknown_settings_refused() -> None:
    at = cases.mlp()
    optimizer = silk.SparseSVRG(at.model.parameters(), lr=0.01)
    optimizer.step(at.closure(optimizer, torch.arange(5)), anchor=True)
    assert not optimizer._evaluator.sparse
    with pytest.raises(ValueError, match="sparse_backward"):
        silk.SparseSVRG(at.model.parameters(), lr=0.01, sparse_backward="often")


@pytest.mark.statistical
def test_sparse_forward_is_unbiased_for_a_linear_layer_with_independent_draws_alone() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 20, dtype=torch.float64), torch.randn(4, 20, dtype=torch.float64)
    exact = x @ weight.t()
    draws = {one: lambda one=one: sparse_linear(x, weight, None, 2, 3, one_draw=one) for one in (False, True)}
    bias, noise = relative_bias(exact, draws[False], 4000)
    assert bias < 4 * noise
    bias, noise = relative_bias(exact, draws[True], 4000)
    assert bias > 10 * noise  # a random coordinate counts (d - k1) / k2 = 6 times
    curved = exact.square()
    bias, noise = relative_bias(curved, lambda: draws[False]().square(), 4000)
    assert bias > 5 * noise  # not so behind a non-linearity


def test_rtop_of_each_row_keeps_the_largest_and_scales_the_drawn() -> None:
    x = torch.tensor([[5.0, 1.0, 2.0, -6.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    out = rtop_rows(x, 2, 1, torch.Generator().manual_seed(0))
    assert out[0, [0, 3]].tolist() == [5.0, -6.0]
    assert out[1, [3, 4]].tolist() == [4.0, 5.0]
    ratio = (out / x)[:, [1, 2]]
    assert sorted((out / x)[0, [1, 2, 4]].tolist()) == [0.0, 0.0, 3.0]
    assert set(ratio.reshape(-1).tolist()) <= {0.0, 3.0}
