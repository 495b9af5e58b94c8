"""The tasks: what is evaluated, states of a stateful model, and the orders that the prototypes found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import config

import spidersilk as silk
from spidersilk.lab import tasks
from spidersilk.lab.commands.inspection import TaskSource
from spidersilk.lab.run import runner
from spidersilk.lab.tasks.language import Language
from spidersilk.loop.lengths import Fixed
from spidersilk.theory import trials


def test_a_stateful_task_is_inspected_with_the_state_of_its_reference(data_dir: str) -> None:
    """With lr = 0 both points of an anchored difference are one, so it is zero if both start from the same state."""
    options = {"hidden": 8, "embedding": 4, "train_tokens": 4000, "eval_tokens": 800}
    task = tasks.find("language")(options, data_dir, torch.device("cpu"))
    source = TaskSource(task, 8, 4)
    optimizer = silk.SVRG(task.model.parameters(), lr=0.0)
    source.prepare("anchor")
    told: list[silk.Measures] = []
    optimizer.register_measures_hook(told.append)
    for _, (chunk, is_anchor) in zip(range(6), source.batches(Fixed(6), 0), strict=False):

        def closure(chunk: Any = chunk) -> torch.Tensor:
            optimizer.zero_grad()
            loss = source.loss(chunk, optimizer.evaluating)
            loss.backward()
            return loss.detach()

        optimizer.step(closure, anchor=is_anchor)
        source.stepped()
    assert [m.top_energy for m in told] == [0.0] * 5


@pytest.mark.slow
def test_an_inspection_of_a_stateful_task_begins_each_run_anew(data_dir: str) -> None:
    """A run does not depend on those before it."""
    options = {"hidden": 8, "embedding": 4, "train_tokens": 4000, "eval_tokens": 800}
    torch.manual_seed(0)
    task = tasks.find("language")(options, data_dir, torch.device("cpu"))
    source = TaskSource(task, 8, 4)
    for method in (m for m in trials.METHODS if m.name in ("AdamW", "SparseSVRG", "SparseAdamW")):
        first = trials._Run(task.model, source, method, 0.01).go(160, 40)
        trials._Run(task.model, source, method, 0.02, seed=1).go(80, 40)
        again = trials._Run(task.model, source, method, 0.01).go(160, 40)
        assert first.losses == again.losses, method.name
        assert len(set(first.losses)) > 2, method.name


@pytest.mark.parametrize("rows", [5, 20])
def test_evaluated_text_is_as_old_as_the_rest(data_dir: str, rows: int) -> None:
    """When a pass over the text in so many rows comes to the tokens that are looked at is spread evenly over it: the
    largest difference from the even distribution. The first 20,000 of 200,000 tokens have 0.5 with 5 rows."""
    options = {"hidden": 8, "embedding": 4, "train_tokens": 200_000}
    task = tasks.find("language")(options, data_dir, torch.device("cpu"))
    assert isinstance(task, Language)
    pieces = task._spread(torch.arange(200_000))
    assert pieces.shape == (100, 200)
    assert 0 <= pieces.min() < 2000
    assert 198_000 < pieces.max() < 200_000
    ages = (pieces.flatten().double() * rows / 200_000 % 1).sort().values
    even = torch.linspace(0, 1, len(ages), dtype=torch.float64)
    assert (ages - even).abs().max() < 0.05


@pytest.mark.slow
def test_ranking_has_the_order_of_the_prototypes(data_dir: str, tmp_path: Path) -> None:
    """After 3 epochs of queries: SGD as in the paper, SpiderBoost, Algorithm 1; and tuned SGD below all."""
    losses = []
    for name, settings in (
        ("sgd", {"lr": 0.1}),
        ("spiderboost", {}),
        ("sparse-spiderboost", {}),
        ("sgd", {"lr": 10.0}),
    ):
        made = config("ranking", name, budget=3.0, eval_every=3.0, **settings)
        losses.append(runner.run(made, tmp_path / str(len(losses)))["last"]["train_loss"])
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_logistic_has_the_order_of_the_prototypes(data_dir: str, tmp_path: Path) -> None:
    """w8a after 13 n queries: the anchored sparse form is ahead of SVRG."""
    gaps = {}
    for name in ("sparse-svrg", "svrg"):
        made = config("logistic", name, options={"data": "w8a"}, lr=4.0, budget=13.0, eval_every=13.0)
        gaps[name] = runner.run(made, tmp_path / name)["last"]["gap"]
    assert 3 * gaps["sparse-svrg"] < gaps["svrg"]
