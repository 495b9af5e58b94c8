"""The theorems as functions: their formulas, their ranges, and whether training keeps their promises."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import spidersilk as silk
from spidersilk import reference
from spidersilk.theory import planner
from spidersilk.theory.planner import Problem

CONSTANTS = {"eps": 0.1, "smoothness": 2.0, "sigma2": 3.0, "delta_f": 1.5, "n": 50_000, "d": 1000}
problems = st.builds(
    Problem,
    st.floats(1e-3, 1.0),
    st.floats(0.1, 100.0),
    st.floats(0.1, 100.0),
    st.floats(0.01, 10.0),
    st.integers(1, 10**6),
    st.integers(2, 10**7),
)


@st.composite
def selections(draw: st.DrawFn) -> tuple[Problem, int, int, int]:
    problem = draw(problems)
    k2 = draw(st.integers(1, problem.d))
    return problem, draw(st.integers(0, problem.d - k2)), k2, draw(st.integers(1, 100))


# What the paper states.


def test_dense_theorems_have_spiderboosts_order() -> None:
    """k1 = 0, k2 = d, b = 1: the cost is a constant times min(sigma / eps^3, sqrt(n) / eps^2) L delta_f."""
    few = silk.plan(**{**CONSTANTS, "n": 10**9}, k1=0, k2=1.0)
    sigma, eps, scale = math.sqrt(3.0), 0.1, 2.0 * 1.5
    assert few.queries == pytest.approx(12 * math.sqrt(12) * sigma / eps**3 * scale, rel=1e-3)
    whole = silk.plan(**{**CONSTANTS, "n": 100}, k1=0, k2=1.0)
    assert whole.queries == pytest.approx(12 * math.sqrt(6) * math.sqrt(100) / eps**2 * scale, rel=1e-9)
    second = silk.plan(**{**CONSTANTS, "n": 100}, k1=0, k2=1.0, outside=0.0)
    assert second.queries == pytest.approx(18 * math.sqrt(3) * math.sqrt(100) / eps**2 * scale, rel=1e-9)
    assert few.ratio == whole.ratio == second.ratio == 1.0


@given(selections())
def test_theorem_1_as_printed(case: tuple[Problem, int, int, int]) -> None:
    problem, k1, k2, b = case
    plan = planner.theorem_1(problem, k1, k2, b)
    anchor = math.ceil(min(2 * problem.sigma2 / problem.eps**2, problem.n))
    assert plan.anchor_batch_size == anchor
    assert plan.inner_steps == pytest.approx(anchor * problem.d / (b * (k1 + k2)))
    assert plan.lr * problem.smoothness == pytest.approx(math.sqrt(k2 / (6 * problem.d * plan.inner_steps)))
    assert plan.loops == pytest.approx(4 * problem.delta_f / (plan.lr * plan.inner_steps * problem.eps**2))
    assert plan.queries == pytest.approx(3 * anchor * plan.loops)  # B + 2 b m k / d = 3 B
    assert plan.ratio == pytest.approx(math.sqrt(b * (k1 + k2) / k2))


@given(selections())
def test_theorem_2_as_printed(case: tuple[Problem, int, int, int]) -> None:
    problem, k1, k2, b = case
    plan = planner.theorem_2(problem, k1, k2, b)
    anchor = math.ceil(min(3 * problem.sigma2 / problem.eps**2, problem.n))
    m = plan.inner_steps
    assert plan.anchor_batch_size == anchor
    assert plan.lr * problem.smoothness == pytest.approx(math.sqrt(min(b, m) / (3 * m)))
    assert plan.loops == pytest.approx(6 * problem.delta_f / (plan.lr * m * problem.eps**2))
    assert plan.ratio == pytest.approx(math.sqrt((k1 + k2) / problem.d * b / min(b, m)))
    left = problem.d - k1 - k2
    if left:
        assert plan.allowed_residual == pytest.approx(problem.eps**2 * k2 / (3 * left * m))
    else:
        assert plan.allowed_residual == math.inf


def test_complexity_ratio_of_theorem_2_is_sqrt_of_the_sparsity() -> None:
    plan = silk.plan(**CONSTANTS, k1=0.05, k2=0.05, outside=0.1)
    assert plan.ratio == pytest.approx(math.sqrt(0.1), rel=1e-9)


@given(selections())
def test_ranges_and_monotonicity(case: tuple[Problem, int, int, int]) -> None:
    problem, k1, k2, b = case
    harder = replace(problem, eps=problem.eps / 2)
    rougher = replace(problem, smoothness=problem.smoothness * 2)
    for statement in (planner.theorem_1, planner.theorem_2, planner.anchored, planner.selected):
        plan = statement(problem, k1, k2, b)
        assert 1 <= plan.anchor_batch_size <= problem.n
        assert plan.lr > 0
        assert plan.lr * problem.smoothness <= 1 or plan.inner_steps < 1  # as the proofs need, and a note says
        assert plan.inner_steps >= 1 or any("below 1" in note for note in plan.notes)
        assert plan.inner_steps > 0
        assert plan.queries >= plan.loops * plan.anchor_batch_size
        assert statement(harder, k1, k2, b).queries >= plan.queries
        assert statement(rougher, k1, k2, b).queries >= plan.queries * (1 - 1e-9)
        longer = statement(problem, k1, k2, b, plan.inner_steps * 2)
        assert longer.lr <= plan.lr * (1 + 1e-9)
    for ours in (planner.anchored, planner.selected):
        shares = [ours(problem, k1, k2, b, None, share).queries for share in (0.0, 0.5, 1.0)]
        assert shares == sorted(shares)  # the less the top captures, the more it costs


@given(selections())
def test_largest_stable_step(case: tuple[Problem, int, int, int]) -> None:
    problem, k1, k2, _ = case
    worst = planner.largest_stable_lr(problem.smoothness, problem.d, k1, k2)
    assert worst * problem.smoothness == pytest.approx(2 * k2 / (problem.d - k1))
    assert planner.largest_stable_lr(problem.smoothness, problem.d, k1, k2, "anchored") == worst
    assert planner.largest_stable_lr(problem.smoothness, problem.d, k1, k2, "selected") == 2 / problem.smoothness


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 50), st.integers(1, 1000), st.integers(1, 100))
def test_cost_is_the_papers_sum(lengths: list[int], b: int, anchor: int, k: int) -> None:
    assert planner.cost(anchor, b, lengths, k, 100) == pytest.approx(sum(anchor + 2 * b * n * k / 100 for n in lengths))


def test_cost_is_what_the_optimizer_counts() -> None:
    w = torch.nn.Parameter(torch.ones(100))
    optimizer = silk.SparseSpiderBoost([w], lr=0.01, k1=5, k2=5)
    for step in range(12):
        is_anchor = step % 4 == 0

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = w.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure, anchor=is_anchor, samples=1000 if is_anchor else 100)
    assert optimizer.gradient_queries == pytest.approx(planner.cost(1000, 100, [3, 3, 3], 10, 100))


# Values out of range.


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"eps": 0.0}, "eps = 0.0 must be a positive number"),
        ({"smoothness": math.inf}, "smoothness = inf"),
        ({"sigma2": -1.0}, "sigma2 = -1.0"),
        ({"delta_f": math.nan}, "delta_f = nan"),
        ({"n": 0}, "n = 0 must be a whole number"),
        ({"k2": 0}, "k2 = 0: Theorem 1 needs an unbiased operator"),
        ({"k2": 0, "method": "anchored"}, "k2 = 0: Proposition A"),
        ({"k2": 0, "method": "selected"}, "k2 = 0 with outside = 1"),
        ({"outside": 1.5}, "outside = 1.5 must lie in"),
        ({"inner_steps": 0}, "inner_steps = 0 must be positive"),
        ({"method": "other"}, "method = 'other' is not one of"),
        ({"batch_size": 0}, "batch_size = 0"),
    ],
)
def test_bad_values_are_explained(change: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        silk.plan(**{**CONSTANTS, **change})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"eps": 2.0}, "every point has a gradient this small"),
        ({"n": 10}, "the whole data set"),
        ({"batch_size": 10_000}, "exceeds B"),
        ({"batch_size": 10_000}, "below 1: most loops are an anchor alone"),
        ({"delta_f": 1e-9}, "the starting point has a gradient this small"),
        ({"outside": 0.1}, "do not depend on outside: they hold if the mean R_j, which silk.Residuals measures, is at"),
        ({"outside": 0.1, "batch_size": 100}, "is above the largest stable lr of"),
        ({"outside": 0.0, "method": "anchored", "k2": 2, "inner_steps": 2}, "is above the largest stable lr of"),
    ],
)
def test_values_that_say_little_are_noted(change: dict, told: str) -> None:
    assert any(told in note for note in silk.plan(**{**CONSTANTS, **change}).notes)


def test_a_stable_step_is_not_warned_of_and_theorem_1_uses_no_share() -> None:
    for plan in (silk.plan(**CONSTANTS), silk.plan(**CONSTANTS, outside=0.1, k1=0, k2=1.0)):
        assert plan.lr <= plan.largest_stable_lr
        assert not any("stable" in note or "outside" in note for note in plan.notes)


def test_selected_without_random_part_needs_a_measured_capture() -> None:
    plan = silk.plan(**CONSTANTS, k1=0.1, k2=0, method="selected", outside=0.4)
    assert plan.statement == "Proposition B"
    assert plan.largest_stable_lr == 1.0


def test_everything_selected_is_dense_however_it_is_asked_for() -> None:
    assert silk.plan(**CONSTANTS, k1=1.0, k2=0) == silk.plan(**CONSTANTS, k1=0, k2=1.0)


# Whether the promises come true: a finite sum of quadratics with known constants.

N, D, K1, K2, B_SMALL, RADIUS = 16, 8, 2, 2, 2, 3.0


class Quadratics:
    """f_i(x) = (x - a_i)' H_i (x - a_i) / 2 with 0 <= H_i <= 1, so L = 1; sigma2 bounds all in a ball."""

    def __init__(self, seed: int = 0):
        g = torch.Generator().manual_seed(seed)
        roots = torch.linalg.qr(torch.randn(N, D, D, generator=g, dtype=torch.float64)).Q
        eigenvalues = torch.rand(N, D, generator=g, dtype=torch.float64)
        self.h = roots @ torch.diag_embed(eigenvalues) @ roots.mT
        self.a = 0.5 * torch.randn(N, D, generator=g, dtype=torch.float64)
        self.x0 = torch.full((D,), 0.7, dtype=torch.float64)
        mean_h = self.h.mean(0)
        self.minimum = torch.linalg.solve(mean_h, (self.h @ self.a[..., None]).mean(0)).squeeze(-1)
        largest = eigenvalues.amax(1)
        self.sigma2 = float((largest * (RADIUS + self.a.norm(dim=1))).square().mean())

    def gradient(self, x: Tensor, batch: Tensor) -> Tensor:
        return torch.einsum("bij,bj->i", self.h[batch], x - self.a[batch]) / len(batch)

    def value(self, x: Tensor) -> float:
        e = x - self.a
        return float(torch.einsum("bi,bij,bj->", e, self.h, e)) / (2 * N)

    def problem(self, eps: float) -> Problem:
        return Problem(eps, 1.0, self.sigma2, self.value(self.x0) - self.value(self.minimum), N, D)

    def batches(self, size: int, seed: int) -> Iterator[Tensor]:
        g = torch.Generator().manual_seed(seed)
        while True:
            yield torch.arange(N) if size == N else torch.randperm(N, generator=g)[:size]

    def output(self, plan: planner.Plan, seed: int, loops: int, form: str) -> Tensor:
        """Run with the plan's settings; returns the point whose gradient the theorem bounds."""
        options: dict = {"reference": "previous", "lengths": "geometric", "output": "uniform", "last_v": True}
        if form != "recursive":
            options = {"reference": "anchor", "move": "selected" if form == "selected" else "all"}
        g = torch.Generator().manual_seed(seed)
        trace = reference.algorithm_1(
            self.gradient, self.x0, self.batches(plan.anchor_batch_size, seed), self.batches(B_SMALL, seed + 10**6),
            lr=plan.lr, inner_steps=plan.inner_steps, loops=loops, k1=K1, k2=K2, generator=g, **options,
        )  # fmt: skip
        assert all(float(x.norm()) < RADIUS for x in trace.iterates[:: len(trace.iterates) // 50 + 1])
        if form == "recursive":
            return trace.output
        points = [self.x0, *trace.iterates[:-1]]
        return points[int(torch.randint(len(points), (), generator=g))]

    def norms(self, plan: planner.Plan, seeds: int, loops: int, form: str) -> tuple[float, float]:
        """Mean of |grad f(x_out)| over seeds, and its standard error."""
        everyone = torch.arange(N)
        found = [float(self.gradient(self.output(plan, s, loops, form), everyone).norm()) for s in range(seeds)]
        return statistics.fmean(found), statistics.stdev(found) / math.sqrt(seeds)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("form", "eps", "seeds"), [("recursive", 0.25, 30), ("anchored", 0.3, 12), ("selected", 0.45, 10)]
)
def test_the_promise_is_kept(form: str, eps: float, seeds: int) -> None:
    """E|grad f(x_out)| <= eps with the planner's settings, and not with a fiftieth of its outer loops."""
    quadratics = Quadratics()
    statement = {"recursive": planner.theorem_1, "anchored": planner.anchored, "selected": planner.selected}[form]
    plan = statement(quadratics.problem(eps), K1, K2, B_SMALL)
    mean, error = quadratics.norms(plan, seeds, math.ceil(plan.loops), form)
    assert mean + 3 * error <= eps
    start = float(quadratics.gradient(quadratics.x0, torch.arange(N)).norm())
    assert start > 2 * eps  # the statement is not empty
    mean, error = quadratics.norms(plan, seeds, max(1, round(plan.loops / 50)), form)
    assert mean - 3 * error > eps


def last_norm(make, lr: float, d: int = 40, steps: int = 400, seed: int = 0) -> float:
    """|x| after one anchor and a long inner loop on f = |x|^2 / 2, where L = 1."""
    torch.manual_seed(seed)
    x = torch.nn.Parameter(torch.randn(d, dtype=torch.float64))
    optimizer = make([x], lr)
    try:
        for step in range(steps):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = 0.5 * x.square().sum()
                loss.backward()
                return loss

            optimizer.step(closure, anchor=step == 0)
    except silk.DivergenceError:
        return math.inf
    return float(x.detach().norm())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("recursive", lambda p, lr: silk.SparseSpiderBoost(p, lr, k1=4, k2=4)),
        ("anchored", lambda p, lr: silk.SparseSVRG(p, lr, k1=4, k2=4)),
        ("selected", lambda p, lr: silk.SparseSVRG(p, lr, k1=4, k2=4, move="selected")),
    ],
)
def test_twice_the_largest_stable_step_diverges_and_half_of_it_does_not(method: str, make, seed: int) -> None:
    largest = planner.largest_stable_lr(1.0, 40, 4, 4, method)
    start = last_norm(make, 0.0, steps=1, seed=seed)
    bounded = 5.0 if method == "anchored" else 1.0  # an anchored v stays noisy far from its anchor, and does not grow
    assert last_norm(make, largest / 2, seed=seed) < bounded * start
    assert last_norm(make, 2 * largest, seed=seed) > 1e6 * start


