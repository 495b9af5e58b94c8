"""Runs packed into a file: thinned, merged, and recognised as done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import config

from spidersilk.lab.commands import saved
from spidersilk.lab.run import collect, runner
from spidersilk.lab.run.curve import Curve, load_run


def rows(count: int) -> list[dict[str, float]]:
    losses = [1.0 / (1 + i) if i != 777 else 0.0 for i in range(count)]
    return [{"queries": i / 10, "seconds": i / 7, "train_loss": losses[i]} for i in range(count)]


def curve(name: str, status: str = "finished", count: int = 30, **settings: Any) -> Curve:
    made = config(optimizer="sgd", name=name, **settings).completed()
    return Curve(name, rows(count), status, "", vars(made), {"seed": 0, "machine": {}})


def test_thinning_keeps_ends_and_the_lowest() -> None:
    made = rows(1000)
    kept = collect.thin(made, 60)
    assert kept[0] == made[0]
    assert kept[-1] == made[-1]
    assert made[777] in kept
    assert 40 <= len(kept) <= 65
    assert [r["queries"] for r in kept] == sorted(r["queries"] for r in kept)
    assert collect.thin(made[:20], 60) == made[:20]


def test_a_packed_run_comes_back(tmp_path: Path) -> None:
    runner.run(config(), tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    path = collect.save(tmp_path / "c.json", [collect.pack(loaded, command="it")])
    assert collect.load(path)["sparse-svrg"]["command"] == "it"
    again = collect.unpack(collect.load(path)["sparse-svrg"])
    assert (again.label, again.status, again.reason) == (loaded.label, loaded.status, loaded.reason)
    assert len(again.rows) == len(loaded.rows)
    for mine, theirs in zip(again.rows, loaded.rows, strict=True):
        assert set(mine) == set(theirs)
        assert all(mine[k] == pytest.approx(theirs[k], rel=1e-4) for k in mine)
    assert again.summary["machine"] == loaded.summary["machine"]
    assert path.stat().st_size < 10_000


def test_only_a_finished_run_with_the_same_settings_is_done() -> None:
    known = {"a": collect.pack(curve("a"))}
    mine = config(optimizer="sgd", name="a")
    assert collect.is_done(mine, known)
    assert collect.is_done(replace(mine, device="cpu", data_dir="/x"), known)
    assert not collect.is_done(replace(mine, lr=0.3), known)
    assert not collect.is_done(replace(mine, name="b"), known)
    assert not collect.is_done(mine, {"a": collect.pack(curve("a", "stopped"))})


def test_merging_keeps_what_got_furthest() -> None:
    def merged(old: Curve, new: Curve) -> dict[str, Any]:
        return collect.merge({"a": collect.pack(old)}, [collect.pack(new)])["a"]

    short, long = curve("a", "stopped", 10), curve("a", "stopped", 20)
    done, more = curve("a", "finished", 5), curve("a", "finished", 5, budget=9.0)
    for lesser, better in ((short, long), (long, done), (done, more), (short, done)):
        assert merged(lesser, better) == merged(better, lesser) == collect.pack(better)
    assert set(collect.merge({"a": collect.pack(done)}, [collect.pack(curve("b"))])) == {"a", "b"}


def test_milestones_survive_json() -> None:
    """Its keys are text there; a run that is finished would be run again."""
    mine = config(optimizer="sgd", name="a", lr_milestones={10.0: 0.1})
    known = {"a": collect.pack(curve("a", lr_milestones={10.0: 0.1}))}
    assert collect.is_done(mine, json.loads(json.dumps(known)))


def test_runs_are_collected_by_the_command(tmp_path: Path) -> None:
    runner.run(config(), tmp_path / "one")
    saved.collect([tmp_path / "one"], tmp_path / "runs.json")
    assert list(collect.load(tmp_path / "runs.json")) == ["sparse-svrg"]
    with pytest.raises(ValueError, match="none: there is no such folder"):
        saved.collect([tmp_path / "none"], tmp_path / "runs.json")
