"""The folder of a run: config.yaml, metrics.jsonl, summary.json; while the run is under way a lock and a checkpoint.

What is read from it is checked: an error names the file, and what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.run.checkpoint import REMEDY
from spidersilk.lab.run.config import RunConfig, from_dict
from spidersilk.lab.run.errors import RunError
from spidersilk.lab.run.lock import Lock

FINISHED = ("finished", "diverged", "collapsed")  # the statuses of a run that will not go on
LOCAL = ("device", "data_dir", "checkpoint_every", "tensorboard")  # settings that do not change what is run
Row = dict[str, Any]  # one line of metrics.jsonl: queries, samples, updates, seconds and the metrics by name
Summary = dict[str, Any]  # summary.json: status, reason, the last row, versions, machine
_MADE = ("checkpoint.pt", "metrics.jsonl", "summary.json", "config.yaml")


class RunFolder:
    def __init__(self, path: Path):
        self.path, self.lock = path, Lock(path / "lock")
        self.config, self.summary = path / "config.yaml", path / "summary.json"
        self.metrics, self.checkpoint = path / "metrics.jsonl", path / "checkpoint.pt"
        self._is_new = False

    # Beginning.

    def look(self, config: RunConfig, resume: bool, overwrite: bool) -> Summary | None:
        """Whether this run may begin here, or go on; changes nothing. Returns the summary if the run has ended."""
        self.lock.check()
        if resume and overwrite:
            raise RunError(f"{self.path}: --resume goes on and --overwrite begins anew: give one of them")
        if overwrite:
            return None
        if not self.config.is_file():
            held = [path.name for path in (self.metrics, self.checkpoint, self.summary) if path.exists()]
            if held:
                remedy = "put it back, give --overwrite to begin the run anew, or another name"
                raise RunError(f"{self.path} has the {held[0]} of a run, but not its config.yaml: {remedy}")
            return None
        other = differences(self.config, read_config(self.config), config)
        if other:
            remedy = "give --overwrite to begin anew, or another name"
            raise RunError(f"{self.path} holds a run with other settings ({other}): {remedy}")
        ended = read_summary(self.summary) if self.summary.is_file() else None
        if ended is None or ended["status"] not in FINISHED:
            ended = None
        if not resume:
            state = "to be continued" if ended is None else ended["status"]
            hint = "give --resume to go on with it" if ended is None else "give --resume to take it as it is"
            raise RunError(f"{self.path} holds a run already ({state}): {hint}, or --overwrite to begin anew")
        if ended is not None:
            read_rows(self.metrics, ended)
        return ended

    def begin(self, config: RunConfig, resume: bool, overwrite: bool) -> Summary | None:
        """Lock the folder and write the config; returns the summary if the run has ended."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock.take()
        ended = self.look(config, resume, overwrite)
        if ended is not None:
            return ended
        if overwrite:
            for name in _MADE:
                (self.path / name).unlink(missing_ok=True)
                (self.path / f"{name}.part").unlink(missing_ok=True)
            if (self.path / "tensorboard").is_dir():
                shutil.rmtree(self.path / "tensorboard")
        self._is_new = not self.config.is_file()
        if self._is_new:
            write_atomically(self.config, config.to_yaml().encode())
        return None

    def undo(self) -> None:
        """Remove what `begin` wrote of a new run, which was refused at its first step."""
        if self._is_new:
            for path in (self.metrics, self.config, self.lock.path):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # there are other files
                self.path.rmdir()

    # Metrics.

    def append(self, row: Row) -> int:
        """Add a row to the metrics; returns the size of the file."""
        with self.metrics.open("ab") as stream:
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
            return stream.tell()

    def metrics_sum(self, size: int) -> str:
        """The SHA-256 of the first `size` bytes of the metrics."""
        return hashlib.sha256(self.metrics.read_bytes()[:size]).hexdigest()

    def check_metrics(self, size: int, checksum: Any) -> None:
        """Whether the first `size` bytes are those that a checkpoint knows; rows that came later may follow."""
        have = self.metrics.stat().st_size if self.metrics.is_file() else None
        if have is None:
            raise RunError(f"{self.metrics}: it is missing, and the checkpoint counts on it: {REMEDY}")
        if have < size:
            raise RunError(f"{self.metrics}: it has {have} bytes, and the checkpoint counts on {size}: {REMEDY}")
        if self.metrics_sum(size) != checksum:
            raise RunError(f"{self.metrics}: its rows are not those that the checkpoint counts on: {REMEDY}")

    # The end.

    def finish(self, summary: Summary) -> Summary:
        """Write the summary; a run that will not go on needs its checkpoint no more."""
        if self.metrics.is_file():
            summary = summary | {"metrics_sha256": self.metrics_sum(self.metrics.stat().st_size)}
        write_atomically(self.summary, json.dumps(summary, indent=1).encode() + b"\n")
        if summary["status"] in FINISHED:
            self.checkpoint.unlink(missing_ok=True)
            self.checkpoint.with_name("checkpoint.pt.part").unlink(missing_ok=True)
        return summary


