"""Measures of sparsity: entropy, captured energy, residuals, and the query counter."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch

import spidersilk as silk
from spidersilk.operator.sparsity import captured_energy, residuals


def test_entropy_of_known_distributions() -> None:
    assert silk.entropy(torch.ones(64)) == pytest.approx(6.0, abs=1e-12)
    assert silk.entropy(torch.tensor([0.0, 5.0, 0.0])) == 0.0
    assert silk.entropy(torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(1.5, abs=1e-12)
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
    monkeypatch.setattr("spidersilk.operator.sparsity._CHUNK", 7)
    assert silk.entropy(memory) == pytest.approx(whole, abs=1e-12)


def test_captured_energy_is_the_share_in_the_top() -> None:
    memory = torch.tensor([0.1, 5.0, -3.0, 0.0])
    y = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert captured_energy(memory, y, 2) == pytest.approx((4 + 9) / 30)
    assert captured_energy(memory, y, 1.0) == 1.0
    assert math.isnan(captured_energy(memory, torch.zeros(4), 2))
    with pytest.raises(ValueError, match="exceeds d = 4"):
        captured_energy(memory, y, 5)


def test_residuals_are_those_of_the_definition() -> None:
    g = torch.Generator().manual_seed(0)
    memory, differences = torch.rand(7, generator=g), torch.randn(5, 7, generator=g, dtype=torch.float64)
    outside = [i for i in range(7) if i not in memory.topk(3).indices.tolist()]
    mean = differences.mean(0)
    expected_g = sum(float(mean[i]) ** 2 for i in outside)
    expected_big = sum(float(differences[s, i]) ** 2 for s in range(5) for i in outside) / 5
    assert residuals(memory, differences, 3) == pytest.approx((expected_g, expected_big))
    assert residuals(memory, differences, 7) == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"not \(n, d\)"):
        residuals(memory, memory, 3)


def test_mean_outside_energy_of_a_batch_follows_from_the_residuals() -> None:
    """The mean over all batches is g + (G - g) (n - b) / (b (n - 1)), at most g + G / b."""
    g = torch.Generator().manual_seed(1)
    n, b = 6, 2
    memory, differences = torch.rand(9, generator=g), torch.randn(n, 9, generator=g, dtype=torch.float64)
    small, big = residuals(memory, differences, 4)
    energies = [
        residuals(memory, differences[list(batch)].mean(0, keepdim=True), 4)[0]
        for batch in itertools.combinations(range(n), b)
    ]
    mean = statistics.fmean(energies)
    assert mean == pytest.approx(small + (big - small) * (n - b) / (b * (n - 1)))
    assert mean <= small + big / b
