"""What selecting whole rows costs in loss: coordinates and rows at equal queries, CNN on MNIST, in the lab.

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

from spidersilk.lab import batch
from spidersilk.lab.config import RunConfig

METHODS = {
    "SparseSVRG": {"optimizer": "sparse-svrg", "k1": 0.05, "k2": 0.05, "inner_steps": 10},
    "SparseSVRG, selected": {"optimizer": "sparse-svrg-selected", "k1": 0.05, "k2": 0.05, "inner_steps": 10},
    "SparseSGD": {"optimizer": "sparse-sgd", "k1": 0.1, "k2": 0.0, "inner_steps": 50},
}
STEPS = {  # of coordinates, and of rows: at 0.05 and above the rescaled rows of SparseSVRG diverge
    "SparseSVRG": {None: [0.05, 0.1], "rows": [0.005, 0.01, 0.025]},
    "SparseSVRG, selected": {None: [0.1, 0.2], "rows": [0.1, 0.2]},
    "SparseSGD": {None: [0.1, 0.2], "rows": [0.1, 0.2]},
}


def config(method: str, groups: str | None, lr: float, seed: int, budget: float) -> RunConfig:
    name = f"{method}-{groups or 'coordinates'}-{lr}-{seed}"
    return RunConfig("image", name=name, seed=seed, options={"eval_samples": 3000}, budget=budget,
                     eval_every=budget / 10, lr=lr, groups=groups, checkpoint_every=1e9,
                     **METHODS[method])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    figures: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            losses: dict[str, dict[str, list[float]]] = {}
            updates: dict[str, int] = {}
            for groups in (None, "rows"):
                name = groups or "coordinates"
                losses[name] = {}
                for lr in STEPS[method][groups]:
                    configs = [config(method, groups, lr, seed, given.budget) for seed in range(given.seeds)]
                    told = batch.run_all(configs, Path(folder), jobs=given.jobs, resume=False, console=Console())
                    lasts = [summary["last"] for summary in told]
                    ends = [s["last"]["train_loss"] if s["status"] == "finished" else math.inf for s in told]
                    losses[name][str(lr)] = [round(loss, 5) for loss in ends]
                    updates[name] = lasts[0]["updates"]
                    print(method, name, lr, losses[name][str(lr)], f"{lasts[0]['seconds']:.0f} s", flush=True)
            best = {name: min(map(statistics.median, by_lr.values())) for name, by_lr in losses.items()}
            ratio = round(best["rows"] / best["coordinates"], 3)
            print(f"{method}: rows to coordinates at equal queries, the best step of each: {ratio}", flush=True)
            figures[method] = {"settings": METHODS[method], "train_loss": losses, "updates": updates, "ratio": ratio}
    if given.save:
        figures["budget"] = given.budget  # type: ignore[assignment]
        save("rows_cnn_mnist", list(range(given.seeds)), figures, given.to)


if __name__ == "__main__":
    main()
