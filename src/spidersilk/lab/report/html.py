"""One self-contained HTML page for a set of runs: verdicts, curves, costs to a common target, configs, machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.experiments.paper import TABLE_1
from spidersilk.lab.report import verdicts
from spidersilk.lab.report.cells import BESIDE, are_numbers, duration, head_of, scale_of, value_of
from spidersilk.lab.report.conclusions import caption_of, conclusion_of
from spidersilk.lab.report.entropy_rules import data_title, entropies, maximum, model_and_data
from spidersilk.lab.report.evidence import Chapter, number
from spidersilk.lab.report.figures import QUERIES, panels, png, svg
from spidersilk.lab.report.judging import NOT_RUN, Verdict
from spidersilk.lab.run.curve import Curve, common_target, metric_of, words

Table = tuple[str, list[str], list[list[str]]]
"""Title, head and rows."""
ENTROPY_HEAD = ["model, data", "max", "before", "paper", "after", "paper"]
AXES = QUERIES | {"updates": "updates", "seconds": "seconds of steps"}
_COUNTERS = ("queries", "samples", "updates", "seconds", "train_loss", "gap", "v_norm", "entropy")


@dataclass
class Section:
    """Runs that belong in the same figures. `rivals`: whether their costs to a common target are compared. `about`:
    what the verdicts judge. `x`: what curves are over, besides seconds: queries over N, or updates."""

    title: str
    curves: list[Curve]
    note: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    rivals: bool = True
    about: str = "the paper"
    x: str = "queries"

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
    base = next((i for i, cost in enumerate(costs) if cost is not None), None)
    name, whole = ("", (0.0, 0.0)) if base is None else (section.curves[base].label, costs[base] or (0.0, 0.0))
    rows = []
    for curve, cost in zip(section.curves, costs, strict=True):
        last = curve.last(metric)
        cells = [curve.label, curve.status, number(last, 4)]
        if cost is None:
            rows.append([*cells, "not reached", "", "", ""])
            continue
        ratios = [f"{value / first:.2f}" if first > 0 else "" for value, first in zip(cost, whole, strict=True)]
        rows.append([*cells, f"{cost[0]:.2f}", ratios[0], duration(cost[1]), ratios[1]])
    of = [f"{what} / {name}'s" if name else f"{what}, ratio" for what in ("queries", "time")]
    head = ["run", "status", f"{words(metric)} at the end", "queries / N", of[0], "time of steps", of[1]]
    return f"Cost to {words(metric)} {number(target, 4)}, which all that did not break down reached", head, rows


def _last_values(curves: list[Curve]) -> Table:
    """The loss, and what the task evaluates besides, as they were last."""
    names = list(dict.fromkeys(k for c in curves for row in c.rows for k in row if k not in _COUNTERS))
    loss = [metric_of(curves)] if any(c.last(metric_of(curves)) is not None for c in curves) else []
    shown = [*loss, *names]
    rows = [[c.label, *(value_of(k, c.last(k)) for k in shown)] for c in curves if names]
    return "At the end of each run", ["run", *map(head_of, shown)], rows


def write(
    sections: list[Section], path: Path, title: str, command: str, left_out: list[str] | None = None,
    conclusion: list[str] | None = None,
) -> Path:  # fmt: skip
    """The page at `path`, and each figure as PNG beside it. The `conclusion` comes first; without one it is made from
    the sections."""
    import jinja2  # imported here: runs do not need it

    loader = jinja2.PackageLoader("spidersilk.lab.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = unbroken
    values: dict[str, Any] = {"title": title, "command": command, "left_out": left_out or []}
    values["conclusion"] = conclusion or conclusions(sections)
    values["shown"] = [
        {
            "section": section,
            "figures": _figures(section, number, path.parent),
            "tables": [(name, head, rows, number_columns(head, rows)) for name, head, rows in section.all_tables()],
        }
        for number, section in enumerate(sections, 1)
    ]
    values |= {key: _distinct(sections, key) for key in ("machine", "versions")}
    values["config_of"] = lambda curve: yaml.safe_dump(curve.config, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, environment.get_template("report.html").render(values).encode())
    return path


def unbroken(text: str) -> str:
    """The text with numbers and formulas that no line ends in."""
    return re.sub(r"(?<=\de)-(?=\d)", "\u2011", text).replace("f - f*", "f\u00a0-\u00a0f*")


def conclusions(sections: list[Section]) -> list[str]:
    """What each section showed, in words."""
    made = [(s.title, conclusion_of(s.curves, s.verdicts, s.rivals)) for s in sections]
    return [text if len(sections) == 1 else f"{title}: {text}" for title, text in made if text]


def number_columns(head: list[str], rows: list[list[str]]) -> list[bool]:
    """Which columns hold numbers alone, and stand to the right; the first names the row."""
    return [i > 0 and are_numbers([row[i] for row in rows]) for i in range(len(head))]


def _distinct(sections: list[Section], key: str) -> list[dict[str, str]]:
    """The different values of an entry of the runs' summaries."""
    texts = {json.dumps(c.summary.get(key, {})) for s in sections for c in s.curves if c.summary}
    return [json.loads(text) for text in sorted(texts)]


def _figures(section: Section, number: int, folder: Path) -> list[dict[str, str]]:
    """The loss over queries and over seconds, what stands beside it, and the memory's entropy: with what each shows."""
    curves, metric = section.curves, metric_of(section.curves)
    by = "by updates" if section.x == "updates" else "by gradient queries"
    kinds = [(section.x, metric, by, True), ("seconds", metric, "by seconds of steps", True)]
    kinds += [(section.x, key, by, False) for key in BESIDE]
    kinds.append((section.x, "entropy", "entropy of the memory", False))
    figures = []
    for kind, (x, key, title, log) in enumerate(kinds, 1):
        scaled = _scaled(curves, key)
        label = "entropy of M, bits" if key == "entropy" else head_of(key)
        figure = panels(scaled, {x: AXES[x]}, key, label, title, log)
        if figure is not None:
            name = f"figure-{number}-{kind}"
            said = caption_of(curves, x, key)
            figures.append({"svg": svg(figure, name, f"{label}, {title}. {said}"), "caption": said})
            png(figure, folder / f"{name}.png")
    return figures


def _scaled(curves: list[Curve], key: str) -> list[Curve]:
    """The curves with the metric in the unit in which it is shown."""
    factor = scale_of(key)
    if factor == 1:
        return curves
    return [replace(c, rows=[{**row, key: factor * row[key]} for row in c.rows if key in row]) for c in curves]
