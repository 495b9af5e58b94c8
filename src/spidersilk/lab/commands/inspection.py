"""`inspect`: would it fit, and would sparse gradients pay?"""

from __future__ import annotations

import json
import math
import runpy
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spidersilk.lab.commands.arguments import check_data_dir, check_file
from spidersilk.lab.commands.output import console, show_table
from spidersilk.lab.run.collect import plain
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.run.machine import command, machine, versions
from spidersilk.lab.run.start import prepare
from spidersilk.lab.run.team import team
from spidersilk.lab.settings import Number, Whole
from spidersilk.lab.tasks import Task, find
from spidersilk.loop.lengths import InnerLength
from spidersilk.theory import inspection
from spidersilk.theory.inspection import Inspection

Report = Callable[[str], None]
USED = ("lr", "batch_size", "anchor_batch_size", "seed", "device", "data_dir", "options")  # settings that count here
SIZES = {
    "anchor_batch_size": Whole(low=1, about="samples of an anchor"),
    "batch_size": Whole(low=1, about="samples of a small batch"),
}


def inspect(
    target: str,
    lr: float | None,
    adam_lr: float | None,
    budget: float | None,
    settings: Sequence[str],
    data_dir: Path | None,
    save: Path | None,
) -> None:
    """Measure a task or a file, print the tables and the verdict, and save the measurements if asked to."""
    Number(above=0, optional=True, about="the step size for SGD").check("--lr", lr)
    Number(low=0, optional=True, about="the step size for AdamW, or 0 to leave it out").check("--adam-lr", adam_lr)
    Number(above=0, high=1e9, optional=True, about="gradient queries, in N").check("--budget", budget)
    if save is not None:
        check_file("--save", save)
    is_file = target.endswith(".py")
    if is_file and (settings or data_dir is not None):
        raise ValueError(f"--set and --data-dir are for tasks: {target} has its own data and batch sizes")
    with console.status("measuring") as status:
        report: Report = lambda what: status.update(f"measuring: {what}")  # noqa: E731
        if is_file:
            rates = 0.1 if lr is None else lr, 0.001 if adam_lr is None else adam_lr or None
            result = inspect_file(Path(target), *rates, budget, report)
        else:
            config = config_of(target, lr, settings, data_dir)
            adam = find(target).rates.get("adamw", 0.001) if adam_lr is None else adam_lr or None
            result = inspect_task(config, adam, budget, report)
    show(result)
    if save is not None:
        save_inspection(result, save)


def config_of(task: str, lr: float | None, settings: Sequence[str], data_dir: Path | None) -> RunConfig:
    """The task's settings for SGD; what `inspect` would not use is refused."""
    base = RunConfig(task, "sgd", data_dir=check_data_dir(data_dir))
    config = apply_settings(base, settings)
    for name, value in vars(config).items():
        if name not in USED and value != getattr(base, name):
            raise ValueError(f"{name} has no effect here: `inspect` takes {', '.join(USED)} and --budget")
    return config if lr is None else replace(config, lr=lr)


class TaskSource:
    """A task of the lab as a source of batches and losses for `spidersilk.theory.inspection`."""

    def __init__(self, task: Task, anchor: int, small: int):
        self.task, self.anchor_size, self.small_size, self.samples = task, anchor, small, task.samples
        self.loss, self.stepped, self.prepare = task.loss, task.stepped, task.set_reference

    def batches(self, inner: InnerLength, seed: int) -> Iterator[tuple[Any, Any]]:
        return iter(self.task.batches(self.anchor_size, self.small_size, inner, torch.Generator().manual_seed(seed)))

    def evaluate(self) -> float:
        return self.task.evaluate()["train_loss"]


def inspect_task(config: RunConfig, adam_lr: float | None, budget: float | None, report: Report) -> Inspection:
    """Inspect a task with its batch sizes and step size, or the config's."""
    config = config.completed()
    torch.manual_seed(config.seed)
    task = find(config.task)(config.options, config.data_dir, team().device(config.device))
    prepare(task, lambda at: report(f"{at.what}, step {at.at:.0f}"))
    assert config.lr is not None
    assert config.batch_size is not None
    source = TaskSource(task, config.anchor_batch_size or task.samples, config.batch_size)
    return inspection.measure(task.model, source, config.lr, budget, report, adam_lr)


