"""The lemmas of the paper's appendix, by enumeration on small problems; and the map from the paper to the code."""

from __future__ import annotations

import importlib
import itertools
import math
import re
import statistics
from pathlib import Path

import pytest
import torch
from torch import Tensor

import spidersilk as silk
from spidersilk.loop.lengths import Geometric
from spidersilk.operator.sparsity import residuals
from spidersilk.theory.planner import variance_factor

ROOT = Path(__file__).parents[2]
N, D, K1, K2, B = 5, 5, 1, 2, 2


def test_lemma_on_geometric_lengths() -> None:
    """E(D_N - D_{N+1}) = (D_0 - E D_N) / m, for a polynomial D, with the lengths that the library draws."""
    m = 4.0
    chance = [(m / (m + 1)) ** n / (m + 1) for n in range(2000)]

    def polynomial(t: int) -> float:
        return 3.0 + 2.0 * t - 0.5 * t * t

    left = sum(p * (polynomial(n) - polynomial(n + 1)) for n, p in enumerate(chance))
    right = (polynomial(0) - sum(p * polynomial(n) for n, p in enumerate(chance))) / m
    assert left == pytest.approx(right, rel=1e-9)
    lengths = [Geometric(m).length(0, loop) for loop in range(20_000)]
    error = statistics.stdev(lengths) / math.sqrt(len(lengths))
    assert abs(statistics.fmean(lengths) - m) < 4 * error


def test_lemma_on_sampling_without_replacement() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(6, 3, generator=g, dtype=torch.float64)
    for m in range(1, 7):
        means = torch.stack([z[list(subset)].mean(0) for subset in itertools.combinations(range(6), m)])
        variance = float((means - z.mean(0)).square().sum(1).mean())
        assert variance <= (m < 6) / m * float(z.square().sum(1).mean()) + 1e-12


class Setting:
    """Convex quadratics with L = 1, an iterate, a v and an M, and the next iterate by a step of eta."""

    def __init__(self, seed: int):
        g = torch.Generator().manual_seed(seed)
        roots = torch.linalg.qr(torch.randn(N, D, D, generator=g, dtype=torch.float64)).Q
        self.h = roots @ torch.diag_embed(torch.rand(N, D, generator=g, dtype=torch.float64)) @ roots.mT
        self.a = torch.randn(N, D, generator=g, dtype=torch.float64)
        self.x, self.v = (torch.randn(D, generator=g, dtype=torch.float64) for _ in range(2))
        self.memory = torch.rand(D, generator=g, dtype=torch.float64)
        self.eta = 0.3
        self.moved = self.x - self.eta * self.v

    def gradients(self, x: Tensor) -> Tensor:
        return torch.einsum("nij,nj->ni", self.h, x - self.a)

    def value(self, x: Tensor) -> float:
        e = x - self.a
        return float(torch.einsum("ni,nij,nj->", e, self.h, e)) / (2 * N)

    def updates(self) -> Tensor:
        """v_{t+1} - v_t for every small batch and every draw of S, all equally likely."""
        differences = self.gradients(self.moved) - self.gradients(self.x)
        top = int(self.memory.argmax())
        others = [i for i in range(D) if i != top]
        found = []
        for batch in itertools.combinations(range(N), B):
            y = differences[list(batch)].mean(0)
            for drawn in itertools.combinations(others, K2):
                chosen = silk.Selection(torch.tensor([top]), torch.tensor(drawn), (D - K1) / K2, D)
                found.append(chosen.apply(y))
        return torch.stack(found)


@pytest.mark.parametrize("seed", range(5))
def test_lemma_on_mean_and_variance_of_an_update(seed: int) -> None:
    """E(v' - v) = grad f(x') - grad f(x), and Var <= eta^2 L^2 |v|^2 / b + c (g + G / b)."""
    s = Setting(seed)
    differences = s.gradients(s.moved) - s.gradients(s.x)
    updates = s.updates()
    assert torch.allclose(updates.mean(0), differences.mean(0), atol=1e-12)
    variance = float((updates - updates.mean(0)).square().sum(1).mean())
    small, big = residuals(s.memory, differences, K1)
    bound = s.eta**2 * float(s.v.square().sum()) / B + variance_factor(D, K1, K2) * (small + big / B)
    assert variance <= bound
    # And exactly, with what a small step estimates in place of g + G / b:
    outside = small + (big - small) * (N - B) / (B * (N - 1))
    of_batches = float((differences - differences.mean(0)).square().sum(1).mean()) * (N - B) / (B * (N - 1))
    assert variance == pytest.approx(of_batches + variance_factor(D, K1, K2) * outside, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_lemma_on_the_error_of_v(seed: int) -> None:
    """E|v' - grad f(x')|^2 = |v - grad f(x)|^2 + Var(v' - v)."""
    s = Setting(seed)
    updates = s.updates()
    after = (s.v + updates - s.gradients(s.moved).mean(0)).square().sum(1).mean()
    before = (s.v - s.gradients(s.x).mean(0)).square().sum()
    variance = (updates - updates.mean(0)).square().sum(1).mean()
    assert float(after) == pytest.approx(float(before + variance), rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_lemma_on_descent(seed: int) -> None:
    s = Setting(seed)
    gradient = s.gradients(s.x).mean(0)
    error = float((s.v - gradient).square().sum())
    v_energy = float(s.v.square().sum())
    bound = s.eta / 2 * (error - float(gradient.square().sum()) - (1 - s.eta) * v_energy)
    assert s.value(s.moved) <= s.value(s.x) + bound + 1e-12


# The map.

MAP = (ROOT / "docs" / "paper-to-code.md").read_text()
CODE = sorted(set(re.findall(r"`(spidersilk(?:\.\w+)+)`", MAP)))
TESTS = sorted(set(re.findall(r"`(test_\w+)::(test_\w+)`", MAP)))


def test_the_map_has_every_part_of_the_paper() -> None:
    assert len(CODE) > 30
    assert len(TESTS) > 30
    for label in (
        "Lemma 1",
        "Theorem 1",
        "Theorem 2",
        "Algorithm 1",
        "Algorithm 2",
        "Section 2.1",
        "Table 1",
        "Figure 1",
    ):
        assert label in MAP, label
    for line in range(1, 14):
        assert f"| line {line}" in MAP or f"| lines {line}" in MAP or f"-{line} |" in MAP, line


@pytest.mark.parametrize("name", CODE)
def test_names_in_the_map_exist(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return
    raise AssertionError(name)


@pytest.mark.parametrize(("file", "test"), TESTS)
def test_tests_in_the_map_exist(file: str, test: str) -> None:
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), f"{file}::{test}"
