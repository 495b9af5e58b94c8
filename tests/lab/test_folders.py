"""The folder of a run: refused runs leave none, the same command twice, interruptions, and the lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import SMALL, config, metrics

from spidersilk.lab.run import lock, runner
from spidersilk.lab.run.errors import Interrupted, RunError
from spidersilk.lab.run.interrupt import Interruption

Command = Callable[..., tuple[int, str]]
RUN = ["run", "logistic", "--optimizer", "svrg", "--name", "mine", "--set", "budget=1"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# A refused run leaves no folder behind.

REFUSED: dict[str, dict[str, Any]] = {
    "data that is not known": {"task": "image", "options": {"data": "mnst"}},
    "data that is not there": {"task": "image", "options": {"data": "mnist"}, "data_dir": "/nowhere"},
    "an option that is not known": {"options": {"dta": "digits"}},
    "k1 beyond d": {"k1": 1000},
    "a batch larger than the data": {"batch_size": 10**6},
    "no loop at all": {"inner_steps": -3},
    "an adaptive setting that is not known": {"inner_steps": "auto", "adaptive": {"fracton": 0.5}},
    "a device that is not known": {"device": "abacus"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_run_leaves_no_folder_behind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPIDERSILK_DATA", raising=False)
    monkeypatch.setattr("spidersilk.lab.data.files.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("offline")))
    settings = dict(REFUSED[name])
    with pytest.raises(Exception):  # noqa: B017, PT011
        runner.run(config(settings.pop("task", "logistic"), **settings), tmp_path / "runs" / "run")
    assert not (tmp_path / "runs" / "run").exists()
    assert runner.run(config(budget=0.5), tmp_path / "runs" / "run")["status"] == "finished"


def test_a_refused_run_leaves_what_was_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exceeds"):
        runner.run(config(batch_size=10**6), tmp_path)
    assert content(tmp_path) == {"notes.txt": b"mine"}


# The same command twice.


def test_the_same_command_twice(tmp_path: Path, command: Command) -> None:
    out = ["--out", str(tmp_path)]
    assert command(*RUN, *out)[0] == 0
    before = content(tmp_path)
    code, told = command(*RUN, *out)
    assert code == 2
    assert told.count("\n") == 1
    assert "holds a run already (finished)" in told
    assert "--resume" in told
    assert "--overwrite" in told
    code, told = command(*RUN, *out, "--resume", "--overwrite")
    assert (code, told.count("\n")) == (2, 1)
    assert content(tmp_path) == before
    code, told = command(*RUN, *out, "--resume")
    assert code == 0
    assert "taken over" in told
    page = {"mine/report.html": b""}  # it is written again
    assert content(tmp_path) | page == before | page


def test_overwriting_removes_what_a_run_made_and_nothing_else(tmp_path: Path, command: Command) -> None:
    runner.run(config(optimizer="svrg", budget=4.0, name="mine", tensorboard=False), tmp_path / "mine")
    made = ("checkpoint.pt", "checkpoint.pt.part", "summary.json.part", "tensorboard/events")
    (tmp_path / "mine" / "tensorboard").mkdir()
    for name in (*made, "notes.txt"):
        (tmp_path / "mine" / name).write_text("x")
    code, told = command(*RUN, "--out", str(tmp_path), "--overwrite")
    assert code == 0, told
    report = {"report.html", "figure-1-1.png", "figure-1-2.png"}
    assert set(content(tmp_path / "mine")) == {"config.yaml", "metrics.jsonl", "summary.json", "notes.txt", *report}
    assert metrics(tmp_path / "mine")[-1]["queries"] < 2


def test_other_settings_are_named(tmp_path: Path, command: Command) -> None:
    assert command(*RUN, "--out", str(tmp_path))[0] == 0
    before = content(tmp_path)
    for more in ([], ["--resume"]):
        code, told = command(*RUN, "--set", "lr=0.5", "--out", str(tmp_path), *more)
        assert (code, told.count("\n")) == (2, 1)
        assert "lr 4.0 and not 0.5" in told
        assert "--overwrite" in told
    assert content(tmp_path) == before


def test_compare_takes_over_what_is_finished_and_runs_the_others(tmp_path: Path, command: Command) -> None:
    words = ["compare", "logistic", "--budget", "1", "--out", str(tmp_path), "--optimizers"]
    assert command(*words, "sgd")[0] == 0
    before = content(tmp_path / "logistic-sgd-seed0")
    code, told = command(*words, "sgd,svrg")
    assert code == 0, told
    assert "taken over, as they have ended: logistic-sgd-seed0" in told
    assert content(tmp_path / "logistic-sgd-seed0") == before
    assert metrics(tmp_path / "logistic-svrg-seed0")
    code, told = command(*words, "sgd,svrg", "--set", "lr=0.5")
    assert (code, told.count("\n")) == (2, 1)
    assert "and not 0.5" in told
    assert "--overwrite" in told
    assert content(tmp_path / "logistic-sgd-seed0") == before
    assert command(*words, "sgd,svrg", "--set", "lr=0.5", "--overwrite")[0] == 0
    assert content(tmp_path / "logistic-sgd-seed0") != before


# How it ends.


def test_divergence_and_collapse_exit_with_1(tmp_path: Path, command: Command) -> None:
    words = ["run", "image", "-o", "sparse-spiderboost", "--out", str(tmp_path), "--set", "data=digits"]
    words += [w for k, v in (SMALL | {"budget": 1, "lr": 500}).items() for w in ("--set", f"{k}={v}")]
    code, told = command(*words)
    assert code == 1
    assert "diverged" in told
    code, told = command(
        "run", "logistic", "-o", "sgd", "--out", str(tmp_path), "--set", "lr=1e-30", "--set", "budget=1"
    )
    assert code == 1
    assert "collapsed" in told


def test_a_signal_saves_a_checkpoint_and_the_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    made = config(budget=6.0)
    runner.run(made, tmp_path / "whole")
    for folder, sent in (("int", signal.SIGINT), ("term", signal.SIGTERM)):
        seen: list[float] = []

        def at_2(progress: tuple[float, float]) -> None:
            seen.append(progress[0])
            if progress[0] > 2 and max(seen[:-1], default=0.0) <= 2:
                os.kill(os.getpid(), sent)

        before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(Interrupted):
            runner.run(made, tmp_path / folder, report=at_2)
        assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
        summary = json.loads((tmp_path / folder / "summary.json").read_text())
        assert (summary["status"], summary["reason"][:18]) == ("stopped", "it was interrupted")
        assert (tmp_path / folder / "checkpoint.pt").is_file()
        assert not (tmp_path / folder / "lock").exists()
        assert runner.run(made, tmp_path / folder, resume=True)["status"] == "finished"
        assert metrics(tmp_path / folder) == metrics(tmp_path / "whole")


def test_a_second_ctrl_c_ends_at_once() -> None:
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        for sent in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), sent)
            time.sleep(0.01)
    assert interruption.asked


LAB = [sys.executable, "-m", "spidersilk.lab.cli"]
LONG = ["run", "logistic", "--set", "budget=3000", "--set", "eval_every=5", "--set", "checkpoint_every=1000"]


def started(*words: str) -> subprocess.Popen[str]:
    """In a group of processes of its own, as one that a terminal starts."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*LAB, *words], env=environment, start_new_session=True, **pipes)


