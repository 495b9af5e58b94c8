"""AdamW with a smaller step for embedding tables, on the very small GPT of results/tune.

python benchmarks/embeddings.py      # with the Penn Treebank in SPIDERSILK_DATA

SparseAdamW steps embeddings by lr, and selected parts of matrices by more. What AdamW gains from two step sizes is no
merit of selections, so it is measured here, into results/tune/runs_embeddings.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from spidersilk.lab.commands.saved import collect
from spidersilk.lab.run import batch, methods
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.settings import Number

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = {"text": "ptb", "pretrain_steps": 1000, "train_bytes": 1_000_000, "eval_samples": 200}
RATES, SHARES, SEEDS = (0.0032, 0.0064, 0.0128), (1.0, 0.5, 0.25), (1, 2)


def make(model: nn.Module, values: Any, _: torch.Generator) -> torch.optim.Optimizer:
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: list[Iterable[torch.Tensor]] = [tables, [p for p in model.parameters() if p not in tables]]
    optimizer = torch.optim.AdamW([{"params": list(params)} for params in groups], values.lr, (0.9, 0.95))

    def scale(*_: Any) -> None:  # a run sets the lr of all groups before each step
        optimizer.param_groups[0]["lr"] = values.arguments["embeddings"] * optimizer.param_groups[1]["lr"]

    optimizer.register_step_pre_hook(scale)
    return optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/embeddings"), help="folder of the runs")
    given = parser.parse_args()
    dense = methods.find("adamw")
    about = "AdamW with another step for embeddings"
    allowed = {"embeddings": Number(above=0, about="their step over lr")}
    method = methods.Method(about, make, True, dense.settings, "adamw", dense.ignores, allowed, of_model=True)
    methods.register("adamw-embeddings", method)
    runs = [
        RunConfig("finetune", "adamw-embeddings", f"embeddings{share:g}-lr{lr:g}-seed{seed}", seed, dict(OPTIONS),
                  steps=200, evaluations=4, lr=lr, arguments={"embeddings": share})
        for seed in SEEDS for lr in RATES for share in SHARES
    ]  # fmt: skip
    batch.run_all(runs, given.out, jobs=1, resume=True, console=Console())
    collect([given.out], ROOT / "results" / "tune" / "runs_embeddings.json")


if __name__ == "__main__":
    main()
