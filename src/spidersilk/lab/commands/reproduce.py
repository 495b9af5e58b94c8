"""Whole experiments: `reproduce` and `demo`. Plan, execute, collect, render."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from spidersilk.lab.commands import app, console, finish, options, rich_table
from spidersilk.lab.experiments.paper import Experiments, demo, experiments
from spidersilk.lab.experiments.plan import PlannedRun, all_runs, choose, load_collected, make_plan, path_of
from spidersilk.lab.report import html
from spidersilk.lab.report.evidence import make_chapter
from spidersilk.lab.run import batch, collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve, load_run
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.machine import command
from spidersilk.lab.tasks import nearest


@dataclass(frozen=True)
class Request:
    """The runs, and how to make them. `fresh` removes earlier runs, `stand_in` lets embedded data replace missing data.

    With `collect_to`, runs that are finished in its files are taken from there, and each run that ends is added.
    """

    experiments: Experiments
    folder: Path
    title: str
    jobs: int = 1
    resume: bool = False
    fresh: bool = False
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


def reproduce(request: Request, console: Console) -> list[Summary]:
    """Run what is not collected yet, in one batch, and report on everything; returns the summaries."""
    _check_folder(request)
    plan = make_plan(request.experiments, request.only, request.collect_to, request.stand_in)
    summaries = _execute(plan, request, console)
    _render(_collect(plan, summaries, request), request, console)
    return list(summaries.values())


def _check_folder(request: Request) -> None:
    """Refuse a folder with these runs in it, unless they are to be continued or removed."""
    names = [config.name for *_, config in all_runs(request.experiments)]
    taken = [name for name in names if (request.folder / name / "config.yaml").exists()]
    if taken and not (request.fresh or request.resume):
        hint = "give --resume to go on with them, or another --out"
        raise ValueError(f"{request.folder} holds runs already ({taken[0]} ...): {hint}")
    if request.fresh:
        files = ("config.yaml", "metrics.jsonl", "summary.json", "checkpoint.pt")
        for path in (request.folder / name / file for name in taken for file in files):
            path.unlink(missing_ok=True)


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
        todo, request.folder, jobs=request.jobs, resume=request.resume, console=console, time_limit=request.time_limit,
        ended=ended,
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
            console.print(rich_table(f"{section.title}\n{title}", head, rows))
        for verdict in section.verdicts:
            console.print(f"paper: {verdict.claim}\n  here: {verdict.why}\n  [bold]{verdict.word}[/bold]")
    left_out = [f"{'; '.join(runs)}: {reason}" for reason, runs in outcome.left_out.items()]
    for line in left_out:
        console.print(f"[red]left out:[/red] {line}")
    if outcome.waiting:
        console.print(f"{len(outcome.waiting)} runs wait for more time: {', '.join(outcome.waiting)}")
    if sections and request.time_limit is None:
        path = html.write(sections, request.folder / "report.html", request.title, command(), left_out)
        console.print(f"report: {path}")


@app.command("demo", epilog="Example: spidersilk demo")
def demo_command(out: options.Folder = Path("runs/demo"), jobs: options.Jobs = 1) -> None:
    """Five optimizers on embedded data at equal queries: tables here, and an HTML report."""
    torch.set_num_threads(1)
    finish(reproduce(Request({"demo": demo()}, out, "spidersilk demo", jobs, fresh=True), console))


@app.command("reproduce", epilog="Example: spidersilk reproduce figure1 --scale smoke")
def reproduce_command(
    what: Annotated[str, typer.Argument(help="table1, figure1, figure2, figure3, sparsity, or all; more with commas")],
    scale: Annotated[str, typer.Option("--scale", help="smoke (a laptop) or paper (a GPU)")] = "smoke",
    jobs: options.Jobs = 1,
    resume: options.Resume = False,
    only: Annotated[str, typer.Option(help="runs by name, with * and commas; what is named first runs first")] = "",
    budget: Annotated[float | None, typer.Option("--budget", help="stop each run at this many queries over N")] = None,
    seeds: options.Seeds = 1,
    settings: options.Settings = None,
    time_limit: options.TimeLimit = None,
    collect: Annotated[Path | None, typer.Option(help="folder of paper_*.json; runs that it has are skipped")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the runs")] = None,
    data_dir: options.DataDir = None,
    plan_only: Annotated[bool, typer.Option("--list", help="print what would be run, and run nothing")] = False,
) -> None:
    """Experiments of the paper, and a report with its claims beside what was measured."""
    if scale not in ("smoke", "paper"):
        raise ValueError(f"--scale {scale!r} is not known{nearest(scale, ('smoke', 'paper'))}")
    if data_dir is not None:
        os.environ["SPIDERSILK_DATA"] = str(data_dir)
    chosen = choose(experiments(scale), what, only, budget, seeds, settings or [])
    if plan_only:
        _list(chosen, collect)
        return
    folder, title = out or Path("runs") / f"{what.replace(',', '-')}-{scale}", f"Reproduction: {what}, {scale} scale"
    smoke = scale == "smoke"
    finish(reproduce(Request(chosen, folder, title, jobs, resume, False, only, time_limit, collect, smoke), console))


def _list(chosen: Experiments, collect_to: Path | None) -> None:
    """Print what would be run, and what is collected already."""
    files, rows = load_collected(chosen, collect_to), []
    for name, _, config in all_runs(chosen):
        run = files[name].get(config.name)
        state = "" if run is None else f"{run['status']} at {run['curve']['queries'][-1]:.2f} N"
        state += ", to be run" if run is not None and not collect.is_done(config, files[name]) else ""
        rows.append([name, config.name, f"{config.budget:g}", str(config.seed), state])
    console.print(rich_table("", ["experiment", "run", "budget", "seed", "collected so far"], rows))
