"""How long an inner loop lasts: a fixed number of updates, a geometric one, or as long as it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from spidersilk.checks import check_fraction, check_number, check_positive_int
from spidersilk.operator.random_stream import generator_at


@dataclass(frozen=True)
class Fixed:
    """Every inner loop has `mean` updates (N_j = m, the paper's implementation)."""

    mean: int

    def __post_init__(self) -> None:
        check_positive_int("inner_steps", self.mean, "an outer loop is one anchor step and inner_steps - 1 small steps")

    def length(self, seed: int, loop: int) -> int:
        return self.mean


@dataclass(frozen=True)
class Geometric:
    """N_j geometric on 0, 1, ... with mean m (the paper's analysis): P(N = n) = g^n (1 - g) with g = m / (m + 1)."""

    mean: float

    def __post_init__(self) -> None:
        check_number("mean", self.mean, "it is the mean length of an inner loop", above_zero=True)

    def length(self, seed: int, loop: int) -> int:
        """The length of loop number `loop`; the same seed and loop give the same length."""
        uniform = torch.rand((), dtype=torch.float64, generator=generator_at("cpu", seed, loop)).item()
        return int(math.log1p(-uniform) / math.log(self.mean / (self.mean + 1)))


@dataclass(frozen=True)
class Adaptive:
    """An inner loop lasts as long as it is safe and pays; `inner_steps="auto"` is this. docs/theory.md derives it.

    A recursive v gathers noise: its loop ends when the estimated variance of v passes `fraction` of |v|^2, and the
    small step that finds it is not taken. An anchored v does not: its loop ends when the loss, compared at both points
    of each small step, falls more slowly for another small step than it did for the loop's queries on average, by
    `confidence` standard errors.

    A loop has at least `floor` updates, the anchor's own included, and at most `ceiling`; None is B d / (b k), at which
    its small steps cost twice what its anchor did.
    """

    fraction: float = 0.9
    confidence: float = 1.0
    floor: int = 1
    ceiling: int | None = None

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction, "at 1 all of v may be noise")
        check_number("fraction", self.fraction, "at 1 all of v may be noise", above_zero=True)
        check_number("confidence", self.confidence, "it is in standard errors")
        check_positive_int("floor", self.floor, "1 lets a loop be the anchor's update alone")
        if self.ceiling is not None:
            check_positive_int("ceiling", self.ceiling, "it is the longest loop, in updates")
            if self.ceiling < self.floor:
                raise ValueError(f"ceiling = {self.ceiling} is below floor = {self.floor}: raise it")

    @property
    def mean(self) -> float:
        """The longest loop, for want of a mean."""
        return self.ceiling or math.inf

    def is_over(self, updates: int, price: float) -> bool:
        """Whether a loop has come to its ceiling; `price` is that of an anchor in small steps."""
        return updates >= (max(self.floor, round(2 * price)) if self.ceiling is None else self.ceiling)

    def is_safe(self, inner_step: int, noise: float) -> bool:
        """Whether a small step may be taken with a v of which `noise` is the share of variance in |v|^2."""
        return inner_step < self.floor or noise <= self.fraction

    def pays(self, changes: Sequence[float], price: float) -> bool:
        """Whether to go on, after small steps that found the loss changed by `changes` since the anchor.

        The later half of the changes is compared with the earlier one, from the time on when the small steps have cost
        a fifth of their anchor: ending a loop for no good reason wastes the anchor.
        """
        steps = len(changes)
        if steps and not math.isfinite(changes[-1]):
            return False
        half = steps // 2
        stride = 1 << max(0, steps.bit_length() - 4)  # ask more and more rarely, so that asking stays cheap
        if half < 2 or steps + 1 < self.floor or steps < 0.2 * price or steps % stride:
            return True
        earlier, later = changes[-2 * half : -half], changes[-half:]
        means = fmean(earlier), fmean(later)
        squares = sum((x - means[0]) * (x - means[0]) for x in earlier) + sum(
            (x - means[1]) * (x - means[1]) for x in later
        )
        gain = (means[0] - means[1]) / half
        error = math.sqrt(squares / (half - 1) / half) / half
        average = max(-means[1], 0.0) / (price + steps - half / 2)
        return gain >= average - self.confidence * error


InnerLength = Fixed | Geometric | Adaptive


def as_inner_length(inner_steps: int | str | InnerLength) -> InnerLength:
    if isinstance(inner_steps, InnerLength):
        return inner_steps
    if isinstance(inner_steps, str):
        if inner_steps != "auto":
            raise ValueError(f"inner_steps = {inner_steps!r} is neither a number nor 'auto'")
        return Adaptive()
    return Fixed(inner_steps)
