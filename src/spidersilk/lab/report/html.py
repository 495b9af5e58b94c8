"""One self-contained HTML page for a set of runs: curves, a table of costs to a common target, configs, machine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from spidersilk.lab.report.figures import Curve, plot, png, svg
from spidersilk.lab.run.runner import write_atomically


@dataclass
class Claim:
    """What the paper says, what was measured here, and a plain verdict."""

    paper: str
    ours: str
    verdict: str


@dataclass
class Section:
    """Runs that belong in the same figures."""

    title: str
    curves: list[Curve]
    note: str = ""
    claims: list[Claim] = field(default_factory=list)
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    metric: str = "train_loss"
    rivals: bool = True  # whether their costs to a common target can be compared


def load_run(folder: Path) -> Curve:
    """What a run's folder holds, finished or not."""
    config = folder / "config.yaml"
    if not config.is_file():
        raise ValueError(f"{folder}: not a run (it has no config.yaml)")
    settings = yaml.safe_load(config.read_text())
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").is_file() else []
    summary = json.loads((folder / "summary.json").read_text()) if (folder / "summary.json").is_file() else {}
    label = settings.get("label") or settings["optimizer"]
    if settings.get("seed"):
        label += f", seed {settings['seed']}"
    return Curve(
        label,
        [json.loads(line) for line in lines],
        summary.get("status", "unfinished"),
        summary.get("reason", ""),
        settings,
        summary,
    )


def sections_of(curves: list[Curve]) -> list[Section]:
    """Runs grouped by task and its options."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        options = ", ".join(f"{k} {v}" for k, v in curve.config["options"].items() if v is not None)
        name = curve.summary.get("data") or curve.config["task"]
        groups.setdefault(f"{curve.config['task']}: {name}" + (f" ({options})" if options else ""), []).append(curve)
    return [Section(title, group, metric=metric_of(group)) for title, group in groups.items()]


def metric_of(curves: list[Curve]) -> str:
    return "gap" if any("gap" in row for curve in curves for row in curve.rows) else "train_loss"


def cost_to_target(curve: Curve, metric: str, target: float) -> tuple[float, float] | None:
    """Queries over N and seconds when the metric first was at most the target; None if never."""
    for row in curve.rows:
        if row.get(metric, math.inf) <= target:
            return row["queries"], row["seconds"]
    return None


def common_target(curves: list[Curve], metric: str) -> float:
    """The best value that every run which did not diverge reached: the worst of their bests."""
    bests = [
        min((row[metric] for row in c.rows if metric in row), default=math.inf)
        for c in curves
        if c.status != "diverged"
    ]
    finite = [b for b in bests if math.isfinite(b)]
    return max(finite) if finite else math.inf


def target_table(section: Section) -> tuple[str, list[str], list[list[str]]]:
    """Cost of each run to the common target, with ratios to the first that reached it."""
    metric = section.metric
    target = common_target(section.curves, metric)
    costs = [cost_to_target(curve, metric, target) for curve in section.curves]
    base = next((c for c in costs if c is not None), None)
    rows = []
    for curve, cost in zip(section.curves, costs, strict=True):
        last = next((row[metric] for row in reversed(curve.rows) if metric in row), math.nan)
        cells = [curve.label, curve.status, f"{last:.4g}"]
        if cost is None or base is None:
            cells += ["not reached", "", "", ""]
        else:
            cells += [f"{cost[0]:.2f}", ratio(cost[0], base[0]), f"{cost[1]:.1f}", ratio(cost[1], base[1])]
        rows.append(cells)
    head = ["run", "status", f"last {words(metric)}", "queries / N", "ratio", "seconds", "ratio"]
    return f"Cost to {words(metric)} {target:.4g}", head, rows


def ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base > 0 else ""


def words(metric: str) -> str:
    return {"gap": "f - f*", "train_loss": "training loss"}.get(metric, metric.replace("_", " "))


def write(sections: list[Section], path: Path, title: str, command: str, left_out: list[str] | None = None) -> Path:
    """The page at `path`, and each figure as PNG beside it."""
    import jinja2  # here, as what is drawn with: runs can be done without it

    path.parent.mkdir(parents=True, exist_ok=True)
    shown = []
    for number, section in enumerate(sections):
        y = words(section.metric)
        kinds = [
            ("queries", section.metric, "gradient queries / N", y, "by gradient queries", True),
            ("seconds", section.metric, "seconds of training", y, "by seconds of training", True),
            ("queries", "entropy", "gradient queries / N", "entropy of M, bits", "entropy of the memory", False),
        ]
        figures = []
        for kind, (x, metric, x_label, y_label, caption, log) in enumerate(kinds):
            figure = plot(section.curves, x, metric, x_label, y_label, caption, log)
            if figure is not None:
                name = f"figure-{number + 1}-{kind + 1}"
                figures.append({"svg": svg(figure, name), "caption": f"{y_label}, {caption}"})
                png(figure, path.parent / f"{name}.png")
        tables = [*section.tables, target_table(section)] if section.curves and section.rivals else section.tables
        shown.append({"section": section, "figures": figures, "tables": tables})
    machines = {json.dumps(c.summary.get("machine", {})) for s in sections for c in s.curves if c.summary}
    versions = {json.dumps(c.summary.get("versions", {})) for s in sections for c in s.curves if c.summary}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spidersilk.lab.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        title=title,
        command=command,
        shown=shown,
        left_out=left_out or [],
        machines=[json.loads(m) for m in sorted(machines)],
        versions=[json.loads(v) for v in sorted(versions)],
        config_of=lambda curve: yaml.safe_dump(curve.config, sort_keys=False),
    )
    write_atomically(path, page.encode())
    return path
