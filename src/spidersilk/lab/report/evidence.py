"""What results/ holds of the paper's experiments: runs grouped by settings, and what can be read off their curves."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spidersilk.lab.experiments import paper as reproduce
from spidersilk.lab.experiments import pieces
from spidersilk.lab.report import collect
from spidersilk.lab.report import html as report
from spidersilk.lab.report.figures import Curve
from spidersilk.lab.run.config import RunConfig

SECOND = {"image": "test_accuracy", "language": "valid_loss", "ranking": "auc"}  # beside the training loss
SECOND_NAMES = {"test_accuracy": "test accuracy, %", "valid_loss": "validation loss", "auc": "AUC of held-out items"}
COUNTS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 50, 100, 150)
SLACK = 0.02  # how far from a count, as a share of it, a curve may be looked at


@dataclass
class Group:
    """Runs of the same settings, one for each seed, and the run as it was planned."""

    config: RunConfig
    curves: list[Curve] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def label(self) -> str:
        return self.config.title()

    @property
    def seeds(self) -> list[int]:
        return sorted(c.config.get("seed", 0) for c in self.curves)

    @property
    def diverged(self) -> bool:
        """Whether a seed of it did."""
        return any(c.status == "diverged" for c in self.curves)

    @property
    def reach(self) -> float:
        """Queries over N that every seed got to."""
        return min((c.rows[-1]["queries"] for c in self.curves), default=0.0)

    @property
    def complete(self) -> bool:
        return bool(self.curves) and (self.diverged or self.reach >= self.config.budget * (1 - SLACK))

    def state(self) -> str:
        """How far it got."""
        if not self.curves:
            return "not run yet"
        if self.diverged:
            first = min(c.rows[-1]["queries"] for c in self.curves if c.status == "diverged")
            many = sum(c.status == "diverged" for c in self.curves)
            return f"diverged at {first:.2g} N" + (
                f" ({many} of {len(self.curves)} seeds)" if self.seeds != [0] else ""
            )
        return f"to {self.reach:.3g} N" + ("" if self.complete else f" of {self.config.budget:g} N")

    def at(self, count: float, key: str) -> float | None:
        """The median over seeds of the last value seen at `count` queries over N; None if a seed did not get there."""
        return self._median(lambda c: _at(c, count, key))

    def end(self, key: str) -> float | None:
        return self._median(lambda c: next((row[key] for row in reversed(c.rows) if key in row), None))

    def lowest(self, key: str) -> float | None:
        return self._median(lambda c: min((row[key] for row in c.rows if key in row), default=None))

    def cost(self, target: float, key: str) -> float | None:
        """The median over seeds of queries over N to the target; None if half of them never got there."""
        if not self.curves:
            return None
        costs = [report.cost_to_target(c, key, target) for c in self.curves]
        middle = statistics.median(math.inf if c is None else c[0] for c in costs)
        return middle if math.isfinite(middle) else None

    def _median(self, value: Callable[[Curve], float | None]) -> float | None:
        values = [value(c) for c in self.curves]
        known = [v for v in values if v is not None]
        return statistics.median(known) if known and len(known) == len(values) else None


def _at(curve: Curve, count: float, key: str) -> float | None:
    if curve.rows[-1]["queries"] < count * (1 - SLACK):
        return None
    seen = [row for row in curve.rows if key in row and row["queries"] <= count * (1 + SLACK)]
    return seen[-1][key] if seen else None


@dataclass
class Chapter:
    """A table or figure of the paper, or a half of one, with its runs."""

    experiment: str
    key: str  # what the names of its runs begin with
    title: str
    groups: list[Group]

    def find(self, method: str) -> Group:
        """The runs of a method of `reproduce`, as figure1's "sparse-svrg"; without curves if there are none."""
        return next(g for g in self.groups if g.name == f"{self.key}-{method}")

    @property
    def present(self) -> list[Group]:
        return [g for g in self.groups if g.curves]

    @property
    def second(self) -> str:
        return SECOND.get(self.groups[0].config.task, "")

    def counts(self, most: int = 4) -> list[float]:
        """Query counts that at least two of its runs got to: the last few of 1, 2, 5, 10 ..."""
        reached = [c for c in COUNTS if sum(not g.diverged and g.reach >= c * (1 - SLACK) for g in self.present) > 1]
        return reached[-most:]


def chapters(results: Path) -> list[Chapter]:
    """Every part of every experiment at the paper's scale, with what results/ has of it."""
    made = []
    for experiment, parts in reproduce.experiments("paper").items():
        held = collect.load(pieces.path_of(results / "paper", experiment))
        for part in parts:
            groups = []
            for config in part.configs:
                named = [n for n in held if n == config.name or n.startswith(f"{config.name}-seed")]
                curves = [collect.unpack(held[n]) for n in sorted(named)]
                groups.append(Group(config, [c for c in curves if c.rows]))
            made.append(Chapter(experiment, _common(part.configs), part.title, groups))
    return made


def _common(configs: list[RunConfig]) -> str:
    """The words that all names begin with."""
    words = [c.name.split("-") for c in configs]
    shared = []
    for column in zip(*words, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return "-".join(shared).removesuffix("-sparse")


def same_settings(group: Group, dense: Group) -> bool:
    """Whether a run has the dense one's step size, batches and loop length, and a tenth of the coordinates."""
    ours, theirs = group.config.completed(), dense.config.completed()
    keys = ("lr", "anchor_batch_size", "batch_size", "inner_steps", "inner_lr_end", "lr_milestones")
    return all(getattr(ours, k) == getattr(theirs, k) for k in keys) and math.isclose(share(ours), 0.1)


def share(config: RunConfig) -> float:
    """k/d as it was asked for; the optimizers' own is 10 %."""
    return 0.1 if config.k1 is None and config.k2 is None else float(config.k1 or 0) + float(config.k2 or 0)


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits; with an exponent where it is very small or large."""
    if value is None or not math.isfinite(value):
        return "-"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits - 1}e}"
    return f"{value:#.{digits}g}".rstrip(".")


def tunings(results: Path) -> dict[str, dict[str, Any]]:
    """The files that `spidersilk tune` wrote, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("tune/tune_*.json"))}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * (lines[0].count(" | ") + 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def seeds_of(groups: list[Group]) -> str:
    many = {tuple(g.seeds) for g in groups if g.curves}
    if not many:
        return "none"
    if many == {(0,)}:
        return "one seed (0)"
    return "seeds " + "; ".join(", ".join(map(str, s)) for s in sorted(many))


def second_text(value: float, key: str) -> str:
    """A value of SECOND as the pages have it."""
    return f"{100 * value:.1f}" if key == "test_accuracy" else f"{value:.3f}"
