"""What a small step can tell of itself from the coordinates it has read: no gradient beyond its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spidersilk.operator import sparsity
from spidersilk.operator.selection import Selection
from spidersilk.variance.method import Method


@dataclass(frozen=True)
class Measures:
    """Measures of one small step; y is its difference of gradients.

    Sums over the coordinates outside the top k1 are estimated from the k2 random ones, without bias. With k2 = 0
    nothing is known of them: nan.
    """

    step: int
    inner_step: int
    top_energy: float
    """|y|^2 on the top k1 coordinates of M."""
    outside_energy: float
    """|top_{-k1}(M, y)|^2. Over batches its mean is g_t + (G_t - g_t) (n - b) / (b (n - 1)), below g_t + G_t / b."""
    rtop_variance: float
    """Lemma 1: the variance that rtop adds for this y, (d - k1 - k2) / k2 times `outside_energy`."""
    variance: float
    """Of v, beyond that of its anchor's batch: of this step for an anchored v, summed since the anchor for a recursive
    one. With scaling="none" the mean square error. nan where a step cannot tell: "refresh", k2 = 0, and a recursive v
    whose errors are not independent (scaling="none", choose="anchor")."""
    estimate_energy: float
    """|v|^2, on the coordinates that move."""
    loss_change: float
    """The loss of the small batch at the current point less that at the reference."""
    _memory: Sequence[Tensor]

    @property
    def captured(self) -> float:
        """The share of |y|^2 inside the top k1; nan if y is zero."""
        total = self.top_energy + self.outside_energy
        return self.top_energy / total if total > 0 else float("nan")

    @property
    def noise(self) -> float:
        """`variance` as a share of |v|^2."""
        return self.variance / self.estimate_energy if self.estimate_energy > 0 else float("inf")

    @property
    def entropy(self) -> float:
        """Of M, in bits; computed when asked for, and to be asked for inside the callback: M moves on. nan if dense."""
        if not self._memory:
            return float("nan")
        device = self._memory[0].device
        return sparsity.entropy(torch.cat([m.detach().to(device, torch.float64) for m in self._memory]))


class Meter:
    """Makes `Measures`, and keeps the variance that a recursive v has gathered since its anchor."""

    def __init__(self, method: Method):
        self.recursive, self.scaling, self.moves_selected = method.is_recursive, method.scaling, method.moves_selected
        self.independent = method.errors_are_independent  # so that their variances add up
        self.gathered = 0.0
        self.changes: list[float] = []  # of the loss since the anchor, as each small step saw it

    def state_dict(self) -> dict[str, Any]:
        return {"gathered": self.gathered, "changes": list(self.changes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gathered, self.changes = state["gathered"], list(state["changes"])

    def restart(self) -> None:
        """At an anchor: v is as exact as its batch."""
        self.gathered, self.changes = 0.0, []

    def measure(
        self,
        where: tuple[int, int],
        values: Sequence[Tensor],
        selections: Sequence[Selection | None],
        estimates: Sequence[Tensor],
        loss_change: Tensor | float,
        memory: Sequence[Tensor],
        samples: int | None,
    ) -> Measures:
        """Measure step and inner step `where`, whose y has `values` on `selections`. Waits for the device, once."""
        device = values[0].device
        energies = torch.stack([_energies(x, s).to(device) for x, s in zip(values, selections, strict=True)]).sum(0)
        norms = [torch.linalg.vector_norm(v, dtype=torch.float64).to(device) for v in estimates]
        others = [torch.stack(norms).square().sum(), torch.as_tensor(loss_change, dtype=torch.float64, device=device)]
        top, outside, rescaling, omission, v_energy, change = torch.cat([energies, torch.stack(others)]).tolist()
        everything = all(s is None or s.k == s.d for s in selections)
        knows_outside = everything or any(s is not None and s.k2 > 0 for s in selections)
        of_rtop = rescaling if knows_outside else 0.0
        of_scaling = {"unbiased": of_rtop, "none": omission}.get(self.scaling, math.nan)
        if everything or self.moves_selected:
            of_scaling = 0.0
        elif not knows_outside or (self.recursive and not self.independent):
            of_scaling = math.nan
        variance = of_scaling + ((top + outside) / samples if samples else 0.0)
        if self.recursive:
            self.gathered += variance
            variance = self.gathered
        self.changes.append(change)
        known = outside if knows_outside else math.nan
        return Measures(*where, top, known, of_rtop, variance, v_energy, change, memory)


def _energies(values: Tensor, selection: Selection | None) -> Tensor:
    """Four sums of squares: on the top, and estimated from the random part: outside the top, the variance of rescaling
    the random part, and what leaving out the rest without rescaling omits.

    A random coordinate stands for s = (d - k1) / k2 of them: it counts s, s (s - 1) and s - 1 times.
    """
    k1 = values.numel() if selection is None else selection.k1
    squares = values.double().square()
    top, random = squares[:k1].sum(), squares[k1:]
    scale = 1.0 if selection is None else selection.scale
    weighted = [(random * w).sum() for w in (scale, scale * (scale - 1.0), scale - 1.0)]
    return torch.stack([top, *weighted])
