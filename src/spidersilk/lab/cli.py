"""The command `spidersilk`."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spidersilk.distributed import DisagreementError, WorkerLostError
from spidersilk.lab.data.files import DataError
from spidersilk.lab.experiments import demo, inspecting, pieces
from spidersilk.lab.experiments import paper as reproduce
from spidersilk.lab.experiments.grid import start
from spidersilk.lab.experiments.tune_command import tune_command
from spidersilk.lab.report import collect, page
from spidersilk.lab.report import html as report
from spidersilk.lab.run import batch
from spidersilk.lab.run import methods as optimizers
from spidersilk.lab.run import team as parallel
from spidersilk.lab.run.config import RunConfig, apply_settings, from_yaml
from spidersilk.lab.run.machine import command
from spidersilk.lab.run.runner import RunError
from spidersilk.lab.tasks import all_tasks, nearest
from spidersilk.theory.planner import Plan, plan

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Variance reduction with sparse gradients: run the paper's experiments, compare optimizers, read the report.",
)
console = Console()

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="runs side by side, each in a process of its own")]
Resume = Annotated[bool, typer.Option("--resume", help="go on where an interrupted run stopped")]
Folder = Annotated[Path, typer.Option("--out", help="folder of the runs")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="folder of the data sets, before SPIDERSILK_DATA")]
Settings = Annotated[list[str] | None, typer.Option("--set", "-s", help="key=value, as often as needed")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="how many seeds, from 0 (or the config's) on")]


@app.command("demo", epilog="Example: spidersilk demo")
def demo_command(out: Folder = Path("runs/demo"), jobs: Jobs = 1) -> None:
    """Five optimizers on embedded data at equal queries: a table here, and a report to look at."""
    torch.set_num_threads(1)
    shown = {"demo": demo.parts()}
    _finish(
        pieces.run(
            shown, out, console, jobs=jobs, resume=False, fresh=True, title="spidersilk demo", command=_command()
        )
    )


@app.command("list", epilog="Example: spidersilk list")
def list_command() -> None:
    """The tasks with their options, and the optimizers."""
    table = Table("task", "what it is", "options (--set)")
    for name, task in all_tasks().items():
        table.add_row(name, task.about, ", ".join(f"{k}={v}" for k, v in task.options.items()))
    console.print(table)
    table = Table("optimizer", "what it is")
    for name, method in optimizers.METHODS.items():
        table.add_row(name, method.about)
    console.print(table)


@app.command("run", epilog="Example: spidersilk run image --optimizer sparse-sgd --set data=digits --set budget=5")
def run_command(
    task: Annotated[str | None, typer.Argument(help="a task of `spidersilk list`")] = None,
    optimizer: Annotated[
        str, typer.Option("--optimizer", "-o", help="an optimizer of `spidersilk list`")
    ] = "sparse-svrg",
    settings: Settings = None,
    config: Annotated[Path | None, typer.Option("--config", help="a YAML file in place of task and optimizer")] = None,
    name: Annotated[str, typer.Option(help="folder name of the run")] = "",
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    resume: Resume = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="autocast to bfloat16")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="compile the model")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="write TensorBoard's files too")] = False,
    out: Folder = Path("runs"),
    data_dir: DataDir = None,
) -> None:
    """One run (or one for each seed), to the budget, into a folder with config, metrics and summary."""
    if (task is None) == (config is None):
        raise ValueError("give a task or a --config, one of the two")
    made = from_yaml(config) if config is not None else RunConfig(str(task), optimizer)
    made = replace(apply_settings(made, settings or []), name=name or made.name)
    flags = {"bf16": bf16, "compile": compiled, "tensorboard": tensorboard}
    made = replace(made, **{name: True for name, wanted in flags.items() if wanted})
    if data_dir is not None:
        made = replace(made, data_dir=str(data_dir))
    if jobs > 1 and parallel.team().world > 1:
        raise ValueError(f"--jobs {jobs} under torchrun: its ranks train one run after the other, so leave it out")
    configs = _with_seeds([made], seeds)
    summaries = batch.run_all(configs, out, jobs=jobs, resume=resume, console=console)
    _table(configs, summaries)
    _finish(summaries)


@app.command("compare", epilog="Example: spidersilk compare logistic --optimizers svrg,sparse-svrg --budget 20")
def compare_command(
    task: Annotated[str, typer.Argument(help="a task of `spidersilk list`")],
    chosen: Annotated[str, typer.Option("--optimizers", help="names, separated by commas")],
    budget: Annotated[float, typer.Option("--budget", help="gradient queries over N for each")] = 2.0,
    settings: Settings = None,
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    resume: Resume = False,
    out: Folder = Path("runs/compare"),
    data_dir: DataDir = None,
) -> None:
    """Several optimizers on one task at equal queries, and their report."""
    given = None if data_dir is None else str(data_dir)
    base = [
        RunConfig(task, n.strip(), budget=budget, eval_every=budget / 40, data_dir=given) for n in chosen.split(",")
    ]
    configs = _with_seeds([apply_settings(c, settings or []) for c in base], seeds)
    summaries = batch.run_all(configs, out, jobs=jobs, resume=resume, console=console)
    _table(configs, summaries)
    curves = [report.load_run(out / c.name) for c, s in zip(configs, summaries, strict=True) if s["status"] != "failed"]
    if curves:
        path = report.write(report.sections_of(curves), out / "report.html", f"{task}: {chosen}", _command())
        console.print(f"report: {path}")
    _finish(summaries)


@app.command("reproduce", epilog="Example: spidersilk reproduce figure1 --scale smoke")
def reproduce_command(
    what: Annotated[str, typer.Argument(help="table1, figure1, figure2, figure3, sparsity, or all; more with commas")],
    scale: Annotated[str, typer.Option("--scale", help="smoke (a laptop) or paper (a GPU)")] = "smoke",
    jobs: Jobs = 1,
    resume: Resume = False,
    only: Annotated[
        str, typer.Option("--only", help="runs by name, with * and commas; what is named first runs first")
    ] = "",
    budget: Annotated[float | None, typer.Option("--budget", help="stop each run at this many queries over N")] = None,
    seeds: Seeds = 1,
    settings: Settings = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", help="seconds after which runs are saved and none is started")
    ] = None,
    collect: Annotated[
        Path | None,
        typer.Option("--collect", help="folder of paper_<experiment>.json: what is finished there is not run again"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the runs")] = None,
    data_dir: DataDir = None,
    plan_only: Annotated[bool, typer.Option("--list", help="say what would be run, and run nothing")] = False,
) -> None:
    """Experiments of the paper, and a report with its claims beside what was measured."""
    if scale not in ("smoke", "paper"):
        raise ValueError(f"--scale {scale!r} is not known{nearest(scale, ('smoke', 'paper'))}")
    if data_dir is not None:
        os.environ["SPIDERSILK_DATA"] = str(data_dir)
    chosen = pieces.choose(reproduce.experiments(scale), what, only, budget, seeds, settings or [])
    if plan_only:
        console.print(pieces.table(chosen, collect))
        return
    folder = out or Path("runs") / f"{what.replace(',', '-')}-{scale}"
    done = pieces.run(chosen, folder, console, jobs=jobs, resume=resume, title=f"Reproduction: {what}, {scale} scale",
                      command=command(), only=only, time_limit=time_limit, collect_to=collect,
                      stand_in=scale == "smoke")  # fmt: skip
    _finish(done)


@app.command("collect", epilog="Example: spidersilk collect runs/compare/* --to results/runs_mine.json")
def collect_command(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs")],
    to: Annotated[Path, typer.Option("--to", help="the JSON file to write, or to add to")],
) -> None:
    """Pack runs into one small JSON file: settings, versions, machine, and curves of at most about 60 points."""
    curves = [report.load_run(folder) for folder in runs if folder.is_dir()]
    if not curves:
        raise ValueError("no run folder was given")
    console.print(f"collected: {collect.save(to, [collect.pack(curve) for curve in curves if curve.rows])}")


@app.command("page", epilog=f"Example: {page.COMMAND}")
def page_command(
    results: Annotated[Path, typer.Argument(help="folder of paper_*.json and tune_*.json")] = Path("results"),
    to: Annotated[Path, typer.Option("--to", help="the page to write")] = Path("docs/reproduction.md"),
    figures: Annotated[Path | None, typer.Option("--figures", help="folder of the figures (RESULTS)")] = None,
) -> None:
    """What was collected as one page: the paper's claims with a verdict each, tables, figures, what is missing."""
    if not results.is_dir():
        raise ValueError(f"{results} is not a folder: give the one that reproduce --collect and tune wrote to")
    console.print(f"page: {page.write(results, to, figures)}")


