"""The examples run as they are, at a small size; the code of the pages: test_docs.py."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_own_module_with_adamw_and_a_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load(ROOT / "examples" / "own_model_adamw.py").main(epochs=4, samples=1000)
    assert accuracy > 0.6  # chance is a third
    assert "N queries" in capsys.readouterr().out


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load(ROOT / "examples" / "quickstart.py").main(epochs=4)
    assert accuracy > 0.6  # chance is a tenth
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all("N queries" in line for line in lines[:4])


@pytest.mark.slow
def test_data_parallel_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Under torchrun: test_torchrun.py."""
    accuracy = load(ROOT / "examples" / "ddp.py").train(epochs=10, samples=2000)
    assert accuracy > 0.8  # the largest ring has 40 % of the points
    assert "N queries" in capsys.readouterr().out


def test_figures_in_the_readme_and_docs_come_from_results() -> None:
    """Every picture that is shown is a file of results/, and has the record of what made it beside it: a JSON file of
    its name, or of what its name begins with (paper_figure1.json has the runs of paper_figure1_left.png)."""
    records = [path.stem for path in (ROOT / "results").glob("*/*.json")]
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md")]:
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            picture = (page.parent / target).resolve()
            assert picture.is_file(), f"{page.name}: {target}"
            assert picture.parent.parent == ROOT / "results"
            assert any(f"{picture.stem}_".startswith(f"{name}_") for name in records), f"{target} has no record"
