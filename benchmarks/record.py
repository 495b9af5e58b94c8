"""What every published figure carries: the command, the seeds, the versions and the machine that made it."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

import spidersilk
from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.run.machine import machine, revision

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"


def save(name: str, seeds: list[int], figures: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write `figures` to results/benchmarks/<name>.json, with the command, seeds, versions and machine."""
    own = ("--to", "--runs", "--out")  # local folders are left out of the record
    given = [x for i, x in enumerate(sys.argv) if i and x not in own and sys.argv[i - 1] not in own]
    command = ["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *given]
    record = {
        "command": shlex.join(command),
        "seeds": seeds,
        "versions": {"spidersilk": spidersilk.__version__, "revision": revision(), "torch": torch.__version__,
                     "python": platform.python_version()},
        "machine": machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "figures": figures,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
    return path
