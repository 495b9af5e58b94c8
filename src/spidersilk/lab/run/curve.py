"""What a run showed: its metrics over queries, and what it cost to reach a loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spidersilk.lab.run.folder import Row, Summary, read_config, read_rows, read_summary

SLIGHTLY = 0.0003  # of a loss: more than the rounding of collected files, less than the slowest of runs falls
BROKEN = ("diverged", "collapsed")  # the statuses of a run that ended without a result


@dataclass
class Curve:
    """The rows of a run's metrics, with its label, settings and summary."""

    label: str
    rows: list[Row]
    status: str = "finished"
    reason: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: Summary = field(default_factory=dict)

    def series(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Two metrics where both are known; NaN is left out."""
        rows = [row for row in self.rows if x in row and y in row and row[y] == row[y]]
        return [row[x] for row in rows], [row[y] for row in rows]

    def last(self, metric: str) -> float | None:
        return next((row[metric] for row in reversed(self.rows) if metric in row), None)

    def lowest(self, metric: str) -> float | None:
        return min((row[metric] for row in self.rows if metric in row), default=None)

    def cost(self, metric: str, target: float) -> tuple[float, float] | None:
        """Queries over N and seconds when the metric first was at most the target; None if it never was."""
        reached = (row for row in self.rows if row.get(metric, math.inf) <= target)
        return next(((row["queries"], row["seconds"]) for row in reached), None)


def load_run(folder: Path) -> Curve:
    """Read the folder of a run, finished or not."""
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder}: not a run (it has no config.yaml)")
    config = read_config(folder / "config.yaml")
    summary = read_summary(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    rows = read_rows(folder / "metrics.jsonl", summary or None)
    return Curve(label_of(config), rows, status_of(summary, rows), summary.get("reason", ""), config, summary)


def has_collapsed(rows: Sequence[Row], guess: float | None) -> bool:
    """Whether a run that spent its budget learned nothing, or lost what it had learned.

    Its last training loss is not finite; or it is neither below `guess`, the loss of the best constant prediction, nor
    below the lowest loss of the first half of the queries, which would mean that it is still falling. Below means by
    more than SLIGHTLY. Without a `guess`, the loss before training takes its place. A run of fewer than 1 N is not
    judged by its loss: it has not seen its data once.
    """
    if not any("train_loss" in row for row in rows):
        return False
    last = rows[-1].get("train_loss", math.nan)  # a collected file has nothing where a loss is not finite
    if not math.isfinite(last):
        return True
    spent = rows[-1]["queries"]
    early = [row.get("train_loss", math.inf) for row in rows if row["queries"] <= spent / 2]
    if spent < 1 or not early:
        return False
    bar = max(early[0] if guess is None else guess, min(early))
    return last >= bar - SLIGHTLY * abs(bar)


def status_of(summary: Summary, rows: Sequence[Row]) -> str:
    """The status of a run by its summary; files of older runs call one finished that has collapsed."""
    status = summary.get("status", "unfinished")
    guess = summary.get("guess_loss")
    return "collapsed" if status == "finished" and has_collapsed(rows, guess) else status


def label_of(config: dict[str, Any]) -> str:
    label = config.get("label") or config["optimizer"]
    return f"{label}, seed {config['seed']}" if config.get("seed") else label


def metric_of(curves: Iterable[Curve]) -> str:
    """By what runs are compared: f - f* where it is known, else the training loss."""
    return "gap" if any("gap" in row for curve in curves for row in curve.rows) else "train_loss"


def words(metric: str) -> str:
    return {"gap": "f - f*", "train_loss": "training loss"}.get(metric, metric.replace("_", " "))


def common_target(curves: Iterable[Curve], metric: str) -> float:
    """The lowest value that every run reached, without those that broke down: the worst of their best values."""
    lows = [curve.lowest(metric) for curve in curves if curve.status not in BROKEN]
    return max((low for low in lows if low is not None and math.isfinite(low)), default=math.inf)


def median_cost(curves: Iterable[Curve], metric: str, target: float) -> float | None:
    """The median over runs of queries over N to the target; None if half of them never reach it."""
    costs = [curve.cost(metric, target) for curve in curves]
    middle = statistics.median(math.inf if cost is None else cost[0] for cost in costs) if costs else math.inf
    return middle if math.isfinite(middle) else None