@app.command("report", epilog="Example: spidersilk report runs/compare/*")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs")],
    to: Annotated[Path, typer.Option("--to", help="the page to write")] = Path("runs/report.html"),
    title: Annotated[str, typer.Option(help="its title")] = "Runs",
) -> None:
    """One page for any set of runs."""
    curves = [report.load_run(folder) for folder in runs if folder.is_dir()]
    if not curves:
        raise ValueError("no run folder was given")
    console.print(f"report: {report.write(report.sections_of(curves), to, title, _command())}")


@app.command(
    "plan", epilog="Example: spidersilk plan --eps 0.1 -L 10 --sigma2 5 --delta-f 2.3 --samples 60000 -d 62006"
)
def plan_command(
    eps: Annotated[float, typer.Option("--eps", help="gradient norm to reach")],
    smoothness: Annotated[float, typer.Option("--smoothness", "-L", help="L of each sample's loss")],
    sigma2: Annotated[float, typer.Option("--sigma2", help="bound on the mean of |grad f_i|^2")],
    delta_f: Annotated[float, typer.Option("--delta-f", help="f(x_0) - f*")],
    samples: Annotated[int, typer.Option("--samples", "-n", help="n")],
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="d, the number of parameters")],
    k1: Annotated[float, typer.Option("--k1", help="top coordinates: a fraction up to 1, or a count above it")] = 0.05,
    k2: Annotated[float, typer.Option("--k2", help="random coordinates, likewise")] = 0.05,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="b")] = 1,
    outside: Annotated[
        float | None, typer.Option("--outside", help="share of energy that the top k1 miss, as inspect measures it")
    ] = None,
) -> None:
    """The theorems as a table: step size, batches and loops that reach E|grad f| <= eps, and their price."""
    shared: dict[str, Any] = {"eps": eps, "smoothness": smoothness, "sigma2": sigma2, "delta_f": delta_f}
    shared |= {"n": samples, "d": dimension, "k1": _count(k1), "k2": _count(k2), "batch_size": batch_size}
    wanted = [("recursive", None), ("recursive", 1.0 if outside is None else outside)]
    wanted += [("anchored", outside), ("selected", outside)]
    table = Table(
        "", "Algorithm 1, Theorem 1", "Algorithm 1, Theorem 2", "SparseSVRG, Theorem 3", "selected, Theorem 4"
    )
    plans: list[Plan | str] = []
    for method, share in wanted:
        try:
            plans.append(plan(**shared, method=method, outside=share))
        except ValueError as error:
            plans.append(str(error))
    refused = [p for p in plans if isinstance(p, str)]
    if len(refused) == len(plans):
        raise ValueError(refused[0])
    for label, text in PLAN_ROWS.items():
        table.add_row(label, *("" if isinstance(p, str) else text(p) for p in plans))
    console.print(table)
    notes = [p if isinstance(p, str) else "; ".join(p.notes) for p in plans]
    for line in dict.fromkeys(note for note in notes if note):
        console.print(f"note: {line}", highlight=False)


