"""The paper's theorems, and ours, as functions of their constants: which step, batch and loop are safe, at what cost.

docs/theory.md states the assumptions and derives what is not in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from spidersilk.checks import check_choice, check_positive_int
from spidersilk.loop.step_size import theorem_1_step
from spidersilk.operator.counts import Count, check_meant, resolve_counts

METHODS = ("recursive", "anchored", "selected")
LARGEST = 1e30  # of a constant; the smallest is its inverse
Run = tuple[int, int, int, float | None]  # k1, k2, b, and m if it is given
Factors = tuple[float, float]  # of sigma2 / eps^2 in B, and of delta_f / (eta m eps^2) in T
Step = Callable[[float], float]  # m -> eta L


@dataclass(frozen=True)
class Plan:
    """Settings that reach E|grad f| <= eps, and their price.

    inner_steps is the mean of a geometric length for Theorems 1 and 2, a fixed length (round it) for ours; loops is
    T(eps), any whole number from it on will do. queries is the expected cost; ratio is to that of SpiderBoost (k1 = 0,
    k2 = d, b = 1) by the same theorem, for ours by Theorem 2. allowed_residual is the largest mean R_j under which
    Theorem 2 holds, None for the others. notes say which values left their range.
    """

    method: str
    statement: str
    lr: float
    anchor_batch_size: int
    batch_size: int
    inner_steps: float
    loops: float
    queries: float
    ratio: float
    largest_stable_lr: float
    allowed_residual: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """The constants of a problem: accuracy eps, smoothness L of each f_i, sigma2 = sup mean |grad f_i|^2, f(x_0) - f*,
    n samples, d coordinates."""

    eps: float
    smoothness: float
    sigma2: float
    delta_f: float
    n: int
    d: int

    def __post_init__(self) -> None:
        remedies = {
            "eps": "it is the gradient norm to reach",
            "smoothness": "measure it with spidersilk.theory.constants.smoothness",
            "sigma2": "measure it with spidersilk.theory.constants.gradient_moments",
            "delta_f": "it is f(x_0) - f*; a loss that cannot be negative gives f(x_0) as a bound",
        }
        for name, remedy in remedies.items():
            value = getattr(self, name)
            if not 1 / LARGEST <= value <= LARGEST:  # so that no square or quotient leaves the range of floats
                raise ValueError(f"{name} = {value} must be a positive number from 1e-30 to 1e30: {remedy}")
        for name, meaning in (("n", "it is the number of samples"), ("d", "it is the number of parameters")):
            value = getattr(self, name)
            check_positive_int(name, value, meaning)
            if value > LARGEST:
                raise ValueError(f"{name} must be at most 1e30 (this has {len(str(value))} digits): {meaning}")

    def anchor_batch(self, factor: float) -> int:
        """B = ceil(factor sigma2 / eps^2, but at most n)."""
        return math.ceil(min(factor * self.sigma2 / self.eps**2, self.n))

    def loops(self, factor: float, lr: float, inner_steps: float) -> float:
        """T(eps) = factor delta_f / (lr m eps^2)."""
        return factor * self.delta_f / (lr * inner_steps * self.eps**2)


def plan(
    *,
    eps: float,
    smoothness: float,
    sigma2: float,
    delta_f: float,
    n: int,
    d: int,
    k1: Count = 0.05,
    k2: Count = 0.05,
    batch_size: int = 1,
    method: str = "recursive",
    outside: float | None = None,
    inner_steps: float | None = None,
) -> Plan:
    """Step size, batches and loops that reach E|grad f| <= eps, with the expected number of gradient queries.

    eps: the gradient norm to reach. smoothness: L of each f_i. sigma2: a bound on the mean of |grad f_i|^2.
    delta_f: f(x_0) - f*. n, d: samples and parameters. k1, k2: a count, or a fraction of d.
    method: "recursive" (Algorithm 1: Theorem 1), "anchored" (SparseSVRG) or "selected" (SparseSVRG, move="selected").
    outside: the share of a difference's energy (for "selected", of the gradient's) that the top k1 coordinates miss, as
        `silk.inspect` measures it. None is the worst case. Given, "recursive" is Theorem 2, whose values do not depend
        on the share: it holds if the mean R_j, which `silk.Residuals` measures, stays below `allowed_residual`.
    inner_steps: m; None is the paper's B d / (b k).

    >>> settings = plan(eps=0.1, smoothness=1, sigma2=1, delta_f=1, n=10_000, d=1000, k1=0, k2=1.0)
    >>> settings.anchor_batch_size, settings.inner_steps, settings.ratio
    (200, 200.0, 1.0)
    """
    problem = Problem(eps, smoothness, sigma2, delta_f, n, d)
    check_choice("method", method, METHODS)
    check_positive_int("batch_size", batch_size, "it is the size of the small batches")
    check_outside(outside)
    if inner_steps is not None and not 0 < inner_steps < math.inf:
        raise ValueError(f"inner_steps = {inner_steps} must be positive: None takes the paper's B d / (b k)")
    check_meant(k1, k2, d)
    top, random = resolve_counts(k1, k2, d)
    if top == d:
        top, random = 0, d  # all of them, whichever way they were asked for
    if method == "recursive":
        statement = theorem_1 if outside is None else theorem_2
        return statement(problem, top, random, batch_size, inner_steps)
    share = 1.0 if outside is None else outside
    return (anchored if method == "anchored" else selected)(problem, top, random, batch_size, inner_steps, share)


def check_outside(outside: float | None) -> None:
    if outside is not None and not 0 <= outside <= 1:
        raise ValueError(f"outside = {outside} must lie in [0, 1]: it is a share of energy")


def theorem_1(problem: Problem, k1: int, k2: int, b: int = 1, inner_steps: float | None = None) -> Plan:
    """Theorem 1, worst case: eta L = sqrt(k2 / (6 d m)), B = min(2 sigma2 / eps^2, n), T = 4 delta_f/(eta m eps^2)."""
    dense = _spiderboost(problem, (2, 4), partial(theorem_1_step, 1, 1))
    run, step = (k1, k2, b, inner_steps), partial(theorem_1_step, k2, problem.d)
    return _plan(problem, "recursive", "Theorem 1", run, (2, 4), step, dense)


def theorem_2(problem: Problem, k1: int, k2: int, b: int = 1, inner_steps: float | None = None) -> Plan:
    """Theorem 2, data adaptive: eta L = sqrt(min(b, m)/(3 m)), B = min(3 sigma2/eps^2, n), T = 6 delta_f/(eta m eps^2).

    It reaches eps if the mean of R_j stays below `allowed_residual` = eps^2 k2 / (3 (d - k1 - k2) m).
    """
    run = k1, k2, b, inner_steps
    found = _plan(problem, "recursive", "Theorem 2", run, (3, 6), lambda m: math.sqrt(min(b, m) / (3 * m)))
    left = problem.d - k1 - k2
    if left == 0:
        return replace(found, allowed_residual=math.inf)
    allowed = problem.eps**2 * k2 / (3 * left * found.inner_steps)
    note = (
        "Theorem 2's values do not depend on outside: they hold if the mean R_j, which silk.Residuals measures, is at "
        f"most {allowed:.3g}"
    )
    return replace(found, allowed_residual=allowed, notes=(*found.notes, note))


def anchored(
    problem: Problem, k1: int, k2: int, b: int = 1, inner_steps: float | None = None, outside: float = 1.0
) -> Plan:
    """Proposition A, ours: v = v_anchor + rtop(difference to x_a), whose variance is at most kappa L^2 |x - x_a|^2."""
    kappa = 1 / b + variance_factor(problem.d, k1, k2) * outside
    run = k1, k2, b, inner_steps
    return _plan(problem, "anchored", "Proposition A", run, (6, 8), partial(proposition_a_step, kappa))


def selected(
    problem: Problem, k1: int, k2: int, b: int = 1, inner_steps: float | None = None, outside: float = 1.0
) -> Plan:
    """Proposition B, ours: only the selected move, so no rescaling enters; progress is what the selection captures.

    B = min(6 sigma2 / (capture eps^2), n), T = 8 delta_f / (capture eta m eps^2).
    """
    chance = k2 / (problem.d - k1) if k1 < problem.d else 1.0
    capture = 1 - outside + outside * chance
    if capture == 0:
        raise ValueError(
            "k2 = 0 with outside = 1: nothing but the top k1 ever moves, and they may miss the whole gradient; raise "
            "k2, or give outside as measured"
        )
    factors, run = (6 / capture, 8 / capture), (k1, k2, b, inner_steps)
    return _plan(problem, "selected", "Proposition B", run, factors, partial(proposition_a_step, 1 / b))


def theorem_2_inner_steps(anchor: int, small: int, density: float) -> int:
    """m = B d / (b k) for a density k / d, as a whole number of updates."""
    return max(1, math.ceil(anchor / (small * density)))


def proposition_a_step(kappa: float, inner_steps: float) -> float:
    """Proposition A's step size times the smoothness constant, for a variance of at most kappa L^2 |x - x_anchor|^2."""
    long_loop = (4.5 * inner_steps * math.sqrt(kappa)) ** (-2 / 3)
    return min(1 / 28, long_loop, math.sqrt(0.17 / (kappa * inner_steps)))


