"""What every published figure carries: the command, the seeds, the versions and the machine that made it."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import spidersilk

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def machine() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": model, "threads": torch.get_num_threads(), "gpu": gpu, "system": platform.system()}


def revision() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def save(name: str, seeds: list[int], figures: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write `figures` to results/<name>.json with what made them."""
    command = ["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]]
    record = {
        "command": shlex.join(command),
        "seeds": seeds,
        "versions": {"spidersilk": spidersilk.__version__, "revision": revision(), "torch": torch.__version__,
                     "python": platform.python_version()},
        "machine": machine(),
        "figures": figures,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
