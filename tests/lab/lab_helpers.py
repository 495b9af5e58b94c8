"""What the tests of the lab share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from spidersilk.lab.run.config import RunConfig

QUIET = Console(quiet=True)
DIGITS = {"data": "digits", "model": "cnn"}
SMALL = {"anchor_batch_size": 200, "batch_size": 20, "inner_steps": 5}


def config(task: str = "logistic", optimizer: str = "sparse-svrg", **rest: Any) -> RunConfig:
    return RunConfig(task, optimizer, **{"budget": 2.0, "eval_every": 0.5, "name": optimizer} | rest)


def metrics(folder: Path) -> list[dict[str, float]]:
    """The rows of a run, without seconds."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
