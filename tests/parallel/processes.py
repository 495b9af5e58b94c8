"""Processes that train together, for the tests: a pool of them, and what each of them runs."""

from __future__ import annotations

import gc
import os
import tempfile
import traceback
import warnings
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
import spidersilk.distributed

WORLD = 4
TIMEOUT = timedelta(seconds=60)


# The pool.


class Pool:
    """`WORLD` processes over gloo; `run` calls a function on the first `ranks` of them and returns their results."""

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
        """The result of a rank; its exception is raised here."""
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
    gc.freeze()  # as in conftest.py: every wrapper here is made after it
    warnings.filterwarnings("ignore", "gc.freeze")
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


NAMED = ("SpiderBoost", "SparseSpiderBoost", "SVRG", "SparseSVRG")
METHODS: dict[str, Callable[..., Any]] = {
    "SpiderBoost": lambda p, **c: silk.SpiderBoost(p, lr=0.1, **c),
    "SparseSpiderBoost": lambda p, **c: silk.SparseSpiderBoost(p, lr=0.02, k1=0.2, k2=0.2, **c),
    "SVRG": lambda p, **c: silk.SVRG(p, lr=0.1, **c),
    "SparseSVRG": lambda p, **c: silk.SparseSVRG(p, lr=0.1, k1=0.1, k2=0.1, **c),
    "AdamW": _adamw,
    "refresh": lambda p, **c: silk.SparseSVRG(p, lr=0.1, scaling="refresh", max_norm=0.2, **c),
    "selected": lambda p, **c: silk.SparseSVRG(p, lr=0.1, move="selected", momentum=0.5, choose="anchor", **c),
    "few": lambda p, **c: silk.SparseSVRG(p, 0.1, 0.1, 0.1, move="selected", anchor_move="selected", **c),
    "rows": lambda p, **c: silk.SparseSVRG(p, 0.1, 0.2, 0.2, move="selected", choose="anchor", groups="rows", **c),
    "columns": lambda p, **c: silk.SparseSVRG(p, 0.1, 0.2, 0.2, groups="columns", **c),
    "per tensor": lambda p, **c: silk.SparseSVRG(p, lr=0.1, k1=0.1, k2=0.1, per_tensor=True, **c),
    "sparse backward": lambda p, **c: silk.SparseSVRG(p, lr=0.1, groups="rows", sparse_backward=True, **c),
    "torch": lambda p, **c: silk.SparseSVRG(p, lr=0.1, k1=0.1, k2=0.1, backend="torch", **c),
}


class Training:
    """A model, its optimizer and its loader; `go` takes steps and returns x after each of them."""

    def __init__(
        self,
        group: Any,
        method: str = "SparseSVRG",
        *,
        ddp: bool = False,
        dtype: torch.dtype = torch.float64,
        by_dataloader: bool = False,
        **loader: Any,
    ):
        self.model: nn.Module = model(dtype=dtype)
        self.x, self.y = data(dtype)
        self.called: nn.Module = (
            nn.parallel.DistributedDataParallel(self.model, process_group=group) if ddp else self.model
        )
        self.optimizer = METHODS[method](self.model.parameters(), generator=seeded(), process_group=group)
        given = {"anchor_batch_size": 37, "batch_size": 7, "inner_steps": 5, "loops": 10**6} | loader
        self.data: Any = list(zip(self.x, self.y, strict=True)) if by_dataloader else (self.x, self.y)
        self.loader = silk.AnchorLoader(self.data, generator=seeded(4), process_group=group, **given)
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
    points = training.go(steps)
    groups = training.optimizer._engine.groups
    assert (groups is not None and groups.is_compared) is (method == "sparse backward")
    return points, training.optimizer.gradient_queries


def averaged_by_ddp(group: Any) -> tuple[float, bool]:
    """Batches divide by the number of ranks. Returns the error of x, and whether DDP averaged the anchors."""
    alone = trajectory(None, "SparseSVRG", 20, anchor_batch_size=40, batch_size=8)[0]
    training = Training(group, ddp=True, anchor_batch_size=40, batch_size=8)
    points = training.go(20)
    return float((points - alone).abs().max()), training.optimizer._workers._averaged


