"""Runs packed into one small JSON file: settings, provenance and thinned curves. Files can be merged."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.run.config import RunConfig, from_dict
from spidersilk.lab.run.curve import Curve, label_of, status_of
from spidersilk.lab.run.folder import FINISHED, LOCAL, Row

Packed = dict[str, Any]  # a run as plain values: name, status, reason, command, config, summary, and curve by column


def pack(curve: Curve, points: int = 60, command: str = "") -> Packed:
    """A run as plain values; its curve has about `points` rows at most, and five digits."""
    rows = thin(curve.rows, points)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {
        "name": curve.config["name"],
        "status": curve.status,
        "reason": curve.reason,
        "command": command,
        "config": {k: v for k, v in curve.config.items() if k not in LOCAL},
        "summary": {k: v for k, v in curve.summary.items() if k not in ("status", "reason", "last", "task")},
        "curve": {name: [plain(row.get(name)) for row in rows] for name in columns},
    }


def thin(rows: list[Row], points: int) -> list[Row]:
    """The first, last and lowest row; half of the others evenly spaced, half evenly in the logarithm."""
    if len(rows) <= points:
        return rows
    last, half = len(rows) - 1, points // 2
    even = {round(i * last / half) for i in range(half + 1)}
    early = {round(math.exp(i * math.log(last) / half)) for i in range(half + 1)}
    losses = [row.get("train_loss", math.inf) for row in rows]
    lowest = min(range(len(rows)), key=lambda i: math.inf if math.isnan(losses[i]) else losses[i])
    return [rows[i] for i in sorted({0, lowest, last} | even | early)]


def unpack(run: Packed) -> Curve:
    columns: dict[str, list[Any]] = run["curve"]
    count = max((len(values) for values in columns.values()), default=0)
    rows = [{k: v[i] for k, v in columns.items() if v[i] is not None} for i in range(count)]
    status = status_of(run["summary"] | {"status": run["status"]}, rows)
    return Curve(label_of(run["config"]), rows, status, run["reason"], run["config"], run["summary"])


def load(path: Path) -> dict[str, Packed]:
    """The runs of a file by name; empty if there is no file."""
    if not path.is_file():
        return {}
    with reading(path, "collected runs"):
        runs = json.loads(path.read_bytes())["runs"]
        for run in runs:
            check(run)
        return {run["name"]: run for run in runs}


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Say which file it is that is not as it should be."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise ValueError(f"{path}: not a file of {what} ({why}): put it back as it was, or remove it") from error


def check(run: Packed) -> None:
    """Raise KeyError, TypeError or ValueError if these are not the values of a packed run."""
    texts, groups = ("name", "status", "reason"), ("config", "summary", "curve")
    for name, kind in {**dict.fromkeys(texts, str), **dict.fromkeys(groups, dict)}.items():
        if not isinstance(run[name], kind):
            raise TypeError(f"{name} = {run[name]!r} is no {kind.__name__}")
    for name, kind in {"name": str, "optimizer": str, "budget": int | float}.items():
        if not isinstance(run["config"][name], kind):
            raise TypeError(f"{name} = {run['config'][name]!r} in the config of {run['name']}")
    if run["config"]["name"] != run["name"]:
        raise ValueError(f"{run['name']} has the config of {run['config']['name']}")
    columns = run["curve"]
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1 or not {"queries", "seconds"} <= columns.keys():
        raise ValueError(f"the curve of {run['name']} has columns of {sorted(lengths)} rows: {', '.join(columns)}")
    for name, values in columns.items():
        if not all(x is None or (isinstance(x, int | float) and not isinstance(x, bool)) for x in values):
            raise TypeError(f"{name} in the curve of {run['name']} is not made of numbers")


def merge(old: dict[str, Packed], new: Iterable[Packed]) -> dict[str, Packed]:
    """The union. Of two runs with one name: the finished one with the larger budget, else the one that got further,
    else the newer."""
    merged = dict(old)
    for run in new:
        if run["name"] not in merged or _weight(run) >= _weight(merged[run["name"]]):
            merged[run["name"]] = run
    return merged


def _weight(run: Packed) -> tuple[bool, float, float]:
    done = run["status"] in FINISHED
    reached = max((q for q in run["curve"].get("queries", []) if q is not None), default=0.0)
    return done, run["config"]["budget"] if done else 0.0, reached


def is_done(config: RunConfig, known: dict[str, Packed]) -> bool:
    """Whether `known` has this run, finished, with the same settings."""
    run = known.get(config.name)
    if run is None or run["status"] not in FINISHED:
        return False
    return from_dict({**run["config"], **{name: getattr(config, name) for name in LOCAL}}) == config.completed()


def save(path: Path, runs: Iterable[Packed]) -> Path:
    """Write the runs, merged with those in the file."""
    merged = merge(load(path), runs)
    lines = ",\n".join(json.dumps(merged[name]) for name in sorted(merged))  # a line each keeps diffs readable
    write_atomically(path, f'{{"runs": [\n{lines}\n]}}\n'.encode())
    return path


def plain(value: Any, digits: int = 5) -> Any:
    """Numbers to so many digits, in lists and dictionaries too; None for infinity and NaN, which JSON lacks."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item, digits) for key, item in value.items()}
    return [plain(item, digits) for item in value] if isinstance(value, list | tuple) else value