def differences(path: Path, saved: Any, config: RunConfig) -> str:
    """The settings in which those saved at `path` differ from a config's, in words; without those of the machine."""
    try:
        read = from_dict(saved)
        there, here = asdict(replace(read.completed(), arguments=read.arguments)), asdict(config)  # as written down
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error
    differ = [name for name in here if name not in LOCAL and there[name] != here[name]]
    return "; ".join(f"{name} {there[name]!r} and not {here[name]!r}" for name in differ)


# Reading.


def read_config(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _damaged(path, f"not readable as YAML, {type(error).__name__}") from error
    if not isinstance(values, dict):
        raise _damaged(path, "it is empty" if values is None else "not a mapping of settings to values")
    kinds = {"task": str, "optimizer": str, "name": str, "seed": int, "options": dict, "budget": (int, float)}
    for name, kind in kinds.items():
        if name in values or name in ("task", "optimizer"):
            value = values.get(name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise _damaged(path, f"{name} = {value!r}")
    return {"name": path.parent.name, "seed": 0, "options": {}, "budget": 2.0} | values


def read_summary(path: Path) -> Summary:
    values = _json(path, path)
    if not isinstance(values, dict):
        raise _damaged(path, f"it holds a {type(values).__name__} in place of a dictionary")
    for name, kind in {"status": str, "reason": str, "last": dict}.items():
        if not isinstance(values.get(name), kind):
            raise _damaged(path, f"{name} = {values[name]!r}" if name in values else f"it has no {name}")
    if values["status"] not in (*FINISHED, "stopped"):
        raise _damaged(path, f"status = {values['status']!r}")
    if not _is_row(values["last"]) and values["last"]:
        raise _damaged(path, "last is not a row of metrics")
    return values


def read_rows(path: Path, summary: Summary | None) -> list[Row]:
    """The rows of the metrics; `summary` is that of a run that has ended, or None while it is under way.

    A run that was killed may leave a last line without its end, which is dropped.
    """
    ended = summary if summary is not None and summary["status"] in FINISHED else None
    if not path.is_file():
        if ended is not None:
            raise _damaged(path, "it is missing")
        return []
    *lines, rest = path.read_bytes().split(b"\n")
    if rest and ended is not None:
        raise _damaged(path, f"line {len(lines) + 1} is cut short")
    rows = []
    for number, line in enumerate(lines, 1):
        row = _json(line, path, f"line {number} is ")
        if not _is_row(row):
            raise _damaged(path, f"line {number} is not a row of metrics")
        rows.append(row)
    if ended is not None:
        checksum = ended.get("metrics_sha256")
        if checksum not in (None, hashlib.sha256(path.read_bytes()).hexdigest()):
            raise _damaged(path, "its content is not what summary.json says")
        if checksum is None and repr(rows[-1:]) != repr([ended["last"]] if ended["last"] else []):
            raise _damaged(path, "its last row is not that of summary.json")
    return rows


def _is_row(value: Any) -> bool:
    """Whether it has queries and seconds, and numbers alone."""
    if not isinstance(value, dict) or not {"queries", "seconds"} <= value.keys():
        return False
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in value.values())


def _json(source: Path | bytes, path: Path, where: str = "") -> Any:
    try:
        return json.loads(source.read_bytes() if isinstance(source, Path) else source)
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, f"{where}not readable as JSON, {type(error).__name__}") from error


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path}: not as a run writes it ({why}): {REMEDY}")