def ddp_beside_the_point(group: Any) -> float:
    """A DDP wrapper exists, but the closure calls the module inside it: only the optimizer averages."""
    alone = trajectory(None, "SparseSVRG", 20, anchor_batch_size=40, batch_size=8)[0]
    training = Training(group, ddp=True, anchor_batch_size=40, batch_size=8)
    wrapper, training.called = training.called, training.model
    off = float((training.go(20) - alone).abs().max())
    assert training.optimizer._workers._wrappers.wrappers == [wrapper]
    return off


def ddp_over_others(group: Any) -> float:
    """The wrapper averages over all ranks, the optimizer over a group of this rank alone."""
    alone = trajectory(None, "SparseSVRG", 20, anchor_batch_size=40, batch_size=8)[0]
    rank = dist.get_rank(group)
    own = dist.new_group([rank], use_local_synchronization=True)
    training = Training(own, anchor_batch_size=40, batch_size=8)
    if rank == 1:
        training.x.mul_(2)  # which must not be felt on rank 0
    training.called = nn.parallel.DistributedDataParallel(training.model, process_group=group)
    return float((training.go(20) - alone).abs().max())


def in_small_buckets(group: Any) -> float:
    alone = trajectory(None, "SparseSVRG", 20)[0]
    silk.distributed.BUCKET = 7
    try:
        return float((trajectory(group, "SparseSVRG", 20)[0] - alone).abs().max())
    finally:
        silk.distributed.BUCKET = 1 << 23


def run_code(group: Any, text: str) -> Tensor:
    """Run code of the docs on ranks that have joined already and do not leave."""
    joins, leaves = silk.distributed.join, silk.distributed.leave
    silk.distributed.join = lambda: torch.device("cpu")
    silk.distributed.leave = lambda: None
    names: dict[str, Any] = {}
    try:
        exec(compile(text, "docs", "exec"), names)
    finally:
        silk.distributed.join, silk.distributed.leave = joins, leaves
    return torch.cat([p.detach().reshape(-1) for p in names["model"].parameters()])


