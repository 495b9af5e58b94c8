"""What `spidersilk inspect` looks at: a task of the lab, or a Python file of the user's."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.runner import machine, versions
from spidersilk.lab.tasks import Task, find
from spidersilk.loop.lengths import InnerLength
from spidersilk.loop.loader import count_samples
from spidersilk.theory.inspection import Inspection, inspect, measure


class TaskSource:
    """A task of the lab as a source of batches and losses."""

    def __init__(self, task: Task, anchor: int, small: int):
        self.task, self.anchor_size, self.small_size = task, anchor, small
        self.samples = task.samples

    def batches(self, inner: InnerLength, seed: int, anchor: int) -> Iterator[tuple[Any, Any]]:
        generator = torch.Generator().manual_seed(seed)
        return iter(self.task.batches(anchor, self.small_size, inner, generator))

    def loss(self, batch: Any, point: str | None) -> Tensor:
        return self.task.loss(batch, point)

    def held(self) -> float:
        return self.task.evaluate()["train_loss"]

    def stepped(self) -> None:
        self.task.stepped()

    def prepare(self, reference: str | None) -> None:
        if hasattr(self.task, "point_of_old_state"):
            self.task.point_of_old_state = reference  # pyright: ignore[reportAttributeAccessIssue]

    def state_dict(self) -> dict[str, Any]:
        return self.task.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.task.load_state_dict(state)


def inspect_task(
    config: RunConfig, adam_lr: float | None, budget: float | None, report: Any = lambda _: None
) -> Inspection:
    """Inspect a task with its own batch sizes and step size, or the config's."""
    config = config.completed()
    torch.manual_seed(config.seed)
    device = torch.device("cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu")
    task = find(config.task)(config.options, config.data_dir, device)
    assert config.lr is not None
    assert config.batch_size is not None
    source = TaskSource(task, config.anchor_batch_size or task.samples, config.batch_size)
    return measure(task.model, source, config.lr, budget and budget * task.samples, report, adam_lr)


def inspect_file(
    path: Path, lr: float, adam_lr: float | None, budget: float | None, report: Any = lambda _: None
) -> Inspection:
    """Inspect what a Python file defines: `model`, `loss(model, batch)` and `data`."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = [name for name in ("model", "loss", "data") if not hasattr(module, name)]
    if missing:
        raise ValueError(
            f"{path} does not define {', '.join(missing)}: it needs model, loss(model, batch) and data (tensors or a "
            "data set)"
        )
    sizes = {name: getattr(module, name) for name in ("anchor_batch_size", "batch_size") if hasattr(module, name)}
    spend = budget and budget * count_samples(module.data)
    rates = {"lr": lr, "adam_lr": adam_lr}
    return inspect(module.model, module.loss, module.data, **rates, budget=spend, report=report, **sizes)


def tables(found: Inspection) -> list[Table]:
    """What was found, for reading."""
    bits = f"entropy of M {found.entropy:.2f} of {math.log2(found.d):.2f} bits, d = {found.d:,}, n = {found.samples:,}"
    shares = Table("k", *(f"{k:.0%}" for k in found.captured), title=bits)
    shares.add_row("of a difference, captured by the top k", *(f"{x:.0%}" for x in found.captured.values()))
    shares.add_row("of a gradient, captured by the top k", *(f"{x:.0%}" for x in found.captured_gradient.values()))
    shares.add_row("variance of rtop, k / 2 + k / 2", *(f"{x:.3g}" for x in found.variance_factor.values()))
    seconds = Table(*found.seconds, title="one step here, in steps of SGD on a small batch")
    seconds.add_row(*(f"{x / found.seconds['SGD']:.2f}" for x in found.seconds.values()))
    trials = Table("method", "lr", "lowest loss", "queries", "seconds", title="to the best dense method's loss")
    for trial in found.trials:
        shares_of = [found.queries(trial), found.time(trial)]
        cells = ["not reached" if math.isinf(x) else f"{x:.2f}" for x in shares_of]
        trials.add_row(trial.method, f"{trial.lr:g}", f"{trial.lowest:.4g}", *cells)
    return [shares, seconds, trials]


def save(found: Inspection, path: Path, command: str) -> None:
    """The figures with what made them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trials = [vars(t) | {"queries_share": found.queries(t), "seconds_share": found.time(t)} for t in found.trials]
    record = {
        "command": command,
        "seeds": [0],
        "versions": versions(),
        "machine": machine(device),
        "figures": {
            "d": found.d,
            "samples": found.samples,
            "entropy": found.entropy,
            "captured": found.captured,
            "captured_gradient": found.captured_gradient,
            "variance_factor": found.variance_factor,
            "seconds": found.seconds,
            "trials": trials,
            "verdict": found.verdict,
        },
    }
    text = json.dumps(_finite(record), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _finite(value: Any) -> Any:
    """JSON has no infinity: what was not reached is null. Ten digits are enough."""
    if isinstance(value, float):
        return float(f"{value:.10g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
