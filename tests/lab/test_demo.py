"""The demo: what it counts and times, its sentences, which also say what did not hold, and when its page opens."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("typer", reason="needs the extra [lab]")

from spidersilk.lab.commands import demo as command
from spidersilk.lab.experiments import demo
from spidersilk.lab.experiments.demo import ADAMW, COLUMNS, LORA
from spidersilk.lab.report import demo_page
from spidersilk.lab.run.curve import Curve

SMALL = {"pretrain_steps": 2, "train_bytes": 8000, "eval_samples": 4}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def test_fine_tuning_counts_what_each_method_holds() -> None:
    curves = demo.finetune(lambda _: None, lambda *_: None, rounds=2, block=3, options=SMALL)
    assert [curve.label for curve in curves] == [ADAMW, LORA, COLUMNS]
    adamw, lora, ours = (curve.summary["held_bytes"] for curve in curves)
    d, width, layers = curves[0].summary["parameters"], 128, 2
    tensors = 3 + layers * 6 + 1  # of the model: embeddings, norm, blocks, head
    assert adamw == 4 * (3 * d + tensors)  # gradients, two moments, and a count of steps for each tensor
    adapters = layers * 16 * width * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1))
    assert lora == 4 * (4 * adapters + 2 * 4 * layers)  # values, gradients, moments; counts of steps
    # Of each matrix 10 % of the columns (features of an embedding), rounded up, and their indices; the norms are whole.
    kept = 13 * (256 + 128) + layers * 13 * (3 + 1 + 4) * width + layers * 52 * width + 13 * 256
    norms, indices = (2 * layers + 1) * width, 2 * 13 + layers * (3 * 13 + 52) + 13
    assert ours == 4 * (4 * kept + 3 * norms + indices + tensors)
    assert curves[0].summary["step_ratio"] == 1
    assert all(curve.summary["step_seconds"] > 0 for curve in curves)
    assert all(len(curve.rows) == 3 for curve in curves)
    assert len({curve.rows[0]["valid_loss"] for curve in curves}) == 1  # all begin alike
    assert len({curve.rows[-1]["valid_loss"] for curve in curves}) == 3


def test_held_bytes_are_those_of_gradients_and_state() -> None:
    model = nn.Linear(10, 5)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, 0.1, momentum=0.9)
    assert demo.held_bytes(optimizer, model, weights) == 0
    model(torch.ones(2, 10)).sum().backward()
    assert demo.held_bytes(optimizer, model, weights) == 4 * 55
    optimizer.step()
    assert demo.held_bytes(optimizer, model, weights) == 2 * 4 * 55


def test_runs_of_the_other_parts() -> None:
    assert [c.optimizer for c in demo.convex()] == ["sgd", "svrg", "sparse-svrg"]
    paper, stable = demo.algorithm_1()
    assert (paper.lr, paper.optimizer) == (0.1, "sparse-spiderboost")  # as printed
    assert stable == replace(paper, name=stable.name, label=stable.label, lr=stable.lr)


def finetuned(*ours: float) -> list[Curve]:
    """AdamW, LoRA, and SparseAdamW with this loss, ratio of seconds, and bytes."""
    made = [(ADAMW, 2.2, 1.0, 1200), (LORA, 2.4, 0.95, 300), (COLUMNS, *ours)]
    return [Curve(name, [{"valid_loss": 2.7}, {"valid_loss": loss}],
                  summary={"step_ratio": ratio, "held_bytes": held}) for name, loss, ratio, held in made]  # fmt: skip


def test_the_sentence_on_fine_tuning_goes_by_the_numbers() -> None:
    said = demo_page.of_finetuning(finetuned(2.1, 0.8, 120))
    assert said.startswith("SparseAdamW saved bytes and seconds: it held 0.120 kB where AdamW held 1.20 kB")
    assert "2.100, is 0.100 below AdamW's (LoRA 2.400, before 2.700)." in said
    said = demo_page.of_finetuning(finetuned(2.3, 1.1, 120))
    assert said.startswith("SparseAdamW saved bytes alone")
    assert "a step took 1.10 of AdamW's time" in said
    assert "2.300, is 0.100 above AdamW's" in said
    assert "saved nothing here" in demo_page.of_finetuning(finetuned(2.3, 1.1, 1300))


def convex(label: str, gaps: list[float], step: float) -> Curve:
    return Curve(label, [{"queries": 10.0 * i, "seconds": step * i, "gap": x} for i, x in enumerate(gaps)])


def test_the_sentence_on_variance_reduction_goes_by_the_numbers() -> None:
    sgd = convex("SGD", [1, 1e-2, 1e-3], 1.0)
    fast, slow = convex("SVRG", [1, 1e-5, 1e-9], 1.5), convex("SparseSVRG", [1, 0.5, 1e-8], 9.0)
    said = demo_page.of_convex([sgd, fast, slow])
    assert "SGD came to f - f* = 1e-03 in 20 N queries and 2.00 s" in said
    assert "SVRG ended below SGD at equal queries and below it at equal seconds (1e-09 and 1e-05)" in said
    assert "SparseSVRG ended below SGD at equal queries and above it at equal seconds (1e-08 and 1e+00)" in said
    said = demo_page.of_convex([sgd, convex("SVRG", [1, 1, 1], 1.0), sgd])
    assert "SVRG ended above SGD at equal queries" in said
    assert "SGD ended level with SGD" in said


def network(losses: list[float], lr: float, status: str = "finished") -> Curve:
    return Curve("", [{"train_loss": x, "seconds": 0.0, "queries": 0.0} for x in losses], status, config={"lr": lr})


@pytest.mark.parametrize(
    ("paper", "stable", "said"),
    [
        ([2.0, 30, 1.5], [2.0, 0.3], "needs a smaller step than the paper's: at 0.1, the paper's, the training loss "
         "rises from 2 to 30 and ends at 1.5; at 0.02 it falls from 2 to 0.3."),
        ([2.0, 0.4], [2.0, 0.3], "trained at both steps"),
        ([2.0, 0.4], [2.0, 1.9], "trained at the paper's step alone"),
        ([2.0, 1.8], [2.0, 1.9], "trained at neither step: at 0.1, the paper's, the training loss begins at 2 and ends "
         "at 1.8"),
    ],
)  # fmt: skip
def test_the_sentence_on_algorithm_1_goes_by_the_numbers(paper: list[float], stable: list[float], said: str) -> None:
    assert said in demo_page.of_algorithm_1([network(paper, 0.1), network(stable, 0.02)])
    broken = demo_page.of_algorithm_1([network([2.0, 50.0], 0.1, "diverged"), network([2.0, 0.3], 0.02)])
    assert "needs a smaller step" in broken
    assert "rises from 2 to 50 and ends at 50 (diverged)" in broken


def test_the_command(tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = demo.convex, demo.algorithm_1

    def shorter(configs):
        return lambda: [replace(c, budget=2.0, eval_every=1.0) for c in configs()]

    monkeypatch.setattr(demo, "convex", shorter(parts[0]))
    monkeypatch.setattr(demo, "algorithm_1", shorter(parts[1]))
    monkeypatch.setattr(demo, "finetune", partial(demo.finetune, rounds=1, block=2, options=SMALL))
    code, told = command("demo", "--out", str(tmp_path))
    assert code == 0, told
    for number in (1, 2, 3):
        assert f"\n{number}. " in told
    assert "bytes a parameter" in told
    page = (tmp_path / "report.html").read_text()
    assert page.index("What was seen") < page.index("Fine-tuning a GPT of 475,776 parameters") < page.index("Logistic")
    assert "SparseAdamW saved bytes" in page
    assert (tmp_path / "finetune.json").is_file()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was asked to show, on a machine with a screen and somebody in front of it."""
    asked: list[str] = []
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.BackgroundBrowser("browser"))
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(asked.append(url)) or True)
    return asked


def test_the_page_opens_where_somebody_sits(opened: list[str], tmp_path: Path) -> None:
    assert command.open_page(tmp_path / "a page.html")
    assert opened == [(tmp_path / "a page.html").as_uri()]


@pytest.mark.parametrize("where", ["CI", "no screen", "a pipe", "a browser for text", "no browser"])
def test_the_page_does_not_open_elsewhere(
    where: str, opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise webbrowser.Error

    if where == "CI":
        monkeypatch.setenv("CI", "true")
    elif where == "no screen":
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.delenv("DISPLAY")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    elif where == "a pipe":
        monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    elif where == "a browser for text":
        monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("lynx"))
    else:
        monkeypatch.setattr(webbrowser, "get", none)
    assert not command.open_page(tmp_path / "report.html")
    assert not opened
