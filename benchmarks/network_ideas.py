"""What helps a sparse method on a network, and what does not: one change at a time, each with as many trials.

python benchmarks/network_ideas.py --save    # results/network_ideas_*.json; needs MNIST and CIFAR-10 (SPIDERSILK_DATA)

The paper's FC on MNIST and its CNN on MNIST and CIFAR-10, training loss after 1, 1 and 2 N queries, k = 10 %: four step
sizes a factor of two apart on seed 0, then the best of them on seeds 1 to 3. IDEAS has what is tried: over AdamW with
fresh gradients at the selected coordinates (`SparseAdamW`), and over SGD with differences to an anchor (`SparseSVRG`).
The FC takes about two hours on one core; the CNN wants a GPU.

A plain loop over one flat vector, apart from the library, so that an idea can be tried in a line.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor
from torch.nn import functional as F

from spidersilk.lab.data.files import DataError
from spidersilk.lab.data.sets import IMAGES
from spidersilk.lab.tasks.models import MODELS

BETA1, BETA2, EPS, DECAY, ALPHA = 0.9, 0.999, 1e-8, 0.01, 0.5
LOOKED_AT = 10_000  # training samples of which the loss is told


@dataclass(frozen=True)
class Case:
    model: str
    data: str
    budget: float  # of queries, in N


SETS = {
    "fc_mnist": Case("fc", "mnist", 1.0),
    "cnn_mnist": Case("cnn", "mnist", 1.0),
    "cnn_cifar10": Case("cnn", "cifar10", 2.0),
}


@dataclass(frozen=True)
class Idea:
    base: str = "adamw"  # or sgd, momentum
    v: str = "fresh"  # or rtop: v of the anchor + a scaled difference, all move; refresh: unscaled, v keeps it
    pick: str = "top"  # or random: half of the k drawn evenly; importance: half in proportion to M
    compact: bool = False  # an anchor moves what is selected only, and what is not has no state
    anchor: int = 100
    batch: int = 100
    loop: int = 50
    grow: float = 1.0  # of the anchor, from one to the next, and of the loop with it
    slope: float = 0.0  # lr (1 + slope) after an anchor, falling to lr (1 - slope)
    lr: float = 0.002  # the second of the four
    late: Idea | None = None  # in place of this in the second half of the queries, with its own lr in proportion


FRESH = Idea()
ANCHORED = Idea("sgd", "rtop", pick="random", anchor=1000, loop=100, lr=0.05)
IDEAS: dict[str, Idea] = {
    "SparseAdamW": FRESH,
    "SGD as base (SparseSGD)": replace(FRESH, base="sgd", lr=0.1),
    "momentum as base": replace(FRESH, base="momentum", lr=0.02),
    "AdamW on the compact vector": replace(FRESH, compact=True),
    "half of k random": replace(FRESH, pick="random"),
    "half of k by importance": replace(FRESH, pick="importance"),
    "half of the batch": replace(FRESH, anchor=50, batch=50),
    "m from Theorem 2 (10)": replace(FRESH, loop=10),
    "m = 200": replace(FRESH, loop=200),
    "anchors of 1000": replace(FRESH, anchor=1000),
    "growing anchors": replace(FRESH, grow=1.1),
    "larger lr after an anchor": replace(FRESH, slope=0.5),
    "SparseSVRG, m from Theorem 2 (100)": ANCHORED,
    "SparseSVRG, m = 10": replace(ANCHORED, loop=10),
    "SparseSVRG, importance (Horvitz-Thompson)": replace(ANCHORED, pick="importance"),
    "SparseSVRG, growing anchors": replace(ANCHORED, anchor=500, loop=50, grow=1.2),
    "SparseSVRG, larger lr after an anchor": replace(ANCHORED, slope=0.5),
    "SparseSVRG, refresh": replace(ANCHORED, v="refresh"),
    "SparseSVRG, refresh early, rtop late": replace(ANCHORED, v="refresh", late=ANCHORED),
    "SparseSGD early, SparseSVRG late": replace(FRESH, base="sgd", lr=0.1, late=ANCHORED),
}  # fmt: skip


class Flat:
    """A network with parameters and gradients in one vector each."""

    def __init__(self, model: str, device: torch.device, seed: int):
        torch.manual_seed(seed)
        self.model = MODELS[model][0]().to(device)
        parts = list(self.model.parameters())
        self.x = torch.cat([p.detach().flatten() for p in parts])
        self.g = torch.zeros_like(self.x)
        at = 0
        for p in parts:
            p.data = self.x[at : at + p.numel()].view_as(p)
            p.grad = self.g[at : at + p.numel()].view_as(p)
            at += p.numel()

    def gradient(self, batch: tuple[Tensor, Tensor], at: Tensor | None = None) -> Tensor:
        """At x, or at another point: a vector that the next call overwrites."""
        here = self.x.clone() if at is not None else None
        if at is not None:
            self.x.copy_(at)
        self.g.zero_()
        F.cross_entropy(self.model(batch[0].float() / 255), batch[1]).backward()
        if here is not None:
            self.x.copy_(here)
        return self.g

    @torch.no_grad()
    def loss(self, x: Tensor, y: Tensor) -> float:
        parts = zip(x.split(1000), y.split(1000), strict=True)
        return float(sum(F.cross_entropy(self.model(a.float() / 255), b, reduction="sum") for a, b in parts) / len(y))


@lru_cache
def training_set(name: str, device: torch.device) -> tuple[Tensor, Tensor]:
    images = IMAGES[name](None, None)
    return images.train_x.to(device), images.train_y.to(device)


def batches(x: Tensor, y: Tensor, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A function that gives the next so many samples, shuffled anew when all were seen."""
    generator = torch.Generator().manual_seed(seed)
    order, at = torch.empty(0, dtype=torch.long, device=x.device), 0

    def take(size: int) -> tuple[Tensor, Tensor]:
        nonlocal order, at
        if at + size > len(order):
            order, at = torch.randperm(len(x), generator=generator).to(x.device), 0
        at += size
        return x[order[at - size : at]], y[order[at - size : at]]

    return take


