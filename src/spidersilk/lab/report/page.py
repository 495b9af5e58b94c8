"""docs/reproduction.md and its figures, from results/ alone: `spidersilk page`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from spidersilk.lab.report import entropy_page, evidence, tuned_page, verdicts
from spidersilk.lab.report.evidence import LOSS, SECOND, Chapter, Group, chapters, markdown_table, number, seeds_of
from spidersilk.lab.report.figures import QUERIES, panels, png
from spidersilk.lab.report.verdicts import LEVEL, Half
from spidersilk.lab.run.folder import write_atomically

COMMAND = "spidersilk page results --to docs/reproduction.md"
HIDDEN = 4.0  # a point this many times above the first loss is not drawn: one run that blew up would flatten the others
HEAD = f"""# The paper, reproduced

Made by `{COMMAND}` from the JSON files in [results/](../results) alone; `tests/lab/test_results.py` makes it again and
compares. The runs are those of `spidersilk reproduce all --scale paper` at the paper's settings. Each entry of
`results/paper/paper_*.json` has its config, command, versions and machine. **N** is the size of the training set. A
**query** is one sample's gradient; k of its d coordinates count k/d. It is the paper's unit, not time. Losses are
training losses.

**As printed** is Algorithm 1 (`SparseSpiderBoost`: recursive, unbiased rtop). **Stable** forms keep the paper's step
size, batches, loop length and k, and differ in the estimate: `SparseSVRG` compares with the anchor; "refresh" does not
rescale and keeps what it has refreshed; "selected" moves only the selected coordinates. `SparseSGD` takes a fresh
gradient at the selected coordinates, with the loop length in the table. "Adaptive" is Algorithm 1 with
`inner_steps="auto"`. "Figure 3" here is the paper's Figure 2 (b), and "Sparsity sweep" the figure of its appendix.

A verdict compares the queries that two methods need to the higher of their two lowest losses, and needs a factor of
{LEVEL:g} between them (`report/verdicts.py` has the rules). Curves are thinned to about 60 points.
"""
HALVES = """## SpiderBoost's final loss, in how many of its queries

How soon is a sparse method with the same lr, B, b, m and k = 10 %, if it does not diverge, at the loss at which dense
SpiderBoost ends? As a share of all of SpiderBoost's queries, and of those after which SpiderBoost itself was first at
that loss.

"""


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
    parts = [HEAD, _claims(every), _halves(every), *(_chapter(chapter, results) for chapter in every)]
    return "\n".join([*parts, tuned_page.text(results), _missing(every)])


# The beginning.


def _claims(every: list[Chapter]) -> str:
    rows = [
        [chapter.title, verdict.claim, f"**{verdict.word}**", seeds_of(chapter.groups)]
        for chapter in every for verdict in verdicts.of(chapter)
    ]  # fmt: skip
    return "## The claims\n\n" + markdown_table(["where", "the paper", "here", "seeds"], rows)


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
    return HALVES + markdown_table(head.split(", "), rows)


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


def _chapter(chapter: Chapter, results: Path) -> str:
    parts = [f"## {chapter.title}\n", f"> {chapter.part.quote}\n"]
    if not chapter.present:
        return "\n".join([*parts, "**Not run yet.**\n"])
    for verdict in verdicts.of(chapter):
        runs = ", ".join(f"`{r}`" for r in verdict.runs)
        parts.append(f"- *{verdict.claim}*: **{verdict.word}**: {verdict.why}. Runs: {runs}.")
    if chapter.experiment == "table1":
        return "\n".join([*parts, entropy_page.text(chapter, results, picture(chapter))])
    parts += _beside_sgd(chapter)
    if chapter.experiment == "figure2":
        parts.append("- With m = 2 a loop is an anchor and one small step, so SparseSVRG takes Algorithm 1's steps.")
    parts.append(f"\n{seeds_of(chapter.groups).capitalize()}. {_curves_table(chapter)}")
    parts.append(f"![{chapter.title}: training loss over queries](../results/{picture(chapter)})\n")
    return "\n".join(parts)


def _beside_sgd(chapter: Chapter) -> list[str]:
    """Figure 1 of the paper has no SGD; here it has."""
    sgd = chapter.find("sgd")
    if chapter.experiment != "figure1" or not sgd.curves:
        return []
    forms = [g for g in verdicts.stable(chapter) if g.curves and not g.diverged]
    best = sorted(forms, key=lambda g: g.lowest(LOSS) or math.inf)[:1]
    ratios = [(g, verdicts.ratio(g, sgd)) for g in [*best, chapter.find("sparse-sgd")] if g.curves]
    needs = [f"{g.label} needs {number(r[0], 2)} of its queries to loss {number(r[1])}" for g, r in ratios if r]
    text = f"- Beside plain SGD (lr 0.1, b 100), which the paper leaves out here: {'; '.join(needs)}."
    return [text] if needs else []


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


def _missing(every: list[Chapter]) -> str:
    lines = []
    for chapter in every:
        short = [f"`{g.name}` ({g.state()})" for g in chapter.groups if not g.complete]
        if not chapter.present:
            lines.append(f"- {chapter.title}: all {len(short)} runs (not run yet)")
        elif short:
            lines.append(f"- {chapter.title}: {', '.join(short)}")
    return "## What was cut\n\nRuns that are missing, or that stopped early:\n\n" + ("\n".join(lines) or "None.") + "\n"
