"""Damaged checkpoints, run files, collected files and tuning records: each is refused in one line that names the file,
or gives what the undamaged one gives; and a refused command changes no file."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import QUIET, config, metrics

from spidersilk.lab.experiments import tuner, tuning
from spidersilk.lab.run import checkpoint, collect, runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import load_run
from spidersilk.lab.run.errors import Interrupted, RunError

Damage = Callable[[bytes], bytes]
SETTINGS: dict[str, Any] = {"budget": 6.0, "eval_every": 0.5, "lr": 0.5, "inner_steps": 20}
METHODS = ("sparse-svrg", "momentum")


def made(optimizer: str = "sparse-svrg", **rest: Any) -> RunConfig:
    return config(optimizer=optimizer, **SETTINGS | {"name": "run"} | rest)


def stopped(config: RunConfig, folder: Path) -> None:
    """A run that is interrupted at 3 N."""
    with pytest.raises(Interrupted):
        runner.run(config, folder, report=lambda told: os.kill(os.getpid(), signal.SIGINT) if told[0] > 3 else None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each method, a run that has finished, and the same run interrupted; and collected files."""
    folder = tmp_path_factory.mktemp("whole")
    for method in METHODS:
        runner.run(made(method), folder / method / "finished")
        stopped(made(method), folder / method / "stopped")
    packed = [collect.pack(load_run(folder / m / "finished")) for m in METHODS]
    packed = [run | {"name": m, "config": run["config"] | {"name": m}} for m, run in zip(METHODS, packed, strict=True)]
    collect.save(folder / "collected.json", packed)
    base = RunConfig("logistic", "sgd", options={"data": "breast-cancer"})
    tuned = tuning.Tuning(base, ["sgd"], 2, 0.5, 0.5, 1, folder / "tuned.json")
    tuner.tune(tuned, folder / "tune", QUIET, jobs=1, resume=False, command="c", time_limit=None)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(do: Callable[[], Any], file: Path) -> None:
    """`do` raises one line that names the file and changes nothing in its folder."""
    before = content(file.parent)
    with pytest.raises((RunError, ValueError)) as caught:
        do()
    told = str(caught.value)
    assert str(file) in told
    assert "\n" not in told
    assert ": " in told.removeprefix(str(file))
    assert content(file.parent) == before


# Bytes.


def flipped(at: float, bit: int = 0) -> Damage:
    """At a place from 0 to 1, or from -1 for one counted from the end in bytes."""

    def damage(data: bytes) -> bytes:
        place = int(at) if at < 0 or at >= 1 else int(at * len(data))
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        return bytes(changed)

    return damage


def cut(to: float) -> Damage:
    return lambda data: data[: int(to) if to < 0 or to >= 1 else int(to * len(data))]


def be(what: bytes) -> Damage:
    return lambda _: what


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


CHECKPOINT_BYTES: dict[str, Damage] = {
    **{f"bit {b} at {at:g} flipped": flipped(at, b) for b in (0, 5) for at in (0, 8, 31, 60, 94, 95, 0.1, 0.3, 0.5)},
    **{f"bit 7 at {at:g} flipped": flipped(at, 7) for at in (0.7, 0.9, 0.99, -1, -20, -100)},
    **{f"cut to {to:g}": cut(to) for to in (0, 1, 30, 94, 95, 96, 0.5, 0.99, -1, -22)},
    "longer": lambda data: data + b"\0",
    "twice": lambda data: data * 2,
    "zeros": lambda data: bytes(len(data)),
    "text": be(b"a checkpoint\n"),
    "without a head": lambda data: data.partition(b"\n")[2],
    "a pickle": be(pickle.dumps(Evil())),
    "a signed pickle": be(checkpoint.signed(pickle.dumps(Evil(), 2))),
    "a signed text": be(checkpoint.signed(b"a checkpoint\n")),
    "signed, and empty": be(checkpoint.signed(b"")),
}


