"""The engine of verdicts: each rule on curves that are made for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

import page
import page_paper

from spidersilk.lab.experiments.paper import experiments
from spidersilk.lab.experiments.plan import path_of
from spidersilk.lab.report import evidence, verdicts
from spidersilk.lab.report.evidence import Chapter
from spidersilk.lab.report.html import section_of
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import Curve


def curve(name: str, losses: list[float], status: str = "finished", step: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """A collected run of figure1 or table1 with these losses at 0, 1, 2 ... queries over N."""
    parts = [part for key in ("figure1", "table1") for part in experiments("paper")[key]]
    config = next(c for part in parts for c in part.configs if c.name == name)
    rows = [
        {"queries": i * step, "seconds": float(i), "train_loss": x, "test_accuracy": 0.5} for i, x in enumerate(losses)
    ]
    settings = collect.pack(Curve("", rows, status, "", {"name": name, "budget": config.budget}))
    seeded = name if seed == 0 else f"{name}-seed{seed}"
    told = {"label": config.label, "optimizer": config.optimizer, "seed": seed, "name": seeded, "budget": config.budget}
    return settings | {"config": told, "name": seeded}


def chapter(folder: Path, *runs: dict[str, Any]) -> Chapter:
    collect.save(path_of(folder / "paper", "figure1"), runs)
    return next(c for c in page_paper.chapters(folder) if c.part.key == "figure1-right")


DENSE = [2.3, 1.0, 0.6, 0.4, 0.3]


FAST = [2.3, 0.5, 0.25, 0.2, 0.15]


SLOW = [2.3, 2.0, 1.5, 1.2, 0.9]


def test_a_claim_is_reproduced_only_where_fewer_queries_are_needed(tmp_path: Path) -> None:
    dense = curve("figure1-right-spiderboost", DENSE)
    fast = chapter(tmp_path / "a", dense, curve("figure1-right-sparse-spiderboost", FAST))
    assert verdicts.of(fast)[0].word == "reproduced"
    assert (
        "0.300 is reached by Algorithm 1 (sparse SpiderBoost) at 2.00 N and by SpiderBoost at 4.00 N"
        in verdicts.of(fast)[0].why
    )
    slow = chapter(tmp_path / "b", dense, curve("figure1-right-sparse-spiderboost", SLOW))
    assert verdicts.of(slow)[0].word == "not reproduced"
    near = chapter(tmp_path / "f", dense, curve("figure1-right-sparse-spiderboost", DENSE, step=0.9))
    assert verdicts.of(near)[0].word == "no clear difference"
    alone = chapter(tmp_path / "c", dense)
    assert verdicts.of(alone)[0].word == "not run yet"
    printed = curve("figure1-right-sparse-spiderboost", [2.3, 9.0], "diverged", step=0.1)
    rescued = chapter(tmp_path / "d", dense, printed, curve("figure1-right-sparse-svrg", FAST))
    assert verdicts.of(rescued)[0].word == "reproduced only with SparseSVRG"
    assert "diverged at 0.1 N" in verdicts.of(rescued)[0].why
    lost = chapter(tmp_path / "e", dense, printed, curve("figure1-right-sparse-svrg", SLOW))
    assert verdicts.of(lost)[0].word == "not reproduced"


def test_slightly_worse_is_not_many_times_worse(tmp_path: Path) -> None:
    made = chapter(tmp_path, curve("figure1-right-spiderboost", DENSE), curve("figure1-right-sgd", FAST),
                   curve("figure1-right-sparse-svrg", [2.3, 1.0, 0.5, 0.3, 0.2]))  # fmt: skip
    dense, sgd, between = (made.find(m) for m in ("spiderboost", "sgd", "sparse-svrg"))
    assert verdicts.slightly_worse("", dense, sgd).word == "reproduced in direction, not in size"  # 4 N against 2 N
    assert verdicts.slightly_worse("", dense, between).word == "reproduced"  # 4 N against 3 N
    assert verdicts.slightly_worse("", sgd, dense).word == "not reproduced"


def test_runs_cut_short_and_seeds_are_named(tmp_path: Path) -> None:
    runs = [curve("figure1-right-spiderboost", DENSE, "stopped", step=1.825)]
    runs += [curve("figure1-right-sgd", losses, step=5.0, seed=seed) for seed, losses in enumerate((FAST, DENSE, SLOW))]
    made = chapter(tmp_path, *runs)
    assert page_paper.state(made.find("spiderboost")) == "to 7.3 N of 20 N"
    assert page_paper.at(made.find("sgd"), 10, "train_loss") == 0.6  # the median of three seeds
    assert made.find("sgd").cost(0.4, "train_loss") == 15.0
    assert made.find("sgd").cost(0.2, "train_loss") is None
    assert page_paper.at(made.find("spiderboost"), 10, "train_loss") is None
    text = page.text(tmp_path)
    assert "`figure1-right-spiderboost` (to 7.3 N of 20 N)" in text
    assert "Seeds 0; 0, 1, 2" in text


def test_a_report_and_the_page_agree(tmp_path: Path) -> None:
    """The section of an HTML report has the verdicts of the engine."""
    dense = curve("figure1-right-spiderboost", DENSE)
    good = chapter(tmp_path / "a", dense, curve("figure1-right-sparse-spiderboost", FAST))
    assert section_of(good).verdicts == verdicts.of(good)
    assert section_of(good).verdicts[0].word == "reproduced"
    near = chapter(tmp_path / "n", dense, curve("figure1-right-sparse-spiderboost", DENSE, step=0.9))
    assert section_of(near).verdicts[0].word == "no clear difference"
    bad = chapter(tmp_path / "b", dense, curve("figure1-right-sparse-spiderboost", [2.3, 60.0], "diverged"))
    assert section_of(bad).verdicts[0].word == "not reproduced"
    assert "diverged" in section_of(bad).verdicts[0].why
    never = curve("figure1-right-spiderboost", [2.3, 2.4, 2.5])
    idle = chapter(tmp_path / "c", never, curve("figure1-right-sparse-spiderboost", FAST))
    assert section_of(idle).verdicts[0].word == "no verdict: the budget is too small"
    assert section_of(chapter(tmp_path / "d", dense)).verdicts == []  # nothing to compare with


def test_the_factor_of_every_verdict(tmp_path: Path) -> None:
    """Just below and just above 1 / 1.2 of the queries."""
    dense = curve("figure1-right-spiderboost", DENSE)
    for step, word in ((0.99 / verdicts.LEVEL, "reproduced"), (1.01 / verdicts.LEVEL, "no clear difference")):
        made = chapter(tmp_path / word, dense, curve("figure1-right-sparse-spiderboost", DENSE, step=step))
        assert verdicts.of(made)[0].word == word
    assert [verdicts.compared(x) for x in (0.8, 0.9, 1.1, 1.3)] == [
        "fewer queries", "no clear difference", "no clear difference", "more queries"
    ]  # fmt: skip


def test_a_claim_is_about_the_printed_form_whatever_ran_first() -> None:
    """The paper's SGD, not the tuned one that --only put before it."""
    part = experiments("paper")["figure3"][0]
    names = ["figure3-sgd-tuned", "figure3-sgd", "figure3-spiderboost"]
    part = replace(part, configs=sorted(part.configs, key=lambda c: names.index(c.name) if c.name in names else 9))
    losses = {"figure3-sgd-tuned": [0.7, 0.1, 0.05], "figure3-sgd": [0.7, 0.6, 0.5], "figure3-spiderboost": DENSE}
    rows = {
        name: [{"queries": float(i), "seconds": 0.0, "train_loss": x} for i, x in enumerate(losses[name])]
        for name in names
    }
    made = evidence.make_chapter("figure3", part, {name: Curve(name, rows[name]) for name in names})
    assert [g.name for g in made.present] == names
    worse = next(v for v in verdicts.of(made) if v.claim == "SpiderBoost is slightly worse than SGD")
    assert worse.runs == ["figure3-sgd", "figure3-spiderboost"]
    assert "by SGD at 2.00 N" in worse.why


