"""What made a figure: the versions, the machine and the revision of the source."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import spidersilk as silk


def versions() -> dict[str, str]:
    return {"spidersilk": silk.__version__, "torch": torch.__version__, "python": platform.python_version()}


def machine(device: torch.device) -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"cpu": cpu, "gpu": gpu, "threads": torch.get_num_threads(), "system": platform.system()}


def revision() -> str:
    """The git revision of the source, where it is a checkout; SPIDERSILK_REVISION tells it of a copy."""
    if told := os.environ.get("SPIDERSILK_REVISION"):
        return told
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


_PLACES = ("--out", "--collect", "--to", "--data-dir", "--time-limit")  # of whoever ran it


def command() -> str:
    """The command line, without the places where things lie on this machine."""
    words = sys.argv[1:]
    kept = [word for i, word in enumerate(words) if word not in _PLACES and (i == 0 or words[i - 1] not in _PLACES)]
    return shlex.join(["spidersilk", *kept])
