"""Whoever waits for kernels to be compiled is told so, once; a later process does not wait."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spidersilk.kernels import compiling

TRAIN = """
import time, torch, spidersilk as silk
model = torch.nn.Linear(300, 300)
optimizer = silk.SparseAdamW(model, inner_steps=2)
for _ in range(5):
    model(torch.randn(5, 300)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_told", threading.Event())
    monkeypatch.setattr(compiling, "_spent", 0.0)
    monkeypatch.setattr(compiling, "PATIENCE", 0.2)


@pytest.mark.usefixtures("fresh")
def test_short_waits_add_up_to_one_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spidersilk")
    for wait in (0.05, 0.05):
        with compiling.compiling():
            time.sleep(wait)
    assert not caplog.records
    for _ in range(3):
        with compiling.compiling():
            time.sleep(0.3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "compiles or loads its kernels" in caplog.text


@pytest.mark.slow
def test_a_second_process_does_not_wait(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert said[0].count("compiles or loads its kernels") == 1
    assert "compiles" not in said[1]
