"""Before training: `plan` (what the theorems ask for) and `inspect` (would sparse gradients pay?)."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from spidersilk.lab.commands import app, console, options, rich_table
from spidersilk.lab.experiments.grid import start
from spidersilk.lab.run.collect import plain
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.run.machine import command, machine, versions
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import Task, find
from spidersilk.loop.datasets import count_samples
from spidersilk.loop.lengths import InnerLength
from spidersilk.theory.inspection import Inspection, inspect, measure
from spidersilk.theory.planner import Plan, plan

PLAN_HEAD = ["", "Algorithm 1, Theorem 1", "Algorithm 1, Theorem 2", "SparseSVRG, Theorem 3", "selected, Theorem 4"]
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
PLAN_EXAMPLE = "Example: spidersilk plan --eps 0.1 -L 10 --sigma2 5 --delta-f 2.3 --samples 60000 -d 62006"
Report = Callable[[str], None]


@app.command("plan", epilog=PLAN_EXAMPLE)
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
    outside: Annotated[float | None, typer.Option(help="share of energy that the top k1 miss (see inspect)")] = None,
) -> None:
    """The theorems as a table: step size, batches and loops that reach E|grad f| <= eps, and their price."""
    shared: dict[str, Any] = {"eps": eps, "smoothness": smoothness, "sigma2": sigma2, "delta_f": delta_f}
    shared |= {"n": samples, "d": dimension, "k1": _count(k1), "k2": _count(k2), "batch_size": batch_size}
    wanted = [("recursive", None), ("recursive", 1.0 if outside is None else outside)]
    wanted += [("anchored", outside), ("selected", outside)]
    plans: list[Plan | str] = []
    for method, share in wanted:
        try:
            plans.append(plan(**shared, method=method, outside=share))
        except ValueError as error:
            plans.append(str(error))
    if all(isinstance(p, str) for p in plans):
        raise ValueError(plans[0])
    rows = [[label, *("" if isinstance(p, str) else text(p) for p in plans)] for label, text in PLAN_ROWS.items()]
    console.print(rich_table("", PLAN_HEAD, rows))
    notes = [p if isinstance(p, str) else "; ".join(p.notes) for p in plans]
    for note in dict.fromkeys(filter(None, notes)):
        console.print(f"note: {note}", highlight=False)


def _count(k: float) -> float | int:
    """A fraction up to 1, a count above it."""
    if k > 1 and k != int(k):
        raise ValueError(f"k = {k} is neither a fraction (at most 1) nor a whole number")
    return k if k <= 1 else int(k)


@app.command("inspect", epilog="Example: spidersilk inspect examples/inspect_me.py   or: spidersilk inspect logistic")
def inspect_command(
    target: Annotated[str, typer.Argument(help="a task, or a Python file with model, loss(model, batch) and data")],
    lr: Annotated[float | None, typer.Option("--lr", help="what suits SGD (0.1, or the task's)")] = None,
    adam_lr: Annotated[float | None, typer.Option(help="what suits AdamW (0.001, or the task's); 0: none")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="queries over N for each trial")] = None,
    settings: options.Settings = None,
    data_dir: options.DataDir = None,
    save: Annotated[Path | None, typer.Option("--save", help="write the measurements to this JSON file")] = None,
) -> None:
    """Would it pay? Entropy, captured energy, variance, seconds a step, short trials, and a yes or no."""
    with console.status("measuring") as status:
        report: Report = lambda what: status.update(f"measuring: {what}")  # noqa: E731
        if target.endswith(".py"):
            rates = 0.1 if lr is None else lr, 0.001 if adam_lr is None else adam_lr or None
            result = inspect_file(Path(target), *rates, budget, report)
        else:
            config = apply_settings(RunConfig(target, "sgd", lr=lr), settings or [])
            config = replace(config, data_dir=str(data_dir)) if data_dir is not None else config
            adam = start(target, "adamw")["lr"] if adam_lr is None else adam_lr or None
            result = inspect_task(config, adam, budget, report)
    for table in inspection_tables(result):
        console.print(table)
    console.print(f"[bold]{result.verdict}[/bold]", highlight=False)
    if save is not None:
        save_inspection(result, save)


class TaskSource:
    """A task of the lab as a source of batches and losses for `spidersilk.theory.inspection`."""

    def __init__(self, task: Task, anchor: int, small: int):
        self.task, self.anchor_size, self.small_size, self.samples = task, anchor, small, task.samples
        self.loss, self.stepped, self.prepare = task.loss, task.stepped, task.set_reference
        self.state_dict, self.load_state_dict = task.state_dict, task.load_state_dict

    def batches(self, inner: InnerLength, seed: int, anchor: int) -> Iterator[tuple[Any, Any]]:
        return iter(self.task.batches(anchor, self.small_size, inner, torch.Generator().manual_seed(seed)))

    def evaluate(self) -> float:
        return self.task.evaluate()["train_loss"]


def inspect_task(config: RunConfig, adam_lr: float | None, budget: float | None, report: Report) -> Inspection:
    """Inspect a task with its batch sizes and step size, or the config's."""
    config = config.completed()
    torch.manual_seed(config.seed)
    task = find(config.task)(config.options, config.data_dir, team().device(config.device))
    assert config.lr is not None
    assert config.batch_size is not None
    source = TaskSource(task, config.anchor_batch_size or task.samples, config.batch_size)
    return measure(task.model, source, config.lr, budget and budget * task.samples, report, adam_lr)


