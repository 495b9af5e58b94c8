"""Runs packed into one small JSON file: settings, what made them, and their curves, thinned. Pieces can be merged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spidersilk.lab.report.figures import Curve
from spidersilk.lab.run.config import RunConfig, from_dict
from spidersilk.lab.run.runner import FINISHED, write_atomically

POINTS = 60
_OWN = ("device", "data_dir", "checkpoint_every", "tensorboard")  # settings of whoever ran it, not of what was run


def pack(curve: Curve, points: int = POINTS, command: str = "") -> dict[str, Any]:
    """A run as plain values: its curve has at most about `points` rows, by column, to five digits."""
    rows = thin(curve.rows, points)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {
        "name": curve.config["name"],
        "status": curve.status,
        "reason": curve.reason,
        "command": command,
        "config": {k: v for k, v in curve.config.items() if k not in _OWN},
        "summary": {k: v for k, v in curve.summary.items() if k not in ("status", "reason", "last", "task")},
        "curve": {name: [_short(row.get(name)) for row in rows] for name in columns},
    }


def thin(rows: list[dict[str, Any]], points: int) -> list[dict[str, Any]]:
    """The first, the last and the lowest; of the others half evenly by number and half by its logarithm."""
    if len(rows) <= points:
        return rows
    last, half = len(rows) - 1, points // 2
    even = {round(i * last / half) for i in range(half + 1)}
    early = {round(math.exp(i * math.log(last) / half)) for i in range(half + 1)}
    losses = [row.get("train_loss", math.inf) for row in rows]
    lowest = min(range(len(rows)), key=lambda i: losses[i] if losses[i] == losses[i] else math.inf)
    return [rows[i] for i in sorted({0, lowest, last} | even | early)]


def unpack(run: dict[str, Any]) -> Curve:
    """The counterpart of `pack`."""
    columns: dict[str, list[Any]] = run["curve"]
    count = max((len(values) for values in columns.values()), default=0)
    rows = [{k: v[i] for k, v in columns.items() if v[i] is not None} for i in range(count)]
    label = run["config"].get("label") or run["config"]["optimizer"]
    if run["config"].get("seed"):
        label += f", seed {run['config']['seed']}"
    return Curve(label, rows, run["status"], run["reason"], run["config"], run["summary"])


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The runs of a file by name; none if there is no file."""
    if not path.is_file():
        return {}
    try:
        return {run["name"]: run for run in json.loads(path.read_text())["runs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of collected runs ({error})") from error


def merge(old: dict[str, dict[str, Any]], new: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The union. Of two runs of a name: the one that is finished with the larger budget, else the one that got further;
    the newer where they are level."""
    merged = dict(old)
    for run in new:
        if run["name"] not in merged or _weight(run) >= _weight(merged[run["name"]]):
            merged[run["name"]] = run
    return merged


def _weight(run: dict[str, Any]) -> tuple[bool, float, float]:
    done = run["status"] in FINISHED
    reached = max((q for q in run["curve"].get("queries", []) if q is not None), default=0.0)
    return done, run["config"]["budget"] if done else 0.0, reached


def is_done(config: RunConfig, known: dict[str, dict[str, Any]]) -> bool:
    """Whether a file's runs have this one, finished, with the same settings."""
    run = known.get(config.name)
    if run is None or run["status"] not in FINISHED:
        return False
    held = from_dict({**run["config"], **{name: getattr(config, name) for name in _OWN}})
    return held == config.completed()


def save(path: Path, runs: Iterable[dict[str, Any]]) -> Path:
    """Write the runs, merged with those that the file has already."""
    merged = merge(load(path), runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(merged[name]) for name in sorted(merged))  # a line each: differences stay readable
    write_atomically(path, f'{{"runs": [\n{lines}\n]}}\n'.encode())
    return path


def _short(value: Any) -> Any:
    """Five digits; None for what JSON has no number for."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None