@pytest.mark.parametrize("name", CHECKPOINT_BYTES)
def test_a_checkpoint_with_other_bytes(name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(whole / "sparse-svrg" / "stopped", tmp_path / "run")
    path = folder / "checkpoint.pt"
    path.write_bytes(CHECKPOINT_BYTES[name](path.read_bytes()))
    refused(lambda: runner.run(made(), folder, resume=True), path)
    assert not (tmp_path / "evil").exists()


# States: signed anew, as those of another version would be.


def without(*keys: Any) -> Callable[[Any], None]:
    def damage(state: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return damage


def put(value: Any, *keys: Any) -> Callable[[Any], None]:
    """`value`, or what it makes of the present one."""

    def damage(state: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value(state[keys[-1]]) if callable(value) else value

    return damage


PARTS = ("model", "optimizer", "batches", "task", "meter", "counters", "random", "cuda", "run", "metrics")
STATES: dict[str, Callable[[Any], None]] = {
    **{f"no {part}": without(part) for part in PARTS},
    "no vectors of the optimizer": without("optimizer", "vectors"),
    "no position of the batches": without("batches", "position"),
    "no counter updates": without("counters", "updates"),
    "weights of another shape": put(lambda weight: weight[:, :-1], "model", "weight"),
    "the random state cut": put(lambda state: state[:100], "random"),
    "another run": put(3, "run"),
    "metrics of more bytes": put(10**9, "counters", "metrics_bytes"),
    "another checksum of the metrics": put("0" * 64, "metrics"),
}


def rewrite(path: Path, damage: Callable[[Any], Any]) -> None:
    """Damage the state and sign the file anew."""
    state = torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=True)
    damage(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.write_bytes(checkpoint.signed(buffer.getvalue()))


@pytest.mark.parametrize("name", STATES)
def test_a_checkpoint_with_another_state(name: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "sparse-svrg" / "stopped", tmp_path / "run")
    rewrite(folder / "checkpoint.pt", STATES[name])
    file = folder / ("metrics.jsonl" if "of the metrics" in name or "metrics of" in name else "checkpoint.pt")
    refused(lambda: runner.run(made(), folder, resume=True), file)


@pytest.mark.parametrize("keys", [("optimizer", "state"), ("optimizer", "param_groups")])
def test_a_plain_optimizer_without_its_state(keys: tuple[Any, ...], whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "momentum" / "stopped", tmp_path / "run")
    rewrite(folder / "checkpoint.pt", without(*keys))
    refused(lambda: runner.run(made("momentum"), folder, resume=True), folder / "checkpoint.pt")


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"lr": 0.4}, {"optimizer": "svrg"}, {"options": {"data": "digits"}}, {"name": "another"}]
)
def test_a_checkpoint_of_another_run(other: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    stopped(made(**other), tmp_path / "other")
    folder = shutil.copytree(whole / "sparse-svrg" / "stopped", tmp_path / "run")
    shutil.copy(tmp_path / "other" / "checkpoint.pt", folder)
    shutil.copy(tmp_path / "other" / "metrics.jsonl", folder)
    refused(lambda: runner.run(made(), folder, resume=True), folder / "checkpoint.pt")


# The files beside it, when a run goes on.


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    return lambda data: b"".join(change(data.splitlines(keepends=True)))


METRICS: dict[str, Damage | None] = {
    "missing": None,
    "empty": be(b""),
    "a byte shorter": cut(-1),
    "a row shorter": lines(lambda rows: rows[:-1]),
    "without its first row": lines(lambda rows: rows[1:]),
    "in another order": lines(lambda rows: rows[::-1]),
    "binary": lambda data: bytes(range(256)) * (1 + len(data) // 256),
    "another run's": lambda data: data.replace(b"0.6", b"0.7"),
    **{f"flipped at {at:g}": flipped(at, 1) for at in (0, 0.2, 0.6, -2)},
}
CONFIG: dict[str, Damage] = {
    "empty": be(b""),
    "a list": be(b"- task\n- optimizer\n"),
    "a word": be(b"logistic\n"),
    "binary": be(bytes(range(128, 256))),
    "not YAML": be(b"task: [logistic\n"),
    "no task": lambda data: data.replace(b"task: logistic\n", b""),
    "task a number": lambda data: data.replace(b"task: logistic", b"task: 3"),
    "no such task": lambda data: data.replace(b"task: logistic", b"task: logistik"),
    "no such optimizer": lambda data: data.replace(b"sparse-svrg", b"sparce-svrg"),
    "no such setting": lambda data: data + b"momentun: 0.9\n",
    "seed a word": lambda data: data.replace(b"seed: 0", b"seed: zero"),
    "budget a word": lambda data: data.replace(b"budget: 6.0", b"budget: six"),
    "lr a list": lambda data: data.replace(b"lr: 0.5", b"lr: [0.5]"),
    "options a list": lambda data: data.replace(b"options: {}", b"options: []"),
    "cut": lambda data: data[: data.index(b"inner_steps") + 5],
}


def changed(key: str, value: Any = ...) -> Damage:
    """JSON with a key of its own that has another value, or is missing."""

    def damage(data: bytes) -> bytes:
        values = json.loads(data)
        values[key] = value
        return json.dumps({k: v for k, v in values.items() if v is not ...}).encode()

    return damage


SUMMARY: dict[str, Damage] = {
    "empty": be(b""),
    "binary": be(bytes(range(128, 256))),
    "cut": cut(0.5),
    "a list": be(b"[]"),
    "a number": be(b"3"),
    "null": be(b"null"),
    "deep": be(b"[" * 100_000),
    **{f"no {key}": changed(key) for key in ("status", "reason", "last")},
    **{f"{key} a number": changed(key, 3) for key in ("status", "reason", "last")},
    "status unknown": changed("status", "finishd"),
    "last without queries": changed("last", {"train_loss": 1.0}),
    "last of words": changed("last", {"queries": "6", "seconds": 1.0}),
}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(("metrics.jsonl", name) for name in METRICS),
        *(("config.yaml", name) for name in CONFIG),
        *(("summary.json", name) for name in SUMMARY),
    ],
    ids=str,
)
def test_other_files_of_a_run_that_is_to_go_on(file: str, name: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "sparse-svrg" / "stopped", tmp_path / "run")
    tables: dict[str, dict[str, Any]] = {"metrics.jsonl": METRICS, "config.yaml": CONFIG, "summary.json": SUMMARY}
    damage_file(folder / file, tables[file][name])
    refused(lambda: runner.run(made(), folder, resume=True), folder / file)


