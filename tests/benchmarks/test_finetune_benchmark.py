"""benchmarks/finetune.py: step sizes, refusals, results that are there already, and what is said of an edge."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import finetune
import pytest
import torch

REFUSED = [
    ("adam", "there is no method 'adam'; there are adamw, entries-P"),
    ("lora-0", "there is no method 'lora-0'"),
    ("entries-0", "entries-0: 0 % must be above 0 and at most 100"),
    ("columns-101", "columns-101: 101 % must be above 0"),
]


@pytest.mark.parametrize(("method", "message"), REFUSED)
def test_a_method_is_refused_in_one_line(method: str, message: str) -> None:
    line = finetune.refusal(method)
    assert line is not None
    assert line.startswith(message)
    assert "\n" not in line


@pytest.mark.parametrize("method", finetune.METHODS)
def test_each_method_has_five_step_sizes(method: str) -> None:
    rates = finetune.grid(method)
    assert len(set(rates)) == 5
    assert rates[-1] == pytest.approx(16 * rates[0])


def test_batches_are_those_of_their_seed() -> None:
    rows = torch.arange(10)
    one, same, other = (finetune.batches(rows, 4, seed) for seed in (1, 1, 2))
    seen = [next(one) for _ in range(4)]
    assert all(torch.equal(a, next(same)) for a in seen)
    assert any(not torch.equal(a, next(other)) for a in seen)
    assert len(torch.cat(seen[:2]).unique()) == 8


class Fake(finetune.Comparison):
    """Losses without a model: the distance of the step size from `best`."""

    def __init__(self, partial: Path, conditions: dict[str, Any], best: float = 2.0, before: float = 3.0):
        self.given = argparse.Namespace(partial=partial, grids={"adamw": [4.0, 1.0, 2.0]})
        self.conditions, self.best_lr, self.before, self.ran = conditions, best, before, 0
        self.results = self._read(partial) if partial.is_file() else []

    def _run(self, method: str, lr: float, seed: int, steps: int) -> finetune.Result:
        self.ran += 1
        return {"loss": None if lr == 1.0 else abs(lr - self.best_lr), "loss_before": self.before}


def test_results_that_are_there_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "partial.json"
    first = Fake(file, {"batch": 8})
    assert first.best("adamw", 10) == (2.0, "")
    again = Fake(file, {"batch": 8})
    assert again.best("adamw", 10) == (2.0, "")
    assert (first.ran, again.ran) == (3, 0)
    again.best("adamw", 20)
    assert again.ran == 3
    assert len(json.loads(file.read_text())["results"]) == 6


def test_an_edge_is_told(tmp_path: Path) -> None:
    best, said = Fake(tmp_path / "partial.json", {}, best=9.0).best("adamw", 10)
    assert best == 4.0
    assert said == "adamw, 10 steps: the best step size, 4, is the largest that was tried"


@pytest.mark.parametrize(
    ("content", "before", "message"),
    [
        ("{", 3.0, "not as this benchmark writes it"),
        ('{"results": []}', 3.0, "not as this benchmark writes it"),
        ('{"results": [], "conditions": {"batch": 4}}', 3.0, "has results of another batch"),
        (
            '{"results": [{"loss_before": 3.0}], "conditions": {"batch": 8}}',
            3.1,
            "from a start of loss 3.0000, and here",
        ),
    ],
)
def test_a_file_of_other_results_is_refused(content: str, before: float, message: str, tmp_path: Path) -> None:
    file = tmp_path / "partial.json"
    file.write_text(content)
    with pytest.raises(SystemExit, match=message):
        Fake(file, {"batch": 8}, before=before)


@pytest.mark.parametrize("method", [m for m in finetune.METHODS if finetune.refusal(m) is None])
def test_every_method_lowers_the_loss(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["finetune.py", "--text", "library", "--pretrain-steps", "3", "--batch", "4", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", words)
    comparison = finetune.Comparison(finetune.arguments())
    result = comparison.result(method, finetune.grid(method)[2], 0, 8)
    assert result["loss"] < result["loss_before"] - 0.005