def choose(memory: Tensor, pick: str, k: int) -> tuple[Tensor, Tensor]:
    """k coordinates, and what makes their differences unbiased."""
    d = len(memory)
    if pick == "top":
        return memory.topk(k).indices, torch.ones(k, device=memory.device)
    if pick == "random":
        top = memory.topk(k // 2).indices
        left = torch.ones(d, device=memory.device)
        left[top] = 0
        drawn = torch.rand(d, device=memory.device).mul_(left).topk(k - k // 2).indices
        scale = torch.ones(k, device=memory.device)
        scale[k // 2 :] = (d - k // 2) / (k - k // 2)
        return torch.cat([top, drawn]), scale
    weight = 0.5 * memory / memory.sum().clamp_min(1e-30) + 0.5 / d
    factor = torch.tensor(float(k), device=memory.device)
    for _ in range(8):  # until the probabilities min(1, factor * weight) sum to k
        sure = factor * weight >= 1
        factor = (k - sure.sum()) / weight.masked_fill(sure, 0).sum().clamp_min(1e-30)
    p = (factor * weight).clamp(max=1)
    chosen = (torch.rand(d, device=memory.device) < p).nonzero().flatten()
    return chosen, 1 / p[chosen]


class Base:
    """SGD, momentum or AdamW on some of the coordinates."""

    def __init__(self, name: str, x: Tensor):
        self.name, self.x, self.steps = name, x, 0
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)

    def enter(self, new: Tensor, memory: Tensor) -> None:
        """Coordinates that had no state: a first moment of 0, and M squared."""
        self.first[new] = 0
        self.second[new] = memory[new] ** 2 * (1 - BETA2 ** max(1, self.steps))

    def step(self, v: Tensor, at: Tensor | slice, lr: float) -> None:
        self.steps += 1
        if self.name == "sgd":
            self.x[at] -= lr * v
        elif self.name == "momentum":
            self.first[at] = BETA1 * self.first[at] + v
            self.x[at] -= lr * self.first[at]
        else:
            first = self.first[at] = self.first[at].lerp(v, 1 - BETA1)
            second = self.second[at] = self.second[at].lerp(v * v, 1 - BETA2)
            root = (second / (1 - BETA2**self.steps)).sqrt() + EPS
            self.x[at] = self.x[at] * (1 - lr * DECAY) - lr * first / (1 - BETA1**self.steps) / root


def run(name: str, idea: Idea, seed: int, device: torch.device) -> float:
    """The training loss at the end; infinite if it diverged."""
    case = SETS[name]
    x, y = training_set(case.data, device)
    take = batches(x, y, seed)
    net = Flat(case.model, device, seed)
    base = Base(idea.base, net.x)
    d, budget = len(net.x), case.budget * len(x)
    k, queries, large, every = round(0.1 * d), 0.0, float(idea.anchor), slice(None)
    memory, before = torch.zeros_like(net.x), torch.zeros(d, dtype=torch.bool, device=device)
    while queries < budget:
        if idea.late is not None and queries > budget / 2:
            idea = idea.late
            large = float(idea.anchor)
        rows = min(int(large), len(x))
        v = net.gradient(take(rows)).clone()
        queries += rows
        at, anchored = net.x.clone(), v.clone()
        if idea.v == "fresh" or not memory.any():
            memory = v.abs()
        chosen, scale = choose(memory, idea.pick, k)
        if idea.compact:
            now = torch.zeros_like(before)
            now[chosen] = True
            base.enter((now & ~before).nonzero().flatten(), memory)
            base.step(v[chosen], chosen, idea.lr)
            before = now
        else:
            base.step(v, every, idea.lr)
        loop = max(1, round(idea.loop * large / idea.anchor)) - 1
        large *= idea.grow
        for t in range(loop):
            if queries >= budget:
                break
            lr = idea.lr * (1 + idea.slope * (1 - 2 * t / max(1, loop - 1)))
            batch = take(idea.batch)
            if idea.v == "fresh":
                base.step(net.gradient(batch)[chosen], chosen, lr)
                queries += idea.batch * len(chosen) / d
                continue
            chosen, scale = choose(memory, idea.pick, k)
            difference = net.gradient(batch)[chosen] - net.gradient(batch, at)[chosen]
            if idea.v == "rtop":
                v = anchored.clone()
                difference *= scale
            v[chosen] = anchored[chosen] + difference
            base.step(v, every, lr)
            queries += 2 * idea.batch * len(chosen) / d
            memory = ALPHA * v.abs() + (1 - ALPHA) * memory
        if not bool(net.x.isfinite().all()):
            return math.inf
    return net.loss(x[:LOOKED_AT], y[:LOOKED_AT])


def with_step(idea: Idea, factor: float) -> Idea:
    late = None if idea.late is None else with_step(idea.late, factor)
    return replace(idea, lr=factor * idea.lr, late=late)


def tuned(task: tuple[str, str, str]) -> tuple[str, str, dict[str, Any]]:
    name, words, device = task
    torch.set_num_threads(1)
    idea, place = IDEAS[words], torch.device(device)
    trials = {factor: run(name, with_step(idea, factor), 0, place) for factor in (0.5, 1.0, 2.0, 4.0)}
    best = min(trials, key=lambda factor: trials[factor] if math.isfinite(trials[factor]) else math.inf)
    each = [run(name, with_step(idea, best), seed, place) for seed in (1, 2, 3)]
    told: dict[str, Any] = {"trials": [{"lr": f * idea.lr, "loss": _finite(loss)} for f, loss in trials.items()]}
    told |= {"lr": best * idea.lr, "edge": best in (min(trials), max(trials))}
    return name, words, told | {"each": [_finite(x) for x in each], "loss": _finite(statistics.median(each))}


def _is_held(figures: dict[str, Any], words: str) -> bool:
    held = figures["ideas"].get(words)
    return held is not None and held["settings"] == asdict(IDEAS[words])


def _finite(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS), help="separated by commas")
    parser.add_argument("--only", default="", help="words of an idea")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="ideas side by side")
    parser.add_argument("--save", action="store_true", help="write results/network_ideas_SET.json, after each idea")
    parser.add_argument("--to", type=Path, default=record.RESULTS, help="their folder; what they have already is kept")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures: dict[str, dict[str, Any]] = {}
    for name in given.sets.split(","):
        if name not in SETS:
            parser.error(f"--sets {name!r} is none of {', '.join(SETS)}")
        path = given.to / f"network_ideas_{name}.json"
        held = json.loads(path.read_text())["figures"] if path.is_file() else {"ideas": {}}
        figures[name] = {**asdict(SETS[name]), "ideas": held["ideas"]}
    tasks = [(name, words, given.device) for name in figures for words in IDEAS if given.only in words]
    tasks = [(name, words, device) for name, words, device in tasks if not _is_held(figures[name], words)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for name, words, told in pool.imap_unordered(tuned, tasks):
            figures[name]["ideas"][words] = {"settings": asdict(IDEAS[words]), **told}
            edge = ", at the edge" if told["edge"] else ""
            print(f"{name:12} {words}: {told['loss']} (lr {told['lr']:g}{edge})", flush=True)
            if given.save:
                record.save(f"network_ideas_{name}", [0, 1, 2, 3], figures[name], given.to)


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"error: {error}")
