"""Five optimizers on the digits of scikit-learn, at equal gradient queries: a table, and a picture of the loss.

A query is one sample's full gradient; k of its d coordinates count k/d. It is the paper's unit, and not seconds: both
are shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

ANCHOR, BATCH = 500, 50


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Digits, 8 x 8 pixels in [0, 1]: 1437 to train, 360 to test."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(pixels, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


# Name: the optimizer, and how many updates an outer loop has. Each step size is the best of 0.02, 0.05, 0.1, 0.2, 0.5,
# 1 and 2 for its method, by training loss at this budget.
METHODS: dict[str, tuple[Callable, int]] = {
    "SGD": (lambda params: torch.optim.SGD(params, lr=1.0), 1),
    "SpiderBoost": (lambda params: silk.SpiderBoost(params, lr=0.5), 10),
    "SparseSpiderBoost": (lambda params: silk.SparseSpiderBoost(params, lr=0.2), 10),
    "SparseSVRG": (lambda params: silk.SparseSVRG(params, lr=0.5), 10),
    "SparseSGD": (lambda params: silk.SparseSGD(params, lr=1.0), 30),
}


class Curve:
    """What one run measured: queries over n and training loss, and the seconds spent in training alone."""

    def __init__(self) -> None:
        self.queries: list[float] = []
        self.loss: list[float] = []
        self.seconds = 0.0
        self.end = ""


def run(make: Callable, inner: int, data: tuple[Tensor, Tensor], budget: float, seed: int, tick: Callable) -> tuple:
    """Train until `budget` queries per sample are used up, or v is not finite."""
    x, y = data
    model = make_model(seed)
    optimizer = make(model.parameters())
    plain = not isinstance(optimizer, silk.VarianceReduced)
    anchor = BATCH if plain else ANCHOR
    generator = torch.Generator().manual_seed(seed)
    loader = silk.AnchorLoader((x, y), anchor, BATCH, inner, loops=10**6, generator=generator)
    curve, spent, due = Curve(), 0.0, 0.0
    for (bx, by), is_anchor in loader:

        def closure(bx: Tensor = bx, by: Tensor = by) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(bx), by)
            loss.backward()
            return loss

        if spent / len(x) >= min(due, budget):
            with torch.no_grad():
                curve.queries.append(spent / len(x))
                curve.loss.append(F.cross_entropy(model(x), y).item())
            tick(spent / len(x))
            due = spent / len(x) + budget / 100
        if spent / len(x) >= budget:
            break
        start = time.perf_counter()
        try:
            if plain:
                optimizer.step(closure)
                spent += len(bx)
            else:
                optimizer.step(closure, anchor=is_anchor, samples=len(bx))
                spent = optimizer.gradient_queries
        except silk.DivergenceError as error:
            curve.end = str(error)
            break
        curve.seconds += time.perf_counter() - start
    tick(budget)
    return model, curve


def draw(curves: dict[str, Curve], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, curve in curves.items():
        axes.semilogy(curve.queries, curve.loss, label=name, linewidth=2)
    axes.set(xlabel="gradient queries / n", ylabel="training loss", title="Digits, one hidden layer of 100")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=30.0, help="gradient queries per training sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("runs/quickstart.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is small: threads would only wait for each other
    console = Console()
    x, y, test_x, test_y = load()
    curves: dict[str, Curve] = {}
    table = Table("optimizer", "train loss", "test accuracy", "queries / n", "seconds", title="Digits, equal queries")
    with Progress(console=console, transient=True) as progress:
        for name, (make, inner) in METHODS.items():
            bar = progress.add_task(name, total=options.budget)

            def tick(done: float, bar=bar) -> None:
                progress.update(bar, completed=done)

            model, curve = run(make, inner, (x, y), options.budget, options.seed, tick)
            with torch.no_grad():
                accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
            curves[name] = curve
            table.add_row(
                name,
                f"{curve.loss[-1]:.4f}",
                f"{accuracy:.1%}",
                f"{curve.queries[-1]:.1f}",
                f"{curve.seconds:.1f}",
            )
    console.print(table)
    for name, curve in curves.items():
        if curve.end:
            console.print(f"{name} stopped: {curve.end}")
    draw(curves, options.picture)
    console.print(f"loss against queries: {options.picture}")


if __name__ == "__main__":
    main()
