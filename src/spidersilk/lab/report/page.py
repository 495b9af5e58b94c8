"""docs/reproduction.md and its figures, from results/ alone: `spidersilk page`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from spidersilk.lab.report import entropy_page, evidence, tuned_page, verdicts
from spidersilk.lab.report.evidence import LOSS, SECOND, Chapter, Group, chapters, markdown_table, number, seeds_of
from spidersilk.lab.report.figures import QUERIES, panels, png
from spidersilk.lab.report.render import render
from spidersilk.lab.report.verdicts import LEVEL, Half
from spidersilk.lab.run.folder import write_atomically

COMMAND = "spidersilk page results --to docs/reproduction.md"
HIDDEN = 4.0  # a point this many times above the first loss is not drawn: one run that blew up would flatten the others


def write(results: Path, to: Path, figures: Path | None = None) -> Path:
    """The page at `to`, and a PNG for each figure that has runs in `figures`, by default `results`."""
    every = chapters(results)
    folder = results if figures is None else figures
    for chapter in every:
        draw(chapter, folder)
    tuned_page.draw(results, folder)
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, text(results, every).encode())
    return to


def text(results: Path, every: list[Chapter] | None = None) -> str:
    """The page: a function of the files in `results`."""
    every = chapters(results) if every is None else every
    table1 = next(chapter for chapter in every if chapter.experiment == "table1")
    return render(
        "reproduction.md",
        command=COMMAND,
        level=f"{LEVEL:g}",
        claims=_claims(every),
        halves=_halves(every),
        chapters=every,
        verdicts_of=verdicts.of,
        entropy=entropy_page.load(table1, results),
        seeds_of=seeds_of,
        remarks=_remarks,
        curves_table=_curves_table,
        picture=picture,
        tuned=tuned_page.text(results),
        missing=_missing(every),
    )


# The beginning.


def _claims(every: list[Chapter]) -> str:
    judged = [(chapter, verdict) for chapter in every for verdict in verdicts.of(chapter)]
    rows = [[c.title, v.claim, f"**{v.word}**", seeds_of(c.groups)] for c, v in judged]
    return markdown_table(["where", "the paper", "here", "seeds"], rows)


def _halves(every: list[Chapter]) -> str:
    rows = []
    for half in all_halves(every):
        dense = f"{half.dense.name}, {half.dense.state()}"
        if half.target is None:
            rows.append([half.task, dense, "", "", "", "", half.answer])
            continue
        name = "none gets there" if half.sparse is None else f"{half.sparse.label} ({half.sparse.name})"
        shares = [number(x, 2) for x in (half.ratio, half.strict)]
        rows.append([half.task, dense, number(half.target), name, *shares, f"{half.answer} (limit {half.limit:g})"])
    head = "task, SpiderBoost, its final loss, first there, of all its queries, of those it needed, within"
    return markdown_table(head.split(", "), rows)


def all_halves(every: list[Chapter]) -> list[Half]:
    figures = [chapter for chapter in every if chapter.experiment != "table1"]
    return [verdicts.half(chapter, _furthest(chapter.dense, every)) for chapter in figures]


def _furthest(dense: Group, every: list[Chapter]) -> Group:
    """A figure's SpiderBoost; if that was stopped early, the same run of Table 1 up to the figure's length."""
    budget = dense.config.budget
    for group in (g for chapter in every if chapter.experiment == "table1" for g in chapter.present):
        same = all(group.config.options[k] == dense.config.options.get(k) for k in ("model", "data"))
        if same and not dense.complete and evidence.same_settings(group, dense) and group.reach > dense.reach:
            cut = [replace(c, rows=[row for row in c.rows if row["queries"] <= budget * 1.001]) for c in group.curves]
            return Group(replace(group.config, budget=budget), cut)
    return dense


# A table or figure of the paper.


def _remarks(chapter: Chapter) -> list[str]:
    """Figure 2: what m = 2 means. Figure 1: queries beside SGD, which the paper has not there."""
    if chapter.experiment == "figure2":
        return ["With m = 2 a loop is an anchor and one small step, so SparseSVRG takes Algorithm 1's steps."]
    sgd = chapter.find("sgd")
    if chapter.experiment != "figure1" or not sgd.curves:
        return []
    forms = [g for g in verdicts.stable(chapter) if g.curves and not g.diverged]
    best = sorted(forms, key=lambda g: g.lowest(LOSS) or math.inf)[:1]
    ratios = [(g, verdicts.ratio(g, sgd)) for g in [*best, chapter.find("sparse-sgd")] if g.curves]
    needs = [f"{g.label} needs {number(r[0], 2)} of its queries to loss {number(r[1])}" for g, r in ratios if r]
    config = sgd.config.completed()
    who = f"plain SGD (lr {config.lr:g}, b {config.batch_size})"
    return [f"Beside {who}, which the paper leaves out here: {'; '.join(needs)}."] if needs else []


def _curves_table(chapter: Chapter) -> str:
    counts, second = chapter.counts(), SECOND[chapter.groups[0].config.task]

    def cell(group: Group, count: float) -> str:
        loss, other = group.at(count, LOSS), group.at(count, second)
        if loss is None:
            return "-" if group.curves else ""
        return number(loss) if other is None else f"{number(loss)} / {evidence.second_text(other, second)}"

    rows = []
    for group in chapter.groups:
        config = group.config.completed()
        cells = [cell(group, count) for count in counts]
        rows.append([group.label, f"{config.lr:g}", str(config.inner_steps), *cells, group.state()])
    head = ["", "lr", "m", *(f"{c:g} N" for c in counts), "how far"]
    return f"Training loss / {evidence.SECOND_NAMES[second]} at queries:\n\n" + markdown_table(head, rows)


# Figures, and what is missing.


def picture(chapter: Chapter) -> str:
    return f"paper/paper_{chapter.key.replace('-', '_')}.png"


def draw(chapter: Chapter, folder: Path) -> None:
    curves = []
    for group, curve in ((g, c) for g in chapter.present for c in g.curves):
        limit = HIDDEN * curve.rows[0].get(LOSS, math.inf)
        rows = [row for row in curve.rows if row.get(LOSS, 0.0) <= limit]
        curves.append(replace(curve, label=group.label, rows=rows))
    is_table = chapter.experiment == "table1"
    y, y_label = ("entropy", "entropy of M, bits") if is_table else (LOSS, "training loss")
    labels = list(dict.fromkeys(c.label for c in curves)) if len(curves) > len(chapter.present) else None
    figure = panels(curves, QUERIES, y, y_label, chapter.title, not is_table, labels)
    if figure is not None:
        png(figure, folder / picture(chapter))


def _missing(every: list[Chapter]) -> list[str]:
    lines = []
    for chapter in every:
        short = [f"`{g.name}` ({g.state()})" for g in chapter.groups if not g.complete]
        runs = ", ".join(short) if chapter.present else f"all {len(short)} runs (not run yet)"
        lines += [f"{chapter.title}: {runs}"] if short else []
    return lines
