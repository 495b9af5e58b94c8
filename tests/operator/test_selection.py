"""The random-top-k operator: its definition, its corners, and Lemma 1."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import spidersilk as silk
from spidersilk import reference
from spidersilk.kernels.plain import PLAIN
from spidersilk.operator.random_stream import Stream
from spidersilk.operator.selection import Selector


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_papers_worked_example() -> None:
    x = torch.tensor([11.0, 12.0, 13.0, -14.0, -15.0])
    y = torch.tensor([-25.0, -24.0, 13.0, 12.0, 11.0])
    outcomes = {tuple(silk.rtop(x, y, 1, 1, generator=seeded(seed)).tolist()) for seed in range(200)}
    assert outcomes == {
        (-100.0, 0.0, 0.0, 0.0, 11.0),
        (0.0, -96.0, 0.0, 0.0, 11.0),  # S = {2}, the one printed
        (0.0, 0.0, 52.0, 0.0, 11.0),
        (0.0, 0.0, 0.0, 48.0, 11.0),
    }


MEMORIES = {
    "random": lambda g: torch.randn(24, generator=g, dtype=torch.float64),
    "heavily tied": lambda g: torch.randint(0, 3, (24,), generator=g).double(),
    "zero": lambda g: torch.zeros(24, dtype=torch.float64),
}


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("memory", "k1", "k2"),
    [
        *((memory, 5, 4) for memory in MEMORIES),
        ("random", 0, 4),
        ("heavily tied", 20, 1),
        ("zero", 20, 1),
        ("heavily tied", 3, 21),
    ],
)
def test_lemma_1_mean_and_variance(memory: str, k1: int, k2: int) -> None:
    """Within 4 standard errors over 4000 draws; the summed variance by the spread of |rtop(y) - y|^2 itself."""
    g = seeded(11)
    m = MEMORIES[memory](g)
    y = torch.randn(24, generator=g, dtype=torch.float64)
    draws = torch.stack([silk.rtop(m, y, k1, k2, generator=g) for _ in range(4000)])
    variance = silk.rtop_variance(m, y, k1, k2)
    if k1 + k2 == 24:
        assert variance == 0
        assert torch.equal(draws, y.expand_as(draws))
        return
    error = draws.std(0) / math.sqrt(len(draws))
    assert bool((draws.mean(0) - y).abs().le(4 * error + 1e-12).all())
    squared = (draws - y).square().sum(1)
    assert abs(float(squared.mean()) - variance) <= 4 * float(squared.std()) / math.sqrt(len(squared))


@pytest.mark.statistical
def test_the_random_part_is_uniform() -> None:
    """A chi-square test of how often each coordinate, and each pair, is drawn: 5 standard deviations."""
    d, k1, k2, draws = 12, 3, 4, 6000
    memory = torch.tensor([0.0, 9.0, 0, 0, 8, 0, 0, 7, 0, 0, 0, 0])
    g = seeded(3)
    counts, pairs = torch.zeros(d), torch.zeros(d, d)
    for _ in range(draws):
        random = silk.select(memory, k1, k2, generator=g).random
        counts[random] += 1
        pairs[random[:, None], random[None, :]] += 1
    rest = [i for i in range(d) if i not in (1, 4, 7)]
    expected = draws * k2 / (d - k1)
    # Draws without replacement: the statistic times (n - 1) / (n - k2) is chi-square with n - 1 degrees of freedom.
    n = d - k1
    chi = float(((counts[rest] - expected) ** 2 / expected).sum()) * (n - 1) / (n - k2)
    assert abs(chi - (n - 1)) < 5 * math.sqrt(2 * (n - 1))
    probability = k2 * (k2 - 1) / (n * (n - 1))
    upper = torch.stack([pairs[i, j] for i in rest for j in rest if i < j])
    spread = math.sqrt(draws * probability * (1 - probability))
    assert float((upper - draws * probability).abs().max()) < 5 * spread


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e-40, 3.0, -7.0]), min_size=1, max_size=60),
    share=st.floats(0, 1),
    split=st.floats(0, 1),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_selection_is_exact(values: list[float], share: float, split: float, seed: int, dtype: torch.dtype) -> None:
    memory = torch.tensor(values, dtype=dtype)
    d = len(values)
    k = max(1, round(share * d))
    k1 = round(split * k)
    k2 = k - k1
    selection = silk.select(memory, k1, k2, generator=seeded(seed))
    assert selection.top.tolist() == reference.top(memory.float(), k1)  # ties: lower index first
    assert (selection.k1, selection.k2, selection.k, selection.d) == (k1, k2, k, d)
    assert selection.random.tolist() == sorted(set(selection.random.tolist()))
    assert not set(selection.top.tolist()) & set(selection.random.tolist())
    assert selection.top.dtype == selection.random.dtype == torch.int64
    assert selection.scale == ((d - k1) / k2 if k2 else 1.0)
    again = silk.select(memory, k1, k2, generator=seeded(seed))
    assert torch.equal(selection.indices, again.indices)


def test_corners() -> None:
    one = torch.tensor([0.0])
    assert silk.select(one, 1, 0).top.tolist() == [0]
    assert silk.select(one, 0, 1).random.tolist() == [0]
    zeros = torch.zeros(6)
    assert silk.select(zeros, 4, 0).top.tolist() == [0, 1, 2, 3]
    y = torch.randn(6)
    assert torch.equal(silk.rtop(zeros, y, 2, 4), y)
    state = seeded(0)
    before = state.get_state()
    top_only = silk.select(torch.randn(6), 2, 0, generator=state)
    assert torch.equal(before, state.get_state())  # nothing was drawn
    assert top_only.scale == 1.0
    assert silk.rtop_variance(torch.randn(6), y, 2, 0) == 0.0


def test_fractions_round_up() -> None:
    memory = torch.randn(30)
    assert silk.select(memory, 0.1, 0.2).k1 == 3  # 0.1 * 30 is a little above 3 in floating point
    assert silk.select(memory, 0.101, 0.2).k1 == 4
    assert silk.select(memory, 1.0, 0.0).k1 == 30
    assert silk.select(memory, 1, 0).k1 == 1
    odd = silk.select(torch.randn(7), 0.5, 0.5)  # both round up to 4: the random part gives way
    assert (odd.k1, odd.k2) == (4, 3)


def test_linear_in_y() -> None:
    g = seeded(5)
    memory, y, z = (torch.randn(50, generator=g, dtype=torch.float64) for _ in range(3))
    selection = silk.select(memory, 5, 5, generator=g)
    combined = selection.apply(2 * y - 3 * z)
    torch.testing.assert_close(combined, 2 * selection.apply(y) - 3 * selection.apply(z), rtol=1e-12, atol=1e-12)


def test_the_same_generator_gives_the_same_selection_and_moves_on() -> None:
    memory = torch.randn(1000)
    g, h = seeded(9), seeded(9)
    first, second = silk.select(memory, 10, 20, generator=g), silk.select(memory, 10, 20, generator=g)
    assert torch.equal(first.indices, silk.select(memory, 10, 20, generator=h).indices)
    assert not torch.equal(first.random, second.random)


def test_per_tensor_selects_from_each_and_stays_unbiased_in_scale() -> None:
    sizes = [20, 1, 9]
    sparsity = silk.RTop(0.2, 0.1, per_tensor=True)
    memory = torch.rand(30, dtype=torch.float64)
    shapes = [(size,) for size in sizes]
    (selection,) = Selector(sparsity, [(shapes, memory.device)], Stream(1), PLAIN).draw([memory])
    assert isinstance(selection.scale, Tensor)
    pieces = memory.split(sizes)
    expected = [*reference.top(pieces[0], 4), 20] + [21 + i for i in reference.top(pieces[2], 2)]
    assert selection.top.tolist() == expected
    assert selection.scale.tolist() == [8.0, 8.0, 7.0]  # (20-4)/2 twice, nothing left of 1, (9-2)/1
    of_counts = Selector(silk.RTop(3, 2, per_tensor=True), [(shapes, memory.device)], Stream(1), PLAIN)
    (counts,) = of_counts.draw([memory])
    assert (counts.k1, counts.k2) == (3 + 1 + 3, 2 + 0 + 2)


def test_variance_formula_written_out() -> None:
    memory = torch.tensor([3.0, -2.0, 1.0, 0.5])
    y = torch.tensor([10.0, 1.0, 2.0, 3.0])
    assert silk.rtop_variance(memory, y, 1, 2) == pytest.approx((4 - 1 - 2) / 2 * (1 + 4 + 9))
    assert silk.rtop_variance(memory, y, 0, 2) == pytest.approx((4 - 2) / 2 * (100 + 1 + 4 + 9))  # top_{-0}(y) is y
