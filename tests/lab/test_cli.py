"""The commands: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from spidersilk.lab import tasks
from spidersilk.lab.commands import app
from spidersilk.lab.run import methods


def test_commands(tmp_path: Path, command) -> None:
    out = str(tmp_path / "runs")
    code, told = command("list")
    assert code == 0
    assert all(name in told for name in (*methods.METHODS, *tasks.all_tasks()))
    code, told = command("run", "logistic", "--optimizer", "svrg", "--set", "budget=1", "--out", out, "--seeds", "2")
    assert code == 0, told
    code, told = command("compare", "logistic", "--optimizers", "sgd,sparse-svrg", "--budget", "2", "--out", out)
    assert code == 0, told
    assert (tmp_path / "runs" / "report.html").is_file()
    folders = map(str, (tmp_path / "runs").glob("logistic*"))
    code, told = command("report", *folders, "--to", str(tmp_path / "page.html"))
    assert code == 0, told


def test_every_command_has_an_example(command) -> None:
    names = [c.name for c in app.registered_commands]
    assert {"run", "compare", "reproduce", "report", "demo", "list", "plan", "inspect", "tune"} <= set(names)
    for words in ([], *([name] for name in names)):
        code, told = command(*words, "--help")
        assert code == 0
        assert not words or "Example" in told


PLAN = ["plan", "--eps", "0.1", "-L", "10", "--sigma2", "5", "--delta-f", "2.3", "--samples", "60000", "-d", "62006"]


def test_plan_command(command) -> None:
    code, told = command(*PLAN, "--k1", "0", "--k2", "1")
    assert code == 0, told
    assert "1000" in told  # B = 2 sigma2 / eps^2
    assert "9.13e-05" in command(*PLAN)[1]  # sqrt(k2 / (6 d m)) / L
    code, told = command(*PLAN, "--k2", "0", "--outside", "0.5")
    assert code == 0
    assert "needs an unbiased operator" in told


@pytest.mark.slow
def test_inspect_command(tmp_path: Path, command) -> None:
    saved = tmp_path / "found.json"
    code, told = command("inspect", "logistic", "--budget", "4", "--set", "anchor_batch_size=100", "--save", str(saved))
    assert code == 0, told
    assert "entropy of M" in told
    figures = json.loads(saved.read_text())["figures"]
    assert " ".join(figures["verdict"].split()[:3]) in " ".join(told.split())
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "model = nn.Linear(4, 1)\ndata = torch.randn(200, 4)\nanchor_batch_size, batch_size = 50, 10\n"
        "def loss(model, x):\n    return (model(x)[:, 0] - x.sum(1)).square().mean()\n"
    )
    code, told = command("inspect", str(file), "--budget", "4")
    assert code == 0, told
    assert "to the best dense method's loss" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*PLAN, "--eps", "-1"], "eps = -1.0 must be a positive number"),
        ([*PLAN, "--k1", "1.5"], "neither a fraction"),
        (["inspect", "nowhere.py"], "there is no such file"),
        (["inspect", "logistc"], "did you mean 'logistic'"),
        (["inspect", "logistic", "--budget", "0.1"], "at least four anchors"),
        (["run", "logistc"], "did you mean 'logistic'"),
        (["run", "logistic", "--optimizer", "sgdd"], "did you mean 'sgd'"),
        (["run", "logistic", "--set", "lr=-1"], "lr = -1 must be a number above 0"),
        (["run", "image", "--set", "data=mnst"], "did you mean 'mnist'"),
        (["reproduce", "figure9"], "did you mean 'figure"),
        (["reproduce", "figure1", "--scale", "papre"], "did you mean 'paper'"),
        (["report", "/nowhere"], "/nowhere: there is no such folder"),
        (["run"], "give a task or a --config"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], told: str, tmp_path: Path, command) -> None:
    out = [] if words[0] in ("report", "plan", "inspect") else ["--out", str(tmp_path)]
    code, said = command(*words, *out)
    assert code != 0
    assert told in said
    assert "Traceback" not in said


def test_missing_data_fails_the_run_with_one_message(tmp_path: Path, command, monkeypatch) -> None:
    monkeypatch.setenv("SPIDERSILK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, told = command("run", "ranking", "--out", str(tmp_path))
    assert code == 2
    assert "movielens/ml-100k/u.data: not found" in told
    assert "Traceback" not in told
