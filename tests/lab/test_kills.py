"""Sixty kills (SIGKILL) at random moments, over the five tasks: each run goes on and ends as if left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]
SCRIPT = Path(__file__).with_name("kills.py")
KILLS = {"image": 13, "logistic": 13, "ranking": 12, "language": 12, "finetune": 10}


@pytest.mark.parametrize("task", KILLS)
def test_killed_runs_end_as_if_nothing_had_happened(task: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if task in ("ranking", "language"):
        request.getfixturevalue("data_dir")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    words = [sys.executable, str(SCRIPT), task, str(tmp_path), str(KILLS[task])]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == KILLS[task]
    assert [fact for fact in told if not (fact["equal"] and fact["code"] == 0)] == []
    assert sum(fact["kind"] != "any moment" for fact in told) >= KILLS[task] // 3
    assert any("checkpoint.pt" in fact["left"] for fact in told)
    assert any(name.endswith(".part") for fact in told for name in fact["left"])