def variance_factor(d: int, k1: int, k2: int) -> float:
    """Lemma 1: rtop's variance over the energy outside the top k1, (d - k1 - k2) / k2; inf where k2 = 0 omits some."""
    left = d - k1 - k2
    return 0.0 if left == 0 else math.inf if k2 == 0 else left / k2


def largest_stable_lr(smoothness: float, d: int, k1: int, k2: int, method: str = "recursive") -> float:
    """The largest lr at which an inner loop, however long, does not blow up on convex f_i.

    Recursive (E|v|^2 does not grow) and anchored (the distance from the anchor stays bounded): 2 k2 / (L (d - k1)),
    however little of a difference lies outside the top: what lies there is multiplied at each draw. With
    `method="selected"`: 2 / L, whatever is selected.
    """
    check_choice("method", method, METHODS)
    if method == "selected":
        return 2 / smoothness
    return 2 / (smoothness * (1 + variance_factor(d, k1, k2)))


def cost(anchor_batch_size: int, batch_size: int, lengths: Iterable[float], k: int, d: int) -> float:
    """The paper's C_comp: the sum over outer loops of B + 2 b N_j k / d, for the numbers N_j of small batches.

    >>> cost(1000, 100, [10, 10], 5, 100)
    2200.0
    """
    return sum(anchor_batch_size + 2 * batch_size * length * k / d for length in lengths)


