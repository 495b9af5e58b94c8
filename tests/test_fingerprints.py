"""Every optimizer and loader does what it did when fingerprints.json was written, to 1e-12."""

from __future__ import annotations

import json
import math
from typing import Any

import fingerprints
import pytest

WANTED: dict[str, dict[str, Any]] = json.loads(fingerprints.PATH.read_text())
CASES = fingerprints.all_cases()


def test_nothing_is_left_out() -> None:
    assert set(CASES) == set(WANTED)


@pytest.mark.parametrize("name", CASES)
def test_as_it_was(name: str) -> None:
    got, wanted = CASES[name](), WANTED[name]
    assert got.keys() == wanted.keys()
    # float32 numbers are in the case of two dtypes: a thread more or less may round otherwise.
    tolerance = 1e-6 if "two dtypes" in name else 1e-12
    for key, value in wanted.items():
        numbers = value if isinstance(value, list) else [value]
        ours = got[key] if isinstance(value, list) else [got[key]]
        for a, b in zip(ours, numbers, strict=True):
            same = math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) if isinstance(b, float) else a == b
            assert same, f"{key}: {got[key]} where it was {value}"
