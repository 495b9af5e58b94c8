"""The Triton kernels by Triton's interpreter on CPU tensors: exact top parts, uniform draws, updates by formula.

Triton reads TRITON_INTERPRET when it is imported, and torch may have imported it already. So a separate process runs
`triton_cases.py`, and its outcome is one test here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_under_the_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "triton_cases.py")]
    run = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