def inspect_file(path: Path, lr: float, adam_lr: float | None, budget: float | None, report: Report) -> Inspection:
    """Inspect what a Python file defines: `model`, `loss(model, batch)` and `data`."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    with _blaming(path):
        defined = runpy.run_path(str(path))
    missing = [name for name in ("model", "loss", "data") if name not in defined]
    if missing:
        needs = "it needs model, loss(model, batch) and data (tensors or a data set)"
        raise ValueError(f"{path} does not define {', '.join(missing)}: {needs}")
    model, loss, data = defined["model"], defined["loss"], defined["data"]
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"{path}: model is a {type(model).__name__}: it must be an nn.Module that can be trained")
    if not callable(loss):
        raise ValueError(f"{path}: loss is a {type(loss).__name__}: it must be a function loss(model, batch)")
    given = {name: size.check(f"{path}: {name}", defined[name]) for name, size in SIZES.items() if name in defined}
    with _blaming(path):
        given |= {"lr": lr, "adam_lr": adam_lr, "budget": budget}
        return inspection.inspect(model, _checked(path, loss), data, report=report, **given)


def _checked(path: Path, loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss, refused if it is not one number that depends on the model."""

    def checked(model: nn.Module, batch: Any) -> Any:
        value = loss(model, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]
            raise ValueError(f"{path}: loss(model, batch) gives {found}: it must be a tensor with one number")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise ValueError(f"{path}: loss(model, batch) gives a value that does not depend on the model's parameters")
        return value

    return checked


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """An error that was raised in the file, or by what it calls, as one line with its place there."""
    try:
        yield
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines = [error.lineno]
        if not lines and isinstance(error, ValueError):
            raise
        text = str(error).strip().splitlines() or [""]
        place = f"{path}, line {lines[-1]}" if lines else f"{path}"
        raise ValueError(f"{place}: {type(error).__name__}: {text[0]}".removesuffix(": ")) from error


def show(result: Inspection) -> None:
    bits = f"entropy of M {result.entropy:.2f} of {math.log2(result.d):.2f} bits"
    shares = [
        ["of a difference, in the top k", *(f"{x:.0%}" for x in result.captured.values())],
        ["of a gradient, in the top k", *(f"{x:.0%}" for x in result.captured_gradient.values())],
        ["variance of rtop, k / 2 + k / 2", *(f"{x:.3g}" for x in result.variance_factor.values())],
    ]
    seconds = ["SGD's steps", *(f"{x / result.seconds['SGD']:.2f}" for x in result.seconds.values())]
    trials = []
    for trial in result.trials:
        costs = ["not reached" if math.isinf(x) else f"{x:.2f}" for x in (result.queries(trial), result.time(trial))]
        trials.append([trial.method, f"{trial.lr:g}", f"{trial.lowest:.4g}", *costs])
    size = f"{bits}, d = {result.d:,}, n = {result.samples:,}"
    show_table(size, ["share of the energy, k / d =", *(f"{k:.0%}" for k in result.captured)], shares)
    show_table("time of one step here, in steps of SGD on a small batch", ["", *result.seconds], [seconds])
    head = ["method", "lr", "lowest loss", "queries, of the best's", "seconds, of the fastest's"]
    show_table("to the best dense method's loss", head, trials)
    dense = result.bytes["AdamW"]
    sizes = [[name, f"{size / 2**20:,.1f}", f"{size / dense:.2f}", "yes" if size <= result.capacity else "no"]
             for name, size in result.bytes.items()]  # fmt: skip
    head = ["method", "MiB at the peak of a step", "of AdamW's", f"fits in {result.capacity / 2**30:.1f} GiB"]
    show_table("memory, predicted", head, sizes)
    answers = [
        ["Would it fit in less?", result.memory_verdict],
        ["Would a step take less time?", result.seconds_verdict],
        ["Would training need less?", result.verdict],
    ]
    show_table("the answers", ["question", "here"], answers)


def save_inspection(result: Inspection, path: Path) -> None:
    """The measurements with their provenance."""
    names = ("d", "samples", "entropy", "captured", "captured_gradient", "variance_factor", "seconds", "bytes",
             "capacity", "verdict", "memory_verdict", "seconds_verdict")  # fmt: skip
    trials = [vars(t) | {"queries_share": result.queries(t), "seconds_share": result.time(t)} for t in result.trials]
    figures = {name: getattr(result, name) for name in names} | {"trials": trials}
    record = {"command": command(), "seeds": [0], "versions": versions(), "machine": machine(team().device("auto"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(record | {"figures": figures}, 10), indent=1) + "\n")
