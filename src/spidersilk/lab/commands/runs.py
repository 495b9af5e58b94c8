"""Runs outside the paper, and what is made of any: `list`, `run`, `compare`, `tune`, `report`, `collect`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spidersilk.lab.commands import app, console, finish, options, rich_table
from spidersilk.lab.experiments import grid
from spidersilk.lab.experiments.tuning import Tuning, check_settings, default_name, tune
from spidersilk.lab.report import html, tuned
from spidersilk.lab.run import batch
from spidersilk.lab.run.collect import pack, save
from spidersilk.lab.run.config import RunConfig, apply_settings, from_yaml
from spidersilk.lab.run.curve import load_run, load_runs
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.machine import command
from spidersilk.lab.run.methods import METHODS, find
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import all_tasks


@app.command("list", epilog="Example: spidersilk list")
def list_command() -> None:
    """The tasks with their options, and the optimizers."""
    rows = [[n, t.about, ", ".join(f"{k}={v}" for k, v in t.options.items())] for n, t in all_tasks().items()]
    console.print(rich_table("", ["task", "what it is", "options (--set)"], rows))
    console.print(rich_table("", ["optimizer", "what it is"], [[name, m.about] for name, m in METHODS.items()]))


@app.command("run", epilog="Example: spidersilk run image --optimizer sparse-sgd --set data=digits --set budget=5")
def run_command(
    task: Annotated[str | None, typer.Argument(help="a task of `spidersilk list`")] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", "-o", help="one of `spidersilk list`")] = "sparse-svrg",
    settings: options.Settings = None,
    config: Annotated[Path | None, typer.Option("--config", help="a YAML file in place of task and optimizer")] = None,
    name: Annotated[str, typer.Option(help="folder name of the run")] = "",
    seeds: options.Seeds = 1,
    jobs: options.Jobs = 1,
    resume: options.Resume = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="autocast to bfloat16")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="compile the model")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="write TensorBoard's files too")] = False,
    out: options.Folder = Path("runs"),
    data_dir: options.DataDir = None,
) -> None:
    """One run (or one for each seed), to the budget, into a folder with config, metrics and summary."""
    if (task is None) == (config is None):
        raise ValueError("give a task or a --config, one of the two")
    if jobs > 1 and team().world > 1:
        raise ValueError(f"--jobs {jobs} under torchrun: its ranks train one run after the other, so leave it out")
    one = apply_settings(from_yaml(config) if config is not None else RunConfig(str(task), optimizer), settings or [])
    given = {"name": name, "bf16": bf16, "compile": compiled, "tensorboard": tensorboard, "data_dir": data_dir}
    one = replace(one, **{key: str(v) if key == "data_dir" else v for key, v in given.items() if v})
    _run([one], seeds, jobs, resume, out)


@app.command("compare", epilog="Example: spidersilk compare logistic --optimizers svrg,sparse-svrg --budget 20")
def compare_command(
    task: options.TaskName,
    chosen: Annotated[str, typer.Option("--optimizers", help="names, separated by commas")],
    budget: Annotated[float, typer.Option("--budget", help="gradient queries over N for each")] = 2.0,
    settings: options.Settings = None,
    seeds: options.Seeds = 1,
    jobs: options.Jobs = 1,
    resume: options.Resume = False,
    out: options.Folder = Path("runs/compare"),
    data_dir: options.DataDir = None,
) -> None:
    """Several optimizers on one task at equal queries, and their report."""
    common = {"budget": budget, "eval_every": budget / 40, "data_dir": None if data_dir is None else str(data_dir)}
    configs = [apply_settings(RunConfig(task, name.strip(), **common), settings or []) for name in chosen.split(",")]
    _run(configs, seeds, jobs, resume, out, title=f"{task}: {chosen}")


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
    chosen: list[str] = [name.strip() for name in methods.split(",")] if methods else list(grid.METHODS)
    for method in chosen:
        find(method)
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


@app.command("collect", epilog="Example: spidersilk collect runs/compare/* --to results/runs_mine.json")
def collect_command(
    runs: options.RunFolders, to: Annotated[Path, typer.Option("--to", help="the JSON file to write, or to add to")]
) -> None:
    """Pack runs into one small JSON file: settings, versions, machine, and curves of at most about 60 points."""
    packed = [pack(curve) for curve in load_runs(runs) if curve.rows]
    console.print(f"collected: {save(to, packed)}")


@app.command("report", epilog="Example: spidersilk report runs/compare/*")
def report_command(
    runs: options.RunFolders,
    to: Annotated[Path, typer.Option("--to", help="the page to write")] = Path("runs/report.html"),
    title: Annotated[str, typer.Option(help="its title")] = "Runs",
) -> None:
    """One HTML page for any set of runs."""
    console.print(f"report: {html.write(html.sections_of(load_runs(runs)), to, title, command())}")


def _run(configs: list[RunConfig], seeds: int, jobs: int, resume: bool, out: Path, title: str = "") -> None:
    """Run the configs, print a table, and write a report if there is a title for it."""
    configs = batch.with_seeds(configs, seeds)
    summaries = batch.run_all(configs, out, jobs=jobs, resume=resume, console=console)
    head = ["run", "status", "queries / N", "seconds", "train loss", "more"]
    console.print(rich_table("", head, [_cells(c, s) for c, s in zip(configs, summaries, strict=True)]))
    for config, summary in zip(configs, summaries, strict=True):
        if summary["reason"]:
            console.print(f"{config.name}: {summary['reason']}")
    curves = [load_run(out / c.name) for c, s in zip(configs, summaries, strict=True) if s["status"] != "failed"]
    if title and curves:
        console.print(f"report: {html.write(html.sections_of(curves), out / 'report.html', title, command())}")
    finish(summaries)


def _cells(config: RunConfig, summary: Summary) -> list[str]:
    last, shown = summary["last"], ("queries", "seconds", "train_loss")
    more = [f"{k} {v:.4g}" for k, v in last.items() if k not in (*shown, "samples", "updates", "v_norm")]
    cells = [f"{last[k]:.4g}" if k in last else "" for k in shown]
    return [config.name, summary["status"], *cells, ", ".join(more)]
