"""The public names: there, documented, with examples that run, and with nothing pointing upward."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch

import spidersilk as silk

MODULES = [m.name for m in pkgutil.walk_packages(silk.__path__, "spidersilk.")]
ROOT = Path(__file__).parent.parent


def test_every_public_name_exists_and_is_documented() -> None:
    for name in silk.__all__:
        thing = getattr(silk, name)
        assert inspect.getdoc(thing), f"{name} has no docstring"
    documented = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in silk.__all__ if f"`{name}" not in documented and f"silk.{name}" not in documented]
    assert not missing, f"not in docs/api.md: {missing}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    torch.manual_seed(0)
    failures, _ = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert failures == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name: str) -> None:
    assert importlib.import_module(name).__doc__


def test_arrows_point_downward() -> None:
    """Kernels know nothing of the optimizers, and the library nothing of the lab."""
    for path in (ROOT / "src" / "spidersilk").rglob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        if "kernels" in path.parts or "backprop" in path.parts:
            assert not any("optimizers" in m or "variance_reduced" in m for m in imported), path
        if "lab" not in path.parts:
            assert not any("spidersilk.lab" in m for m in imported), path


def test_every_source_module_has_its_tests() -> None:
    """test_<module>.py, or a named other file."""
    elsewhere = {
        "agreement": "test_distributed",
        "buffers": "test_two_point",
        "checks": "test_errors",
        "choices": "test_errors",
        "compact": "test_optimizers",
        "constants": "test_diagnostics",
        "divergence": "test_must_hold",
        "errors": "test_must_hold",
        "flat": "test_two_point",
        "lagging": "test_lazy",
        "measures": "test_diagnostics",
        "mechanics": "test_optimizers",
        "memory": "test_estimators",
        "moving": "test_optimizers",
        "streams": "test_loader",
        "trials": "test_inspection",
        "variance_reduced": "test_must_hold",
        "vectors": "test_must_hold",
        "wrappers": "test_distributed",
    }
    for name in MODULES:
        short = name.removeprefix("spidersilk.")
        if short.startswith("lab"):
            short = "lab_data" if short in ("lab.data", "lab.files", "lab.models") else "lab"
        if short.startswith("backprop"):
            short = "sparse_backward" if short in ("backprop.evaluate", "backprop.sparse_forward") else "backprop"
        if not short.startswith("kernels"):
            assert (ROOT / "tests" / f"{elsewhere.get(short, 'test_' + short)}.py").exists(), short
