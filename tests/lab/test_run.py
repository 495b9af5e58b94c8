"""One run: it survives a kill, stops by the clock, and keeps what it measured."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import DIGITS, SMALL, config, metrics

import spidersilk as silk
from spidersilk.lab import peers, tasks
from spidersilk.lab.run import machine, methods, runner
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.run.errors import RunError
from spidersilk.loop.loader import AnchorLoader

ANYWHERE = [name for name in methods.METHODS if name not in peers.PEERS or not peers.PEERS[name].blocks]


@pytest.mark.parametrize("optimizer", ANYWHERE)  # the others: tests/lab/test_finetune.py
def test_every_optimizer_runs(optimizer: str, tmp_path: Path) -> None:
    for package in peers.PEERS[optimizer].needs if optimizer in peers.PEERS else ():
        pytest.importorskip(package.replace("-", "_"), reason="needs the extra [peers]")
    told = runner.run(config(optimizer=optimizer, lr=0.1, inner_steps=20), tmp_path / "run")
    assert told["status"] == "finished"
    assert told["last"]["queries"] >= 2.0
    rows = metrics(tmp_path / "run")
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert told["parameters"] == 30
    assert told["machine"]["cpu"]
    assert told["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("groups", ["rows", "columns"])
@pytest.mark.parametrize("optimizer", ["sparse-svrg", "sparse-spiderboost"])
def test_whole_groups_in_the_lab(optimizer: str, groups: str, tmp_path: Path) -> None:
    made = apply_settings(config("image", optimizer, options=DIGITS | {"model": "fc"}, **SMALL), [f"groups={groups}"])
    going = runner.Run(replace(made, lr=0.02).completed(), tmp_path / "run")
    assert going.go(False, lambda _: None)["status"] == "finished"
    assert metrics(tmp_path / "run")[-1]["train_loss"] < metrics(tmp_path / "run")[0]["train_loss"]
    shapes = [p.shape for p in going.task.model.parameters()]
    density = going.optimizer.sparsity.density(shapes)
    saved = going.optimizer.state_dict()["selections"]
    assert all(s["top"].numel() + s["random"].numel() == density * s["d"] for s in saved or [])
    long = runner.Run(replace(made, inner_steps="theorem-2").completed(), tmp_path / "long")
    long._build()
    assert long.inner == math.ceil(200 / 20 / density)


@pytest.mark.parametrize("bf16", [False, True])
def test_autocast_is_for_steps_and_evaluations(bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[bool]] = {"loss": [], "evaluate": []}
    task = tasks.find("logistic")
    for name, called in seen.items():
        plain = getattr(task, name)

        def recorded(*args: Any, plain: Any = plain, called: list[bool] = called) -> Any:
            called.append(torch.is_autocast_enabled("cpu"))
            return plain(*args)

        monkeypatch.setattr(task, name, recorded)
    runner.run(config(bf16=bf16), tmp_path / "run")
    assert all(len(called) > 1 and set(called) == {bf16} for called in seen.values())


def test_plain_sgd_in_the_lab_is_sgd(tmp_path: Path) -> None:
    """The runner's own steps against a loop written here."""
    made = config("image", "sgd", options=DIGITS, lr=0.1, batch_size=50, budget=0.5)
    run = runner.Run(made.completed(), tmp_path / "run")
    run.go(False, lambda _: None)
    torch.manual_seed(0)
    task = tasks.find("image")(DIGITS, None, torch.device("cpu"))
    base = torch.optim.SGD(task.model.parameters(), 0.1)
    loader = AnchorLoader(task.train, 50, 50, 1, loops=10**9, generator=torch.Generator().manual_seed(0))  # type: ignore[attr-defined]
    for number, (batch_of_50, _) in enumerate(loader):
        if number == run.counters.updates:
            break
        base.zero_grad()
        task.loss(batch_of_50, None).backward()
        base.step()
    assert all(map(torch.equal, run.task.model.parameters(), task.model.parameters()))


