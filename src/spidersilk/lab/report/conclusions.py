"""What a set of runs showed, in sentences made from its numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from spidersilk.lab.report.cells import BESIDE, duration, head_of, listed, value_of
from spidersilk.lab.report.evidence import number
from spidersilk.lab.report.verdicts import Verdict
from spidersilk.lab.run.curve import BROKEN, Curve, metric_of, words

SLACK = 1.02  # a step can overshoot a count of queries


class Standing(NamedTuple):
    """Where runs stand at an equal count of queries over N or of seconds: (value, label), the lowest first."""

    limit: float
    order: list[tuple[float, str]]


def standing(curves: Sequence[Curve], x: str, metric: str) -> Standing | None:
    """At the most that all of them have, those that broke down left aside; None if there are fewer than two."""
    whole = [c for c in curves if c.status not in BROKEN and c.series(x, metric)[0]]
    if len(whole) < 2:
        return None
    limit = min(c.series(x, metric)[0][-1] for c in whole)
    return Standing(limit, sorted((at(c, x, metric, limit), c.label) for c in whole))


def at(curve: Curve, x: str, metric: str, limit: float) -> float:
    """The metric when x had reached the limit, as it was last evaluated by then."""
    pairs = zip(*curve.series(x, metric), strict=True)
    return [value for spent, value in pairs if spent <= limit * SLACK][-1]


def budget_text(x: str, limit: float) -> str:
    """How much was spent of seconds, updates, or queries over N."""
    return {"seconds": duration(limit), "updates": f"{limit:,.0f}"}.get(x, f"{limit:.3g} N")


def compared(curves: Sequence[Curve], x: str, metric: str) -> str:
    """Who is lowest at equal queries or seconds, and where the others are; nothing where there is no comparison."""
    stand = standing(curves, x, metric)
    if stand is None:
        return ""
    (best, first), *others = stand.order
    last, label = others[-1]
    rest = f"{label} {number(last)}" if len(others) == 1 else f"{label} is highest, {number(last)}"
    where = f"At equal {x} ({budget_text(x, stand.limit)})"
    return f"{where} {first} has the lowest {words(metric)}, {number(best)}; {rest}."


def end_of(curve: Curve, metric: str) -> str:
    """How a run ended, in one sentence."""
    more = [f"{head_of(key)} {value_of(key, value)}" for key in BESIDE if (value := curve.last(key)) is not None]
    last, row = curve.last(metric), curve.rows[-1]
    value = math.nan if last is None else last
    spent = f"after {row['queries']:.3g} N queries and {duration(row['seconds'])} of steps"
    status = "" if curve.status == "finished" else f" and {curve.status}"
    return (
        f"{curve.label} ended at {words(metric)} {number(value)}{status} {spent}"
        + "".join(f"; {m}" for m in more)
        + "."
    )


def broken_down(curves: Sequence[Curve]) -> str:
    ends = [f"{c.label} {c.status}" for c in curves if c.status in BROKEN]
    return f"{listed(ends)}." if ends else ""


def conclusion_of(curves: Sequence[Curve], verdicts: Sequence[Verdict], rivals: bool) -> str:
    """A section's, in words: verdicts counted, runs compared at equal queries and at equal seconds, and who broke."""
    parts = []
    if verdicts:
        counts = Counter(verdict.word for verdict in verdicts)
        several = f"Of {len(verdicts)} claims of the paper" if len(verdicts) > 1 else "Of the paper's claim here"
        parts.append(f"{several}: {', '.join(f'{count} {word}' for word, count in counts.items())}.")
    measured = [curve for curve in curves if curve.rows]
    if rivals and measured:
        metric = metric_of(measured)
        sides = [compared(measured, x, metric) for x in ("queries", "seconds")]
        parts += sides if len(measured) > 1 else [end_of(measured[0], metric)]
        parts.append(broken_down(measured) if len(measured) > 1 else "")
    return " ".join(filter(None, parts))


def caption_of(curves: Sequence[Curve], x: str, metric: str) -> str:
    """What a figure shows of a metric over x, in words."""
    known = [c for c in curves if c.series(x, metric)[0]]
    if metric == "entropy":
        ends = [(c.label, c.series(x, metric)[1]) for c in known]
        each = "; ".join(f"{label} {values[0]:.2f} to {values[-1]:.2f}" for label, values in ends[:6])
        return f"Entropy of the memory M in bits, at first and at the end: {each}. Lower means more concentrated."
    if metric in BESIDE:
        best = min if metric == "valid_loss" else max
        ends = [(c.last(metric) or 0.0, c.label) for c in known]
        value, label = best(ends)
        others = [f"{name} {value_of(metric, v)}" for v, name in ends if name != label]
        rest = f" ({'; '.join(others)})" if 0 < len(others) <= 4 else ""
        return f"Best at the end, {head_of(metric)}: {label} {value_of(metric, value)}{rest}."
    text = compared(known, x, metric) or " ".join(end_of(c, metric) for c in known[:1])
    marks = [c.status for c in known if c.status in BROKEN]
    shapes = {"diverged": "A cross ends a run that diverged.", "collapsed": "A triangle ends a run that collapsed."}
    return " ".join([text, *(shape for status, shape in shapes.items() if status in marks)])
