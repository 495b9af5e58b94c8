"""Entropy of the memory, and the query counter."""

from __future__ import annotations

import math

import pytest
import torch

import spidersilk as silk
from spidersilk.diagnostics import QueryCounter


def test_entropy_of_known_distributions() -> None:
    assert silk.entropy(torch.ones(64)) == pytest.approx(6.0, abs=1e-12)
    assert silk.entropy(torch.tensor([0.0, -5.0, 0.0])) == 0.0
    assert silk.entropy(torch.tensor([0.5, -0.25, 0.25])) == pytest.approx(1.5, abs=1e-12)
    assert math.isnan(silk.entropy(torch.zeros(3)))


def test_entropy_does_not_depend_on_scale_and_sums_in_float64() -> None:
    g = torch.Generator().manual_seed(0)
    memory = torch.rand(100_000, generator=g)
    p = memory.double() / memory.double().sum()
    exact = float(-(p * p.log2()).sum())
    assert silk.entropy(memory) == pytest.approx(exact, abs=1e-9)
    assert silk.entropy(memory * 1e-30) == pytest.approx(exact, abs=1e-6)
    assert silk.entropy(torch.ones(3_000_000, dtype=torch.bfloat16)) == pytest.approx(math.log2(3e6), abs=1e-9)


def test_entropy_in_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = torch.rand(1000, dtype=torch.float64)
    whole = silk.entropy(memory)
    monkeypatch.setattr("spidersilk.diagnostics._CHUNK", 7)
    assert silk.entropy(memory) == pytest.approx(whole, abs=1e-12)


def test_query_counter() -> None:
    counter = QueryCounter()
    counter.add(1000, 1, 1.0)
    counter.add(100, 2, 0.1)
    assert counter.total == pytest.approx(1020)
    counter.add(None, 1, 1.0)
    assert math.isnan(counter.total)