@app.command("inspect", epilog="Example: spidersilk inspect examples/inspect_me.py   or: spidersilk inspect logistic")
def inspect_command(
    target: Annotated[str, typer.Argument(help="a task, or a Python file with model, loss(model, batch) and data")],
    lr: Annotated[float | None, typer.Option("--lr", help="about what SGD trains well with (task: its own)")] = None,
    adam_lr: Annotated[
        float | None,
        typer.Option("--adam-lr", help="about what AdamW trains well with (0.001; task: its own); 0: without AdamW"),
    ] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="queries over N for each trial")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    save: Annotated[Path | None, typer.Option("--save", help="write what was found to this JSON file")] = None,
) -> None:
    """Would it pay? Entropy, captured energy, variance, seconds a step, short trials, and a yes or no."""
    with console.status("measuring") as status:
        told = lambda what: status.update(f"measuring: {what}")  # noqa: E731
        if target.endswith(".py"):
            rates = 0.1 if lr is None else lr, 0.001 if adam_lr is None else adam_lr or None
            found = inspecting.inspect_file(Path(target), *rates, budget, told)
        else:
            config = apply_settings(RunConfig(target, "sgd", lr=lr), settings or [])
            config = replace(config, data_dir=str(data_dir)) if data_dir is not None else config
            own = start(target, "adamw")["lr"] if adam_lr is None else adam_lr or None
            found = inspecting.inspect_task(config, own, budget, told)
    for table in inspecting.tables(found):
        console.print(table)
    console.print(f"[bold]{found.verdict}[/bold]", highlight=False)
    if save is not None:
        inspecting.save(found, save, _command())


