"""The reference itself: its options where they can be checked by hand or by another piece of code."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cases import quadratic

from spidersilk import reference


def run(**options):
    problem = quadratic()
    g = torch.Generator().manual_seed(0)
    draw = lambda size: (torch.randperm(problem.samples, generator=g)[:size] for _ in itertools.count())  # noqa: E731
    settings = {"lr": 0.05, "inner_steps": 5, "loops": 4, "k1": 3, "k2": 2} | options
    return problem, reference.algorithm_1(problem.flat_gradient, problem.flat_x(), draw(20), draw(5), **settings)


def test_first_steps_by_hand() -> None:
    """f(x) = x^2 / 2 on one coordinate, full batch: v = x at each step, so x shrinks by 1 - lr."""
    x0 = torch.tensor([1.0], dtype=torch.float64)
    batches = itertools.repeat([0])
    for point in ("previous", "anchor"):
        trace = reference.algorithm_1(
            lambda x, batch: x, x0, batches, batches, lr=0.1, inner_steps=3, loops=2, reference=point
        )
        assert [float(x) for x in trace.iterates] == pytest.approx([0.9**t for t in range(1, 7)])
    assert trace.queries == 2 + 2 * 2 * 2  # two anchors, and two small steps each at two evaluations


def test_printed_form_costs_two_more_batches_and_moves_as_often() -> None:
    _, ours = run()
    _, printed = run(memory_batch=True, last_v=True)
    d = 12
    assert ours.queries == pytest.approx(4 * (20 + 2 * 5 * 4 * 5 / d))  # B + 2 b (m - 1) k / d
    assert printed.queries == pytest.approx(20 + 4 * (20 + 2 * 5 * 5 * 5 / d))  # B more, and m in place of m - 1
    assert len(ours.iterates) == len(printed.iterates) == 20


def test_geometric_lengths_include_zero() -> None:
    _, trace = run(lengths="geometric", inner_steps=1.0, loops=40)
    assert trace.queries >= 40 * 20  # a loop of length 0 still costs its anchor
    assert 10 <= len(trace.iterates) <= 90
    _, given = run(lengths=[3, 0, 2], loops=3)
    assert len(given.iterates) == 5
    assert given.queries == pytest.approx(3 * 20 + 2 * 5 * (2 + 1) * 5 / 12)


def test_outputs() -> None:
    _, last = run()
    assert torch.equal(last.output, last.iterates[-1])
    ends = set()
    for seed in range(20):
        _, trace = run(output="uniform", generator=torch.Generator().manual_seed(seed))
        ends.add(next(i for i, x in enumerate(trace.iterates) if torch.equal(x, trace.output)))
    assert ends == {4, 9, 14, 19}


def test_step_size_inside_the_loop() -> None:
    _, trace = run(lr=lambda j, t: 0.1 + (1.0 - 0.1) * (5 - t) / 5 if j else 0.0)
    x0 = quadratic().flat_x()
    assert all(torch.equal(x, x0) for x in trace.iterates[:5])
    assert not torch.equal(trace.iterates[5], x0)


def test_memory_carried_or_reset() -> None:
    _, carried = run(memory_decay=0.0)
    assert all(torch.equal(m, carried.memories[0]) for m in carried.memories)
    _, reset = run(memory_decay=0.0, memory_reset=True)
    for start in (0, 5, 10, 15):
        assert torch.equal(reset.memories[start], reset.estimates[start].abs())
    assert not torch.equal(reset.memories[0], reset.memories[5])


def test_top_breaks_ties_by_index() -> None:
    assert reference.top(torch.tensor([1.0, -2, 2, 0, -2]), 2) == [1, 2]
    assert reference.top(torch.zeros(4), 3) == [0, 1, 2]


def test_refresh_keeps_what_it_learned_and_none_forgets_it() -> None:
    _, refresh = run(reference="anchor", scaling="refresh", k1=0, k2=3)
    _, forgets = run(reference="anchor", scaling="none", k1=0, k2=3)

    def changed(trace: reference.Trace, t: int) -> int:
        return int((trace.estimates[t] != trace.estimates[0]).sum())

    assert [changed(forgets, t) for t in range(5)] == [0, 3, 3, 3, 3]
    seen: set[int] = set()
    for t in range(1, 5):
        seen |= set(refresh.selections[t - 1].indices.tolist())
        assert changed(refresh, t) == len(seen)
    assert len(seen) > 3


def test_dense_recursion_tracks_the_full_gradient_with_full_batches() -> None:
    problem = quadratic()
    everything = itertools.repeat(torch.arange(problem.samples))
    trace = reference.algorithm_1(
        problem.flat_gradient, problem.flat_x(), everything, everything, lr=0.1, inner_steps=10, loops=3
    )
    points = [problem.flat_x(), *trace.iterates]
    for v, x in zip(trace.estimates, points, strict=False):
        torch.testing.assert_close(v, problem.flat_gradient(x, torch.arange(problem.samples)), rtol=0, atol=1e-12)


def test_algorithm_2_advances_both_matrices() -> None:
    """The oracle notes which batch was read with which state; a state is a count of the batches before it."""
    seen: list[tuple[str, int, int]] = []

    def gradient(x: torch.Tensor, batch: tuple[str, int], state: int) -> tuple[torch.Tensor, int]:
        seen.append((*batch, state))
        return x, state + 1

    small, large = [("z", i) for i in range(4)], [("Z", i) for i in range(2)]
    x0 = torch.ones(1, dtype=torch.float64)
    options = {"lr": 0.1, "inner_steps": 2, "iterations": 8}
    reference.algorithm_2(gradient, x0, small, large, 0, 0, **options)
    # As printed, batch mod(t, l): with m = 2, Z_1 shows only its odd batches and Z_2 its even ones.
    assert [s for s in seen if s[0] == "Z"] == [("Z", 0, 0)] * 4
    assert [s[1] for s in seen if s[0] == "z"] == [1, 1, 3, 3, 1, 1, 3, 3]
    seen.clear()
    reference.algorithm_2(gradient, x0, small, large, 0, 0, advance="own", **options)
    assert [s for s in seen if s[0] == "Z"] == [("Z", 0, 0), ("Z", 1, 1)] * 2
    # Old point with s_{t-1}, new point with s_t: equal just after an anchor, which leaves s as it is.
    assert [s for s in seen if s[0] == "z"] == [("z", i, i) for i in range(4) for _ in range(2)]


def test_geometric_is_geometric() -> None:
    g = torch.Generator().manual_seed(2)
    draws = torch.tensor([float(reference.geometric(4.0, g)) for _ in range(3000)])
    assert abs(float(draws.mean()) - 4.0) < 4 * math.sqrt(4 * 5 / 3000)