def wait_for(*paths: Path, rows: int = 2) -> None:
    end = time.time() + 60
    while any(not p.is_file() or p.read_bytes().count(b"\n") < rows for p in paths):
        assert time.time() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_saves_and_says_how_to_go_on(jobs: int, sent: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of the group; SIGTERM the first alone."""
    words = [*LONG, "--name", "x", "--seeds", "3", "--jobs", str(jobs), "--out", str(tmp_path)]
    process = started(*words)
    running = [tmp_path / f"x-seed{seed}" for seed in range(jobs)]
    wait_for(*(folder / "metrics.jsonl" for folder in running))
    os.killpg(process.pid, sent) if sent == signal.SIGINT else process.send_signal(sent)
    told = process.communicate(timeout=60)[0]
    assert process.returncode == 130, told
    lines = [line for line in told.splitlines() if "--resume" in line]
    assert len(lines) == 1
    assert "spidersilk run logistic" in lines[0]
    assert "Traceback" not in told
    for folder in running:
        assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
        assert (folder / "checkpoint.pt").is_file()
        assert not (folder / "lock").exists()
    assert not (tmp_path / "x-seed2").exists()


# The lock.


@pytest.mark.slow
def test_a_folder_is_locked_while_a_run_is_in_it_and_freed_by_a_kill(tmp_path: Path, command: Command) -> None:
    words = [*LONG, "--name", "x", "--out", str(tmp_path)]
    process = started(*words)
    wait_for(tmp_path / "x" / "metrics.jsonl")
    for more in ([], ["--resume"], ["--overwrite"]):
        code, told = command(*words, *more)
        assert (code, told.count("\n")) == (2, 1)
        assert f"is in use by process {process.pid} on " in told
        assert " since 20" in told
    process.kill()
    process.wait()
    assert (tmp_path / "x" / "lock").is_file()
    end = time.time() + 5
    with pytest.raises(Interrupted):
        runner.run(
            config(optimizer="sparse-svrg", budget=3000, eval_every=5, checkpoint_every=1000, name="x"),
            tmp_path / "x", resume=True, report=lambda _: os.kill(os.getpid(), signal.SIGINT),
        )  # fmt: skip
    assert time.time() < end + 30
    assert not (tmp_path / "x" / "lock").exists()


def test_two_locks_on_one_folder(tmp_path: Path) -> None:
    first, second = lock.Lock(tmp_path / "lock"), lock.Lock(tmp_path / "lock")
    second.check()  # there is none yet
    first.take()
    first.take()  # it is ours
    for refused in (second.take, second.check):
        with pytest.raises(RunError, match=rf"is in use by process {os.getpid()} on \S+ since 2"):
            refused()
    first.release()
    second.check()
    second.take()
    second.release()
    assert not list(tmp_path.iterdir())


FACTS = {"host": lock.socket.gethostname(), "since": "2026-01-01 00:00:00"}


@pytest.mark.parametrize(
    ("held", "free"),
    [
        (json.dumps(FACTS | {"pid": 2**22 + 1}), True),  # no process has such a number
        (json.dumps(FACTS | {"pid": os.getppid()}), False),
        (json.dumps(FACTS | {"pid": 1}), False),
        (json.dumps(FACTS | {"pid": 2**22 + 1, "host": "elsewhere"}), False),
        ("", True),
        ("{", True),
    ],
)
@pytest.mark.parametrize("missing", ["the module", "the file system's"])
def test_without_flock_what_the_file_says_counts(
    held: str, free: bool, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(lock.errno.ENOTSUP, "not supported")

    if missing == "the module":
        monkeypatch.setattr(lock, "fcntl", None)
    else:
        monkeypatch.setattr(lock.fcntl, "flock", refuse)
    (tmp_path / "lock").write_text(held)
    mine = lock.Lock(tmp_path / "lock")
    if not free:
        with pytest.raises(RunError, match=r"since 2026-01-01 00:00:00: .*if it has, remove .*lock"):
            mine.take()
        assert (tmp_path / "lock").read_text() == held
        return
    mine.take()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    mine.release()
