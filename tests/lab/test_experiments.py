"""Plans: the paper's experiments, which of their runs are chosen, and what stands in for missing data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import QUIET, config

from spidersilk.lab.commands.reproduce import Request, reproduce
from spidersilk.lab.data import files
from spidersilk.lab.experiments.paper import Part, experiments
from spidersilk.lab.experiments.plan import choose, in_order, path_of, planned_runs
from spidersilk.lab.report.evidence import make_chapter
from spidersilk.lab.report.html import section_of
from spidersilk.lab.run import collect, runner
from spidersilk.lab.run.curve import load_run
from spidersilk.lab.run.folder import Summary


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_experiments_are_whole(scale: str) -> None:
    """Every name is used once, and all settings of the paper are in the configs at its own scale."""
    known = experiments(scale)
    configs = [c.completed() for parts in known.values() for part in parts for c in part.configs]
    assert len({c.name for c in configs}) == len(configs)
    assert len(known["table1"][0].configs) == 8
    if scale == "paper":
        image = next(c for c in configs if c.name == "figure1-left-sparse-spiderboost")
        assert (image.lr, image.anchor_batch_size, image.batch_size, image.inner_steps) == (0.1, 1000, 100, 10)
        assert (image.memory_decay, image.k1, image.budget) == (0.5, None, 50.0)  # k1 = k2 = 5 % is the default
        language = next(c for c in configs if c.name == "figure2-spiderboost")
        assert (language.lr, language.anchor_batch_size, language.batch_size, language.inner_steps) == (0.2, 40, 20, 2)
        ranking = next(c for c in configs if c.name == "figure3-sgd")
        assert (ranking.lr, ranking.batch_size, ranking.lr_milestones) == (0.1, 103, {10.0: 0.01, 20.0: 0.001})


def test_runs_by_name_come_in_the_order_of_the_patterns() -> None:
    known = experiments("paper")
    only = "sparsity-cnn-*-0.1,figure1-right-sparse-*,figure1-right-sgd"
    chosen = choose(known, "figure1,sparsity", only, budget=3.0, seeds=2)
    names = [c.name for c in in_order(chosen, only)]
    first = names[: len(names) // 2]
    assert first[:2] == ["sparsity-cnn-sparse-spiderboost-0.1", "sparsity-cnn-sparse-svrg-0.1"]
    assert first[-1] == "figure1-right-sgd"
    assert [f"{name}-seed1" for name in first] == names[len(names) // 2 :]
    configs = in_order(chosen, only)
    assert {c.seed for c in configs} == {0, 1}
    assert {c.budget for c in configs} == {2.0, 3.0}  # the sweep has 2 of its own


def test_a_pattern_that_names_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="names no run: did you mean 'figure3-sgd'"):
        choose(experiments("paper"), "all", "figure3-sdg")
    with pytest.raises(ValueError, match="did you mean 'figure1'"):
        choose(experiments("paper"), "sparsity,figur1")


def test_without_data_digits_stand_in_and_the_rest_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(file: files.File, data_dir: Any) -> bytes:
        raise files.DataError(f"{file.path}: not found")

    monkeypatch.setattr(files, "_download", offline)
    monkeypatch.setenv("SPIDERSILK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = experiments("smoke")
    runs = planned_runs(c for part in known["figure1"] for c in part.configs)
    # The CNN; nothing stands in for ResNet-18.
    assert [planned.run.options["data"] for planned in runs if planned.run is not None] == ["digits"] * 5
    told = [planned.missing for planned in runs if planned.missing]
    assert len(told) == 10
    assert "cifar10/data_batch_1.bin: not found" in told[0]
    assert "digits stand in" in told[-1]
    others = planned_runs(c for part in known["figure2"] + known["figure3"] for c in part.configs)
    assert [planned.run for planned in others if planned.run is not None] == []
    (table,) = known["table1"]
    assert [planned.run for planned in planned_runs(table.configs, stand_in=False) if planned.run is not None] == []
    runs = planned_runs(table.configs)
    kept = [planned.run for planned in runs if planned.run is not None]
    assert [(c.options["model"], c.options["data"], c.label) for c in kept] == [
        ("fc", "digits", "fc, digits"), ("cnn", "digits", "cnn, digits")
    ]  # fmt: skip
    assert len([planned.missing for planned in runs if planned.missing]) == 8
    runner.run(replace(kept[0], budget=0.5), tmp_path / "run")
    chapter = make_chapter("table1", table, {table.configs[0].name: load_run(tmp_path / "run")})
    section = section_of(chapter)
    assert section.verdicts == []  # the paper says nothing of digits
    (_, head, rows) = section.tables[0]
    assert len(head) == len(rows[0])
    assert rows[0][:2] == ["fc, digits", "18.234"]


def part(*names: str) -> Part:
    return Part("part", "part", [config(optimizer=n) for n in names], [])


def test_what_is_collected_is_not_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "collected"

    def go(runs: str, *names: str) -> dict[str, Summary]:
        request = Request({"mine": [part(*names)]}, tmp_path / runs, "t", collect_to=folder, time_limit=1e6)
        return reproduce(request, QUIET)

    assert len(go("first", "sgd")) == 1
    assert len(go("second", "sgd", "svrg")) == 1
    assert not (tmp_path / "second" / "sgd").exists()
    assert set(collect.load(path_of(folder, "mine"))) == {"sgd", "svrg"}
    assert go("third", "sgd", "svrg") == {}
