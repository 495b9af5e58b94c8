"""`silk.inspect`: trials, measurements and verdicts."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.theory import inspection as inspection_of
from spidersilk.theory import trials
from spidersilk.theory.inspection import GRID
from spidersilk.theory.trials import Trial


def problem(seed: int = 0, n: int = 300) -> tuple[nn.Module, Any, tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    x = torch.randn(n, 10)
    y = (x @ torch.randn(10)).sign()
    return nn.Linear(10, 1), lambda model, b: nn.functional.softplus(-b[1] * model(b[0])[:, 0]).mean(), (x, y)


def inspection(*given: Trial) -> silk.Inspection:
    shares = dict.fromkeys(GRID, 0.5)
    return silk.Inspection(10, 100, 3.0, shares, shares, shares, {"SGD": 1.0}, list(given))


def trial(method: str, sparse: bool, queries: list[float], losses: list[float], pace: float = 1.0) -> Trial:
    return Trial(method, sparse, 0.1, queries, [q * pace for q in queries], losses)


DENSE = trial("SGD", False, [0, 100, 200], [2.0, 1.0, 0.5])


def test_verdicts() -> None:
    fast = inspection(DENSE, trial("SparseSGD", True, [0, 50, 100], [2.0, 1.0, 0.5], 0.5))
    assert fast.pays
    assert fast.verdict.startswith("yes: SparseSGD (lr 0.1) needed 0.50 of the queries of SGD")
    slow = inspection(DENSE, trial("SparseSGD", True, [0, 50, 100], [2.0, 1.0, 0.5], 10.0))
    assert slow.pays
    assert slow.verdict.startswith("yes in queries, no in time")
    assert "5.00 of the seconds" in slow.verdict
    level = inspection(DENSE, trial("SparseSGD", True, [0, 100, 190], [2.0, 1.0, 0.5]))
    assert not level.pays
    assert level.verdict.startswith("no: SparseSGD (lr 0.1) needed 0.95")
    never = inspection(DENSE, trial("SparseSGD", True, [0, 100, 200], [2.0, 1.0, 0.8]))
    assert never.verdict.startswith("no: SGD")
    assert "to 0.8" in never.verdict
    gone = inspection(DENSE, trial("SparseSVRG", True, [0, 10], [2.0, math.inf]))
    assert not gone.pays


GIB = 2**30
FITS = [
    (10, 4, 16, "yes: SparseAdamW, 10 % of the columns needs 0.40 of AdamW's bytes (4 GiB and 10 GiB, of 16 GiB here)"),
    (10, 9, 16, "no: SparseAdamW, 10 % of the columns needs 0.90 of AdamW's bytes"),
    (20, 4, 16, "yes: AdamW does not fit, and SparseAdamW, 10 % of the columns would (4 GiB and 20 GiB, of 16 GiB"),
    (40, 20, 16, "no: AdamW does not fit, and none would (20 GiB and 40 GiB, of 16 GiB here)"),
]


@pytest.mark.parametrize(("dense", "columns", "there", "said"), FITS)
def test_verdicts_of_memory(dense: int, columns: int, there: int, said: str) -> None:
    sizes = {"AdamW": dense * GIB, "SparseAdamW, 10 % of the columns": columns * GIB}
    found = replace(inspection(DENSE), bytes=sizes, capacity=there * GIB)
    assert found.memory_verdict.startswith(said)


@pytest.mark.parametrize(("columns", "answer"), [(0.7, "yes"), (0.9, "hardly"), (1.5, "no")])
def test_verdicts_of_seconds(columns: float, answer: str) -> None:
    found = replace(inspection(DENSE), seconds={"AdamW": 1.0, "columns": columns})
    assert found.seconds_verdict.startswith(f"{answer}: a step of SparseAdamW, 10 % of the columns takes {columns:.2f}")


def test_reaching_a_loss_between_two_looks() -> None:
    assert DENSE.reach(0.75) == (150.0, 150.0)
    assert DENSE.reach(2.5) == (0, 0)
    assert DENSE.reach(0.1) == (math.inf, math.inf)


def test_inspect_measures_and_leaves_the_model_alone() -> None:
    model, loss, data = problem()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    told: list[str] = []
    found = silk.inspect(
        model, loss, data, lr=1.0, anchor_batch_size=100, batch_size=10, budget=4 / 3, report=told.append
    )
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert told[:2] == ["memory", "gradients"]
    assert [t.method for t in found.trials] == [m.name for m in trials.METHODS]
    assert found.d == 11
    assert 0 < found.entropy <= math.log2(11)
    assert list(found.captured.values()) == sorted(found.captured.values())
    assert found.captured[0.5] <= 1
    assert set(found.seconds) == {"anchor", "SGD", "dense", "sparse", "SparseSGD", "AdamW", "columns"}
    assert all(t.queries[-1] >= 400 for t in found.trials)
    assert all(t.losses[0] == found.trials[0].losses[0] for t in found.trials)  # from one point
    assert found.best_dense.lowest < found.trials[0].losses[0]
    assert found.verdict.split(":")[0] in ("yes", "no", "yes in queries, no in time")
    assert found.memory_verdict.split(":")[0] in ("yes", "no")
    assert found.seconds_verdict.split(":")[0] in ("yes", "hardly", "no")
    assert found.bytes["AdamW"] > 4 * 4 * found.d  # weight, gradient and two states


def test_every_method_gets_the_same_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loss, data = problem()
    tried: list[tuple[str, float, float]] = []
    go = trials._Run.go

    def noted(run: Any, budget: float, every: float) -> Trial:
        if run.seed == 0:
            tried.append((run.method.name, run.lr, budget))
        return go(run, budget, every)

    monkeypatch.setattr(trials._Run, "go", noted)
    silk.inspect(model, loss, data, lr=1.0, adam_lr=0.01, anchor_batch_size=50, batch_size=10, budget=4 / 3)
    for method in trials.METHODS:
        mine = [(lr, budget) for name, lr, budget in tried if name == method.name]
        lr = 0.01 if "AdamW" in method.name else 1.0
        assert [x for x in mine if x[1] == 200] == [(0.5 * lr, 200.0), (lr, 200.0), (2 * lr, 200.0)]
        assert 1 <= len([x for x in mine if x[1] == 400]) <= 3


def test_without_its_step_size_adamw_is_left_out() -> None:
    model, loss, data = problem()
    found = silk.inspect(model, loss, data, lr=1.0, adam_lr=None, anchor_batch_size=50, batch_size=10, budget=2 / 3)
    assert [t.method for t in found.trials] == [m.name for m in trials.METHODS if "AdamW" not in m.name]


def test_methods_without_differences_have_no_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of sparse training counts 2 of 11 coordinates for each of 10 samples."""
    model, loss, data = problem()
    asked: dict[str, set[int]] = {}
    step = trials._Run._step

    def noted(run: Any, batch: Any, is_anchor: Any) -> None:
        before = run.spent
        step(run, batch, is_anchor)
        asked.setdefault(run.method.name, set()).add(round(run.spent - before))

    monkeypatch.setattr(trials._Run, "_step", noted)
    silk.inspect(model, loss, data, lr=1.0, anchor_batch_size=100, batch_size=10, budget=4 / 3)
    assert asked["SparseSGD"] == asked["SparseAdamW"] == {2}
    assert asked["SVRG"] == {100, 20}
    assert asked["AdamW"] == asked["SGD"] == {10}


