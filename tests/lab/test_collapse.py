"""Runs that end no better than guessing: the rule, and where its status shows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import page_material
import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import DIGITS, config

from spidersilk.lab import tasks
from spidersilk.lab.report import figures, html
from spidersilk.lab.report.evidence import Group
from spidersilk.lab.run import collect, runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve, common_target, has_collapsed, load_run

ROOT = Path(__file__).parents[2]
NAN, INF = math.nan, math.inf


def rows(losses: list[float], spent: float) -> list[dict[str, float]]:
    """Evaluations at equal distances, from 0 queries to `spent`."""
    step = spent / (len(losses) - 1)
    return [{"queries": i * step, "seconds": float(i), "train_loss": x} for i, x in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "spent", "guess", "collapsed"),
    [
        ([2.304, 1.6, 1.9, 2.303, 2.303], 150, 2.3026, True),  # learned and lost it
        ([2.304, 2.303, 2.303, 2.304, 2.303], 10, 2.3026, True),  # never learned
        ([2.304, 2.30, 2.29, 2.285, 2.278], 2, 2.3026, False),  # slow
        ([2.3043, 2.304, 2.3021], 1.4, 2.3018, False),  # slower
        ([6.9, 5.5, 5.0, 4.8, 4.7], 2, 4.588, False),  # above the guess, but still falling
        ([6.9, 4.59, 4.589, 4.588, 4.588], 20, 4.588, True),  # at the guess, and no longer falling
        ([2.3, 5.0, 1e3, 1e9, 3e8], 2, 2.3, True),  # blown up
        ([2.3, 50.0, 10.0, 7.0, 5.0], 2, 2.3, True),  # falling again, but far above its beginning
        ([2.3, 1.0, 0.5, NAN], 2, 2.3, True),
        ([2.3, 1.0, 0.5, INF], 0.5, 2.3, True),
        ([2.3, INF, 2.4, 0.5], 2, 2.3, False),
        ([2.30, 2.31, 2.32, 2.31], 0.6, 2.3, False),  # too short to tell
        ([2.30, 2.31, 2.32, 2.31], 1.0, 2.3, True),
        ([0.6931, 0.6931, 0.6931], 3, math.log(2), True),  # a step size of 0
        ([0.7, 0.9, 0.8, 0.75], 3, None, True),  # without a guess, the first loss counts
        ([0.7, 0.6, 0.6, 0.6], 3, None, False),
        ([-1.0, -2.0, -3.0], 3, None, False),  # losses may be negative
        ([-1.0, -0.5, -0.2], 3, None, True),
    ],
)
def test_the_rule(losses: list[float], spent: float, guess: float | None, collapsed: bool) -> None:
    assert has_collapsed(rows(losses, spent), guess) == collapsed


def test_a_loss_that_a_collected_file_cannot_hold_is_not_finite() -> None:
    made = Curve("", rows([2.3, 1.0, NAN], 3.0), "finished", "", vars(config()), {"guess_loss": 2.3})
    assert collect.unpack(json.loads(json.dumps(collect.pack(made)))).status == "collapsed"
    assert not has_collapsed([], 2.3)
    assert not has_collapsed([{"queries": 5.0, "seconds": 1.0, "gap": 1.0}], 2.3)


GUESSES: dict[str, tuple[dict[str, Any], float]] = {
    "image": ({"data": "digits", "model": "fc", "eval_samples": 1000}, 2.3018),
    "logistic": ({}, math.log(2)),
    "ranking": ({"rank": 2}, math.log(2)),
    "language": ({"hidden": 4, "embedding": 4}, 4.588),
}


@pytest.mark.parametrize("name", GUESSES)
def test_the_loss_of_guessing_is_that_of_the_best_constant(name: str, request: pytest.FixtureRequest) -> None:
    """Measured by the task itself, with a model whose output ignores its input."""
    if name in ("ranking", "language"):
        request.getfixturevalue("data_dir")
    options, guess = GUESSES[name]
    task = tasks.find(name)(options, None, torch.device("cpu"))
    assert task.guess_loss == pytest.approx(guess, rel=0.02)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.zero_()
        if name in ("image", "language"):  # the output's bias := log of the frequencies
            labels = task.train[1][:1000] if name == "image" else task._spread(task.text["train"])[:, 1:].flatten()
            out = [p for p in task.model.parameters() if p.ndim == 1][-1]
            shares = torch.bincount(labels.long(), minlength=len(out)).double() / len(labels)
            out.copy_(shares.clamp(min=1e-9).log())
    assert task.evaluate()["train_loss"] == pytest.approx(task.guess_loss, rel=0.001)
    assert task.guess_loss is not None
    assert task.evaluate()["train_loss"] >= 0.9997 * task.guess_loss


def test_a_dead_network_has_collapsed_and_its_files_say_so(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"options": DIGITS | {"eval_samples": 1000}, "batch_size": 40, "budget": 1.0}
    bad = config("image", "sgd", lr=30.0, name="bad", **shared)
    told = runner.run(bad, tmp_path / "bad")
    assert told["status"] == "collapsed"
    assert "no better than guessing" in told["reason"]
    assert told["guess_loss"] == pytest.approx(2.302, rel=1e-3)
    assert runner.run(bad, tmp_path / "bad", resume=True) == told
    good = runner.run(config("image", "sparse-sgd", lr=0.1, **shared), tmp_path / "good")
    assert good["status"] == "finished"
    path = collect.save(tmp_path / "c.json", [collect.pack(load_run(tmp_path / name)) for name in ("bad", "good")])
    assert {name: run["status"] for name, run in collect.load(path).items()} == {
        "bad": "collapsed",
        "sparse-sgd": "finished",
    }


def test_an_older_folder_is_judged_by_the_same_rule(tmp_path: Path) -> None:
    runner.run(config(optimizer="sgd", lr=1e-30), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    for name in ("guess_loss", "metrics_sha256"):
        del summary[name]
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"status": "finished", "reason": ""}))
    assert load_run(tmp_path).status == "collapsed"


def test_a_collapsed_run_reached_nothing_in_tables_verdicts_and_figures() -> None:
    settings = vars(RunConfig("image", "sgd", options=DIGITS))
    fine = Curve("fine", rows([2.3, 1.0, 0.5], 2.0), "finished", "", settings)
    lost = Curve("lost", rows([2.3, 0.1, 2.3], 2.0), "collapsed", "", settings | {"seed": 1})
    never = Curve("never", rows([2.3, 2.3, 2.3], 2.0), "collapsed", "", settings)
    assert common_target([fine, lost, never], "train_loss") == 0.5
    table = html.target_table(html.Section("s", [fine, never]))[2]
    assert [row[1] for row in table] == ["finished", "collapsed"]
    assert table[1][3] == "not reached"
    group = Group(RunConfig("image", "sgd"), [fine, lost])
    assert group.broken
    assert group.breakdown() == "collapsed by 2 N (1 of 2 seeds)"
    figure = figures.panels([fine, lost], {"queries": "q"}, "train_loss", "l", "t", False)
    assert figure is not None
    assert [line.get_marker() for line in figure.axes[0].lines] == ["None", "None", "v"]


def test_a_collapsed_trial_is_never_the_best(tmp_path: Path, command) -> None:
    words = ["tune", "logistic", "--methods", "sparse-svrg", "--trials", "3", "--budget", "1", "--seeds", "1"]
    words += ["--final-budget", "1", "--set", "data=digits", "--out", str(tmp_path / "runs"), "--to", str(tmp_path)]
    code, told = command(*words)
    assert code == 0, told
    (path,) = tmp_path.glob("*.json")
    trials = json.loads(path.read_text())["methods"]["sparse-svrg"]["trials"]
    assert all(trial["loss"] is None for trial in trials if trial["status"] != "finished")


def test_published_runs_that_collapsed_are_those_at_the_loss_of_guessing() -> None:
    chapters = page_material.material(ROOT / "results").chapters.values()
    every = [c for chapter in chapters for g in chapter.groups for c in g.curves if c.status == "collapsed"]
    ablations = ("lengths-", "reset-", "forms-")
    found = {c.config["name"] for c in every if not c.config["name"].startswith(ablations)}
    densities = ("0.01", "0.01-seed1", "0.02", "0.02-seed1", "0.05", "0.05-seed1")
    table1 = {"table1-cnn-cifar10", "table1-fc-svhn", "table1-fc-svhn-seed2"}
    table1 |= {f"table1-cnn-svhn{seed}" for seed in ("", "-seed1", "-seed2")}
    others = {
        "image-cifar10-fc-sparse-spiderboost-seed2", "image-cifar10-cnn-spiderboost-seed0",
        "image-svhn-fc-sparse-svrg-seed0", "split-cnn-sparse-spiderboost-0.1-0-seed1",
    }  # fmt: skip
    assert found == table1 | others | {f"sparsity-fc-sparse-spiderboost-{k}" for k in densities}


def test_the_adaptive_table_counts_the_seeds_that_collapsed() -> None:
    """The file has final losses: those at or above the loss of guessing, without seeds that diverged."""
    held = json.loads((ROOT / "results" / "benchmarks" / "adaptive.json").read_text())["figures"]
    guess = page_material.guess_losses(ROOT / "results")["MNIST"]
    text = (ROOT / "results" / "benchmarks" / "README.md").read_text()
    for title in held["cnn"]:
        cells = next(line for line in text.splitlines() if line.startswith(f"| {title} |")).split("|")[-3:-1]
        counts = [[held[m][title]["diverged"] for m in ("cnn", "fc")]]
        above = [sum(x >= 0.9997 * guess for x in held[m][title]["final_loss"]) for m in ("cnn", "fc")]
        counts.append([max(0, a - d) if d < 5 else 0 for a, d in zip(above, counts[0], strict=True)])
        assert [[int(n) for n in re.findall(r"\d+", cell)[:2]] for cell in cells] == counts, title
