"""Adaptive anchors at the paper's settings: queries to a common loss, on MNIST, with fixed and adaptive inner loops.

python benchmarks/adaptive.py --save            # about an hour on two cores, two minutes on a large GPU
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from record import RESULTS, save
from rich.console import Console

from spidersilk.lab.run import batch
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import BROKEN, load_run, median_cost

METHODS = {
    "SpiderBoost, m = 10": ("spiderboost", 10),
    "Algorithm 1, m = 10": ("sparse-spiderboost", 10),
    "Algorithm 1, adaptive": ("sparse-spiderboost", "auto"),
    "SparseSVRG, m = 10": ("sparse-svrg", 10),
    "SparseSVRG, adaptive": ("sparse-svrg", "auto"),
}
TARGETS = (0.6, 0.5, 0.4, 0.3, 0.2)


def configs(model: str, seeds: int, budget: float) -> dict[str, list[RunConfig]]:
    common: dict[str, Any] = {"options": {"model": model, "data": "mnist", "eval_samples": 5000}, "budget": budget}
    common |= {"eval_every": 0.05, "lr": 0.1, "checkpoint_every": 1e9}
    return {
        title: [
            RunConfig("image", name, f"{model}-{name}-{inner}-{seed}", seed, inner_steps=inner, **common)
            for seed in range(seeds)
        ]
        for title, (name, inner) in METHODS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=2.0, help="gradient queries over N")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    figures: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in ("cnn", "fc"):
            groups = configs(model, given.seeds, given.budget)
            every = [c for cs in groups.values() for c in cs]
            batch.run_all(every, Path(folder), jobs=given.jobs, resume=False, console=Console())
            figures[model] = {title: _figures(Path(folder), cs) for title, cs in groups.items()}
    for model, methods in figures.items():
        print(f"\n{model}, MNIST: median queries / N to a training loss of", *TARGETS)
        for title, told in methods.items():
            ended = f"diverged {told['diverged']}, collapsed {told['collapsed']} of {given.seeds}"
            cells = " ".join("     -" if q is None else f"{q:6.2f}" for q in told["queries_to"].values())
            print(f"{title:24} {cells}  {ended}, length {told['mean_length']:.1f}")
    if given.save:
        save("adaptive", list(range(given.seeds)), figures, given.to)


def _figures(folder: Path, configs: list[RunConfig]) -> dict:
    """Medians over seeds; a run that never reaches the target counts as infinite, and an infinite median is None."""
    curves = [load_run(folder / config.name) for config in configs]
    lengths = [curve.rows[-1]["updates"] / max(1, curve.summary["anchors"]) for curve in curves]
    costs = {str(target): median_cost(curves, "train_loss", target) for target in TARGETS}
    return {
        "queries_to": {target: None if cost is None else round(cost, 3) for target, cost in costs.items()},
        "final_loss": [round(curve.rows[-1]["train_loss"], 4) for curve in curves],
        **{status: sum(curve.status == status for curve in curves) for status in BROKEN},
        "mean_length": round(statistics.fmean(lengths), 2),
    }


if __name__ == "__main__":
    main()
