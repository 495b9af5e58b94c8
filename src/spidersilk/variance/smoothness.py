"""The smoothness L as far as a run shows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Secants:
    """The largest |g(x) - g(y)| / |x - y| seen, a lower bound of the smoothness L; kept on the device."""

    def __init__(self, largest: float | None = None) -> None:
        self._largest = None if largest is None else torch.tensor(largest, dtype=torch.float64)

    def observe(self, differences: Sequence[Tensor], distance: Tensor) -> None:
        """Take note of a difference of gradients, in parts, between two points at that distance."""
        size = torch.stack([x.double().norm().to(distance.device) for x in differences]).norm()
        secant = (size / distance.clamp(min=torch.finfo(torch.float64).tiny)).nan_to_num(0.0, 0.0, 0.0)
        self._largest = secant if self._largest is None else torch.maximum(self._largest.to(secant.device), secant)

    def largest(self) -> float | None:
        """None if nothing was seen, or nothing finite and positive."""
        return (None if self._largest is None else float(self._largest)) or None
