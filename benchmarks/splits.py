"""What the top part adds: the split k1 : k2 of a tenth of the coordinates, for sparse forms of SVRG and Algorithm 1.

python benchmarks/splits.py --jobs 14        # 90 runs on MNIST to 2 N (SPIDERSILK_DATA); a minute on one large GPU

Algorithm 1 runs at a tenth of the paper's step size, as it diverges at the whole of it. The runs are added to the file
that `--to` names, with their settings, versions and machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import record
from rich.console import Console

from spidersilk.lab.run import batch, collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import load_run
from spidersilk.lab.run.folder import FINISHED

OPTIMIZERS = {"sparse-svrg": 0.1, "sparse-svrg-selected": 0.1, "sparse-spiderboost": 0.01}  # and their step sizes
SPLITS = ((0.0, 0.1), (0.025, 0.075), (0.05, 0.05), (0.075, 0.025), (0.1, 0.0))


def config(model: str, optimizer: str, k1: float, k2: float, seed: int) -> RunConfig:
    name = f"split-{model}-{optimizer}-{k1:g}-{k2:g}" + (f"-seed{seed}" if seed else "")
    return RunConfig(
        "image",
        optimizer,
        name=name,
        seed=seed,
        budget=2.0,
        eval_every=0.1,
        lr=OPTIMIZERS[optimizer],
        k1=k1,
        k2=k2,
        options={"model": model, "data": "mnist"},
        label=f"{optimizer}, k1 {k1:g}, k2 {k2:g}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/splits"), help="folder of the runs")
    parser.add_argument("--to", type=Path, default=record.RESULTS.parent / "paper" / "shorter" / "splits.json")
    given = parser.parse_args()
    every = [(model, optimizer, *split) for model in ("cnn", "fc") for optimizer in OPTIMIZERS for split in SPLITS]
    configs = [config(*one, seed) for seed in range(given.seeds) for one in every]
    summaries = batch.run_all(configs, given.out, jobs=given.jobs, resume=True, console=Console())
    done = [c for c, s in zip(configs, summaries, strict=True) if s["status"] in FINISHED]
    curves = [load_run(given.out / c.name) for c in done]
    print(collect.save(given.to, [collect.pack(c, command="python benchmarks/splits.py") for c in curves if c.rows]))


if __name__ == "__main__":
    main()
