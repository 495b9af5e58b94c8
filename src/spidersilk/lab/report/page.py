"""docs/reproduction.md and its figures from results/ alone: `spidersilk page`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from spidersilk.lab.report import entropy_page, tuned_page, verdicts
from spidersilk.lab.report.evidence import (
    SECOND_NAMES,
    Chapter,
    Group,
    chapters,
    number,
    same_settings,
    second_text,
    seeds_of,
    table,
)
from spidersilk.lab.report.figures import Curve, panels, png
from spidersilk.lab.report.verdicts import LOSS, QUOTES, Half
from spidersilk.lab.run.runner import write_atomically

COMMAND = "spidersilk page results --to docs/reproduction.md"
LIMITS = {"figure1-left": 0.5, "figure1-right": 0.5, "figure2": 0.65, "figure3": 0.5, "figure3-1m": 0.5}
HIDDEN = 4.0  # a point this many times above the first loss is not drawn: one blown-up run would flatten the others
HEAD = f"""# The paper, reproduced

Made by `{COMMAND}` from the JSON files in [results/](../results) alone;
`tests/lab/test_results.py` makes it again and compares. The runs are those of `spidersilk reproduce all --scale paper` at
the paper's settings; each entry of `results/paper/paper_*.json` has its config, command, versions and machine.
**N** is the size of the training set, and a **query** one sample's gradient, k of its d coordinates counting k/d: the paper's unit,
not time. Losses are training losses.

**As printed** is Algorithm 1 (`SparseSpiderBoost`: recursive, unbiased rtop). **Stable** forms, which diverge far less
often (the tables say where one did), keep the paper's step size, batches, loop length and k, and differ in the
estimate: `SparseSVRG` compares with the anchor; "refresh" does not rescale and keeps what it has refreshed; "selected"
moves only the selected coordinates. `SparseSGD` takes a fresh gradient at the selected coordinates, with a longer loop
where the table says so. "Adaptive" is Algorithm 1 with `inner_steps="auto"`. "Figure 3" here is the paper's Figure 2
(b), and "Sparsity sweep" the figure of its appendix.

A verdict compares the queries that two methods need to the worse of their two lowest losses. Curves are thinned to
about 60 points.
"""
HALVES = """## SpiderBoost's final loss, in how many of its queries

A sparse method with the same lr, B, b, m and k = 10 % that does not diverge: how soon is it at the loss at which dense
SpiderBoost ends? As a share of all of SpiderBoost's queries, and of those after which SpiderBoost itself was first at
that loss.

"""


def write(results: Path, to: Path, figures: Path | None = None) -> Path:
    """The page at `to`, and a PNG for each figure that has runs in `figures`, which is `results` if nothing is said."""
    found = chapters(results)
    folder = results if figures is None else figures
    folder.mkdir(parents=True, exist_ok=True)
    for chapter in found:
        draw(chapter, folder)
    tuned_page.draw(results, folder)
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, text(results, found).encode())
    return to


def text(results: Path, found: list[Chapter] | None = None) -> str:
    """The page. It is a function of the files in `results`."""
    found = chapters(results) if found is None else found
    parts = [HEAD, summary(found), halves(found)]
    parts += [chapter_text(chapter, results) for chapter in found]
    parts += [tuned_page.text(results), missing(found)]
    return "\n".join(parts)


# The beginning.


def summary(found: list[Chapter]) -> str:
    rows = []
    for chapter in found:
        told = [(v.claim, v.word) for v in verdicts.of(chapter)] if chapter.experiment != "table1" else []
        told += (
            [(claim, word) for claim, word, _ in entropy_page.verdicts(chapter)]
            if chapter.experiment == "table1"
            else []
        )
        rows += [[chapter.title, claim, f"**{word}**", seeds_of(chapter.groups)] for claim, word in told]
    return "## The claims\n\n" + table(["where", "the paper", "here", "seeds"], rows)


def halves(found: list[Chapter]) -> str:
    """Dense SpiderBoost's final loss in half of its queries?"""
    rows = []
    for made in all_halves(found):
        dense = f"{made.dense.name}, {made.dense.state()}"
        if made.target is None:
            rows.append([made.task, dense, "", "", "", "", made.answer])
            continue
        name = "none gets there" if made.sparse is None else f"{made.sparse.label} ({made.sparse.name})"
        shares = [number(x, 2) for x in (made.ratio, made.strict)]
        rows.append([made.task, dense, number(made.target), name, *shares, f"{made.answer} (limit {made.limit:g})"])
    head = [
        "task",
        "SpiderBoost",
        "its final loss",
        "first there",
        "of all its queries",
        "of those it needed",
        "within",
    ]
    return HALVES + table(head, rows)


def all_halves(found: list[Chapter]) -> list[Half]:
    made = []
    for chapter in found:
        if chapter.key in LIMITS:
            dense = _furthest(chapter.find("spiderboost"), found)
            made.append(verdicts.half(chapter, dense, LIMITS[chapter.key]))
        elif chapter.key.startswith("sparsity-fc"):
            dense = next(g for g in chapter.groups if g.name.endswith("sparse-spiderboost-1"))
            told = verdicts.half(chapter, dense, 0.5)
            told.task = "FC on MNIST (from the sweep)"
            made.append(told)
    return made


def _furthest(dense: Group, found: list[Chapter]) -> Group:
    """A figure's SpiderBoost; where that was stopped early, the same run of Table 1 up to the figure's length."""
    budget = dense.config.budget
    for group in (g for chapter in found if chapter.experiment == "table1" for g in chapter.present):
        same = all(group.config.options[k] == dense.config.options.get(k) for k in ("model", "data"))
        if same and not dense.complete and same_settings(group, dense) and group.reach > dense.reach:
            cut = [replace(c, rows=[row for row in c.rows if row["queries"] <= budget * 1.001]) for c in group.curves]
            return Group(replace(group.config, budget=budget), cut)
    return dense


