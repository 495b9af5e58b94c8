"""One self-contained HTML page for a set of runs: verdicts, curves, costs to a common target, configs, machine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spidersilk.lab.experiments.paper import TABLE_1
from spidersilk.lab.report import verdicts
from spidersilk.lab.report.entropy_rules import data_title, entropies, maximum, model_and_data
from spidersilk.lab.report.evidence import Chapter
from spidersilk.lab.report.figures import QUERIES, panels, png, svg
from spidersilk.lab.report.judging import NOT_RUN, Verdict
from spidersilk.lab.run.curve import Curve, common_target, metric_of, words
from spidersilk.lab.run.folder import write_atomically

Table = tuple[str, list[str], list[list[str]]]
"""Title, head and rows."""
ENTROPY_HEAD = ["model, data", "max", "before", "paper", "after", "paper"]
_COUNTERS = ("queries", "samples", "updates", "seconds", "train_loss", "gap", "v_norm", "entropy")


@dataclass
class Section:
    """Runs that belong in the same figures. `rivals`: whether their costs to a common target are compared. `about`:
    what the verdicts judge."""

    title: str
    curves: list[Curve]
    note: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    rivals: bool = True
    about: str = "the paper"

    def all_tables(self) -> list[Table]:
        made = [*self.tables, *([target_table(self)] if self.rivals and self.curves else []), _last_values(self.curves)]
        return [table for table in made if table[2]]


def section_of(chapter: Chapter) -> Section:
    """A table or figure of the paper: its curves, and the verdicts on claims whose runs are there."""
    curves = [curve for group in chapter.present for curve in group.curves]
    judged = [verdict for verdict in verdicts.of(chapter) if verdict.word != NOT_RUN]
    if chapter.experiment != "table1":
        return Section(chapter.part.title, curves, chapter.part.note, judged)
    entropy = ("Entropy of the memory, bits", ENTROPY_HEAD, entropy_rows(chapter))
    return Section(chapter.part.title, curves, chapter.part.note, judged, [entropy], rivals=False)


def entropy_rows(chapter: Chapter) -> list[list[str]]:
    """Cells of ENTROPY_HEAD for each run; nothing is printed for data that stands in."""
    rows = []
    for group in chapter.groups:
        model, data = model_and_data(group)
        measured = [f"{x:.2f}" for x in entropies(group)] if group.curves else ["-", "-"]
        printed = [f"{x:.2f}" for x in TABLE_1.get((model, data), ())] or ["", ""]
        bits = f"{maximum(group):.3f}"
        rows.append([f"{model}, {data_title(group)}", bits, measured[0], printed[0], measured[1], printed[1]])
    return rows


def sections_of(curves: list[Curve]) -> list[Section]:
    """Runs grouped by task and its options."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        options = ", ".join(f"{k} {v}" for k, v in curve.config["options"].items() if v is not None)
        name = curve.summary.get("data") or curve.config["task"]
        groups.setdefault(f"{curve.config['task']}: {name}" + (f" ({options})" if options else ""), []).append(curve)
    return [Section(title, group, verdicts=verdicts.rivals(group), about="compared") for title, group in groups.items()]


def target_table(section: Section) -> Table:
    """The cost of each run to the common target, with ratios to the first that reached it."""
    metric = metric_of(section.curves)
    target = common_target(section.curves, metric)
    costs = [curve.cost(metric, target) for curve in section.curves]
    base = next((c for c in costs if c is not None), (0.0, 0.0))
    rows = []
    for curve, cost in zip(section.curves, costs, strict=True):
        last = curve.last(metric)
        cells = [curve.label, curve.status, f"{math.nan if last is None else last:.4g}"]
        if cost is None:
            rows.append([*cells, "not reached", "", "", ""])
            continue
        ratios = [f"{value / first:.2f}" if first > 0 else "" for value, first in zip(cost, base, strict=True)]
        rows.append([*cells, f"{cost[0]:.2f}", ratios[0], f"{cost[1]:.1f}", ratios[1]])
    head = ["run", "status", f"last {words(metric)}", "queries / N", "ratio", "seconds", "ratio"]
    return f"Cost to {words(metric)} {target:.4g}", head, rows


def _last_values(curves: list[Curve]) -> Table:
    """What the task evaluates besides the loss, as it was last."""
    names = list(dict.fromkeys(k for c in curves for row in c.rows for k in row if k not in _COUNTERS))
    rows = [[c.label, *("" if (x := c.last(k)) is None else f"{x:.4g}" for k in names)] for c in curves if names]
    return "Last values", ["run", *map(words, names)], rows


def write(sections: list[Section], path: Path, title: str, command: str, left_out: list[str] | None = None) -> Path:
    """The page at `path`, and each figure as PNG beside it."""
    import jinja2  # imported here: runs do not need it

    loader = jinja2.PackageLoader("spidersilk.lab.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    values: dict[str, Any] = {"title": title, "command": command, "left_out": left_out or []}
    values["shown"] = [
        {"section": section, "figures": _figures(section, number, path.parent), "tables": section.all_tables()}
        for number, section in enumerate(sections, 1)
    ]
    values |= {key: _distinct(sections, key) for key in ("machine", "versions")}
    values["config_of"] = lambda curve: yaml.safe_dump(curve.config, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, environment.get_template("report.html").render(values).encode())
    return path


def _distinct(sections: list[Section], key: str) -> list[dict[str, str]]:
    """The different values of an entry of the runs' summaries."""
    texts = {json.dumps(c.summary.get(key, {})) for s in sections for c in s.curves if c.summary}
    return [json.loads(text) for text in sorted(texts)]


def _figures(section: Section, number: int, folder: Path) -> list[dict[str, str]]:
    metric = metric_of(section.curves)
    y, seconds = words(metric), {"seconds": "seconds of training"}
    kinds = [
        (QUERIES, metric, y, "by gradient queries", True),
        (seconds, metric, y, "by seconds of training", True),
        (QUERIES, "entropy", "entropy of M, bits", "entropy of the memory", False),
    ]
    figures = []
    for kind, (x, y_key, y_label, caption, log) in enumerate(kinds, 1):
        figure = panels(section.curves, x, y_key, y_label, caption, log)
        if figure is not None:
            name = f"figure-{number}-{kind}"
            figures.append({"svg": svg(figure, name), "caption": f"{y_label}, {caption}"})
            png(figure, folder / f"{name}.png")
    return figures