def mean_energy_after_a_step(quadratics: Quadratics, lr: float, v: Tensor, memory: Tensor, batch: int) -> float:
    """E|v'|^2 of Algorithm 1, exactly: over all small batches and all draws of the random coordinates."""
    x = quadratics.x0
    everyone = range(len(quadratics.h))
    top = set(reference.top(memory, K1))
    draws = list(itertools.combinations([i for i in range(D) if i not in top], K2))
    total = 0.0
    for chosen in (batches := list(itertools.combinations(everyone, batch))):
        ids = torch.tensor(chosen)
        y = quadratics.gradient(x - lr * v, ids) - quadratics.gradient(x, ids)
        for drawn in draws:
            selection = silk.Selection(torch.tensor(sorted(top)), torch.tensor(drawn), (D - K1) / K2, D)
            total += float((v + selection.apply(y)).square().sum())
    return total / len(batches) / len(draws)


@pytest.mark.parametrize("seed", range(4))
def test_v_does_not_grow_below_the_largest_stable_step_on_convex_sums(seed: int) -> None:
    """The argument of docs/theory.md: E|v'|^2 <= |v|^2 for any convex quadratics, batches and selection."""
    quadratics = Quadratics(seed)
    quadratics.h, quadratics.a = quadratics.h[:6], quadratics.a[:6]
    g = torch.Generator().manual_seed(seed)
    v, memory = (torch.randn(D, generator=g, dtype=torch.float64) for _ in range(2))
    lr = planner.largest_stable_lr(1.0, D, K1, K2)
    assert mean_energy_after_a_step(quadratics, lr, v, memory, 2) <= float(v.square().sum())


def test_the_largest_stable_step_is_tight() -> None:
    """On f = |x|^2 / 2 with v outside the top, E|v'|^2 = |v|^2 at the bound, and more beyond it."""
    quadratics = Quadratics()
    quadratics.h = torch.eye(D, dtype=torch.float64).expand(2, D, D)
    quadratics.a = quadratics.a[:2]
    memory = torch.arange(D, dtype=torch.float64)
    v = torch.ones(D, dtype=torch.float64)
    v[-K1:] = 0.0
    lr = planner.largest_stable_lr(1.0, D, K1, K2)
    energy = float(v.square().sum())
    assert mean_energy_after_a_step(quadratics, lr, v, memory, 1) == pytest.approx(energy)
    assert mean_energy_after_a_step(quadratics, 1.05 * lr, v, memory, 1) > 1.01 * energy
    assert mean_energy_after_a_step(quadratics, 0.95 * lr, v, memory, 1) < 0.99 * energy