# A table or figure of the paper.


def chapter_text(chapter: Chapter, results: Path) -> str:
    parts = [f"## {chapter.title}\n"]
    if chapter.experiment == "table1":
        return "\n".join([*parts, entropy_page.text(chapter, results, picture(chapter))])
    quote = next(q for key, q in QUOTES.items() if chapter.key.startswith(key))
    parts.append(f"> {quote}\n")
    if not chapter.present:
        return "\n".join([*parts, "**Not run yet.**\n"])
    for verdict in verdicts.of(chapter):
        runs = ", ".join(f"`{r}`" for r in verdict.runs)
        parts.append(f"- *{verdict.claim}*: **{verdict.word}**: {verdict.why}. Runs: {runs}.")
    parts += _beside_sgd(chapter)
    tuned = [g for g in chapter.present if g.name.endswith("-tuned")]
    if tuned:
        parts.append(_with_tuned(chapter, tuned))
    if chapter.experiment == "figure2":
        parts.append("- With m = 2 a loop is an anchor and one small step, so SparseSVRG takes Algorithm 1's steps.")
    parts.append(f"\n{seeds_of(chapter.groups).capitalize()}. {curves_table(chapter)}")
    parts.append(f"![{chapter.title}: training loss over queries](../results/{picture(chapter)})\n")
    return "\n".join(parts)


def _beside_sgd(chapter: Chapter) -> list[str]:
    """The paper has no SGD in Figure 1; we do."""
    if chapter.experiment != "figure1" or not chapter.find("sgd").curves:
        return []
    sgd = chapter.find("sgd")
    forms = [g for g in verdicts.stable(chapter, chapter.find("spiderboost")) if g.curves and not g.diverged]
    best = sorted(forms, key=lambda g: g.lowest(LOSS) or math.inf)[:1]
    told = []
    for group in [*best, chapter.find("sparse-sgd")]:
        found = verdicts.ratio(group, sgd) if group.curves else None
        if found is not None:
            told.append(f"{group.label} needs {number(found[0], 2)} of its queries to loss {number(found[1])}")
    return [f"- Beside plain SGD (lr 0.1, b 100), which the paper leaves out here: {'; '.join(told)}."] if told else []


def _with_tuned(chapter: Chapter, tuned: list[Group]) -> str:
    """What became of the rival at a step size that suits it."""
    told = []
    for group in tuned:
        own = f"{group.label} ends at {number(group.end(LOSS))} ({group.state()}, `{group.name}`)"
        told.append(own)
    best = [g for g in chapter.present if not g.name.endswith("-tuned") and not g.diverged]
    lowest = min(best, key=lambda g: g.end(LOSS) or math.inf)
    return (
        f"- The paper's rivals are not tuned: {'; '.join(told)}. The best of the runs at the paper's step size, "
        f"{lowest.label}, ends at {number(lowest.end(LOSS))}."
    )


def curves_table(chapter: Chapter) -> str:
    counts, second = chapter.counts(), chapter.second
    named = SECOND_NAMES[second]
    rows = []
    for group in chapter.groups:
        config = group.config.completed()
        cells = (
            [_pair(group.at(c, LOSS), group.at(c, second), second) for c in counts]
            if group.curves
            else [""] * len(counts)
        )
        rows.append([group.label, f"{config.lr:g}", str(config.inner_steps), *cells, group.state()])
    head = ["", "lr", "m", *(f"{c:g} N" for c in counts), "how far"]
    return f"Training loss / {named} at queries:\n\n" + table(head, rows)


def _pair(loss: float | None, second: float | None, key: str) -> str:
    if loss is None:
        return "-"
    return number(loss) if second is None else f"{number(loss)} / {second_text(second, key)}"


# Figures, and what is not there.


def picture(chapter: Chapter) -> str:
    return f"paper/paper_{chapter.key.replace('-', '_')}.png"


def draw(chapter: Chapter, folder: Path) -> Path | None:
    curves = []
    for group in chapter.present:
        for curve in group.curves:
            limit = HIDDEN * curve.rows[0].get(LOSS, math.inf)
            rows = [row for row in curve.rows if row.get(LOSS, 0.0) <= limit]
            curves.append(Curve(group.label, rows, curve.status, curve.reason, curve.config, curve.summary))
    is_table = chapter.experiment == "table1"
    y, y_label = ("entropy", "entropy of M, bits") if is_table else (LOSS, "training loss")
    labels = list(dict.fromkeys(c.label for c in curves)) if len(curves) > len(chapter.present) else None
    words = {"queries": "gradient queries / N"}
    figure = panels(curves, words, y, y_label, chapter.title, not is_table, labels)
    if figure is None:
        return None
    path = folder / picture(chapter)
    png(figure, path)
    return path


def missing(found: list[Chapter]) -> str:
    """Runs that were stopped or never made."""
    lines = []
    for chapter in found:
        short = [f"`{g.name}` ({g.state()})" for g in chapter.groups if not g.complete]
        if len(short) == len(chapter.groups) and not chapter.present:
            lines.append(f"- {chapter.title}: all {len(short)} runs (not run yet)")
        elif short:
            lines.append(f"- {chapter.title}: {', '.join(short)}")
    told = "\n".join(lines) or "Nothing."
    return f"## What was cut\n\nRuns that are not there or not whole, for want of time:\n\n{told}\n"
