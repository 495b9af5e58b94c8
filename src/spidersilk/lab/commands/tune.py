"""`spidersilk tune`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spidersilk.lab.commands import app, console, options, rich_table
from spidersilk.lab.experiments.grid import METHODS
from spidersilk.lab.experiments.tuning import Tuning, check_settings, default_name, tune
from spidersilk.lab.report import tuned
from spidersilk.lab.run import methods as optimizers
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.run.machine import command


@app.command("tune", epilog="Example: spidersilk tune logistic --set data=w8a --budget 10 --jobs 2")
def tune_command(
    task: options.TaskName,
    settings: options.Settings = None,
    methods: Annotated[str, typer.Option("--methods", help="names, separated by commas; all if empty")] = "",
    trials: Annotated[int, typer.Option("--trials", min=1, help="how many for each method")] = 8,
    budget: Annotated[float, typer.Option("--budget", help="gradient queries over N for a trial")] = 1.0,
    final_budget: Annotated[float | None, typer.Option(help="for the best of each (four times a trial's)")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="how many, for the best of each")] = 3,
    jobs: options.Jobs = 1,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda")] = "auto",
    out: options.Folder = Path("runs/tune"),
    to: Annotated[Path, typer.Option("--to", help="folder of the JSON file")] = Path("results/tune"),
    name: Annotated[str | None, typer.Option("--name", help="of the JSON file, in place of tune_TASK_OPTIONS")] = None,
    resume: options.Resume = False,
    time_limit: options.TimeLimit = None,
    data_dir: options.DataDir = None,
) -> None:
    """The same number of trials for every method, then the best of each over seeds: queries and seconds to a target."""
    base = apply_settings(RunConfig(task, "sgd"), settings or [])
    check_settings(base)
    base = replace(base, device=device, data_dir=None if data_dir is None else str(data_dir))
    chosen: list[str] = [name.strip() for name in methods.split(",")] if methods else [*METHODS]
    for method in chosen:
        optimizers.find(method)
    path = to / f"{(name or default_name(base)).removesuffix('.json')}.json"
    longest = 4 * budget if final_budget is None else final_budget
    tuning = Tuning(base, chosen, trials, budget, longest, seeds, path)
    how = {"jobs": jobs, "resume": resume, "command": command(), "time_limit": time_limit}
    whole = tune(tuning, tuning.folder(out), console, **how)
    record = json.loads(path.read_text())
    console.print(rich_table(tuned.title(record), *tuned.table(record)))
    if edges := tuned.edges(record):
        console.print(f"the best step size is the smallest or largest tried: {edges}; more --trials may improve it")
    console.print(f"{'all' if whole else 'not all'} runs were done; {path}")
