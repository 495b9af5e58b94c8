"""What a run showed: its metrics over queries, and what it cost to reach a loss."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spidersilk.lab.run.folder import Row, Summary


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
    config = yaml.safe_load((folder / "config.yaml").read_text())
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").is_file() else []
    summary = json.loads((folder / "summary.json").read_text()) if (folder / "summary.json").is_file() else {}
    status, reason = summary.get("status", "unfinished"), summary.get("reason", "")
    return Curve(label_of(config), [json.loads(line) for line in lines], status, reason, config, summary)


def load_runs(folders: Iterable[Path]) -> list[Curve]:
    """Read several folders; what is not a folder is skipped."""
    curves = [load_run(folder) for folder in folders if folder.is_dir()]
    if not curves:
        raise ValueError("no run folder was given")
    return curves


def label_of(config: dict[str, Any]) -> str:
    label = config.get("label") or config["optimizer"]
    return f"{label}, seed {config['seed']}" if config.get("seed") else label


def metric_of(curves: Iterable[Curve]) -> str:
    """By what runs are compared: f - f* where it is known, else the training loss."""
    return "gap" if any("gap" in row for curve in curves for row in curve.rows) else "train_loss"


def words(metric: str) -> str:
    return {"gap": "f - f*", "train_loss": "training loss"}.get(metric, metric.replace("_", " "))


def common_target(curves: Iterable[Curve], metric: str) -> float:
    """The lowest value that every run reached, without those that diverged: the worst of their best values."""
    lows = [curve.lowest(metric) for curve in curves if curve.status != "diverged"]
    return max((low for low in lows if low is not None and math.isfinite(low)), default=math.inf)


def median_cost(curves: Iterable[Curve], metric: str, target: float) -> float | None:
    """The median over runs of queries over N to the target; None if half of them never reach it."""
    costs = [curve.cost(metric, target) for curve in curves]
    middle = statistics.median(math.inf if cost is None else cost[0] for cost in costs) if costs else math.inf
    return middle if math.isfinite(middle) else None