def damage_file(path: Path, damage: Damage | None) -> None:
    path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))


def test_a_run_without_its_config(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "sparse-svrg" / "stopped", tmp_path / "run")
    (folder / "config.yaml").unlink()
    before = content(folder)
    for resume in (True, False):
        with pytest.raises(RunError, match=r"but not its config\.yaml: .*--overwrite"):
            runner.run(made(), folder, resume=resume)
    assert content(folder) == before


def test_a_config_with_half_of_its_lines(whole: Path, tmp_path: Path) -> None:
    """The settings that are missing have their defaults, which are not those of the run."""
    folder = shutil.copytree(whole / "sparse-svrg" / "stopped", tmp_path / "run")
    damage_file(folder / "config.yaml", lines(lambda rows: rows[:5]))
    before = content(folder)
    with pytest.raises(RunError, match=r"other settings \(budget 2\.0 and not 6\.0"):
        runner.run(made(), folder, resume=True)
    assert content(folder) == before


HARMLESS: dict[str, Callable[[Path], Any]] = {
    "rows after the checkpoint": lambda f: append(f / "metrics.jsonl", b'{"queries": 99.0, "seconds": 1.0}\n'),
    "a row that was being written": lambda f: append(f / "metrics.jsonl", b'{"queries": 3.2, "sec'),
    "noise after the checkpoint": lambda f: append(f / "metrics.jsonl", bytes(range(128, 256))),
    "a checkpoint that was being written": lambda f: (f / "checkpoint.pt.part").write_bytes(b"spidersilk ch"),
    "a summary that was being written": lambda f: (f / "summary.json.part").write_bytes(b"{"),
    "no summary": lambda f: (f / "summary.json").unlink(),
    "no checkpoint": lambda f: (f / "checkpoint.pt").unlink(),
    "neither checkpoint nor metrics": lambda f: [(f / n).unlink() for n in ("checkpoint.pt", "metrics.jsonl")],
    "the lock of a process that was killed": lambda f: (f / "lock").write_text('{"pid": 1, "host": "h", "since": ""}'),
    "an empty lock": lambda f: (f / "lock").touch(),
}


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_kill_leaves_does_no_harm(name: str, method: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / method / "stopped", tmp_path / "run")
    HARMLESS[name](folder)
    if "noise" not in name:
        load_run(folder)
    assert runner.run(made(method), folder, resume=True)["status"] == "finished"
    assert metrics(folder) == metrics(whole / method / "finished")
    assert {"config.yaml", "metrics.jsonl", "summary.json"} <= {path.name for path in folder.iterdir()}
    assert not {"checkpoint.pt", "checkpoint.pt.part", "lock"} & {path.name for path in folder.iterdir()}


