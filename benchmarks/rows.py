"""The loss of selecting whole rows instead of coordinates, at equal queries: the CNN on MNIST.

python benchmarks/rows.py --save
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path

from record import RESULTS, save
from rich.console import Console

from spidersilk.lab.run import batch
from spidersilk.lab.run.config import RunConfig

METHODS = {
    "SparseSVRG": {"optimizer": "sparse-svrg", "k1": 0.05, "k2": 0.05, "inner_steps": 10},
    "SparseSVRG, selected": {"optimizer": "sparse-svrg-selected", "k1": 0.05, "k2": 0.05, "inner_steps": 10},
}
STEPS = {  # step sizes for coordinates (None) and for rows
    "SparseSVRG": {None: [0.025, 0.05, 0.1, 0.2], "rows": [0.005, 0.01, 0.025, 0.05, 0.1]},
    "SparseSVRG, selected": {None: [0.1], "rows": [0.1]},
}


def config(method: str, groups: str | None, lr: float, seed: int, budget: float) -> RunConfig:
    name = f"{method}-{groups or 'coordinates'}-{lr}-{seed}"
    return RunConfig("image", name=name, seed=seed, options={"eval_samples": 3000}, budget=budget,
                     eval_every=budget / 10, lr=lr, groups=groups, checkpoint_every=1e9,
                     **METHODS[method])  # fmt: skip


def compare(method: str, folder: Path, given: argparse.Namespace) -> dict:
    """Final losses of coordinates and of rows for each step size (None: diverged), and their ratio."""
    losses: dict[str, dict[str, list[float | None]]] = {}
    updates: dict[str, int] = {}
    best: dict[str, float] = {}
    for groups in (None, "rows"):
        name = groups or "coordinates"
        losses[name], best[name] = {}, math.inf
        for lr in STEPS[method][groups]:
            configs = [config(method, groups, lr, seed, given.budget) for seed in range(given.seeds)]
            told = batch.run_all(configs, folder, jobs=given.jobs, resume=given.runs is not None, console=Console())
            finished = [summary["last"] for summary in told if summary["status"] == "finished"]
            ends = [round(s["last"]["train_loss"], 5) if s["status"] == "finished" else None for s in told]
            losses[name][str(lr)] = ends
            print(method, name, lr, ends, flush=True)
            if len(finished) == len(told):
                best[name] = min(best[name], statistics.median(last["train_loss"] for last in finished))
                updates[name] = finished[0]["updates"]
    ratio = round(best["rows"] / best["coordinates"], 3)
    print(f"{method}: rows to coordinates at equal queries, the best step of each: {ratio}", flush=True)
    return {"settings": METHODS[method], "train_loss": losses, "updates": updates, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", type=Path, help="folder of the runs; those found there are continued")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = {method: compare(method, given.runs or Path(temporary), given) for method in METHODS}
    if given.save:
        save("rows_cnn_mnist", list(range(given.seeds)), {"budget": given.budget, **figures}, given.to)


if __name__ == "__main__":
    main()
