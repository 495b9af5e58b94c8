"""A task and an optimizer of a user, in one file outside the library, as docs/lab.md describes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import QUIET, config

from spidersilk.lab import tasks
from spidersilk.lab.run import batch, methods, runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.methods import Method


class Line(tasks.Task):
    """A straight line through points: one class is all a task needs."""

    name = "line"
    about = "least squares"
    options: ClassVar[dict[str, Any]] = {"slope": 2.0}
    settings: ClassVar[dict[str, Any]] = {"lr": 0.1, "anchor_batch_size": 40, "batch_size": 8, "inner_steps": 5}

    def __init__(self, options: dict[str, Any], data_dir: Any, device: torch.device):
        super().__init__(options, data_dir, device)
        self.train = self.x = torch.linspace(-1, 1, 80)[:, None]
        self.samples, self.model = 80, nn.Linear(1, 1)

    def loss(self, batch: Tensor, point: str | None) -> Tensor:
        return (self.model(batch) - self.given["slope"] * batch).square().mean()

    def evaluate(self) -> dict[str, float]:
        return {"train_loss": float(self.loss(self.x, None).detach())}


def rprop(params: Any, values: RunConfig, generator: torch.Generator) -> torch.optim.Optimizer:
    return torch.optim.Rprop(params, values.lr or 0.1)


@pytest.fixture
def extended() -> Iterator[None]:
    """The lab with both, until the test ends."""
    tasks.register(Line)
    methods.register("rprop", Method("Rprop", rprop, plain=True))
    yield
    del tasks._TASKS["line"], methods.METHODS["rprop"]


def test_adding_a_task_and_an_optimizer(tmp_path: Path, extended: None) -> None:
    for name in ("rprop", "sparse-svrg"):
        made = config("line", name, options={"slope": 3.0}, budget=20.0, k1=1, k2=1)
        told = runner.run(made, tmp_path / name)
        assert told["last"]["train_loss"] < 0.1


def test_what_is_added_is_listed_compared_and_resumed(tmp_path: Path, extended: None, command) -> None:
    code, text = command("list")
    assert code == 0
    assert "least squares" in text
    assert "Rprop" in text
    words = ["compare", "line", "--optimizers", "rprop,sparse-svrg", "--set", "k1=1", "--set", "k2=1"]
    code, text = command(*words, "--budget", "10", "--out", str(tmp_path))
    assert code == 0, text
    assert (tmp_path / "report.html").is_file()
    again = batch.run_all(
        [config("line", "rprop", name="line-rprop-seed0", budget=10.0, eval_every=0.25, k1=1, k2=1)],
        tmp_path, jobs=1, resume=True, console=QUIET,
    )  # fmt: skip
    assert [summary["status"] for summary in again] == ["finished"]


SCRIPT = """
from pathlib import Path
import sys
import torch
from rich.console import Console
from torch import nn
from spidersilk.lab.run import batch
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.methods import Method
from spidersilk.lab.run.methods import register as register_optimizer
from spidersilk.lab.tasks import Task, register


@register
class Mine(Task):
    name, about, options = "mine", "least squares", {}
    settings = {"lr": 0.1, "anchor_batch_size": 40, "batch_size": 8, "inner_steps": 5}

    def __init__(self, options, data_dir, device):
        super().__init__(options, data_dir, device)
        self.train, self.samples, self.model = torch.linspace(-1, 1, 80)[:, None], 80, nn.Linear(1, 1)

    def loss(self, batch, point):
        return (self.model(batch) - batch).square().mean()

    def evaluate(self):
        return {"train_loss": float(self.loss(self.train, None).detach())}


register_optimizer("mine", Method("Rprop", lambda params, values, _: torch.optim.Rprop(params, values.lr), plain=True))

if __name__ == "__main__":
    configs = [RunConfig("mine", "mine", name=str(seed), seed=seed, budget=20.0) for seed in (0, 1)]
    done = batch.run_all(configs, Path(sys.argv[1]), jobs=2, resume=False, console=Console(quiet=True))
    print([(summary["status"], summary["last"].get("train_loss", 9.0) < 0.1) for summary in done])
"""


@pytest.mark.slow
def test_a_script_with_both_runs_side_by_side(tmp_path: Path) -> None:
    """The processes of a batch know what the script registered."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mine.py"), str(tmp_path / "runs")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('finished', True), ('finished', True)]"
