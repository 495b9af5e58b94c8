"""`tune`: equal trials for every method, and the cost of the best of each to a target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from spidersilk.lab.commands.arguments import check_data_dir, check_file, check_folder, check_time_limit
from spidersilk.lab.commands.output import console, show_table
from spidersilk.lab.experiments import grid, tuner, tuning
from spidersilk.lab.experiments.tuning import Tuning
from spidersilk.lab.report import tuned
from spidersilk.lab.run.check import check_runs
from spidersilk.lab.run.config import SETTINGS, RunConfig, apply_settings
from spidersilk.lab.run.machine import command
from spidersilk.lab.run.methods import find
from spidersilk.lab.settings import Whole
from spidersilk.lab.tasks import find as find_task


def base_of(task: str, settings: Sequence[str], device: str, data_dir: Path | None) -> RunConfig:
    """What all runs of a tuning have in common."""
    base = apply_settings(RunConfig(task, "sgd"), settings)
    tuning.check_settings(base)
    given = {} if device == "auto" else {"device": device}
    base = replace(base, **given, data_dir=check_data_dir(data_dir) or base.data_dir)
    return replace(base, options=find_task(task).completed_options(base.options, base.data_dir))


def lengths_of(
    task: str, budget: float | None, final_budget: float | None, steps: str | None, final_steps: int | None
) -> list[dict[str, Any]]:
    """How long trials and final runs are, as `Tuning` takes it: in queries over N, or in steps, a tuning for each."""
    if steps is None:
        if final_steps is not None:
            raise ValueError(f"--final-steps {final_steps} goes with --steps: give both")
        budget = 1.0 if budget is None else budget
        SETTINGS["budget"].check("--budget", budget)
        longest = SETTINGS["budget"].check("--final-budget", 4 * budget if final_budget is None else final_budget)
        return [{"budget": budget, "final_budget": longest}]
    if budget is not None or final_budget is not None:
        raise ValueError(f"--steps {steps} and --budget both say how long runs are: give one of them")
    if task == "logistic":
        raise ValueError("--steps: step sizes of logistic's trials fall by the epoch: give --budget")
    made = []
    for text in steps.split(","):
        count = Whole(low=1).parse("--steps", text)
        final = Whole(low=1).check("--final-steps", count if final_steps is None else final_steps)
        made.append({"budget": 0.0, "final_budget": 0.0, "steps": count, "final_steps": final})
    return made


def path_of(base: RunConfig, to: Path, name: str | None, length: dict[str, Any]) -> Path:
    """The file of a tuning; one at equal steps says how many."""
    file = tuning.default_name(base) if name is None else SETTINGS["name"].parse("--name", name)
    steps = f"_{length['final_steps']}" if length.get("steps") else ""
    path = to / f"{file.removesuffix('.json')}{steps}.json"
    check_file("--to", path)
    return path


def methods_of(task: str, methods: str | None) -> list[str]:
    if methods is None:
        return list(grid.methods_of(task))
    chosen = [name.strip() for name in methods.split(",")]
    for method in chosen:
        find(method)
        if chosen.count(method) > 1:
            raise ValueError(f"--methods {methods}: {method} comes twice")
    return chosen


def tune(tunings: list[Tuning], out: Path, *, jobs: int, resume: bool, time_limit: float | None) -> None:
    """Tune, print the tables, and exit with 1 if not all runs were done."""
    check_folder("--out", out)
    check_time_limit(time_limit)
    for made in tunings:
        if made.trials_of is not None and not made.trials_of.is_file():
            raise ValueError(f"--trials-of {made.trials_of}: there is no such file")
        check_runs({method: config for method, _, config in made.next_round()}.values())
    until = None if time_limit is None else time.time() + time_limit
    whole = True
    for made in tunings:
        left = None if until is None else until - time.time()
        how = {"jobs": jobs, "resume": resume, "command": command(), "time_limit": left}
        done = tuner.tune(made, made.folder(out), console, **how)
        show(made, done)
        whole &= done
    if not whole:
        raise typer.Exit(1)


def show(made: Tuning, done: bool) -> None:
    record = tuning.read(made.path)
    show_table(tuned.title(record), *tuned.table(record))
    if edges := tuned.edges(record):
        console.print(f"the best step size is the smallest or largest tried: {edges}; more --trials may improve it")
    console.print(f"{'all' if done else 'not all'} runs were done; {made.path}", soft_wrap=True)
