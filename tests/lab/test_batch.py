"""Several runs: in turn, side by side, and when one of them fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import DIGITS, QUIET, SMALL, config, metrics

from spidersilk.lab.run import batch, runner
from spidersilk.lab.run.config import RunConfig


def test_divergence_keeps_what_was_measured_and_others_go_on(tmp_path: Path) -> None:
    bad = config(
        "image",
        "sparse-spiderboost",
        options=DIGITS | {"eval_samples": 50},
        lr=500.0,
        name="bad",
        eval_every=0.05,
        **SMALL,
    )
    good = config(name="good")
    told = batch.run_all([bad, good], tmp_path, jobs=1, resume=False, console=QUIET)
    assert [t["status"] for t in told] == ["diverged", "finished"]
    assert "Theorem 1" in told[0]["reason"]
    assert metrics(tmp_path / "bad")


@pytest.mark.slow
def test_side_by_side(tmp_path: Path) -> None:
    configs = [config(optimizer=o, name=o) for o in ("svrg", "sgd")]
    too_many = {"train_samples": 5000, "data": "digits"}
    configs.append(replace(config("image", name="nodata"), data_dir=str(tmp_path), options=too_many))
    told = batch.run_all(configs, tmp_path, jobs=2, resume=False, console=QUIET)
    assert [t["status"] for t in told] == ["finished", "finished", "failed"]
    alone = runner.run(configs[0], tmp_path / "alone")
    assert {k: v for k, v in told[0]["last"].items() if k != "seconds"} == {
        k: v for k, v in alone["last"].items() if k != "seconds"
    }


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_run_starts_when_the_time_is_over(jobs: int, tmp_path: Path) -> None:
    told = batch.run_all([config()], tmp_path, jobs=jobs, resume=False, console=QUIET, time_limit=-1.0)
    assert [t["status"] for t in told] == ["waiting"]
    assert not (tmp_path / "sparse-svrg").exists()


@pytest.mark.slow
def test_a_process_that_dies_is_one_failed_run_and_the_others_go_on(tmp_path: Path) -> None:
    """Nothing can be computed on the meta device, and what torch raises there the worker does not catch."""
    bad = RunConfig("image", "sgd", name="bad", options={"data": "digits", "model": "cnn"}, device="meta")
    told = batch.run_all([bad, config(), config(optimizer="sgd")], tmp_path, jobs=2, resume=False, console=QUIET)
    assert [t["status"] for t in told] == ["failed", "finished", "finished"]
    assert told[0]["reason"]
