"""A table or figure of the paper on the page: its runs in results/paper, what they show at equal queries, a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from spidersilk.lab.experiments.paper import experiments
from spidersilk.lab.experiments.plan import path_of
from spidersilk.lab.report import verdicts
from spidersilk.lab.report.evidence import LOSS, SLACK, Chapter, Group, make_chapter, number
from spidersilk.lab.report.figures import QUERIES, panels, png
from spidersilk.lab.report.tuned import SECOND, SECOND_NAMES, second_text
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import Curve

COUNTS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 50, 100, 150)
HIDDEN = 4.0  # a point this many times above the first loss is not drawn: one run that blew up would flatten the others
QUOTES = {
    "table1": "For each model, the entropy at the beginning of training is almost maximal. ... After 150 epochs, the "
    "entropy of M_t for the convolutional model drops to approximately 3, which suggests a substantial amount of "
    "gradient structure. Note that for the datasets that we tested, the gradient structure depends primarily on the "
    "model and not the dataset. In particular, for Resnet-18, the entropy appears to vary minimally after 150 epochs. "
    "(Section 4.1)",
    "figure1-left": "The results of training Resnet-18 on CIFAR-10 suggests that our sparsity algorithm works well on "
    "large neural networks, and non-trivial datasets. (Section 4.1)",
    "figure1-right": "Our results of fitting the convolutional neural network to MNIST show that sparsity provides a "
    "significant advantage compared to using SpiderBoost alone. (Section 4.1)",
    "figure2": "SpiderBoost is slightly worse than SGD, and sparsity provides a noticeable improvement over SGD. "
    "(Section 4.2)",
    "figure3": "We see SpiderBoost is slightly worse than SGD, and sparsity provides a slight improvement over SGD, "
    "especially in the first few epochs. (Section 4.3)",
    "sparsity": "SpiderBoost with various values of sparsity. (Appendix B, a figure without a sentence of its own)",
}


def chapters(results: Path) -> list[Chapter]:
    """Every part of every experiment at the paper's scale, with its runs in results/paper."""
    made, guesses = [], guess_losses(results)
    for experiment, parts in experiments("paper").items():
        packed = collect.load(path_of(results / "paper", experiment))
        curves = {name: collect.unpack(_with_guess(run, guesses)) for name, run in packed.items()}
        made += [make_chapter(experiment, part, curves) for part in parts]
    return made


def guess_losses(results: Path) -> dict[str, float]:
    """The loss of guessing by class frequency, by the name of the data."""
    path = results / "benchmarks" / "entropy.json"
    return json.loads(path.read_text())["figures"]["guess"] if path.is_file() else {}


def _with_guess(run: collect.Packed, guesses: dict[str, float]) -> collect.Packed:
    """A run with the loss of guessing in its summary, where its file, as an older one, has none."""
    return run | {"summary": {"guess_loss": guesses.get(run["summary"].get("data"))} | run["summary"]}


def quote(chapter: Chapter) -> str:
    return next(text for key, text in QUOTES.items() if chapter.part.key.startswith(key))


def seeds_of(chapter: Chapter) -> str:
    many = {tuple(sorted(c.config.get("seed", 0) for c in g.curves)) for g in chapter.present}
    if not many:
        return "none"
    if many == {(0,)}:
        return "one seed (0)"
    return "seeds " + "; ".join(", ".join(map(str, s)) for s in sorted(many))


def remarks(chapter: Chapter) -> list[str]:
    """Figure 2: what m = 2 means. Figure 1: queries beside SGD, which the paper has not there."""
    if chapter.experiment == "figure2":
        return ["With m = 2 a loop is an anchor and one small step, so SparseSVRG takes Algorithm 1's steps."]
    sgd = chapter.find("sgd")
    if chapter.experiment != "figure1" or not sgd.curves:
        return []
    forms = [g for g in verdicts.stable(chapter) if g.curves and not g.broken]
    best = sorted(forms, key=lambda g: g.lowest(LOSS) or math.inf)[:1]
    ratios = [(g, verdicts.ratio(g, sgd)) for g in [*best, chapter.find("sparse-sgd")] if g.curves]
    needs = [f"{g.label} needs {number(r[0], 2)} of its queries to loss {number(r[1])}" for g, r in ratios if r]
    config = sgd.config.completed()
    who = f"plain SGD (lr {config.lr:g}, b {config.batch_size})"
    return [f"Beside {who}, which the paper leaves out here: {'; '.join(needs)}."] if needs else []


def complete(group: Group) -> bool:
    return bool(group.curves) and (group.broken or group.reached(group.config.budget))


def state(group: Group) -> str:
    """How far it got, in words."""
    if not group.curves:
        return "not run yet"
    if group.broken:
        return group.breakdown()
    return f"to {group.reach:.3g} N" + ("" if complete(group) else f" of {group.config.budget:g} N")


# Values at equal queries.


def at(group: Group, count: float, key: str) -> float | None:
    """The median over seeds of the last value up to `count` queries over N; None if a seed did not get there."""

    def value(curve: Curve) -> float | None:
        seen = [row[key] for row in curve.rows if key in row and row["queries"] <= count * (1 + SLACK)]
        return seen[-1] if seen and group.reached(count) else None

    return group.median(value)


def counts(chapter: Chapter, most: int = 4) -> list[float]:
    """The last few query counts that at least two of its runs reached."""
    return [c for c in COUNTS if sum(not g.broken and g.reached(c) for g in chapter.present) > 1][-most:]


def curves_table(chapter: Chapter) -> str:
    columns, second = counts(chapter), SECOND[chapter.groups[0].config.task]

    def cell(group: Group, count: float) -> str:
        loss, other = at(group, count, LOSS), at(group, count, second)
        if loss is None:
            return "-" if group.curves else ""
        return number(loss) if other is None else f"{number(loss)} / {second_text(other, second)}"

    rows = []
    for group in chapter.groups:
        config = group.config.completed()
        cells = [cell(group, count) for count in columns]
        rows.append([group.label, f"{config.lr:g}", str(config.inner_steps), *cells, state(group)])
    head = ["", "lr", "m", *(f"{c:g} N" for c in columns), "how far"]
    return f"Training loss / {SECOND_NAMES[second]} at queries:\n\n" + markdown_table(head, rows)


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
