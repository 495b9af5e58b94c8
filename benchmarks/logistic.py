"""l2-regularised logistic regression on w8a: f(x) - f* after 30 n gradient queries, in float64.

Rows normalised, lambda = 1/n, b = 50, B = n, and m = B d / (b k) as in Theorem 2: an outer loop costs 3 n queries.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import record
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab.data.files import DataError
from spidersilk.lab.data.sets import binary
from spidersilk.lab.tasks.logistic import minimum

BATCH = 50


class Logistic:
    """f(x) = mean log(1 + exp(-y a.x)) + lambda / 2 |x|^2."""

    def __init__(self, a: Tensor, y: Tensor):
        self.signed, self.n = a * y[:, None], len(a)
        self.lam = 1 / self.n

    def value(self, x: Tensor) -> Tensor:
        return F.softplus(-(self.signed @ x)).mean() + 0.5 * self.lam * x.square().sum()


class Curve:
    """Queries over n and f(x), recorded every half pass and at the end."""

    def __init__(self, problem: Logistic, budget: float, tick: Callable[[float], None]):
        self.problem, self.budget, self.tick = problem, budget, tick
        self.points: list[tuple[float, float]] = []

    def note(self, queries: float, x: Tensor, next_cost: float = 0.0) -> bool:
        """Whether the budget is used up, or would be overrun by the next step."""
        done = queries / self.problem.n
        over = done >= self.budget or done + next_cost / self.problem.n > self.budget + 0.01
        if over or not self.points or done >= self.points[-1][0] + 0.5:
            self.points.append((done, float(self.problem.value(x))))
            self.tick(done)
        return over


def train(problem: Logistic, make: Callable, density: float, seed: int, curve: Curve) -> None:
    n, d = problem.signed.shape
    x = nn.Parameter(torch.zeros(d, dtype=torch.float64))
    generator = torch.Generator().manual_seed(seed)
    optimizer = make([x], generator)
    inner = math.ceil(n / (BATCH * density))
    loader = silk.AnchorLoader(problem.signed, None, BATCH, inner, loops=10**6, generator=generator)
    for rows, is_anchor in loader:
        # The gradient in closed form: the same as from backward(), much faster.
        def closure(rows: Tensor = rows) -> Tensor:
            margin = rows @ x.detach()
            x.grad = torch.mv(rows.T, torch.sigmoid(-margin)).mul_(-1 / len(rows)).add_(x.detach(), alpha=problem.lam)
            return margin

        if curve.note(optimizer.gradient_queries, x.detach(), n if is_anchor else 0.0):
            return
        optimizer.step(closure, anchor=is_anchor, samples=len(rows))


def sgd(problem: Logistic, seed: int, curve: Curve) -> None:
    """Plain SGD with the step 16 / (1 + epoch)."""
    n, d = problem.signed.shape
    x = torch.zeros(d, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    loader = silk.AnchorLoader(problem.signed, BATCH, BATCH, 1, loops=10**9, generator=generator)
    for t, (rows, _) in enumerate(loader):
        if curve.note(t * BATCH, x):
            return
        gradient = torch.mv(rows.T, torch.sigmoid(-(rows @ x))).mul_(-1 / len(rows)).add_(x, alpha=problem.lam)
        x = x - 16 / (1 + t * BATCH / n) * gradient


METHODS: dict[str, tuple[float, Callable]] = {
    "SpiderBoost, step 4": (1.0, lambda p, g: silk.SpiderBoost(p, 4.0, generator=g)),
    "SVRG, step 4": (1.0, lambda p, g: silk.SVRG(p, 4.0, generator=g)),
    "SparseSpiderBoost (Algorithm 1), k = 20 %, step 4": (
        0.2,
        lambda p, g: silk.SparseSpiderBoost(p, 4.0, k1=0.1, k2=0.1, generator=g),
    ),
    "SparseSVRG, unbiased, k = 20 %, step 4": (
        0.2,
        lambda p, g: silk.SparseSVRG(p, 4.0, k1=0.1, k2=0.1, generator=g),
    ),
    "SparseSVRG, refresh, k = 20 %, step 4": (
        0.2,
        lambda p, g: silk.SparseSVRG(p, 4.0, k1=0.1, k2=0.1, scaling="refresh", generator=g),
    ),
    "SparseSVRG, selected, k = 20 %, step 16": (
        0.2,
        lambda p, g: silk.SparseSVRG(p, 16.0, k1=0.1, k2=0.1, move="selected", generator=g),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="w8a", choices=["w8a", "a9a"])
    parser.add_argument("--budget", type=float, default=30.0, help="gradient queries over n")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write results/benchmarks/logistic_<data>.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        problem = Logistic(*binary(options.data))
    except DataError as error:
        sys.exit(str(error))
    best = minimum(problem.signed, problem.lam)
    seeds = list(range(options.seeds))
    curves: dict[str, list[list[tuple[float, float]]]] = {}
    with Progress() as progress:
        for name in ["SGD, step 16 / (1 + epoch)", *METHODS]:
            bar = progress.add_task(name, total=options.budget * options.seeds)
            curves[name] = []
            for seed in seeds:

                def tick(done: float, bar=bar, seed=seed) -> None:
                    progress.update(bar, completed=seed * options.budget + done)

                curve = Curve(problem, options.budget, tick)
                try:
                    if name.startswith("SGD"):
                        sgd(problem, seed, curve)
                    else:
                        density, make = METHODS[name]
                        train(problem, make, density, seed, curve)
                except silk.DivergenceError as error:
                    progress.console.print(f"{name}, seed {seed}: {error}")
                    curve.points.append((options.budget, math.inf))
                curves[name].append([(queries, value - best) for queries, value in curve.points])
    figures = {name: [run[-1][1] for run in runs] for name, runs in curves.items()}
    table = Table(
        "method", "f - f* (median)", "lowest", "highest", title=f"{options.data}, {options.budget:g} n queries"
    )
    for name, gaps in figures.items():
        table.add_row(name, *(f"{x:.2e}" for x in (statistics.median(gaps), min(gaps), max(gaps))))
    Console().print(table)
    if options.save:
        n, d = problem.signed.shape
        first = {name: [[round(q, 2), float(f"{gap:.3e}")] for q, gap in runs[0]] for name, runs in curves.items()}
        told = {"data": options.data, "n": n, "d": d, "budget": options.budget, "f*": best, "f - f*": figures}
        path = record.save(f"logistic_{options.data}", seeds, told | {"queries / n and f - f*, first seed": first})
        draw(first, options.data, path.with_suffix(".png"))
        print(f"written: {path} and its picture")


def draw(curves: dict[str, list[list[float]]], data: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    for number, (name, points) in enumerate(curves.items()):
        ours = name.startswith("SparseSVRG")
        style = {"linewidth": 2.4 if ours else 1.5, "linestyle": "-" if ours else ("--", "-.", ":", "--")[number % 4]}
        axes.semilogy(*zip(*points, strict=True), label=name, **style)
    axes.set(xlabel="gradient queries / n", ylabel="f(x) - f*", title=f"l2 logistic regression, {data}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
