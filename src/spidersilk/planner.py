"""The paper's theorems as functions of their constants."""

from __future__ import annotations

import math


def theorem_1_step(k2: int, d: int, inner_steps: float) -> float:
    """Theorem 1's step size times the smoothness constant: eta L = sqrt(k2 / (6 d m)).

    >>> round(theorem_1_step(5, 100, 10), 3)
    0.029
    """
    return math.sqrt(k2 / (6 * d * inner_steps))
