"""benchmarks/network.py on a small model: the bytes that the kernel counts are those of the cost model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import links
import pytest

ROOT = Path(__file__).parents[2]


def measured(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    quick = ["--rates", "1000", "--repeats", "1", "--seeds", "0", "--patience", "0", "--width", "500", "--fresh"]
    words = [sys.executable, str(ROOT / "benchmarks" / "network.py"), *quick, "--save", "--to", str(folder), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
@pytest.mark.skipif(links.obstacle() is not None, reason="no network namespaces with limited links here")
def test_bytes_on_the_wire_are_those_of_the_model(tmp_path: Path) -> None:
    n = 3
    done = measured(tmp_path, "--workers", str(n))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "network.png").exists()
    figures = json.loads((tmp_path / "network.json").read_text())["figures"]
    d = 64 * 500 + 500 + 2 * (500 * 500 + 500) + 500 * 10 + 10
    tenths = {"SparseSVRG": 2 * -(-d // 20), "SparseSGD": 3200 + 2 * 25_000 + 500 + 3 * 500 + 10}  # biases are whole
    at = figures["workers"][str(n)]["rates"]["1000"]
    for name, k in tenths.items():
        step = at["steps"][f"{name} small"]
        assert step["payload"] == pytest.approx(2 * (n - 1) / n * k * 4, rel=0.02)
        assert step["counted"] == pytest.approx(2 * (n - 1) / n * k * 4, rel=0.001)  # by the optimizer itself
        assert step["payload"] < step["interface"] < step["wire"]  # headers, and those of every frame
        assert at["against_dense"][name]["bytes_saved"] > 4.5
    assert at["steps"]["dense step"]["payload"] == pytest.approx(2 * (n - 1) / n * d * 4, rel=0.02)
    assert at["top_k_all_gather"]["payload"] == pytest.approx(8 * -(-d // 10) * (n - 1), rel=0.02)


@pytest.mark.slow
def test_without_namespaces_it_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which `unshare` always fails, as where the system forbids it."""
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = measured(tmp_path, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "no limited links: " in done.stderr
    assert "not permitted" in done.stderr or "not found" in done.stderr
    assert "SparseSGD small" in done.stdout
    assert not (tmp_path / "network.json").exists()
