"""Processes that train together, for the tests: a pool of them, and what each of them runs."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

WORLD = 4
TIMEOUT = timedelta(seconds=60)


# The pool.


class Pool:
    """`WORLD` processes over gloo; `run` lets the first of them do something, and gives what each of them returned."""

    def __init__(self, world: int = WORLD, timeout: timedelta = TIMEOUT) -> None:
        context = get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")
        self.processes, self._pipes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, store, rank, world, timeout), daemon=True)
            process.start()
            self.processes.append(process)
            self._pipes.append(here)

    def start(self, function: Callable[..., Any], *args: Any, ranks: int = WORLD, **kwargs: Any) -> None:
        for pipe in self._pipes[:ranks]:
            pipe.send((function, ranks, args, kwargs))

    def result(self, rank: int, seconds: float = 100) -> Any:
        """What a rank returned; what it raised is raised here."""
        pipe = self._pipes[rank]
        assert pipe.poll(seconds), f"rank {rank} does not answer"
        good, value = pipe.recv()
        if not good:
            raise value
        return value

    def run(self, function: Callable[..., Any], *args: Any, ranks: int = WORLD, **kwargs: Any) -> list[Any]:
        self.start(function, *args, ranks=ranks, **kwargs)
        return [self.result(rank) for rank in range(ranks)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(pipe: Connection, store: str, rank: int, world: int, timeout: timedelta) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    groups = {n: dist.new_group(list(range(n)), timeout=timeout) for n in range(1, world + 1)}
    while True:
        function, ranks, args, kwargs = pipe.recv()
        try:
            pipe.send((True, function(groups[ranks], *args, **kwargs)))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send((False, error))


# What they run. Each takes a group first, None in a single process.


def model(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).to(dtype)


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    return x.to(dtype), (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _adamw(params: Any, **common: Any) -> Any:
    base = torch.optim.AdamW(params, lr=0.01)
    return silk.VarianceReduced(base, sparsity=silk.RTop(0.1, 0.1), **common)


METHODS: dict[str, Callable[..., Any]] = {
    "SpiderBoost": lambda p, **c: silk.SpiderBoost(p, lr=0.1, **c),
    "SparseSpiderBoost": lambda p, **c: silk.SparseSpiderBoost(p, lr=0.02, k1=0.2, k2=0.2, **c),
    "SVRG": lambda p, **c: silk.SVRG(p, lr=0.1, **c),
    "SparseSVRG": lambda p, **c: silk.SparseSVRG(p, lr=0.1, k1=0.1, k2=0.1, **c),
    "SparseSGD": lambda p, **c: silk.SparseSGD(p, lr=0.1, **c),
    "AdamW": _adamw,
    "refresh": lambda p, **c: silk.SparseSVRG(p, lr=0.1, scaling="refresh", max_norm=0.2, **c),
    "selected": lambda p, **c: silk.SparseSVRG(p, lr=0.1, move="selected", momentum=0.5, choose="anchor", **c),
    "few": lambda p, **c: silk.SparseSGD(p, lr=0.1, k1=0.1, k2=0.1, anchor_move="selected", choose="step", **c),
    "rows": lambda p, **c: silk.SparseSGD(p, lr=0.1, k1=0.2, k2=0.2, groups="rows", **c),
    "per tensor": lambda p, **c: silk.SparseSVRG(p, lr=0.1, k1=0.1, k2=0.1, per_tensor=True, **c),
    "sparse backward": lambda p, **c: silk.SparseSVRG(p, lr=0.1, sparse_backward=True, **c),
    "torch": lambda p, **c: silk.SparseSVRG(p, lr=0.1, k1=0.1, k2=0.1, backend="torch", **c),
}


class Training:
    """A model, its optimizer and its loader; `go` takes steps and gives x after each of them."""

    def __init__(self, group: Any, method: str = "SparseSVRG", *, ddp: bool = False, **loader: Any):
        dtype = loader.pop("dtype", torch.float64)
        self.model: nn.Module = model(dtype=dtype)
        self.x, self.y = data(dtype)
        self.called: nn.Module = (
            nn.parallel.DistributedDataParallel(self.model, process_group=group) if ddp else self.model
        )
        self.optimizer = METHODS[method](self.model.parameters(), generator=seeded(), process_group=group)
        given = {"anchor_batch_size": 37, "batch_size": 7, "inner_steps": 5, "loops": 10**6} | loader
        self.loader = silk.AnchorLoader((self.x, self.y), generator=seeded(4), process_group=group, **given)
        self.batches = iter(self.loader)
        self.losses: list[float] = []

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).clone()

    def step(self) -> None:
        (x, y), is_anchor = next(self.batches)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.called(x), y)
            loss.backward()
            return loss

        self.losses.append(float(self.optimizer.step(closure, anchor=is_anchor, samples=len(x)).detach()))

    def go(self, steps: int) -> Tensor:
        points = []
        for _ in range(steps):
            self.step()
            points.append(self.flat())
        return torch.stack(points)


def trajectory(group: Any, method: str, steps: int = 100, **options: Any) -> tuple[Tensor, float]:
    training = Training(group, method, **options)
    return training.go(steps), training.optimizer.gradient_queries