def test_a_trial_that_diverges_is_not_the_best() -> None:
    """A quadratic with L = 1: at 2 lr = 2.4 every method diverges."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    data = torch.randn(200, 8)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return 0.5 * model.weight.square().sum() + 0 * batch.sum()  # pyright: ignore[reportAttributeAccessIssue]

    found = silk.inspect(model, loss, data, lr=1.2, adam_lr=None, anchor_batch_size=50, batch_size=10, budget=5)
    assert all(t.lr < 2.4 for t in found.trials)
    assert all(t.lowest < 1e-3 for t in found.trials if not t.sparse)
    with pytest.raises(ValueError, match=r"lr = 1e\+10: the gradients already overflow"):
        silk.inspect(model, loss, data, lr=1e10, anchor_batch_size=50, batch_size=10, budget=10)


def test_no_verdict_without_progress() -> None:
    flat = trial("SGD", False, [0, 100], [1.0, 1.0])
    found = inspection(flat, trial("SparseSGD", True, [0, 100], [1.0, 1.2]))
    assert not found.pays
    assert found.verdict.startswith("no verdict")
    assert math.isnan(found.queries(flat))


def test_data_sets_that_are_lists_of_samples() -> None:
    model, loss, (x, y) = problem()
    data = [(a, b) for a, b in zip(x, y, strict=True)]
    found = silk.inspect(model, loss, data, lr=1.0, anchor_batch_size=50, batch_size=10, budget=1)
    assert found.samples == 300


def test_dropout_buffers_and_modes_are_left_as_they_were() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop, self.norm = nn.Linear(10, 1), nn.Dropout(0.5), nn.BatchNorm1d(10)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.linear(self.drop(self.norm(x)))

    _, loss, data = problem()
    model = Counting()
    model.drop.eval()
    before = {name: b.clone() for name, b in model.named_buffers()}
    found = silk.inspect(model, loss, data, lr=0.1, anchor_batch_size=50, batch_size=10, budget=1)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert model.training
    assert not model.drop.training
    assert len({t.losses[0] for t in found.trials}) == 1


@pytest.mark.parametrize("where", ["nowhere", "in a timed step", "in a trial"])
def test_the_model_is_given_back_without_compact_parameters(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an error while a sparse optimizer holds it."""
    model, loss, data = problem()
    names, before = list(dict(model.named_parameters())), [p.detach().clone() for p in model.parameters()]
    if where == "in a trial":
        monkeypatch.setattr(inspection_of, "step_seconds", lambda params, source: {})
        monkeypatch.setattr(inspection_of, "adamw_seconds", lambda params, source: {})

    def fails(model: nn.Module, batch: Any) -> Tensor:
        if where != "nowhere" and len(list(model.parameters())) > len(names):
            raise ValueError("not while it is sparse")
        return loss(model, batch)

    with nullcontext() if where == "nowhere" else pytest.raises(ValueError, match="not while it is sparse"):
        silk.inspect(model, fails, data, lr=1.0, anchor_batch_size=50, batch_size=10, budget=2 / 3)
    assert list(dict(model.named_parameters())) == names
    assert all(map(torch.equal, model.parameters(), before))


def test_an_error_of_the_loss_is_the_users_to_see() -> None:
    model, _, data = problem()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("batch sizes do not match")

    with pytest.raises(ValueError, match="batch sizes do not match"):
        silk.inspect(model, loss, data, anchor_batch_size=50, batch_size=10, budget=1)


def test_bad_arguments() -> None:
    model, loss, data = problem()
    with pytest.raises(ValueError, match="lr = 0"):
        silk.inspect(model, loss, data, lr=0)
    with pytest.raises(ValueError, match=r"budget = 3 N must be at least four anchors, 4 N, at most 1000 N"):
        silk.inspect(model, loss, data, budget=3)
    with pytest.raises(ValueError, match=r"budget = 8000 N must be"):  # a count of queries, as in 0.1.0
        silk.inspect(model, loss, data, budget=8000)