# A run that has ended: resumed, reported, collected.

ENDED: dict[tuple[str, str], Damage | None] = {
    ("metrics.jsonl", "missing"): None,
    ("metrics.jsonl", "empty"): be(b""),
    ("metrics.jsonl", "a digit changed"): lambda data: data.replace(b"0.6", b"0.7"),
    ("metrics.jsonl", "a row less"): lines(lambda rows: rows[:-1]),
    ("metrics.jsonl", "a row more"): lines(lambda rows: [*rows, rows[-1]]),
    ("metrics.jsonl", "cut"): cut(-5),
    ("metrics.jsonl", "a line of words"): lines(lambda rows: [rows[0], b"hello\n", *rows[2:]]),
    ("metrics.jsonl", "a line with a list"): lines(lambda rows: [rows[0], b"[1]\n", *rows[2:]]),
    ("metrics.jsonl", "a line without queries"): lines(lambda rows: [rows[0], b'{"train_loss": 1.0}\n', *rows[2:]]),
    ("metrics.jsonl", "a loss of words"): lambda data: data.replace(b'"train_loss": ', b'"train_loss": "x", "y": '),
    ("metrics.jsonl", "binary"): be(bytes(range(128, 256))),
    **{("summary.json", name): damage for name, damage in SUMMARY.items() if name != "status a number"},
    ("config.yaml", "empty"): CONFIG["empty"],
    ("config.yaml", "a list"): CONFIG["a list"],
    ("config.yaml", "binary"): CONFIG["binary"],
    ("config.yaml", "not YAML"): CONFIG["not YAML"],
    ("config.yaml", "no task"): CONFIG["no task"],
    ("config.yaml", "seed a word"): CONFIG["seed a word"],
    ("config.yaml", "options a list"): CONFIG["options a list"],
}


@pytest.mark.parametrize(("file", "name"), ENDED)
def test_a_damaged_run_that_has_ended(file: str, name: str, whole: Path, tmp_path: Path, command: Any) -> None:
    folder = shutil.copytree(whole / "sparse-svrg" / "finished", tmp_path / "run")
    damage_file(folder / file, ENDED[file, name])
    refused(lambda: load_run(folder), folder / file)
    refused(lambda: runner.run(made(), folder, resume=True), folder / file)
    for words in (["report", str(folder), "--to", f"{tmp_path}/r"], ["collect", str(folder), "--to", f"{tmp_path}/c"]):
        code, told = command(*words)
        assert code == 2
        assert told.count("\n") == 1
        assert str(folder / file) in told
        assert not Path(words[-1]).exists()


def test_a_checkpoint_that_outlived_its_run_is_not_read(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "sparse-svrg" / "finished", tmp_path / "run")
    (folder / "checkpoint.pt").write_bytes(b"anything")
    assert runner.run(made(), folder, resume=True) == json.loads((folder / "summary.json").read_text())