def ddp_with_buffers(group: Any, batch_size: int) -> list[Tensor]:
    """A buffer under DistributedDataParallel, with batches of fewer samples than ranks."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 3)).double()
    inner.register_buffer("rank", torch.zeros(1))
    model = nn.parallel.DistributedDataParallel(inner, process_group=group)
    inner.get_buffer("rank").fill_(dist.get_rank(group))  # now: the wrapper made all of them alike
    optimizer = silk.SparseSVRG(model.parameters(), lr=0.1, generator=seeded(), process_group=group)
    loader = silk.AnchorLoader(data(), 40, batch_size, 5, loops=3, generator=seeded(4), process_group=group)
    for (x, y), is_anchor in loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure, anchor=is_anchor, samples=len(x))
    return [t.detach().clone() for t in model.state_dict().values()]


def outcome(group: Any, wrong: str) -> tuple[str, str, list[int], float]:
    """Make rank 1 differ in `wrong`. Returns the error of the first step, and how far x has moved."""
    odd = dist.get_rank(group) == 1
    training = Training(group)
    start = training.flat()
    params = training.model.parameters()
    if wrong == "seed":
        training.optimizer = METHODS["SparseSVRG"](params, generator=seeded(99 if odd else 3), process_group=group)
    elif wrong == "parameters" and odd:
        next(training.model.parameters()).data[0, 0] += 1e-12
        start = training.flat()
    elif wrong == "settings":
        training.optimizer = silk.SparseSVRG(params, 0.1, 0.1, 0.2 if odd else 0.1, process_group=group)
    elif wrong == "step size":
        training.optimizer.param_groups[0]["lr"] = 0.2 if odd else 0.1
    elif wrong == "hook" and odd:
        training.optimizer.register_measures_hook(lambda _: None)
    elif wrong == "batches":
        seed = seeded(99 if odd else 4)
        training.batches = iter(silk.AnchorLoader(training.data, 37, 7, 5, generator=seed, process_group=group))
    elif wrong in ("order", "order of a data set"):
        data = tuple(t.flip(0) if odd else t for t in training.data)
        given: Any = data if wrong == "order" else list(zip(*data, strict=True))
        training.batches = iter(silk.AnchorLoader(given, 37, 7, 5, generator=seeded(4), process_group=group))
    try:
        training.step()
    except silk.distributed.DisagreementError as error:
        return error.what, str(error), error.ranks, float((training.flat() - start).abs().max())
    return "", "", [], 0.0


DRIFTS: dict[str, Callable[[Training], object]] = {
    "the parameters": lambda t: next(t.model.parameters()).data[0, 0].add_(1e-12),
    "the memory M": lambda t: t.optimizer._engine.vectors.memory[0][5].mul_(1 + 1e-9),
    "the selection": lambda t: t.optimizer.selection.random[-1:].add_(1),
    "the number of steps": lambda t: setattr(t.optimizer._loop, "steps", 99),
    "the step size": lambda t: t.optimizer.param_groups[0].update(lr=0.3),
}


def drifts(group: Any, what: str) -> tuple[str, list[int]]:
    """Change something on rank 2 in the middle of a loop; check_agreement must find it."""
    training = Training(group)
    training.go(3)
    training.optimizer.check_agreement()
    if dist.get_rank(group) == 2:
        DRIFTS[what](training)
    try:
        training.optimizer.check_agreement()
    except silk.distributed.DisagreementError as error:
        return error.what, error.ranks
    return "", []


def without_generators(group: Any) -> Tensor:
    """Each rank has a different global seed; that of rank 0 is used."""
    training = Training(group)
    torch.manual_seed(dist.get_rank(group))
    training.optimizer = METHODS["SparseSVRG"](training.model.parameters(), process_group=group)
    loader = silk.AnchorLoader(training.data, 37, 7, 5, loops=9, process_group=group)
    training.batches = iter(loader)
    return training.go(20)


def spread_from_first(group: Any) -> list[Tensor]:
    torch.manual_seed(dist.get_rank(group))
    net = nn.BatchNorm1d(3)
    nn.init.normal_(net.weight)
    net.running_mean.normal_()
    silk.distributed.broadcast(net, group)
    return [t.clone() for t in net.state_dict().values()]


def not_finite_on_one_rank(group: Any) -> tuple[str, int, Tensor]:
    """A sample overflows on one rank: all ranks raise the error, and x is unchanged."""
    training = Training(group)
    training.x[17] = float("inf")
    before = training.flat()
    for _ in range(100):
        before = training.flat()
        try:
            training.step()
        except silk.DivergenceError as error:
            return str(error), error.step, training.flat() - before
    return "", -1, before


def sent(group: Any, method: str, inner_steps: int) -> tuple[list[int], list[int], Any, int]:
    """Bytes given to torch's all_reduce at each step of two loops, the anchors among the steps, the counter, and d."""
    net = nn.Sequential(nn.Linear(30, 90), nn.Tanh(), nn.Linear(90, 3))
    silk.distributed.broadcast(net, group)
    optimizer = METHODS[method](net.parameters(), generator=seeded(), process_group=group)
    data = torch.randn(60, 30, generator=seeded()), torch.randint(3, (60,), generator=seeded())
    loader = silk.AnchorLoader(
        data,
        40,
        8,
        inner_steps,
        loops=2,
        generator=seeded(),
        process_group=group,
    )
    handed, steps, anchors = 0, [], []
    original = dist.all_reduce

    def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal handed
        handed += tensor.numel() * tensor.element_size()
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counting
    try:
        for number, ((x, y), is_anchor) in enumerate(loader):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                return loss

            handed = 0
            optimizer.step(closure, anchor=is_anchor, samples=len(x))
            steps.append(handed)
            anchors += [number] if is_anchor else []
    finally:
        dist.all_reduce = original
    return steps, anchors, optimizer.traffic, optimizer.d


def measured(group: Any, method: str) -> list[tuple[float, ...]]:
    training = Training(group, method)
    told: list[tuple[float, ...]] = []
    training.optimizer.register_measures_hook(
        lambda m: told.append((m.top_energy, m.outside_energy, m.variance, m.estimate_energy, m.loss_change))
    )
    training.go(20)
    return told


def saved(group: Any, steps: int, method: str) -> dict[str, Any]:
    training = Training(group, method)
    training.go(steps)
    states = {"model": training.model, "optimizer": training.optimizer, "loader": training.loader}
    return {name: thing.state_dict() for name, thing in states.items()}


def resumed(group: Any, state: dict[str, Any], steps: int, method: str) -> Tensor:
    training = Training(group, method)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.loader.load_state_dict(state["loader"])
    training.batches = iter(training.loader)
    return training.go(steps)[-1]


