"""Whole experiments of the paper: plan, execute, collect, render."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from spidersilk.lab.commands.arguments import check_data_dir, check_folder, check_time_limit
from spidersilk.lab.commands.output import console, finish, show_table
from spidersilk.lab.experiments.ablations import ablations
from spidersilk.lab.experiments.paper import Experiments, experiments
from spidersilk.lab.experiments.plan import PlannedRun, all_runs, choose, load_collected, make_plan, path_of
from spidersilk.lab.report import html
from spidersilk.lab.report.evidence import make_chapter
from spidersilk.lab.run import batch, collect
from spidersilk.lab.run.check import check_runs
from spidersilk.lab.run.config import SETTINGS, RunConfig
from spidersilk.lab.run.curve import Curve, load_run
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.machine import command
from spidersilk.lab.settings import nearest


@dataclass(frozen=True)
class Request:
    """The runs, and how to make them. Runs that are in the folder already are taken over or continued; `overwrite`
    begins them anew. `stand_in` lets embedded data replace missing data.

    With `collect_to`, runs that are finished in its files are taken from there, and each run that ends is added.
    """

    experiments: Experiments
    folder: Path
    title: str
    jobs: int = 1
    overwrite: bool = False
    only: str = ""
    time_limit: float | None = None
    collect_to: Path | None = None
    stand_in: bool = True


@dataclass(frozen=True)
class Outcome:
    """The curves by the name of the planned run; the runs left out, by reason; and those that no time was left for."""

    curves: dict[str, Curve]
    left_out: dict[str, list[str]]
    waiting: list[str]


def reproduce(request: Request, console: Console) -> dict[str, Summary]:
    """Run what is not collected yet, in one batch, and report on everything; returns the summaries by name."""
    plan = make_plan(request.experiments, request.only, request.collect_to, request.stand_in)
    summaries = _execute(plan, request, console)
    _render(_collect(plan, summaries, request), request, console)
    return summaries


def _execute(plan: list[PlannedRun], request: Request, console: Console) -> dict[str, Summary]:
    """The summaries by the name of the run; each run is collected when it ends."""
    experiment_of = {planned.run.name: planned.experiment for planned in plan if planned.run is not None}

    def ended(config: RunConfig, summary: Summary) -> None:
        if request.collect_to is None or summary["status"] in ("failed", "waiting"):
            return
        curve = load_run(request.folder / config.name)
        if curve.rows:
            path = path_of(request.collect_to, experiment_of[config.name])
            collect.save(path, [collect.pack(curve, command=command())])

    todo = [planned.run for planned in plan if planned.run is not None]
    summaries = batch.run_all(
        todo, request.folder, jobs=request.jobs, resume=not request.overwrite, overwrite=request.overwrite,
        console=console, time_limit=request.time_limit, ended=ended,
    )  # fmt: skip
    return {config.name: summary for config, summary in zip(todo, summaries, strict=True)}


def _collect(plan: list[PlannedRun], summaries: dict[str, Summary], request: Request) -> Outcome:
    """Curves from the folder of the runs; from the collected files if a run was not made now."""
    outcome = Outcome({}, {}, [])
    for planned in plan:
        name, summary = planned.config.name, summaries[planned.run.name] if planned.run is not None else {}
        status = summary.get("status")
        for reason in filter(None, (planned.missing, summary["reason"] if status == "failed" else "")):
            outcome.left_out.setdefault(reason, []).append(name)
        if planned.run is not None and status not in ("failed", "waiting"):
            outcome.curves[name] = load_run(request.folder / planned.run.name)
        elif planned.collected is not None and status != "failed":
            outcome.curves[name] = collect.unpack(planned.collected)
        elif status == "waiting":
            outcome.waiting.append(name)
    return outcome


def _render(outcome: Outcome, request: Request, console: Console) -> None:
    """Print tables and verdicts; write the report, except for a part of the runs that a time limit cut off."""
    sections = []
    for experiment, parts in request.experiments.items():
        chapters = [make_chapter(experiment, part, outcome.curves) for part in parts]
        sections += [html.section_of(chapter) for chapter in chapters if chapter.present]
    for section in sections:
        for title, head, rows in section.all_tables():
            show_table(f"{section.title}\n{title}", head, rows, console)
        for verdict in section.verdicts:
            console.print(f"paper: {verdict.text()}")
    left_out = [f"{'; '.join(runs)}: {reason}" for reason, runs in outcome.left_out.items()]
    for line in left_out:
        console.print(f"[red]left out:[/red] {line}")
    if outcome.waiting:
        console.print(f"{len(outcome.waiting)} runs wait for more time: {', '.join(outcome.waiting)}")
    if sections and request.time_limit is None:
        path = html.write(sections, request.folder / "report.html", request.title, command(), left_out)
        console.print(f"report: {path}", soft_wrap=True)


def run(request: Request, checked: bool = False) -> None:
    """Do what was asked for; `checked` builds each run once before anything is written."""
    check_folder("--out", request.folder)
    check_time_limit(request.time_limit)
    if request.collect_to is not None:
        check_folder("--collect", request.collect_to)
    if checked:
        plan = make_plan(request.experiments, request.only, request.collect_to, request.stand_in)
        check_runs([planned.run for planned in plan if planned.run is not None])
    summaries = reproduce(request, console)
    finish(summaries.items(), ("finished", "diverged", "collapsed"))  # these are results, and the report has them


def chosen(
    what: str,
    scale: str,
    only: str,
    budget: float | None,
    seeds: int,
    settings: Sequence[str],
    data_dir: Path | None,
) -> Experiments:
    """The experiments that were asked for."""
    if scale not in ("smoke", "paper"):
        raise ValueError(f"--scale {scale!r} is not known{nearest(scale, ('smoke', 'paper'))}")
    if budget is not None:
        SETTINGS["budget"].check("--budget", budget)
    if data_dir is not None:
        os.environ["SPIDERSILK_DATA"] = str(check_data_dir(data_dir))
    return choose(experiments(scale) | ablations(scale), what, only, budget, seeds, settings)


def list_runs(chosen: Experiments, collect_to: Path | None) -> None:
    """Print what would be run, and what is collected already."""
    files, rows = load_collected(chosen, collect_to), []
    for name, _, config in all_runs(chosen):
        run = files[name].get(config.name)
        state = "" if run is None else f"{run['status']} at {run['curve']['queries'][-1]:.2f} N"
        state += ", to be run" if run is not None and not collect.is_done(config, files[name]) else ""
        rows.append([config.name, name, f"{config.budget:g}", str(config.seed), state])
    show_table("", ["run", "experiment", "budget, N", "seed", "collected so far"], rows)