# Collected files, and those of a tuning.


def inside(*keys: Any, value: Any = ...) -> Damage:
    """JSON with another value in its depth, or without it."""

    def damage(data: bytes) -> bytes:
        values = json.loads(data)
        (without(*keys) if value is ... else put(value, *keys))(values)
        return json.dumps(values).encode()

    return damage


PACKED = ("name", "status", "reason", "config", "summary", "curve")
RUNS: dict[str, Damage] = {
    "empty": be(b""),
    "binary": be(bytes(range(128, 256))),
    "cut": cut(0.5),
    "a list": be(b"[]"),
    "null": be(b"null"),
    "no runs": inside("runs"),
    "runs a number": inside("runs", value=3),
    "runs of words": inside("runs", value=["a", "b"]),
    "a run a list": inside("runs", 0, value=[1]),
    **{f"a run without {key}": inside("runs", 0, key) for key in PACKED},
    **{f"{key} of a run a number": inside("runs", 0, key, value=3) for key in PACKED},
    "another name": inside("runs", 0, "name", value="another"),
    "a config without a budget": inside("runs", 0, "config", "budget"),
    "a budget of words": inside("runs", 0, "config", "budget", value="six"),
    "a curve without queries": inside("runs", 0, "curve", "queries"),
    "a curve without rows": inside("runs", 0, "curve", value={}),
    "a shorter column": inside("runs", 0, "curve", "train_loss", value=lambda column: column[:-1]),
    "a column of words": inside("runs", 0, "curve", "train_loss", value=lambda column: ["x"] * len(column)),
    "a column that is a number": inside("runs", 0, "curve", "train_loss", value=3),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_damaged_file_of_collected_runs(name: str, whole: Path, tmp_path: Path, command: Any) -> None:
    path = Path(shutil.copy(whole / "collected.json", tmp_path))
    path.write_bytes(RUNS[name](path.read_bytes()))
    refused(lambda: collect.load(path), path)
    refused(lambda: collect.save(path, []), path)
    before = path.read_bytes()
    code, told = command("collect", str(whole / "sparse-svrg" / "finished"), "--to", str(path))
    assert (code, told.count("\n")) == (2, 1)
    assert path.read_bytes() == before


TRIAL = ("methods", "sgd", "trials", 0)
TUNED: dict[str, Damage] = {
    **{name: RUNS[name] for name in ("empty", "binary", "cut", "a list", "null", "no runs", "runs of words")},
    **{f"no {key}": inside(key) for key in ("conditions", "methods", "final_budget", "seeds")},
    **{f"{key} a word": inside(key, value="x") for key in ("conditions", "methods", "final_budget", "seeds")},
    "no trials": inside("methods", "sgd", "trials"),
    **{f"a trial without {key}": inside(*TRIAL, key) for key in ("settings", "loss", "status")},
    **{f"{key} of a trial a list": inside(*TRIAL, key, value=[1]) for key in ("settings", "loss", "status")},
    "a trial without a step size": inside(*TRIAL, "settings", "lr"),
    "another loss": inside(*TRIAL, "loss", value=1e-9),
    "another lowest loss": inside("methods", "sgd", "loss", value=1e-9),
    "a final run without its curve": inside("runs", 0, "curve"),
}


@pytest.mark.parametrize("name", TUNED)
def test_a_damaged_file_of_a_tuning(name: str, whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(whole / "tuned.json", tmp_path))
    base = RunConfig("logistic", "sgd", options={"data": "breast-cancer"})
    again = tuning.Tuning(base, ["sgd"], 2, 0.5, 0.5, 1, path)
    how: dict[str, Any] = {"jobs": 1, "resume": True, "command": "c", "time_limit": None}
    path.write_bytes(TUNED[name](path.read_bytes()))
    refused(lambda: tuner.tune(again, tmp_path / "runs", QUIET, **how), path)
    assert not (tmp_path / "runs").exists()
