"""benchmarks/top.py: which runs a case has, that results are kept run by run, and what its table says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

import record
import top

TINY = top.Case("logistic", "sparse-svrg", "svrg", "gap", {"budget": 0.5}, top.of_memory(0.2)[:1],
                {"data": "breast-cancer"})  # fmt: skip


@pytest.mark.parametrize("name", top.CASES)
@pytest.mark.parametrize("small", [False, True])
def test_every_run_of_a_case_is_one_that_the_lab_takes(name: str, small: bool, tmp_path: Path) -> None:
    study = top.Study(name, top.CASES[name].scaled(small), 2, small, tmp_path)
    runs = study.due()
    assert len({config.name for _, config in runs}) == len(runs) == 3 * len(study.series)
    for series, config in runs:
        config.completed()
        if series.cell is not None:
            total = {"0:1": (0, 1), "1:1": (0.5, 0.5), "1:0": (1, 0)}[series.split]
            assert (config.k1, config.k2) == pytest.approx([series.cell.k * share for share in total])


@pytest.mark.parametrize(("best", "rates"), [(1.0, 3), (0.25, 4), (4.0, 4), (16.0, 5), (1e9, 5), (1e-9, 5)])
def test_step_sizes_go_outwards_while_the_best_is_at_the_edge(best: float, rates: int) -> None:
    losses: dict[float, float] = {}
    while new := top.following(1.0, losses):
        losses |= {lr: abs(math.log(lr / best)) for lr in new}
    assert len(losses) == rates


def test_what_diverges_everywhere_is_tried_smaller() -> None:
    assert top.following(1.0, dict.fromkeys((0.25, 1.0, 4.0), math.inf)) == [0.0625]


def test_a_study_that_is_stopped_goes_on_with_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(record.ROOT / "benchmarks" / "top.py"), "tiny"])
    study = top.Study("tiny", TINY, 2, False, tmp_path / "results")
    assert not study.run(tmp_path / "runs", 1, until=0.0)
    assert study.run(tmp_path / "runs", 1, math.inf)
    file = tmp_path / "results" / "top_tiny.json"
    before = json.loads(file.read_text())["figures"]
    again = top.Study("tiny", TINY, 2, False, tmp_path / "results")
    assert again.due() == []
    cut = {**before, "runs": before["runs"][:-3]}
    file.write_text(json.dumps({"figures": cut}))
    third = top.Study("tiny", TINY, 2, False, tmp_path / "results")
    assert third.due()
    assert third.run(tmp_path / "other", 1, math.inf)
    ends = [sorted((r["split"], r["lr"], r["seed"], r["loss"]) for r in runs["runs"])
            for runs in (before, json.loads(file.read_text())["figures"])]  # fmt: skip
    assert ends[0] == ends[1]
    for series in study.series:
        seeds = [r["seed"] for r in study.of(series) if r["lr"] == study.best(series)]
        assert sorted(seeds) == [0, 1]


BAD = [
    ("{", "not as this benchmark writes it"),
    ('{"figures": {"conditions": {}, "runs": []}}', "has runs with other task, options"),
]


@pytest.mark.parametrize(("content", "said"), BAD)
def test_a_file_of_other_runs_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "top_tiny.json").write_text(content)
    with pytest.raises(SystemExit, match=said):
        top.Study("tiny", TINY, 2, False, tmp_path)


def figures(losses: dict[str, list[float | None]]) -> dict[str, Any]:
    runs = [{"cell": [0.1, None, "batch", 50], "split": split, "lr": 0.1, "seed": seed, "loss": loss}
            for split, each in losses.items() for seed, loss in enumerate(each)]  # fmt: skip
    return {"conditions": {"dense": "sgd"}, "runs": runs}


TOLD = [
    ({"0:1": [3.0, 3.1], "1:1": [2.0, 2.1], "1:0": [1.0, 1.1]}, "| top |"),
    ({"0:1": [1.0, 1.1], "1:1": [2.0, 2.1], "1:0": [3.0, 3.1]}, "| random |"),
    ({"0:1": [3.0, 3.1], "1:1": [1.0, 1.2], "1:0": [1.1, 1.3]}, "| with top |"),
    ({"0:1": [1.0, 1.2], "1:1": [1.1, 1.3], "1:0": [3.0, 3.1]}, "| with random |"),
    ({"0:1": [1.0, 1.2], "1:1": [1.1, 1.3], "1:0": [1.1, 1.4]}, "| no difference between seeds |"),
    ({"0:1": [1.0], "1:1": [1.1, 1.3], "1:0": [1.1, 1.4]}, "| one seed |"),
    ({"0:1": [None, 1.0], "1:1": [2.0, 2.1], "1:0": [2.2, 2.3]}, "diverged"),
]


@pytest.mark.parametrize(("losses", "said"), TOLD)
def test_the_table_says_what_every_seed_says(losses: dict[str, list[float | None]], said: str) -> None:
    *_, row = top.table(figures(losses))
    assert said in row
