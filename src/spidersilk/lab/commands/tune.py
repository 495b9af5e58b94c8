"""`tune`: equal trials for every method, and the cost of the best of each to a target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from spidersilk.lab.commands.arguments import check_data_dir, check_file, check_folder, check_time_limit
from spidersilk.lab.commands.output import console, show_table
from spidersilk.lab.experiments import grid, tuning
from spidersilk.lab.experiments.tuning import Tuning
from spidersilk.lab.report import tuned
from spidersilk.lab.run.check import check_runs
from spidersilk.lab.run.config import SETTINGS, RunConfig, apply_settings
from spidersilk.lab.run.machine import command
from spidersilk.lab.run.methods import find
from spidersilk.lab.tasks import find as find_task


def base_of(task: str, settings: Sequence[str], device: str, data_dir: Path | None) -> RunConfig:
    """What all runs of a tuning have in common."""
    base = apply_settings(RunConfig(task, "sgd"), settings)
    tuning.check_settings(base)
    given = {} if device == "auto" else {"device": device}
    base = replace(base, **given, data_dir=check_data_dir(data_dir) or base.data_dir)
    return replace(base, options=find_task(task).completed_options(base.options, base.data_dir))


def path_of(base: RunConfig, to: Path, name: str | None) -> Path:
    """The file of a tuning."""
    file = tuning.default_name(base) if name is None else SETTINGS["name"].parse("--name", name)
    path = to / f"{file.removesuffix('.json')}.json"
    check_file("--to", path)
    return path


def tuning_of(
    base: RunConfig, methods: str | None, trials: int, budget: float, final: float | None, seeds: int, path: Path
) -> Tuning:
    chosen: list[str] = list(grid.METHODS) if methods is None else [name.strip() for name in methods.split(",")]
    for method in chosen:
        find(method)
        if chosen.count(method) > 1:
            raise ValueError(f"--methods {methods}: {method} comes twice")
    SETTINGS["budget"].check("--budget", budget)
    longest = 4 * budget if final is None else final
    SETTINGS["budget"].check("--final-budget", longest)
    return Tuning(base, chosen, trials, budget, longest, seeds, path)


def tune(made: Tuning, out: Path, *, jobs: int, resume: bool, time_limit: float | None) -> None:
    """Tune, print the table, and exit with 1 if not all runs were done."""
    check_folder("--out", out)
    check_time_limit(time_limit)
    check_runs({method: config for method, _, config in made.next_round()}.values())
    how = {"jobs": jobs, "resume": resume, "command": command(), "time_limit": time_limit}
    whole = tuning.tune(made, made.folder(out), console, **how)
    record = json.loads(made.path.read_text())
    show_table(tuned.title(record), *tuned.table(record))
    if edges := tuned.edges(record):
        console.print(f"the best step size is the smallest or largest tried: {edges}; more --trials may improve it")
    console.print(f"{'all' if whole else 'not all'} runs were done; {made.path}", soft_wrap=True)
    if not whole:
        raise typer.Exit(1)