def test_looking_more_often_changes_nothing(tmp_path: Path) -> None:
    ends = []
    for every in (1.0, 0.05):
        run = runner.Run(
            config("image", options=DIGITS | {"eval_samples": 50}, eval_every=every, budget=1.0, **SMALL).completed(),
            tmp_path / str(every),
        )
        run.go(False, lambda _: None)
        ends.append(torch.cat([p.detach().reshape(-1) for p in run.task.model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(("optimizer", "task"), [("sparse-svrg", "logistic"), ("sparse-spiderboost", "image")])
def test_adaptive_loops_and_measures_in_the_lab(optimizer: str, task: str, tmp_path: Path) -> None:
    options = {} if task == "logistic" else {"data": "digits", "model": "fc"}
    small = SMALL | {"inner_steps": "auto"}
    made = config(task, optimizer=optimizer, options=options, measures=True, budget=3.0, **small)
    summary = runner.run(made, tmp_path / "run")
    assert summary["status"] == "finished"
    assert 0 < summary["last"]["captured"] <= 1
    assert summary["last"]["noise"] > 0
    assert summary["anchors"] > 1


@pytest.mark.parametrize("optimizer", ["sparse-sgd", "sparse-sgd-momentum", "sparse-adamw"])
def test_sparse_training_in_the_lab_is_an_ordinary_loop(optimizer: str, tmp_path: Path) -> None:
    """The runner's own steps against a loop written here, with a new selection at each anchor."""
    options = DIGITS | {"model": "fc"}
    made = config("image", optimizer, options=options, lr=0.01, k1=0.1, k2=0.1, max_norm=0.5, **SMALL)
    run = runner.Run(made.completed(), tmp_path / "run")
    summary = run.go(False, lambda _: None)
    assert summary["status"] == "finished"
    assert summary["parameters"] == 308_310
    torch.manual_seed(0)
    task, generator = tasks.find("image")(options, None, torch.device("cpu")), torch.Generator().manual_seed(0)
    kind = silk.SparseAdamW if optimizer == "sparse-adamw" else silk.SparseSGD
    more: Any = {"momentum": 0.9} if "momentum" in optimizer else {}
    ours = kind(task.model, 0.01, 0.1, 0.1, max_norm=0.5, inner_steps=5, generator=generator, **more)
    loader = AnchorLoader(task.train, 200, 20, 5, loops=10**9, generator=generator)  # type: ignore[attr-defined]
    queries = 0.0
    for batch, is_anchor in itertools.islice(loader, run.counters.updates):
        task.loss(batch, None).backward()
        ours.step()
        ours.zero_grad()
        queries += len(batch[0]) * (1.0 if is_anchor else ours.density)  # an anchor chooses by the whole gradient
    ends = [list(model.state_dict().values()) for model in (run.task.model, task.model)]
    assert all(map(torch.equal, *ends))
    assert run.counters.queries == pytest.approx(queries)


def test_sparse_training_has_no_difference_to_end_a_loop_by(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"inner_steps = 'auto' with sparse-adamw: it has no difference.*number"):
        runner.run(config("image", "sparse-adamw", options=DIGITS, inner_steps="auto"), tmp_path / "run")
    long = runner.Run(config("logistic", "sparse-sgd", inner_steps="theorem-2").completed(), tmp_path / "long")
    long._build()
    assert long.inner == math.ceil(long.task.samples / long.config.batch_size / long.optimizer.density)


def test_channels_last_changes_nothing_but_the_layout(tmp_path: Path) -> None:
    ends = []
    for layout in (False, True):
        options = DIGITS | {"channels_last": layout, "eval_samples": 200}
        made = RunConfig("image", "sgd", options=options, budget=0.5, batch_size=20)
        ends.append(runner.run(made, tmp_path / str(layout))["last"]["train_loss"])
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    runner.run(config(), tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_text()
    with pytest.raises(RunError, match="holds a run already"):
        runner.run(config(), tmp_path / "run")
    with pytest.raises(RunError, match="other settings"):
        (tmp_path / "run" / "summary.json").rename(tmp_path / "kept")
        runner.run(config(lr=0.1), tmp_path / "run", resume=True)
    (tmp_path / "kept").rename(tmp_path / "run" / "summary.json")
    assert runner.run(config(), tmp_path / "run", resume=True)["status"] == "finished"
    assert (tmp_path / "run" / "summary.json").read_text() == before


STOPPED: dict[str, dict[str, Any]] = {
    "sparse-svrg": {},
    "sparse-sgd": {"inner_steps": 7, "anchor_batch_size": 20},
    "sparse-sgd-momentum": {"inner_steps": 7, "anchor_batch_size": 20, "k1": 0.1, "lr": 0.1},
    "sparse-adamw": {"inner_steps": 41, "k1": 0.2, "k2": 0.0},  # it stops right before a new selection
}


@pytest.mark.parametrize("optimizer", STOPPED)
def test_a_run_stopped_by_the_clock_goes_on_as_if_it_had_not_been(optimizer: str, tmp_path: Path, monkeypatch) -> None:
    made = config(optimizer=optimizer, budget=4.0, **STOPPED[optimizer])
    whole = runner.run(made, tmp_path / "whole")
    now = iter(range(10**6))
    monkeypatch.setattr(runner.time, "time", lambda: next(now))  # a second for each step
    told = runner.run(made, tmp_path / "run", until=40)
    assert told["status"] == "stopped"
    assert 0 < told["last"]["queries"] < whole["last"]["queries"]
    assert told["last"]["updates"] == 41
    again = runner.run(made, tmp_path / "run", resume=True, until=math.inf)
    assert again["status"] == "finished"
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


KILLED: dict[str, dict[str, Any]] = {
    "image": {"options": {"data": "digits", "model": "fc"}, "budget": 6.0, "batch_size": 20},
    "logistic": {"options": {"data": "digits"}, "budget": 15.0, "lr": 1.0},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "optimizer"), [("image", "momentum"), ("image", "sparse-adamw"), ("logistic", "sparse-svrg")]
)
def test_kill_and_resume_on_the_command_line(task: str, optimizer: str, tmp_path: Path) -> None:
    settings = KILLED[task]
    made = config(task, optimizer, **settings, checkpoint_every=0.05)
    made = replace(made, eval_every=made.budget / 20).completed()
    runner.run(made, tmp_path / "whole")
    folder, file = tmp_path / "killed", tmp_path / "run.yaml"
    file.write_text(replace(made, name="killed").to_yaml())
    words = ["-m", "spidersilk.lab.cli", "run", "--config", str(file), "--out", str(tmp_path), "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for attempt in range(20):
        process = subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL)
        enough = (attempt + 1) * 5
        while process.poll() is None and attempt < 2:
            rows = (folder / "metrics.jsonl").read_text().count("\n") if (folder / "metrics.jsonl").exists() else 0
            if rows >= enough and (folder / "checkpoint.pt").exists():
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
    assert attempt >= 1, "it was over before it could be killed"
    assert metrics(folder) == metrics(tmp_path / "whole")


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/evil",)

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(config().completed().to_yaml())
    (folder / "checkpoint.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(RunError, match="not a checkpoint that can be loaded"):
        runner.run(config(), folder, resume=True)
    assert not (tmp_path / "evil").exists()


@pytest.fixture
def tiny_disk(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    made = shutil.which("mount") and os.geteuid() == 0
    if (
        not made
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], check=False).returncode
    ):
        pytest.skip("needs the right to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_gives_one_message_and_keeps_earlier_results(tiny_disk: Path) -> None:
    runner.run(config(), tiny_disk / "first")
    kept = {p.name: p.read_bytes() for p in (tiny_disk / "first").iterdir()}
    bad = config("image", options={"data": "digits", "model": "fc"}, checkpoint_every=0.0, budget=1.0, **SMALL)
    with pytest.raises(RunError, match="cannot be written"):
        runner.run(bad, tiny_disk / "second")
    assert {p.name: p.read_bytes() for p in (tiny_disk / "first").iterdir()} == kept
    assert not list(tiny_disk.rglob("*.part"))


def test_the_command_that_is_kept_names_no_folder(monkeypatch) -> None:
    places = ["--collect", "/c", "--time-limit", "5"]
    monkeypatch.setattr(
        machine.sys, "argv", ["x", "reproduce", "figure1", "--out", "/a", "--jobs", "2", *places, "--resume"]
    )
    assert machine.command() == "spidersilk reproduce figure1 --jobs 2 --resume"
