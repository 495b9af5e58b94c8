"""Public names exist and are documented, docstring examples run, imports point downward, modules have tests."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections import Counter
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


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    torch.manual_seed(0)
    failures, _ = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert failures == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name: str) -> None:
    assert importlib.import_module(name).__doc__


# Where a module is tested that has no test_<module>.py in its folder of tests/.
TESTED_IN = {
    "checks": "test_errors",
    "distributed": "parallel/test_workers",
    "operator/random_stream": "operator/test_selection",
    "parallel/all_reduce": "parallel/test_ranks",
    "parallel/agreement": "parallel/test_workers",
    "parallel/ddp_wrappers": "parallel/test_workers",
    "theory/trials": "theory/test_inspection",
    "theory/step_seconds": "theory/test_inspection",
    "theory/live_bytes": "theory/test_footprint",
    "sparse/averaging": "parallel/test_together",
    "sparse/pieces": "sparse/test_sparse",
    "layers/registry": "sparse/test_layers",
    "layers/dressing": "sparse/test_layers",
    "layers/linear": "sparse/test_layers",
    "layers/embedding": "sparse/test_layers",
    "layers/convolution": "sparse/test_layers",
    "find_modules": "variance/test_two_point",
    "loop/markers": "loop/test_counter",
    "loop/datasets": "loop/test_loader",
    "loop/step_size": "loop/test_lengths",
    "operator/counts": "operator/test_selection",
    "operator/dimensions": "operator/test_columns",
    "operator/rtop": "operator/test_selection",
    "operator/settings": "operator/test_selection",
    "parallel/launch": "parallel/test_torchrun",
    "sparse/compact": "sparse/test_sparse",
    "sparse/optimizers": "sparse/test_sparse_optimizers",
    "sparse/owners": "sparse/test_sparse",
    "sparse/saved": "sparse/test_sparse",
    "sparse/sharded": "parallel/test_together",
    "sparse/together": "parallel/test_together",
    "sparse/weights": "sparse/test_sparse",
    "variance/rank_facts": "parallel/test_ranks",
    "variance/graph": "kernels/test_cuda",
    "variance/over_base": "variance/test_param_groups",
    "variance/smoothness": "variance/test_divergence",
    "variance/watch": "loop/test_adaptive",
    "variance/compact": "variance/test_optimizers",
    "variance/engine": "variance/test_optimizers",
    "variance/flat": "variance/test_two_point",
    "variance/lazy_rows": "variance/test_lazy",
    "variance/method": "test_errors",
    "variance/moving": "variance/test_optimizers",
    "variance/variance_reduced": "variance/test_param_groups",
    "variance/vectors": "variance/test_saved_state",
}
# Folders that are tested as a whole.
AS_A_WHOLE = ("kernels", "lab")


def test_every_source_module_has_its_tests() -> None:
    source, tests = ROOT / "src" / "spidersilk", ROOT / "tests"
    missing = []
    for path in source.rglob("*.py"):
        name = path.relative_to(source).with_suffix("").as_posix()
        folder, _, module = name.rpartition("/")
        whole = next((f for f in AS_A_WHOLE if f"{folder}/".startswith(f"{f}/")), None)
        if module == "__init__" or (whole and list((tests / whole).glob("test_*.py"))):
            continue
        if not (tests / folder / f"test_{module}.py").exists() and not (
            name in TESTED_IN and (tests / f"{TESTED_IN[name]}.py").exists()
        ):
            missing.append(name)
    assert not missing, f"write tests/FOLDER/test_MODULE.py for each, or name the file in TESTED_IN: {missing}"


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, times in names.items() if times > 1] == []
