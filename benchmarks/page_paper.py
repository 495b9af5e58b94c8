"""A table or figure of the paper on the page: its runs in results/paper, what they show at equal queries, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from spidersilk.lab.report.comparison import FEWER, MORE, SEEDS, compare
from spidersilk.lab.report.evidence import LOSS, SLACK, Chapter, Group, number
from spidersilk.lab.report.figures import QUERIES, panels, png
from spidersilk.lab.report.tuned import SECOND, SECOND_NAMES, second_text
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
    return f"to {', '.join(f'{end:g}' for end in near)} N"


def missing(chapters: Iterable[Chapter]) -> list[str]:
    """The runs of each part that were not made, or ended early."""
    lines = []
    for chapter in chapters:
        short = [g for g in chapter.groups if not reaches(chapter, g)]
        told = [f"`{g.name}` ({state(chapter, g)} of {g.config.budget:g} N)" for g in short]
        lines += [f"{chapter.part.title}: {', '.join(told)}"] if chapter.present and short else []
        lines += [] if chapter.present else [f"{chapter.part.title}: all {len(short)} runs"]
    return lines


# Values at equal queries.


def at(group: Group, count: float, key: str) -> float | None:
    """The last value up to `count` queries over N, the median over the seeds that got there; None if one diverged."""

    def value(curve: Curve) -> float | None:
        seen = [row[key] for row in curve.rows if key in row and row["queries"] <= count * (1 + SLACK)]
        return seen[-1] if seen else None

    there = [curve for curve in group.curves if curve.rows[-1]["queries"] >= count * (1 - SLACK)]
    early = [c for c in group.curves if c.status == "diverged" and c.rows[-1]["queries"] < count * (1 - SLACK)]
    return None if early else replace(group, curves=there).median(value)


def counts(chapter: Chapter, most: int = 4) -> list[float]:
    """The last few query counts that at least two of its methods reached, up to what the paper shows."""
    every = [c for c in COUNTS if c <= chapter.part.length]
    return [c for c in every if sum(at(g, c, LOSS) is not None for g in chapter.present) > 1][-most:]


def curves_table(chapter: Chapter) -> str:
    columns, second = counts(chapter), SECOND[chapter.groups[0].config.task]

    def cell(group: Group, count: float) -> str:
        loss, other = at(group, count, LOSS), at(group, count, second)
        if loss is None:
            return "-" if group.curves else ""
        return number(loss) if other is None else f"{number(loss)} / {second_text(other, second)}"

    rivals = [g for g in (chapter.dense, chapter.find("sgd")) if g.curves]
    rows = []
    for group in chapter.present:
        config = group.config.completed()
        cells = [cell(group, count) for count in columns]
        named = [group.label, f"{config.lr:g}", str(config.inner_steps), str(len(group.curves))]
        rows.append([*named, *cells, *(_beside(chapter, group, rival) for rival in rivals), state(chapter, group)])
    beside = [f"beside {rival.label}" for rival in rivals]
    head = ["", "lr", "m", "seeds", *(f"{c:g} N" for c in columns), *beside, "how far"]
    return f"Training loss / {SECOND_NAMES[second]} at queries:\n\n" + markdown_table(head, rows)


def _beside(chapter: Chapter, group: Group, rival: Group) -> str:
    """The ratio of queries by the engine of verdicts, in bold where the difference is clear."""
    found = compare(group, rival, chapter.part.length) if group is not rival else []
    if not found:
        return ""
    best = found[-1] if len(found[-1].ratios) >= SEEDS else found[0]
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
