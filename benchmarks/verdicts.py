"""Do full runs confirm the verdict of `spidersilk inspect`? The best dense and the best sparse method of an inspection,
with their settings, over several seeds.

python benchmarks/verdicts.py image --save
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from record import RESULTS, save
from rich.console import Console

from spidersilk.lab.run import batch
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import load_run
from spidersilk.theory.trials import FRESH

OPTIMIZERS = {
    "SGD": ("sgd", None),
    "AdamW": ("adamw", None),
    "SVRG": ("svrg", "dense"),
    "SpiderBoost": ("spiderboost", "dense"),
    "SparseSVRG": ("sparse-svrg", "auto"),
    "SparseSVRG, selected": ("sparse-svrg-selected", "auto"),
    "SparseSGD": ("sparse-sgd", "fresh"),
    "SparseAdamW": ("sparse-adamw", "fresh"),
}
TASKS = {
    "image": ({"eval_samples": 3000}, 1.0),
    "language": ({"hidden": 128, "embedding": 64, "train_tokens": 200_000, "eval_tokens": 4000}, 1.0),
    "ranking": ({}, 5.0),
    "logistic": ({"data": "breast-cancer"}, 100.0),
    "finetune": ({"text": "library"}, 4.0),
}


def config(task: str, method: str, lr: float, seed: int) -> RunConfig:
    options, budget = TASKS[task]
    name, loops = OPTIMIZERS[method]
    made = RunConfig(task, name, options=options, lr=lr, seed=seed, budget=budget, eval_every=budget / 60,
                     inner_lr_end=lr, name=f"{name}-{seed}", checkpoint_every=1e9, schedule="constant")  # fmt: skip
    done = made.completed()
    ratio = (done.anchor_batch_size or 569) // (done.batch_size or 1)  # breast-cancer has 569 samples
    lengths = {"dense": max(2, ratio), "auto": "auto", "fresh": FRESH, None: None}
    anchors = {"anchor_batch_size": done.batch_size} if loops == "fresh" else {}
    return replace(made, inner_steps=lengths[loops], **anchors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    path = RESULTS.parent / "inspect" / f"inspect_{given.task}.json"
    if not path.is_file():
        options = "".join(f" --set {k}={v}" for k, v in TASKS[given.task][0].items())
        raise SystemExit(
            f"error: {path}: not there; make it with `spidersilk inspect {given.task}{options} --save {path}`"
        )
    saved = json.loads(path.read_text())
    if saved["versions"]["spidersilk"] == "0.1.0":
        raise SystemExit(f"error: {path}: of version 0.1.0, whose sparse forms were others: make it anew")
    said = saved["figures"]
    trials = said["trials"]
    reached = [t for t in trials if not t["sparse"] and t["queries_share"] is not None]
    dense = min(reached, key=lambda t: abs(t["queries_share"] - 1))  # the method that the inspection compared with
    rank = [t["queries_share"] if t["queries_share"] is not None else math.inf for t in trials if t["sparse"]]
    sparse = [t for t in trials if t["sparse"]]
    best = min(sparse, key=lambda t: (rank[sparse.index(t)], min(x for x in t["losses"] if x is not None)))
    runs: dict[str, list[list[dict]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for trial in (dense, best):
            configs = [config(given.task, trial["method"], trial["lr"], s) for s in range(given.seeds)]
            batch.run_all(configs, Path(folder), jobs=given.jobs, resume=False, console=Console())
            runs[trial["method"]] = [load_run(Path(folder) / c.name).rows for c in configs]
    shares = []
    for mine, other in zip(runs[dense["method"]], runs[best["method"]], strict=True):
        target = min(row["train_loss"] for row in mine)
        at = next(row["queries"] for row in mine if row["train_loss"] <= target)
        there = next((row["queries"] for row in other if row["train_loss"] <= target), None)
        shares.append(None if there is None else round(there / at, 3))
    figures = {
        "said": said["verdict"],
        "dense": dense["method"],
        "sparse": best["method"],
        "budget": TASKS[given.task][1],
        "queries_share": shares,
        "lowest_loss": {m: [round(min(r["train_loss"] for r in rows), 6) for rows in rs] for m, rs in runs.items()},
    }
    known = [s for s in shares if s is not None]
    told = f"median {statistics.median(known):.2f}" if len(known) == len(shares) else "not reached by every seed"
    print(
        f"{given.task}: said: {said['verdict']}\n  full runs: {best['method']} to {dense['method']}: {shares}, {told}"
    )
    print(f"  lowest losses: {figures['lowest_loss']}")
    if given.save:
        save(f"verdict_{given.task}", list(range(given.seeds)), figures, given.to)


if __name__ == "__main__":
    main()
