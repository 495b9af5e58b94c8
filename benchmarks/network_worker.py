"""One worker of benchmarks/network.py, which starts it: the methods, the timing and the counters.

Every worker runs the same list of parts in the same order; rank 0 writes a line of JSON for each finished part.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import links
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import spidersilk as silk
from spidersilk.distributed import leave

LOUD = 0.25  # processors used by other programs: more is too noisy
FACTOR_WARM_UP = 2  # dense steps before PowerSGD begins: the minimum of torch's hook


@dataclass(frozen=True)
class Settings:
    """Settings shared by all parts of one measurement; a partial file belongs to one Settings."""

    width: int  # of the MLP's three hidden layers
    batch: int  # on each worker
    anchor_batch: int  # of SVRG, on each worker; SparseSGD's anchors are as small as its small steps
    k: float
    m: int  # updates of an outer loop
    rank: int  # of PowerSGD's factors
    patience: float  # seconds to wait for quiet processors, before each block
    target: float
    max_steps: int
    lr: dict[str, float]  # of each method


METHODS = ("dense", "PowerSGD", "SparseSGD", "SparseSVRG")
OURS = METHODS[2:]


def mlp(width: int) -> nn.Sequential:
    sizes = (64, width, width, width, 10)
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


class Method:
    """A model and its optimizer; step `t` decides which batch it gets and whether it is an anchor."""

    def __init__(self, name: str, given: Settings, group: Any, seed: int, lr: float):
        torch.manual_seed(seed)
        self.name, self.given, self.seed = name, given, seed
        digits: Any = load_digits()
        self.x = torch.tensor(digits.data / 16, dtype=torch.float32)
        self.y = torch.tensor(digits.target)
        self.model = mlp(given.width)
        self.params = list(self.model.parameters())
        self.optimizer: Any
        if name in ("dense", "PowerSGD"):
            # With more than one bucket, the hook's calls over gloo come in another order on each worker, and fail.
            bucket = None if name == "dense" else 1000
            self.wrapped: nn.Module = DistributedDataParallel(
                self.model, process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=bucket
            )
            if name == "PowerSGD":
                state = powerSGD_hook.PowerSGDState(
                    group, matrix_approximation_rank=given.rank, start_powerSGD_iter=FACTOR_WARM_UP
                )
                self.wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            self.optimizer = torch.optim.SGD(self.params, lr, fused=True)
        else:
            self.wrapped = self.model
            seeded = torch.Generator().manual_seed(seed)
            options: dict[str, Any] = {"generator": seeded, "process_group": group}
            if name == "SparseSGD":
                self.optimizer = silk.SparseSGD(self.model, lr, k1=given.k, k2=0.0, **options)
            else:
                self.optimizer = silk.SparseSVRG(self.params, lr, given.k / 2, given.k / 2, **options)

    def kind(self, t: int) -> str:
        if self.name in ("dense", "PowerSGD"):
            return "step"
        return "small" if t % self.given.m else "anchor"

    def batch(self, t: int) -> tuple[Tensor, Tensor]:
        anchor = self.kind(t) == "anchor" and self.name == "SparseSVRG"
        size = self.given.anchor_batch if anchor else self.given.batch
        seeded = torch.Generator().manual_seed((self.seed * 100_003 + t) * 64 + dist.get_rank())
        chosen = torch.randint(len(self.x), (size,), generator=seeded)
        return self.x[chosen], self.y[chosen]

    def step(self, t: int) -> None:
        x, y = self.batch(t)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.wrapped(x), y)
            loss.backward()
            return loss

        if self.kind(t) == "step":
            closure()
            self.optimizer.step()
        else:
            self.optimizer.step(closure, anchor=self.kind(t) == "anchor")

    def steps(self, numbers: range) -> None:
        for t in numbers:
            self.step(t)

    def handed_over(self) -> int | None:
        """Bytes given to all-reduces so far, by the optimizer's own count; torch's DDP does not say."""
        traffic = getattr(self.optimizer, "traffic", None)
        return None if traffic is None else traffic.anchors + traffic.small_steps + traffic.control

    @torch.no_grad()
    def loss(self) -> float:
        return float(F.cross_entropy(self.model(self.x[:500]), self.y[:500]))


class Worker:
    def __init__(self, spec: dict[str, Any]):
        self.given = Settings(**spec["settings"])
        self.rank, self.n, self.shaped = spec["rank"], spec["workers"], spec["shaped"]
        self.out = Path(spec["out"])
        dist.init_process_group("gloo", init_method=f"file://{spec['store']}", rank=self.rank, world_size=self.n)
        self.alone, _ = dist.new_subgroups(group_size=1)
        self.world = dist.group.WORLD
        self._made: dict[tuple[str, bool], Method] = {}

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"  {text}", file=sys.stderr, flush=True)

    def put(self, part: list[Any], figures: dict[str, Any]) -> None:
        if self.rank == 0:
            with self.out.open("a") as file:
                file.write(json.dumps({"part": [self.n, *part], "figures": figures}) + "\n")

    def limit(self, mbit: float | None) -> None:
        if self.shaped:
            links.limit(mbit)
        dist.barrier()

    def block(self, steps: Callable[[], Any], count: int) -> dict[str, Any]:
        """Mean seconds and bytes of `count` steps; counters are read outside the clock."""
        dist.barrier()
        before, own, all_of_it = links.Counters.read(self.shaped), time.process_time(), processor_seconds()
        dist.barrier()
        start = time.perf_counter()
        steps()
        seconds = time.perf_counter() - start
        own, all_of_it = time.process_time() - own, processor_seconds() - all_of_it
        dist.barrier()  # after it, everything sent has left this worker
        after = links.Counters.read(self.shaped).since(before)
        sharing = count if self.shaped else count * self.n  # loopback is one device for all
        return {
            "seconds": seconds / count,
            "payload": after.payload / sharing,
            "interface": after.interface / sharing,
            "wire": after.wire / sharing,
            "others": others(own, all_of_it, seconds),
        }

    def wait_for_quiet(self) -> None:
        """Wait until other programs leave the processors idle for a moment, or patience ends."""
        if self.rank == 0:
            end = time.monotonic() + self.given.patience
            while time.monotonic() < end:
                before = processor_seconds()
                time.sleep(0.3)
                if processor_seconds() - before < 0.3 * LOUD:
                    break
        dist.barrier()

    def method(self, name: str, group: Any) -> Method:
        """The method to time, after the work that only its first steps do."""
        key = name, group is self.alone
        if key not in self._made:
            made = Method(name, self.given, group, 0, self.given.lr[name] / 10)
            made.steps(range(FACTOR_WARM_UP + 2 if name == "PowerSGD" else 2))
            self._made[key] = made
        return self._made[key]

    def blocks(self, method: Method) -> dict[str, Any]:
        """Time a block of each kind of step, twice; keep the attempt that other programs disturbed least."""
        if method.kind(0) == "step":
            turns = {"step": range(1, 3 if method.name == "dense" else self.given.m)}
        else:
            turns = {"anchor": range(1), "small": range(1, self.given.m)}
        best: dict[str, Any] = {}
        for _ in range(2):
            self.wait_for_quiet()
            found = {}
            for kind, numbers in turns.items():
                handed = method.handed_over()
                found[kind] = self.block(partial(method.steps, numbers), len(numbers))
                if handed is not None:
                    found[kind]["counted"] = ((method.handed_over() or 0) - handed) / len(numbers)
            for kind in turns:
                if kind not in best or found[kind]["others"] < best[kind]["others"]:
                    best[kind] = found[kind]
            quiet = torch.tensor([all(best[kind]["others"] < LOUD for kind in turns)])
            dist.broadcast(quiet, 0)  # each worker has counted by itself, and all must decide alike
            if quiet:
                break
        return best

    def local(self, name: str, turn: int) -> None:
        """Local times: all workers busy, nothing sent (each is a group of one)."""
        self.limit(None)
        self.put(["local", name, turn], self.blocks(self.method(name, self.alone)))

    def rate(self, mbit: float, name: str, turn: int) -> None:
        """The same, with a link between the workers."""
        self._made = {key: made for key, made in self._made.items() if not key[1]}
        self.limit(None)
        method = self.method(name, self.world)
        self.limit(mbit)
        self.say(f"{self.n} workers, {mbit:g} Mbit/s, {name}, round {turn + 1}")
        self.put(["rate", mbit, name, turn], self.blocks(method))

    def passes(self) -> None:
        """Seconds of the forward and the backward pass of one plain evaluation, medians."""
        method = self.method("dense", self.alone)
        forward, backward = [], []
        self.wait_for_quiet()
        for t in range(10):
            x, y = method.batch(t)
            method.optimizer.zero_grad()
            dist.barrier()
            start = time.perf_counter()
            loss = F.cross_entropy(method.model(x), y)
            middle = time.perf_counter()
            loss.backward()
            forward.append(middle - start)
            backward.append(time.perf_counter() - middle)
        self.put(["passes"], {"forward": statistics.median(forward), "backward": statistics.median(backward)})

    def messages(self, mbit: float) -> None:
        """All-reduces of sizes that no method sends, to fit latency and bandwidth to; and a top-k's all-gather."""
        self.limit(mbit)
        self.say(f"{self.n} workers, {mbit:g} Mbit/s, messages")
        found: dict[str, Any] = {"all_reduce": {}}
        for size, times in ((10_000, 9), (300_000, 5), (3_000_000, 3)):
            vector = torch.ones(size)
            dist.all_reduce(vector)
            self.wait_for_quiet()
            blocks = [self.block(partial(dist.all_reduce, vector), 1) for _ in range(times)]
            found["all_reduce"][str(4 * size)] = summary(blocks)
        d = sum(p.numel() for p in mlp(self.given.width).parameters())
        own = torch.ones(2 * int(self.given.k * d))  # values and as many indices of four bytes
        held = [torch.empty_like(own) for _ in range(self.n)]
        self.wait_for_quiet()
        blocks = [self.block(partial(dist.all_gather, held, own), 1) for _ in range(2)]
        found["top_k"] = {"bytes": own.numel() * 4, **summary(blocks)}
        self.put(["messages", mbit], found)

    def target(self, mbit: float | None, name: str, seed: int, lr: float) -> None:
        """Train until the loss is at the target; only steps are on the clock."""
        self.method(name, self.alone)  # compile before the clock starts
        self._made.clear()
        self.limit(mbit)
        method = Method(name, self.given, self.world, seed, lr)
        self.wait_for_quiet()
        began, own, all_of_it = time.perf_counter(), time.process_time(), processor_seconds()
        clock, counts, curve, reached = 0.0, dict.fromkeys(("step", "anchor", "small"), 0), [], False
        for t in range(self.given.max_steps):
            dist.barrier()
            start = time.perf_counter()
            method.step(t)
            clock += time.perf_counter() - start
            counts[method.kind(t)] += 1
            if t % 5 == 4:
                told = torch.zeros(1)
                if self.rank == 0:
                    told += method.loss()
                dist.broadcast(told, 0)
                curve.append([t + 1, round(clock, 3), round(float(told), 4)])
                if float(told) <= self.given.target or not float(told) < 20:
                    reached = float(told) <= self.given.target
                    break
        self.say(f"{name}, lr {lr:g}, seed {seed}: {sum(counts.values())} steps, {clock:.1f} s, loss {curve[-1][2]}")
        loud = others(time.process_time() - own, processor_seconds() - all_of_it, time.perf_counter() - began)
        counted = {kind: count for kind, count in counts.items() if count}
        figures = {"reached": reached, "seconds": clock, "counts": counted, "others": loud, "curve": curve}
        self.put(["target", mbit, name, seed, lr], figures)

    def run(self, parts: list[list[Any]]) -> None:
        for kind, *rest in parts:
            getattr(self, kind)(*rest)


def others(own: float, all_of_it: float, seconds: float) -> float:
    """How many processors other programs used, by the processor seconds of each worker and of the whole machine."""
    used = torch.tensor([own], dtype=torch.float64)
    dist.all_reduce(used)
    told = torch.tensor([max(0.0, all_of_it - float(used)) / max(seconds, 0.05)], dtype=torch.float64)
    dist.broadcast(told, 0)
    return float(told)


def processor_seconds() -> float:
    """Of all programs, and what the machine's host took away. Programs of lower priority give way, and packets are
    handled in interrupts: both are left out."""
    user, _, system, _, _, _, _, stolen, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, system, stolen))) / os.sysconf("SC_CLK_TCK")


def summary(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over blocks, and the seconds of each beside what other programs took of the processors."""
    return {
        **{name: statistics.median(block[name] for block in blocks) for name in blocks[0]},
        "blocks": [[round(block["seconds"], 6), round(block["others"], 2)] for block in blocks],
    }


def main() -> None:
    spec = json.loads(sys.argv[1])
    links.join(spec["rank"], spec["shaped"])
    torch.set_num_threads(1)
    worker = Worker(spec)
    worker.run(spec["parts"])
    dist.barrier()


if __name__ == "__main__":
    main()
    leave()
