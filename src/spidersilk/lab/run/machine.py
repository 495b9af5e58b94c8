"""Provenance of a result: versions, machine, source revision and command line."""

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
    """The git revision of the source in a checkout; SPIDERSILK_REVISION names it for a copy without git."""
    if revision := os.environ.get("SPIDERSILK_REVISION"):
        return revision
    git = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.check_output(git, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


_PLACES = ("--out", "--collect", "--to", "--data-dir", "--time-limit")  # they differ from machine to machine


def command() -> str:
    """The command line, without folders and time limits of this machine."""
    words = sys.argv[1:]
    kept = [word for i, word in enumerate(words) if word not in _PLACES and (i == 0 or words[i - 1] not in _PLACES)]
    return shlex.join(["spidersilk", *kept])
