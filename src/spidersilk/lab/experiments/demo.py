"""The demo: sparse training of a small GPT beside AdamW and LoRA, variance reduction, and Algorithm 1's step size.

Every step size is the best of several, see each part. All times are of steps alone, after a warm-up of all kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.lab import peers
from spidersilk.lab.experiments.paper import printed_steps
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve
from spidersilk.lab.run.machine import machine, versions
from spidersilk.lab.run.start import Report, prepare
from spidersilk.lab.tasks.finetune import Finetune
from spidersilk.sparse.optimizers import SparseAdamW

CPU = torch.device("cpu")
ROUNDS, BLOCK, ROWS = 12, 10, 16  # blocks of steps of each method, which take turns; rows of a batch
OPTIONS = {"size": "tiny", "text": "library", "pretrain_steps": 300, "train_bytes": 300_000, "eval_samples": 100}
ADAMW, LORA, COLUMNS = "AdamW", "LoRA, rank 16", "SparseAdamW, 10 % columns"
# Each the best of four, twice apart, by the validation loss at the end; none is the smallest or largest of its four.
RATES = {ADAMW: 1e-3, LORA: 1.6e-2, COLUMNS: 2e-3}


def make(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if name == LORA:
        return peers.lora(model, 16, lr)
    if name == COLUMNS:
        seed = torch.Generator().manual_seed(0)
        return SparseAdamW(model, lr, k2=0.1, groups="columns", generator=seed)
    return torch.optim.AdamW(model.parameters(), lr)


class Rival:
    """One method with a model, batches and clock of its own; all of them see the same batches."""

    def __init__(self, name: str, lr: float, steps: int, report: Report, options: dict[str, Any]):
        self.name, self.lr, self.steps = name, lr, steps
        torch.manual_seed(0)
        self.task = Finetune(OPTIONS | options, None, CPU)
        prepare(self.task, report)
        self.weights = list(self.task.model.parameters())
        self.optimizer = make(name, self.task.model, lr)
        rows = min(ROWS, self.task.samples)
        self.batches = iter(self.task.batches(rows, rows, 1, torch.Generator().manual_seed(0)))
        self.done, self.seconds, self.samples, self.held = 0, 0.0, 0, 0
        self.blocks: list[float] = []  # seconds a step
        self.rows: list[dict[str, float]] = []

    def step(self, last: bool = False) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * (1 - self.done / self.steps)
        batch, _ = next(self.batches)
        self.task.loss(batch, None).backward()
        if last:
            self.held = held_bytes(self.optimizer, self.task.model, self.weights)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done, self.samples = self.done + 1, self.samples + len(batch)

    def block(self, steps: int) -> None:
        """Steps with the clock running, but for the last one of all, whose gradients are counted."""
        start = time.perf_counter()
        for _ in range(steps - 1):
            self.step()
        seconds = time.perf_counter() - start
        self.blocks.append(seconds / (steps - 1))
        self.seconds += seconds * steps / (steps - 1)
        self.step(last=True)

    def evaluate(self) -> None:
        counters = {"queries": self.samples / self.task.samples, "samples": self.samples, "updates": self.done}
        self.rows.append({**counters, "seconds": self.seconds, **self.task.evaluate()})

    def curve(self, dense: Rival) -> Curve:
        """`step_ratio`: of its seconds a step to those of `dense` in the same round, a median."""
        ratios = [mine / theirs for mine, theirs in zip(self.blocks, dense.blocks, strict=True)]
        facts = {"data": self.task.data_name, "machine": machine(CPU), "versions": versions(), "held_bytes": self.held,
                 "parameters": sum(w.numel() for w in self.weights), "step_seconds": median(self.blocks),
                 "step_ratio": median(ratios)}  # fmt: skip
        config = {"task": "finetune", "optimizer": self.name, "lr": self.lr, "options": self.task.given, "seed": 0,
                  "batch_size": ROWS, "steps": self.steps, "schedule": "linear"}  # fmt: skip
        return Curve(self.name, self.rows, config=config, summary=facts)


def held_bytes(optimizer: torch.optim.Optimizer, model: nn.Module, weights: Sequence[Tensor]) -> int:
    """Bytes of all tensors that training holds besides the model's own `weights`: gradients, state, extra parameters.

    They are found by looking through all that the optimizer refers to, so that nothing is counted by a formula.
    """
    known = {w.untyped_storage().data_ptr() for w in weights}
    found: dict[int, int] = {}
    seen: set[int] = set()
    todo: list[Any] = [vars(optimizer), *model.parameters()]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, nn.Module | type | Callable):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            todo.append(thing.grad)
            storage = thing.untyped_storage()
            if storage.data_ptr() not in known and storage.device.type == "cpu":
                found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, dict):
            todo += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set):
            todo += thing
        elif type(thing).__module__.startswith(("spidersilk.", "torch.")) and hasattr(thing, "__dict__"):
            todo.append(vars(thing))
    return sum(found.values())


def finetune(
    report: Report, moved: Callable[[int, int, str, float], None], rounds: int = ROUNDS, block: int = BLOCK,
    options: dict[str, Any] | None = None,
) -> list[Curve]:  # fmt: skip
    """Fine-tune by each method, in blocks that take turns: a slow minute of the machine is everybody's.

    `report` hears of the pretraining, `moved` of rounds that are done, how many there are, and who ended with what.
    """
    rivals = [Rival(name, lr, rounds * block, report, options or {}) for name, lr in RATES.items()]
    for rival in rivals:
        # A few steps of the same method on another model: kernels are compiled, memory is there.
        Rival(rival.name, rival.lr, rival.steps, report, options or {}).block(3)
        rival.evaluate()
    for number in range(rounds):
        first = number % len(rivals)
        for rival in rivals[first:] + rivals[:first]:
            rival.block(block)
            rival.evaluate()
            moved(number + 1, rounds, rival.name, rival.rows[-1]["valid_loss"])
    return [rival.curve(rivals[0]) for rival in rivals]


# The other parts are runs of the lab.

SGD, SVRG, SPARSE_SVRG = "SGD", "SVRG", "SparseSVRG (k/d = 20 %)"


def convex() -> list[RunConfig]:
    """Breast-cancer data: d = 30, so Python's overhead is most of a step, and more so the more a step does.

    Step sizes: the best of five, twice apart, by f - f* at the end. SGD's falls to 0 in a line.
    """
    common: dict[str, Any] = {"options": {"data": "breast-cancer"}, "budget": 30.0, "eval_every": 0.5}
    common |= {"batch_size": 10}
    return [
        RunConfig("logistic", "sgd", "logistic-sgd", label=SGD, lr=2.0, schedule="linear", **common),
        RunConfig("logistic", "svrg", "logistic-svrg", label=SVRG, lr=16.0, **common),
        RunConfig("logistic", "sparse-svrg", "logistic-sparse-svrg", label=SPARSE_SVRG, lr=2.0, **common),
    ]


def algorithm_1() -> list[RunConfig]:
    """The paper's fully connected network (d = 308,310) on digits, k = 10 %, m = 10, a tenth of the samples a batch.

    The stable step is the largest of 0.005, 0.02, 0.05 and 0.1 at which the loss of none of three seeds rose.
    """
    printed = printed_steps("image")["lr"]
    common: dict[str, Any] = {"options": {"model": "fc", "data": "digits"}, "budget": 10.0, "eval_every": 0.25}
    common |= {"batch_size": 50, "anchor_batch_size": 500}
    steps = [("paper", printed, f"the paper's step {printed:g}"), ("stable", 0.02, "step 0.02")]
    return [
        RunConfig("image", "sparse-spiderboost", f"algorithm-1-{key}", label=f"Algorithm 1, {text}", lr=lr, **common)
        for key, lr, text in steps
    ]


def warm_up(configs: list[RunConfig]) -> None:
    """Three updates of each, thrown away, so that no clock runs while kernels are compiled."""
    with TemporaryDirectory() as folder:
        for config in configs:
            runner.run(replace(config, steps=3, budget=RunConfig.budget), Path(folder) / config.name)
