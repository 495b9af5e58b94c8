"""Experiments whole or in pieces: chosen by name, stopped by the clock, collected into small files, and reported."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from spidersilk.lab.experiments import paper as reproduce
from spidersilk.lab.experiments.paper import Part
from spidersilk.lab.report import collect
from spidersilk.lab.report import html as report
from spidersilk.lab.run import batch
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.tasks import find, nearest

Experiments = dict[str, list[Part]]


def choose(
    known: Experiments,
    what: str,
    only: str = "",
    budget: float | None = None,
    seeds: int = 1,
    settings: list[str] | None = None,
) -> Experiments:
    """The experiments named in `what`, with the runs that `only` names, in its order.

    Each run's budget is at most `budget`; with several seeds a run comes once for each, and its name says which.
    """
    names = [name.strip() for name in what.split(",")]
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"there is no experiment {name!r}{nearest(name, [*known, 'all'])}")
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()] or ["*"]
    chosen: Experiments = {}
    found: set[str] = set()
    for name, parts in known.items():
        if name not in names and "all" not in names:
            continue
        for part in parts:
            wanted: dict[str, RunConfig] = {}
            for pattern in patterns:
                hits = [c for c in part.configs if fnmatch(c.name, pattern)]
                found |= {pattern} if hits else set()
                wanted |= {c.name: c for c in hits if c.name not in wanted}
            if wanted:
                configs = [apply_settings(c, settings or []) for c in wanted.values()]
                configs = [c if budget is None else replace(c, budget=min(budget, c.budget)) for c in configs]
                configs = [_seeded(c, seed) for seed in range(seeds) for c in configs]
                chosen.setdefault(name, []).append(replace(part, configs=configs))
    missed = [p for p in patterns if p not in found]
    if missed:
        every = [c.name for parts in known.values() for part in parts for c in part.configs]
        raise ValueError(f"--only {missed[0]!r} names no run{nearest(missed[0], every)}")
    return chosen


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return config if seed == 0 else replace(config, seed=config.seed + seed, name=f"{config.name}-seed{seed}")


def in_order(experiments: Experiments, only: str = "") -> list[RunConfig]:
    """All runs, experiment by experiment; but what `only` names first comes first, whatever it is part of."""
    configs = [c for parts in experiments.values() for part in parts for c in part.configs]
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()] or ["*"]

    def place(config: RunConfig) -> tuple[int, int]:
        name = config.name.removesuffix(f"-seed{config.seed}")
        return config.seed, next((i for i, p in enumerate(patterns) if fnmatch(name, p)), len(patterns))

    return sorted(configs, key=place)


def path_of(folder: Path, experiment: str) -> Path:
    return folder / f"paper_{experiment}.json"


def table(experiments: Experiments, collected: Path | None) -> Table:
    """What would be run, and what is there already."""
    shown = Table("experiment", "run", "budget", "seed", "collected so far")
    for name, parts in experiments.items():
        known = collect.load(path_of(collected, name)) if collected is not None else {}
        for config in (c for part in parts for c in part.configs):
            held = known.get(config.name)
            told = "" if held is None else f"{held['status']} at {held['curve']['queries'][-1]:.2f} N"
            if held is not None and not collect.is_done(config, known):
                told += ", to be run"
            shown.add_row(name, config.name, f"{config.budget:g}", str(config.seed), told)
    return shown


def run(
    experiments: Experiments,
    folder: Path,
    console: Console,
    *,
    jobs: int,
    resume: bool,
    title: str,
    command: str,
    fresh: bool = False,
    only: str = "",
    time_limit: float | None = None,
    collect_to: Path | None = None,
    stand_in: bool = True,
) -> list[dict[str, Any]]:
    """Run everything in one batch, print a table for each part, collect, and write the report; the summaries.

    With `collect_to`, runs that are finished in its files are taken from there, and the files have all that was
    collected, after each run that ends. `stand_in` lets embedded data stand in for what is not at hand.
    """
    configs = in_order(experiments, only)
    taken = [c.name for c in configs if (folder / c.name / "config.yaml").exists()]
    if taken and not (fresh or resume):
        raise ValueError(
            f"{folder} holds runs already ({taken[0]} ...): give --resume to go on with them, or another --out"
        )
    if fresh:
        for config in configs:
            _forget(folder / config.name)
    known = {name: collect.load(path_of(collect_to, name)) if collect_to else {} for name in experiments}
    held = {
        c.name
        for name, parts in experiments.items()
        for p in parts
        for c in p.configs
        if collect.is_done(c, known[name])
    }
    kept, absent = with_data([c for c in configs if c.name not in held], stand_in)
    of = {c.name: name for name, parts in experiments.items() for part in parts for c in part.configs}
    for instead, config in kept.values():
        of[instead.name] = of[config.name]

    def gather(config: RunConfig, summary: dict[str, Any]) -> None:
        if collect_to is not None and summary["status"] not in ("failed", "waiting"):
            curve = report.load_run(folder / config.name)
            if curve.rows:
                packed = collect.pack(curve, command=command)
                collect.save(path_of(collect_to, of[config.name]), [packed])

    todo = [instead for instead, _ in kept.values()]
    limits: dict[str, Any] = {"time_limit": time_limit, "ended": gather}
    summaries = batch.run_all(todo, folder, jobs=jobs, resume=resume, console=console, **limits)
    told = {config.name: summary for config, summary in zip(todo, summaries, strict=True)}
    left_out, sections, waiting = [], [], []
    for name, parts in experiments.items():
        known = collect.load(path_of(collect_to, name)) if collect_to else {}
        for part in parts:
            curves = []
            for config in part.configs:
                if config.name in absent:
                    left_out.append(f"{part.title}, {config.title()}: {absent[config.name]}")
                instead = kept[config.name][0] if config.name in kept else config
                summary = told.get(instead.name, {"status": "failed", "reason": "its data is not at hand"})
                if instead.name in known and config.name not in absent:
                    curves.append(collect.unpack(known[instead.name]))
                elif summary["status"] == "waiting":
                    waiting.append(config.name)
                elif summary["status"] == "failed":
                    if config.name not in absent:
                        left_out.append(f"{part.title}, {config.title()}: {summary['reason']}")
                elif instead.name not in [c.config["name"] for c in curves]:
                    curves.append(report.load_run(folder / instead.name))
            if curves:
                sections.append(_section(part, curves, console))
    for line in left_out:
        console.print(f"[red]left out:[/red] {line}")
    if waiting:
        console.print(f"{len(waiting)} runs wait for more time: {', '.join(waiting)}")
    if sections and time_limit is None:  # a piece is made to save time: its report can be made from what was collected
        console.print(f"report: {report.write(sections, folder / 'report.html', title, command, left_out)}")
    return summaries


def _section(part: Part, curves: list[report.Curve], console: Console) -> report.Section:
    """The part's conclusions, printed."""
    section = report.Section(part.title, curves, part.note, metric=report.metric_of(curves))
    part.conclude(section)
    for name, head, rows in [*section.tables, *([report.target_table(section)] if section.rivals else [])]:
        shown = Table(*head, title=f"{part.title}\n{name}")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    for claim in section.claims:
        console.print(f"paper: {claim.paper}\n  here: {claim.ours}\n  [bold]{claim.verdict}[/bold]")
    return section


def with_data(
    configs: list[RunConfig], stand_in: bool = True
) -> tuple[dict[str, tuple[RunConfig, RunConfig]], dict[str, str]]:
    """By name: what to run for each config whose data is at hand or can be downloaded, or for which embedded data can
    stand in, with the config itself; and why a config is not run as it is."""
    kept: dict[str, tuple[RunConfig, RunConfig]] = {}
    absent: dict[str, str] = {}
    for config in configs:
        missing = find(config.task).missing_data(config.options, config.data_dir)
        if missing is None:
            kept[config.name] = config, config
            continue
        other = reproduce.on_embedded_data(config) if stand_in else None
        if other is not None and other not in [instead for instead, _ in kept.values()]:
            kept[config.name] = other, config
        absent[config.name] = f"{'digits stand in, as ' if other else ''}{missing}"
    return kept, absent


def _forget(folder: Path) -> None:
    """Remove what an earlier demo left; nothing but a run's own files."""
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "checkpoint.pt"):
        (folder / name).unlink(missing_ok=True)