def entropy_chapter(**ends: tuple[float, float]) -> Chapter:
    """Table 1 with runs over 150 epochs that have these entropies at the start and at the end."""
    part = experiments("paper")["table1"][0]
    curves = {}
    for name, (before, after) in ends.items():
        rows = [
            {"queries": q, "seconds": 0.0, "entropy": e, "train_loss": 1.0} for q, e in ((0.0, before), (150.0, after))
        ]
        curves[f"table1-{name.replace('_', '-')}"] = Curve(name, rows)
    return evidence.make_chapter("table1", part, curves)


def test_entropies_against_the_printed_ones() -> None:
    good = entropy_chapter(cnn_mnist=(14.2, 2.8), cnn_svhn=(13.1, 3.1), resnet18_svhn=(22.6, 22.0))
    assert [v.word for v in verdicts.of(good)] == ["reproduced"] * 4
    bad = entropy_chapter(cnn_mnist=(14.2, 9.0), cnn_svhn=(10.0, 3.1), resnet18_svhn=(22.6, 20.0))
    assert [v.word for v in verdicts.of(bad)] == ["reproduced in part", *["not reproduced"] * 3]
    alone = entropy_chapter(cnn_mnist=(14.2, 2.8))
    assert [v.word for v in verdicts.of(alone)] == ["reproduced", "reproduced", "not run yet", "not run yet"]