app.command("tune", epilog="Example: spidersilk tune logistic --set data=w8a --budget 10 --jobs 2")(tune_command)

PLAN_ROWS: dict[str, Callable[[Plan], str]] = {
    "lr": lambda p: f"{p.lr:.3g}",
    "largest stable lr": lambda p: f"{p.largest_stable_lr:.3g}",
    "B": lambda p: f"{p.anchor_batch_size}",
    "b": lambda p: f"{p.batch_size}",
    "m": lambda p: f"{p.inner_steps:.4g}",
    "T": lambda p: f"{math.ceil(p.loops)}",
    "queries": lambda p: f"{p.queries:.3g}",
    "to SpiderBoost's": lambda p: f"{p.ratio:.3g}",
    "mean R_j at most": lambda p: "" if p.allowed_residual is None else f"{p.allowed_residual:.3g}",
}


def _count(k: float) -> float | int:
    """A fraction up to 1, a count above it."""
    if k > 1 and k != int(k):
        raise ValueError(f"k = {k} is neither a fraction (at most 1) nor a whole number")
    return k if k <= 1 else int(k)


def _with_seeds(configs: list[RunConfig], seeds: int) -> list[RunConfig]:
    many = [replace(c, seed=c.seed + s) for c in configs for s in range(seeds)]
    if seeds > 1:
        many = [replace(c, name=f"{c.name}-seed{c.seed}" if c.name else "") for c in many]
    return [batch.named(c) for c in many]


def _table(configs: list[RunConfig], summaries: list[dict[str, Any]]) -> None:
    table = Table("run", "status", "queries / N", "seconds", "train loss", "more")
    for config, summary in zip(configs, summaries, strict=True):
        last = dict(summary["last"])
        more = {
            k: v
            for k, v in last.items()
            if k not in ("queries", "samples", "updates", "seconds", "train_loss", "v_norm")
        }
        cells = [f"{last[k]:.4g}" if k in last else "" for k in ("queries", "seconds", "train_loss")]
        table.add_row(config.name, summary["status"], *cells, ", ".join(f"{k} {v:.4g}" for k, v in more.items()))
    console.print(table)
    for config, summary in zip(configs, summaries, strict=True):
        if summary["reason"]:
            console.print(f"{config.name}: {summary['reason']}")


def _finish(summaries: list[dict[str, Any]]) -> None:
    """Exit with 1 if a run could not be done; one that diverged was done, and says so."""
    if any(summary["status"] == "failed" for summary in summaries):
        raise typer.Exit(1)


def _command() -> str:
    return shlex.join(["spidersilk", *sys.argv[1:]])


def main() -> None:
    """Run the command; what a user can mend is one line, not a traceback."""
    try:
        parallel.check_command()
        console.quiet = not parallel.team().writes
        app()
    except (ValueError, DataError, RunError, OSError, DisagreementError, WorkerLostError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    finally:
        parallel.leave()


if __name__ == "__main__":
    main()