def saved_between_pieces(group: Any) -> str:
    training = Training(group, micro_batch_size=20)
    training.step()
    try:
        training.optimizer.state_dict()
    except RuntimeError as error:
        message = str(error)
    else:
        message = ""
    training.step()
    training.optimizer.state_dict()
    return message


def own_batches(group: Any) -> tuple[Tensor, float]:
    """Without an AnchorLoader: batches of equal size on each rank, which count the same."""
    training = Training(group)
    parts = 1 if group is None else dist.get_world_size(group)
    rank = 0 if group is None else dist.get_rank(group)
    for step in range(20):
        rows = torch.arange(40 if step % 5 == 0 else 8).chunk(parts)[rank] + step
        training.batches = iter([((training.x[rows], training.y[rows]), step % 5 == 0)])
        training.step()
    return training.flat(), training.optimizer.gradient_queries


def unequal_own_batches(group: Any) -> tuple[str, str]:
    training = Training(group)
    try:
        for step in range(10):
            size = 5 if dist.get_rank(group) == 1 and step % 5 else 4
            training.batches = iter([((training.x[:size], training.y[:size]), step % 5 == 0)])
            training.step()
    except silk.distributed.DisagreementError as error:
        return error.what, str(error)
    return "", ""


def sharded(group: Any) -> list[str]:
    """The errors for models under both forms of FSDP, by optimizers with a group and without."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    second = nn.Linear(8, 8)
    fully_shard(second, mesh=DeviceMesh.from_group(group, "cpu"))
    options = {"process_group": group, "device_id": torch.device("cpu")}
    first = FullyShardedDataParallel(nn.Linear(8, 8), **options)
    looks_plain = FullyShardedDataParallel(nn.Linear(8, 8), use_orig_params=True, **options)
    told = []
    for model in (second, first, looks_plain):
        for given in (group, None):
            try:
                optimizer = silk.SparseSVRG(model.parameters(), lr=0.1, process_group=given)
                optimizer.step(lambda: torch.zeros(()), anchor=True)
            except ValueError as error:
                told.append(str(error))
    return told


def wrapped_late(group: Any) -> float:
    """DistributedDataParallel comes after a state was loaded, and before the first step."""
    alone = trajectory(None, "SparseSVRG", 20)[0]
    training = Training(group)
    training.optimizer.load_state_dict(METHODS["SparseSVRG"](model().parameters(), generator=seeded()).state_dict())
    training.optimizer.check_agreement()
    training.called = nn.parallel.DistributedDataParallel(training.model, process_group=group)
    return float((training.go(20) - alone).abs().max())


def refused_wrappers(group: Any) -> list[str]:
    """One around parameters of two optimizers, and one with a static graph."""
    told = []
    for options in ({}, {"static_graph": True}):
        net = model()
        wrapper = nn.parallel.DistributedDataParallel(net, process_group=group, **options)
        params = net.parameters() if options else net[0].parameters()
        optimizer = silk.SparseSVRG(params, lr=0.1, generator=seeded(), process_group=group)
        try:
            optimizer.step(lambda wrapper=wrapper: wrapper(data()[0]).sum(), anchor=True)
        except ValueError as error:
            told.append(str(error))
    return told


def loads_a_part_of_an_anchor(group: Any) -> str:
    alone = Training(None, micro_batch_size=10)
    alone.step()
    training = Training(group, micro_batch_size=10)
    try:
        training.optimizer.load_state_dict(alone.optimizer.state_dict())
    except RuntimeError as error:
        return str(error)
    return ""


def own_error(group: Any) -> str:
    """The closure raises an error whose message looks like a network error."""
    training = Training(group, ddp=True, anchor_batch_size=40, batch_size=8)

    def closure() -> Tensor:
        raise RuntimeError("cannot open the file: lock timeout")

    try:
        training.optimizer.step(closure, anchor=next(training.batches)[1])
    except RuntimeError as error:
        return type(error).__name__
    return ""


def endless(group: Any) -> None:
    Training(group).go(10**9)


def timed(group: Any, steps: int) -> Tensor:
    """Steps with a wait between them, so that there is time to stop a rank."""
    import time

    training = Training(group)
    for _ in range(steps):
        training.step()
        time.sleep(0.05)
    return training.flat()
