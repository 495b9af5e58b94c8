"""What the final runs of a tuning cost: queries and seconds to a target that a plain method reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from spidersilk.lab.experiments.grid import PLAIN
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import Curve

WITHIN = 1.01
"""At equal steps the target is AdamW's mean loss at the end, times this."""
Curves = Mapping[str, Sequence[Curve]]  # the final runs of each method, one for each seed that is done


def target(curves: Curves, metric: str, seeds: int) -> float:
    """The lowest loss that every seed of a plain method reached: of the method where that is lowest."""
    whole = [curves[m] for m in PLAIN if len(curves.get(m, ())) == seeds]
    return min((max(lowest(c, metric) for c in each) for each in whole), default=math.inf)


def target_at_steps(curves: Curves, metric: str, seeds: int) -> float:
    """Of runs of equally many steps: AdamW's mean loss at the end plus one per cent."""
    adamw = curves.get("adamw", ())
    return WITHIN * statistics.fmean(at_end(c, metric) for c in adamw) if len(adamw) == seeds else math.inf


def costs(curves: Curves, metric: str, goal: float, seeds: int) -> dict[str, dict[str, Any]]:
    """Medians over seeds of queries and seconds to the target, and their ratios to the best plain method's."""
    records: dict[str, dict[str, Any]] = {}
    for method, mine in curves.items():
        if not mine:
            continue
        known = math.isfinite(goal)  # not before a plain method has all its seeds
        each = [c.cost(metric, goal) if known else None for c in mine]
        medians = [statistics.median(math.inf if c is None else c[i] for c in each) for i in (0, 1)]
        records[method] = {
            "queries": medians[0],
            "seconds": medians[1],
            "each": [None if c is None else [round(c[0], 4), round(c[1], 3)] for c in each],
            "lowest": [rounded(lowest(c, metric)) for c in mine],
            "diverged": sum(c.status == "diverged" for c in mine),
        }
    whole = [records[m] for m in PLAIN if m in records and len(records[m]["each"]) == seeds]
    for unit in ("queries", "seconds"):
        base = min((record[unit] for record in whole), default=math.inf)
        for record in records.values():
            record[f"{unit}_ratio"] = rounded(record[unit] / base if 0 < base < math.inf else math.inf)
    return {m: r | {unit: rounded(r[unit]) for unit in ("queries", "seconds")} for m, r in records.items()}


def lowest(curve: Curve, metric: str) -> float:
    value = curve.lowest(metric) if curve.status == "finished" else None
    return math.inf if value is None else value


def at_end(curve: Curve, metric: str) -> float:
    value = curve.last(metric) if curve.status == "finished" else None
    return math.inf if value is None else value


def rounded(value: float) -> float | None:
    return collect.plain(value, 6)
