"""A table or figure of the paper on the page: its runs in results/paper, what they show at equal queries, a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from spidersilk.lab.report.cells import head_of, listed, value_of
from spidersilk.lab.report.comparison import FEWER, MORE, compare
from spidersilk.lab.report.evidence import LOSS, SLACK, Chapter, Group, number
from spidersilk.lab.report.figures import QUERIES, panels, png
from spidersilk.lab.report.tuned import SECOND
from spidersilk.lab.run.curve import Curve

COUNTS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 50, 100, 150)
HIDDEN = 4.0  # a point this many times above the first loss is not drawn: one run that blew up would flatten the others


def reaches(chapter: Chapter, group: Group) -> bool:
    """Whether a seed went as far as was planned, or as the paper shows."""
    wanted = min(group.config.budget, chapter.part.length) * (1 - SLACK)
    return bool(group.curves) and (group.broken or any(c.rows[-1]["queries"] >= wanted for c in group.curves))


def state(chapter: Chapter, group: Group) -> str:
    """How far it got, in words."""
    if not group.curves:
        return "not run"
    if group.broken:
        return group.breakdown()
    ends = sorted({round(c.rows[-1]["queries"], 1) for c in group.curves}, reverse=True)
    near = [end for i, end in enumerate(ends) if i == 0 or end < ends[i - 1] * (1 - 2 * SLACK)]
    return f"to {listed([f'{end:g}' for end in near])} N"


def missing(chapters: Iterable[Chapter]) -> list[str]:
    """The runs of each part that were not made, or ended early."""
    lines = []
    for chapter in chapters:
        short = [g for g in chapter.groups if not reaches(chapter, g)]
        told = [f"`{g.name}` ({state(chapter, g)}{f' of {g.config.budget:g} N' if g.curves else ''})" for g in short]
        lines += [f"{chapter.part.title}: {', '.join(told)}"] if chapter.present and short else []
        lines += [] if chapter.present else [f"{chapter.part.title}: all {len(short)} runs"]
    return lines


# Values at equal queries.


def at(group: Group, count: float, key: str) -> list[float]:
    """The last values up to `count` queries over N, of the seeds that got there; none if one diverged before."""

    def value(curve: Curve) -> float | None:
        seen = [row[key] for row in curve.rows if key in row and row["queries"] <= count * (1 + SLACK)]
        return seen[-1] if seen else None

    there = [curve for curve in group.curves if curve.rows[-1]["queries"] >= count * (1 - SLACK)]
    early = [c for c in group.curves if c.status == "diverged" and c.rows[-1]["queries"] < count * (1 - SLACK)]
    values = [] if early else [value(curve) for curve in there]
    return sorted(v for v in values if v is not None) if None not in values else []


def told_at(group: Group, count: float, key: str, text: Callable[[float], str]) -> str:
    """The median; the lowest and the highest of two, or where a seed failed: a failure is no part of a median."""
    values = at(group, count, key)
    if len(values) > 2 and not group.broken:
        return text(statistics.median(values))
    return " to ".join(dict.fromkeys(text(v) for v in values[:1] + values[-1:]))


def counts(chapter: Chapter, most: int = 4) -> list[float]:
    """The last few query counts that at least two of its methods reached, up to what the paper shows."""
    every = [c for c in COUNTS if c <= chapter.part.length]
    return [c for c in every if sum(bool(at(g, c, LOSS)) for g in chapter.present) > 1][-most:]


def curves_table(chapter: Chapter) -> str:
    columns, second = counts(chapter), SECOND[chapter.groups[0].config.task]

    def cell(group: Group, count: float) -> str:
        loss = told_at(group, count, LOSS, number)
        other = told_at(group, count, second, partial(value_of, second))
        return " / ".join(filter(None, (loss, other))) or "-"

    rivals = [g for g in (chapter.dense, chapter.find("sgd")) if g.curves]
    rows = []
    for group in chapter.present:
        config = group.config.completed()
        cells = [cell(group, count) for count in columns]
        named = [group.label, f"{config.lr:g}", str(config.inner_steps), _many(group)]
        rows.append([*named, *cells, *(_beside(chapter, group, rival) for rival in rivals), state(chapter, group)])
    beside = [f"beside {rival.label}" for rival in rivals]
    head = ["", "lr", "m", "seeds", *(f"{c:g} N" for c in columns), *beside, "how far"]
    return f"Training loss / {head_of(second)} at queries:\n\n" + markdown_table(head, rows)


def _many(group: Group) -> str:
    seeds = len({c.config.get("seed", 0) for c in group.curves})
    return str(seeds) if seeds == len(group.curves) else f"{seeds} ({len(group.curves)} runs)"


def _beside(chapter: Chapter, group: Group, rival: Group) -> str:
    """The ratio of queries by the engine of verdicts, in bold where the difference is clear."""
    found = compare(group, rival, chapter.part.length) if group is not rival else []
    if not found:
        return ""
    best = found[-1]
    where = (
        "" if best.length >= min(chapter.part.length, group.config.budget) * (1 - SLACK) else f", {best.length:.3g} N"
    )
    text = f"{best.ratio()}{where}"
    return f"**{text}**" if best.side in (FEWER, MORE) else text


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * (lines[0].count(" | ") + 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# The picture.


def picture(chapter: Chapter) -> str:
    return f"paper/paper_{chapter.part.key.replace('-', '_')}.png"


def draw(chapter: Chapter, folder: Path) -> None:
    curves = []
    for group, curve in ((g, c) for g in chapter.present for c in g.curves):
        limit = HIDDEN * curve.rows[0].get(LOSS, math.inf)
        rows = [row for row in curve.rows if row.get(LOSS, 0.0) <= limit]
        curves.append(replace(curve, label=group.label, rows=rows))
    is_table = chapter.experiment == "table1"
    y, y_label = ("entropy", "entropy of M, bits") if is_table else (LOSS, "training loss")
    labels = list(dict.fromkeys(c.label for c in curves)) if len(curves) > len(chapter.present) else None
    figure = panels(curves, QUERIES, y, y_label, chapter.part.title, not is_table, labels)
    if figure is not None:
        png(figure, folder / picture(chapter))