def _spiderboost(problem: Problem, factors: Factors = (3, 6), step: Step = lambda m: math.sqrt(1 / (3 * m))) -> float:
    """SpiderBoost's expected queries, by Theorem 2 if not told otherwise, with k1 = 0, k2 = d, b = 1."""
    anchor = problem.anchor_batch(factors[0])
    return problem.loops(factors[1], step(anchor) / problem.smoothness, anchor) * 3 * anchor


def _plan(
    problem: Problem, method: str, statement: str, run: Run, factors: Factors, step: Step, dense: float | None = None
) -> Plan:
    """What all statements share; `dense` are SpiderBoost's queries, by Theorem 2 where they are not given."""
    k1, k2, b, inner_steps = run
    if k2 == 0 and method != "selected":
        raise ValueError(f"k2 = 0: {statement} needs an unbiased operator, so k2 must be at least 1")
    anchor = problem.anchor_batch(factors[0])
    m = inner_steps or anchor * problem.d / (b * (k1 + k2))
    lr = step(m) / problem.smoothness
    loops = problem.loops(factors[1], lr, m)
    queries = loops * cost(anchor, b, [m], k1 + k2, problem.d)
    ratio = queries / (dense or _spiderboost(problem))
    stable = largest_stable_lr(problem.smoothness, problem.d, k1, k2, method)
    notes = _notes(problem, anchor, b, m, loops)
    if lr > stable:
        notes += (
            f"{statement}'s lr = {lr:.3g} is above the largest stable lr of {stable:.3g} for this k1 and k2: v can "
            "blow up in a loop, however little is outside the top; take the smaller lr, or raise k2",
        )
    return Plan(method, statement, lr, anchor, b, m, loops, queries, ratio, stable, None, notes)


def _notes(problem: Problem, anchor: int, b: int, m: float, loops: float) -> tuple[str, ...]:
    """What a reader should know of values that left the range in which a statement says something."""
    notes = []
    if problem.eps**2 >= problem.sigma2:
        notes.append(f"eps^2 = {problem.eps**2:.3g} is at least sigma2: every point has a gradient this small already")
    if anchor == problem.n:
        notes.append("B is the whole data set: the anchor's gradient is exact")
    if b > anchor:
        notes.append(f"batch_size = {b} exceeds B = {anchor}: a small batch should be the smaller one")
    if m < 1:
        notes.append(f"m = {m:.3g} is below 1: most loops are an anchor alone; lower batch_size or k")
    if loops < 1:
        notes.append(f"T = {loops:.3g} is below 1: one outer loop is enough")
    if problem.delta_f * 2 * problem.smoothness <= problem.eps**2:
        notes.append("delta_f <= eps^2 / (2 L): the starting point has a gradient this small already")
    return tuple(notes)