def inspect_file(path: Path, lr: float, adam_lr: float | None, budget: float | None, report: Report) -> Inspection:
    """Inspect what a Python file defines: `model`, `loss(model, batch)` and `data`."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    defined = runpy.run_path(str(path))
    missing = [name for name in ("model", "loss", "data") if name not in defined]
    if missing:
        needs = "it needs model, loss(model, batch) and data (tensors or a data set)"
        raise ValueError(f"{path} does not define {', '.join(missing)}: {needs}")
    options = {name: defined[name] for name in ("anchor_batch_size", "batch_size") if name in defined}
    options |= {"lr": lr, "adam_lr": adam_lr, "budget": budget and budget * count_samples(defined["data"])}
    return inspect(defined["model"], defined["loss"], defined["data"], report=report, **options)


def inspection_tables(result: Inspection) -> list[Table]:
    bits = f"entropy of M {result.entropy:.2f} of {math.log2(result.d):.2f} bits"
    shares = [
        ["of a difference, captured by the top k", *(f"{x:.0%}" for x in result.captured.values())],
        ["of a gradient, captured by the top k", *(f"{x:.0%}" for x in result.captured_gradient.values())],
        ["variance of rtop, k / 2 + k / 2", *(f"{x:.3g}" for x in result.variance_factor.values())],
    ]
    seconds = [f"{x / result.seconds['SGD']:.2f}" for x in result.seconds.values()]
    trials = []
    for trial in result.trials:
        costs = ["not reached" if math.isinf(x) else f"{x:.2f}" for x in (result.queries(trial), result.time(trial))]
        trials.append([trial.method, f"{trial.lr:g}", f"{trial.lowest:.4g}", *costs])
    size = f"{bits}, d = {result.d:,}, n = {result.samples:,}"
    head = ["method", "lr", "lowest loss", "queries", "seconds"]
    return [
        rich_table(size, ["k", *(f"{k:.0%}" for k in result.captured)], shares),
        rich_table("one step here, in steps of SGD on a small batch", list(result.seconds), [seconds]),
        rich_table("to the best dense method's loss", head, trials),
    ]


def save_inspection(result: Inspection, path: Path) -> None:
    """The measurements with their provenance."""
    names = ("d", "samples", "entropy", "captured", "captured_gradient", "variance_factor", "seconds")
    trials = [vars(t) | {"queries_share": result.queries(t), "seconds_share": result.time(t)} for t in result.trials]
    figures = {name: getattr(result, name) for name in names} | {"trials": trials, "verdict": result.verdict}
    record = {"command": command(), "seeds": [0], "versions": versions(), "machine": machine(team().device("auto"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(record | {"figures": figures}, 10), indent=1) + "\n")
