"""`plan`: what the theorems ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from spidersilk.lab.commands.output import console, show_table
from spidersilk.theory import planner
from spidersilk.theory.planner import Plan

HEAD = ["", "Algorithm 1, Theorem 1", "Algorithm 1, Theorem 2", "SparseSVRG, Proposition A", "selected, Proposition B"]
ROWS: dict[str, Callable[[Plan], str]] = {
    "lr": lambda p: f"{p.lr:.3g}",
    "largest stable lr": lambda p: f"{p.largest_stable_lr:.3g}",
    "B, samples": lambda p: _count(p.anchor_batch_size),
    "b, samples": lambda p: _count(p.batch_size),
    "m, updates": lambda p: f"{p.inner_steps:.4g}",
    "T, loops": lambda p: _count(p.loops),
    "queries": lambda p: f"{p.queries:.3g}",
    "to SpiderBoost's": lambda p: f"{p.ratio:.3g}",
    "mean R_j at most": lambda p: "" if p.allowed_residual is None else f"{p.allowed_residual:.3g}",
}


def plan(values: dict[str, Any], k1: float, k2: float, batch_size: int, outside: float | None) -> None:
    """Print a column for each statement; one that says nothing for these values is a note."""
    shared = values | {"k1": _selected("--k1", k1), "k2": _selected("--k2", k2), "batch_size": batch_size}
    planner.check_outside(outside)
    wanted = [("recursive", None), ("recursive", 1.0 if outside is None else outside)]
    wanted += [("anchored", outside), ("selected", outside)]
    plans: list[Plan | str] = []
    for method, share in wanted:
        try:
            plans.append(planner.plan(**shared, method=method, outside=share))
        except ValueError as error:
            plans.append(str(error))
    if all(isinstance(p, str) for p in plans):
        raise ValueError(plans[0])
    rows = [[label, *("" if isinstance(p, str) else text(p) for p in plans)] for label, text in ROWS.items()]
    show_table("", HEAD, rows)
    notes = [p if isinstance(p, str) else "; ".join(p.notes) for p in plans]
    for note in dict.fromkeys(filter(None, notes)):
        console.print(f"note: {note}")


def _selected(option: str, k: float) -> float | int:
    """A fraction up to 1, a count above it."""
    if not 0 <= k <= 1e18 or (k > 1 and k != int(k)):
        raise ValueError(f"{option} {k:g} is neither a fraction (from 0 to 1) nor a whole number")
    return k if k <= 1 else int(k)


def _count(value: float) -> str:
    return f"{math.ceil(value)}" if value < 1e9 else f"{value:.3g}"
