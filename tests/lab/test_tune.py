"""Tuning: the same number of trials for each, the best again over seeds, and files that can be continued."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import QUIET, metrics

from spidersilk.lab.commands.tune import lengths_of, path_of
from spidersilk.lab.experiments import grid
from spidersilk.lab.experiments.grid import Trial
from spidersilk.lab.experiments.tuner import tune
from spidersilk.lab.experiments.tuning import Tuning, check_settings
from spidersilk.lab.report import tuned as report
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve

PUBLISHED = Path(__file__).parents[2] / "results" / "tune"


@pytest.mark.parametrize("task", ["image", "language", "ranking", "logistic", "finetune"])
@pytest.mark.parametrize("allowed", [2, 11])
def test_every_method_gets_the_same_number_of_different_trials(task: str, allowed: int) -> None:
    for method in grid.METHODS:
        tried: list[Trial] = []
        while new := grid.following(task, method, tried, allowed):
            tried += [Trial(s, abs(math.log(s["lr"] / grid.start(task, method)["lr"]) - 0.3)) for s in new]
        assert len(tried) == allowed, method
        assert len({json.dumps(t.settings, sort_keys=True) for t in tried}) == allowed, method
        for trial in tried:
            replace(RunConfig(task, method), **grid.of_run(trial.settings, 4.0)).completed()


@pytest.mark.parametrize(("best", "edge"), [(1e-9, "low"), (1e9, "high"), (0.1, "")])
def test_an_edge_is_followed_outwards_and_told(best: float, edge: str) -> None:
    """The loss is the distance of log lr from that of `best`."""
    tried: list[Trial] = []
    while new := grid.following("image", "sgd", tried, 5):
        tried += [Trial(s, abs(math.log(s["lr"] / best))) for s in new]
    assert grid.at_edge(tried) == edge
    rates = sorted(t.lr for t in tried)
    wanted = {"low": 0.1 / 16, "high": 0.1 / 4, "": 0.1 / 4}
    assert rates[0] == pytest.approx(wanted[edge])
    assert rates[-1] == pytest.approx(1.6 if edge == "high" else 0.4)


def test_a_diverged_trial_is_never_the_best() -> None:
    tried = [Trial({"lr": 1.0}, math.inf, "diverged"), Trial({"lr": 0.25}, 5.0), Trial({"lr": 4.0}, math.inf)]
    assert {s["lr"] for s in grid.following("logistic", "svrg", tried, 5)} == {0.125, 0.0625}
    assert grid.at_edge([Trial({"lr": 1.0}, math.inf, "diverged")]) == ""


@pytest.mark.parametrize("task", ["image", "language", "ranking", "logistic", "finetune"])
@pytest.mark.parametrize("method", grid.FRESH)
def test_fresh_gradients_start_from_anchors_as_small_as_steps(task: str, method: str) -> None:
    first = grid.start(task, method)
    assert first["anchor_batch_size"] == RunConfig(task, method).completed().batch_size
    smaller = next((v for v in grid.variants(task, method) if "batch_size" in v), None)
    if smaller is None:
        assert task == "finetune" or method not in grid.METHODS  # all of them have the same batch
        return
    assert smaller["anchor_batch_size"] == smaller["batch_size"] == first["anchor_batch_size"] // 2


def test_a_falling_step_is_the_step_over_one_and_the_epoch() -> None:
    assert grid.of_run({"lr": 6.0, "decay": True}, 3.5) == {"lr": 6.0, "lr_milestones": {1.0: 3.0, 2.0: 2.0, 3.0: 1.5}}
    assert grid.of_run({"lr": 6.0, "batch_size": 5}, 3.5) == {"lr": 6.0, "batch_size": 5}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[Tuning, Path]:
    folder = tmp_path_factory.mktemp("tune")
    base = RunConfig("logistic", "sgd", options={"data": "breast-cancer"})
    made = Tuning(base, ["sgd", "adamw", "sparse-svrg"], 4, 1.0, 3.0, 2, folder / "tuned.json")
    assert tune(made, folder / "runs", QUIET, jobs=1, resume=False, command="c", time_limit=None)
    return made, folder


def test_tuning_takes_the_best_of_each_to_a_target_that_plain_methods_reach(tuned: tuple[Tuning, Path]) -> None:
    made, _ = tuned
    told = json.loads(made.path.read_text())
    for name in ("sgd", "adamw", "sparse-svrg"):
        cells = told["methods"][name]
        losses = [t["loss"] for t in cells["trials"]]
        assert len(losses) == 4
        assert cells["loss"] == min(losses)
        assert cells["best"] == cells["trials"][losses.index(min(losses))]["settings"]
        runs = [r for r in told["runs"] if r["config"]["name"].startswith(f"{name}-")]
        assert {r["config"]["seed"] for r in runs} == {1, 2}
        assert {r["config"]["lr"] for r in runs} == {cells["best"]["lr"]}
    lowest = {m: told["methods"][m]["lowest"] for m in ("sgd", "adamw")}
    assert told["target"] == pytest.approx(min(max(v) for v in lowest.values()), rel=1e-4)
    reached = [told["methods"][m] for m in ("sgd", "adamw") if told["methods"][m]["queries"] is not None]
    assert min(c["queries_ratio"] for c in reached) == 1.0
    assert min(c["seconds_ratio"] for c in reached) == 1.0


def test_tuning_goes_on_where_it_was(tuned: tuple[Tuning, Path], tmp_path: Path) -> None:
    """With the file alone nothing is run again; more trials add to those that were."""
    made, _ = tuned
    again = replace(made, tried={}, finals={})
    before = made.path.read_bytes()
    assert tune(again, tmp_path / "runs", QUIET, jobs=1, resume=True, command="another", time_limit=None)
    assert not (tmp_path / "runs").exists()
    assert again.tried == made.tried
    assert made.path.read_bytes() == before  # and it still says who made it
    with pytest.raises(ValueError, match="give --resume"):
        tune(made, tmp_path, QUIET, jobs=1, resume=False, command="c", time_limit=None)
    more = replace(made, tried={}, finals={}, trials=5, path=tmp_path / "more.json")
    more.path.write_text(made.path.read_text())
    assert not tune(more, tmp_path / "runs", QUIET, jobs=1, resume=True, command="c", time_limit=-1.0)
    more.load()
    assert more.tried == made.tried
    assert len(more.next_round()) == 3


def test_trials_of_another_grid_are_made_anew(tuned: tuple[Tuning, Path], tmp_path: Path) -> None:
    made, _ = tuned
    held = json.loads(made.path.read_text())
    held["methods"]["sgd"]["trials"][0]["settings"]["lr"] *= 3
    other = replace(made, tried={}, finals={}, path=tmp_path / "other.json")
    other.path.write_text(json.dumps(held))
    other.load()
    assert other.tried == {m: t for m, t in made.tried.items() if m != "sgd"}
    assert list(other.dropped) == ["sgd"]
    other.save("c")  # nothing is lost before it is made anew
    told = json.loads(other.path.read_text())
    assert told["methods"]["sgd"] == held["methods"]["sgd"]
    assert [r["name"] for r in told["runs"]] == [r["name"] for r in held["runs"]]


def test_fewer_seeds_are_refused_and_costs_are_read_from_every_evaluation(tuned: tuple[Tuning, Path]) -> None:
    made, folder = tuned
    with pytest.raises(ValueError, match="has final runs of 2 seeds: give --seeds 2"):
        replace(made, seeds=1, tried={}, finals={}).load()
    told = json.loads(made.path.read_text())
    looks = {r["name"]: len(r["curve"]["queries"]) for r in told["runs"]}
    assert looks == {name: len(metrics(folder / "runs" / name)) for name in looks}
    assert max(looks.values()) > 50


@pytest.mark.parametrize(
    "change", [{"budget": 2.0}, {"bf16": True}, {"options": {"data": "digits"}}, {"schedule": "linear"}]
)
def test_a_file_of_other_conditions_is_left_alone(tuned: tuple[Tuning, Path], change: dict[str, Any]) -> None:
    made, folder = tuned
    if "budget" in change:
        other = replace(made, tried={}, finals={}, **change)
    else:
        other = replace(made, base=replace(made.base, **change), tried={}, finals={})
    before = made.path.read_bytes()
    with pytest.raises(ValueError, match="under other conditions"):
        tune(other, folder / "runs", QUIET, jobs=1, resume=True, command="c", time_limit=None)
    assert made.path.read_bytes() == before
    assert other.folder(folder) != made.folder(folder)


def test_a_piece_with_fewer_methods_keeps_what_is_known_of_the_others(
    tuned: tuple[Tuning, Path], tmp_path: Path
) -> None:
    made, _ = tuned
    part = replace(made, methods=["sparse-svrg"], tried={}, finals={}, path=tmp_path / "part.json")
    part.path.write_text(made.path.read_text())
    assert tune(part, tmp_path / "runs", QUIET, jobs=1, resume=True, command="c", time_limit=None)
    was, now = (json.loads(path.read_text()) for path in (made.path, part.path))
    assert now["target"] == was["target"] is not None
    assert now["methods"] == was["methods"]
    assert now["runs"] == was["runs"]


def test_finals_of_settings_that_are_no_longer_the_best_are_not_counted(
    tuned: tuple[Tuning, Path], tmp_path: Path
) -> None:
    made, _ = tuned
    other = replace(made, tried={}, finals={}, path=tmp_path / "other.json")
    other.path.write_text(made.path.read_text())
    other.load()
    other.tried["sgd"].append(Trial({"lr": 0.123}, 0.0, "finished"))
    assert other.curves("sgd") == []
    assert len(other.curves("adamw")) == 2
    other.save("c")
    assert not [r for r in json.loads(other.path.read_text())["runs"] if r["name"].startswith("sgd-")]


def test_final_runs_of_another_length_are_not_thrown_away(tuned: tuple[Tuning, Path], tmp_path: Path) -> None:
    """With another final budget the trials serve again, in a file that has no final runs yet."""
    made, _ = tuned
    longer = replace(made, final_budget=4.0, tried={}, finals={})
    before = made.path.read_bytes()
    with pytest.raises(ValueError, match="final runs to 3 N and not 4 N"):
        tune(longer, tmp_path / "runs", QUIET, jobs=1, resume=True, command="c", time_limit=None)
    assert made.path.read_bytes() == before
    trials = json.loads(made.path.read_text()) | {"runs": []}
    longer = replace(longer, methods=["sgd"], tried={}, finals={}, path=tmp_path / "longer.json")
    longer.path.write_text(json.dumps(trials))
    assert tune(longer, longer.folder(tmp_path), QUIET, jobs=1, resume=True, command="c", time_limit=None)
    told = json.loads(longer.path.read_text())
    assert {r["config"]["budget"] for r in told["runs"]} == {4.0}
    assert told["methods"]["sgd"]["trials"] == trials["methods"]["sgd"]["trials"]


def test_without_all_seeds_of_a_plain_method_nothing_costs_anything(tuned: tuple[Tuning, Path], tmp_path: Path) -> None:
    made, _ = tuned
    part = replace(made, tried={}, finals={}, path=tmp_path / "part.json")
    part.path.write_text(made.path.read_text())
    part.load()
    part.finals = {name: run for name, run in part.finals.items() if not name.endswith("seed2")}
    part.save("c")
    told = json.loads(part.path.read_text())
    assert told["target"] is None
    for method, cells in told["methods"].items():
        assert (cells["queries"], cells["queries_ratio"], cells["each"]) == (None, None, [None])
        assert (cells["lowest"] == [None]) == (method == "sparse-svrg")  # whose final run collapsed
    assert "no target yet" in report.title(told)


def test_the_file_has_the_name_that_was_given(tmp_path: Path, command) -> None:
    asked = ["tune", "logistic", "--methods", "sgd", "--trials", "1", "--budget", "0.2", "--seeds", "1"]
    places = ["--out", str(tmp_path / "runs"), "--to", str(tmp_path), "--name", "mine"]
    code, told = command(*asked, *places)
    assert code == 0, told
    assert [path.name for path in tmp_path.glob("*.json")] == ["mine.json"]


TINY = ["--set", "text=library", "--set", "train_bytes=8000", "--set", "eval_samples=4", "--set", "pretrain_steps=2"]


def at_steps(folder: Path, *more: str) -> list[str]:
    """A tuning of 3 + 2 trials and 2 final runs of 3 steps for each of two methods."""
    command = [sys.executable, "-m", "spidersilk.lab.cli", "tune", "finetune", *TINY, "--steps", "3", "--trials", "3"]
    command += ["--methods", "adamw,sparse-adamw-columns", "--seeds", "1"]
    return [*command, "--to", str(folder), "--out", str(folder / "runs"), *more]


def without_clocks(path: Path) -> Any:
    told = json.loads(path.read_text())
    losses = {run["name"]: (run["status"], run["curve"]["valid_loss"]) for run in told["runs"]}
    return {m: r["trials"] for m, r in told["methods"].items()}, losses, told["target"], told.get("outcomes")


@pytest.mark.slow
def test_a_tuning_that_is_killed_again_and_again_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after each run that came into its file; its folder of runs is lost each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole = subprocess.run(at_steps(tmp_path / "whole"), capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stderr
    name = "tune_finetune_library_3.json"
    file, kills = tmp_path / "killed" / name, 0
    for more in (2, 3, 0):  # ends of runs until the kill; in the last one, none
        before = file.read_bytes() if file.is_file() else b""
        process = subprocess.Popen(at_steps(file.parent, "--resume"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while more and process.poll() is None:
            time.sleep(0.02)
            now = file.read_bytes() if file.is_file() else b""
            more, before = (more - 1, now) if now != before else (more, before)
        if process.poll() is None and not more and kills < 2:
            process.kill()
            kills += 1
        process.communicate()
        shutil.rmtree(file.parent / "runs", ignore_errors=True)
    assert kills == 2
    assert process.returncode == 0
    assert without_clocks(file) == without_clocks(tmp_path / "whole" / name)


def test_trials_from_another_start_are_refused(tmp_path: Path) -> None:
    made = Tuning(RunConfig("finetune", "sgd"), ["adamw"], 2, 0.0, 0.0, 1, tmp_path / "t.json", 3, 3)
    run = made.next_round()[0][2]
    ended = {"status": "finished", "last": {"valid_loss": 2.0}}
    made.add_trial(run, ended, Curve("", [{"valid_loss": 3.0}]))
    made.add_trial(run, ended, Curve("", [{"valid_loss": 3.004}]))
    with pytest.raises(ValueError, match=r"trials from a start of loss 3\.0000, and here it is 3\.0100: give another"):
        made.add_trial(run, ended, Curve("", [{"valid_loss": 3.01}]))
    assert made.outcomes[run.name] == {"loss": 2.0, "status": "finished"}


LENGTHS = [
    (["--final-steps", "5"], "--final-steps 5 goes with --steps"),
    (["--steps", "5", "--budget", "1"], "--steps 5 and --budget both say"),
    (["--steps", "5,x"], "--steps = 'x' must be a whole number"),
    (["--steps", "0"], "--steps = 0 must be a whole number of at least 1"),
    (["--steps", "5", "--set", "steps=5"], "steps = 5 cannot be set here: give --steps 5"),
    (["--steps", "5", "--set", "arguments={weight_decay: 1}"], "arguments = {'weight_decay': 1}: sgd takes none"),
    (["--steps", "5", "--trials-of", "nowhere.json"], "--trials-of nowhere.json: there is no such file"),
    (["--steps", "5", "--methods", "adamw,gal"], "there is no optimizer 'gal'"),
]


@pytest.mark.parametrize(("words", "message"), LENGTHS)
def test_lengths_that_make_no_sense_are_refused(words: list[str], message: str, tmp_path: Path, command) -> None:
    code, told = command("tune", "finetune", *TINY, *words, "--to", str(tmp_path), "--out", str(tmp_path / "runs"))
    assert code == 2, told
    assert message in " ".join(told.split())
    assert not list(tmp_path.iterdir())


def test_several_lengths_are_a_tuning_and_a_file_each(tmp_path: Path) -> None:
    lengths = lengths_of("finetune", None, None, "200,600", None)
    assert [(x["steps"], x["final_steps"]) for x in lengths] == [(200, 200), (600, 600)]
    base = RunConfig("finetune", "sgd", options={"size": "85m", "text": "ptb"})
    names = [path_of(base, tmp_path, None, length).name for length in lengths]
    assert names == ["tune_finetune_85m_ptb_200.json", "tune_finetune_85m_ptb_600.json"]
    assert lengths_of("image", None, None, None, None) == [{"budget": 1.0, "final_budget": 4.0}]
    assert lengths_of("finetune", None, None, "200", 2000)[0]["final_steps"] == 2000


def test_published_tunings_can_go_on_under_their_own_schedule() -> None:
    path = PUBLISHED / "tune_finetune_85m_ptb_600_linear.json"
    saved = json.loads(path.read_text())
    options, steps = saved["conditions"]["options"], saved["conditions"]["steps"]

    def load(schedule: str | None) -> Tuning:
        base = RunConfig("finetune", "adamw", options=options, schedule=schedule)
        tuning = Tuning(base, ["adamw"], 5, 0.0, 0.0, 3, path, steps, saved["final_steps"])
        tuning.load()
        return tuning

    assert len(load("linear").tried["adamw"]) == 5
    with pytest.raises(ValueError, match="schedule"):
        load(None)


def test_trials_of_another_file_serve_for_longer_final_runs(tmp_path: Path) -> None:
    made = Tuning(RunConfig("finetune", "sgd"), ["adamw"], 3, 0.0, 0.0, 1, tmp_path / "t.json", 3, 3)
    made.tried["adamw"] = [Trial(s, s["lr"], "finished") for s in grid.following("finetune", "adamw", [], 3)]
    made.save("c")
    longer = replace(made, path=tmp_path / "longer.json", final_steps=9, trials_of=made.path, tried={}, finals={})
    longer.load()
    assert longer.tried == made.tried
    assert not longer.next_round()
    (run,) = longer.final_runs(["adamw"])
    assert (run.steps, run.lr, run.evaluations) == (9, made.tried["adamw"][1].lr, 20)


def test_the_table_at_steps_has_means_and_the_time_to_adamws_loss(tmp_path: Path) -> None:
    record = {"metric": "valid_loss", "target": 2.02, "seeds": [1, 2], "final_steps": 4, "conditions": {"steps": 4}}
    runs = []
    for method, ends in {"adamw": (2.0, 2.0), "lora": (2.5, 2.01)}.items():
        for seed, end in enumerate(ends, 1):
            rows = {
                "queries": [0, 1, 2],
                "seconds": [0.0, 9.0, 10.0],
                "updates": [0, 2, 4],
                "valid_loss": [3.0, 2.6, end],
            }
            config = {"name": f"{method}-{seed}", "optimizer": method, "lr": 1.0, "seed": seed}
            summary = {"gradient_bytes": 3_000_000, "peak_gib": 1.5}
            runs.append({"name": config["name"], "config": config, "curve": rows, "status": "finished", "reason": "",
                         "summary": summary})  # fmt: skip
    methods = {m: {"best": {"lr": 1.0}, "edge": ""} for m in ("adamw", "lora")}
    record |= {"runs": runs, "methods": methods}
    adamw, lora = (report.ended(record, method) for method in ("adamw", "lora"))
    assert adamw == report.Ended(2.0, 2.0, 2.0, 10.0, 2500.0, 1.5, 3.0, 2)
    assert lora is not None
    assert (lora.loss, lora.low, lora.high, lora.seconds) == (pytest.approx(2.255), 2.01, 2.5, None)
    assert "plus 1 %, 2.02" in report.title(record)
    head, rows = report.table(record)
    assert [row[0] for row in rows] == ["adamw", "lora"]
    assert dict(zip(head, rows[1], strict=True))["seconds to the target"] == "not reached"


def test_what_is_tuned_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="batch_size is among what is tuned"):
        check_settings(RunConfig("image", "sgd", batch_size=50))
    check_settings(RunConfig("image", "sgd", bf16=True, options={"data": "cifar10"}))
