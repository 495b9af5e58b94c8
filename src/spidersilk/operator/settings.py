"""RTop: how a sparse method selects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spidersilk.checks import check_choice, check_fraction
from spidersilk.operator.counts import Count, check_counts, check_shares, counts_within, resolve_counts
from spidersilk.operator.groups import GroupLayout, Groups, Shapes

Scaling = Literal["unbiased", "none", "refresh"]


@dataclass(frozen=True)
class RTop:
    """How a sparse method selects. A float k is a fraction in [0, 1], rounded up; an int is a count. 1.0 is all; 1 is
    one coordinate, and an optimizer of 1000 or more refuses it, as that is hardly what was meant.

    `scaling`: "unbiased" (the paper's operator), "none" (the random part as it is), "refresh" (as "none", and a
    coordinate keeps its refreshed value until it is selected again or a new anchor comes), or None: the method's own.
    `memory_decay` is the weight of the newest |v| in M. `memory_reset` restarts M from |v| at each anchor.
    `per_tensor` selects from each parameter tensor separately; a tensor smaller than a given count is taken whole.
    `groups="rows"` or "columns" selects whole ones (`operator/groups.py`) by the sum of M over each. k1 and k2 are then
    fractions, shares of the groups of each length, at least one of each.
    """

    k1: Count = 0.05
    k2: Count = 0.05
    scaling: Scaling | None = None
    memory_decay: float = 0.5
    memory_reset: bool = False
    per_tensor: bool = False
    groups: Groups | None = None

    def __post_init__(self) -> None:
        check_counts(self.k1, self.k2)
        check_choice("scaling", self.scaling, ("unbiased", "none", "refresh", None))
        check_fraction("memory_decay", self.memory_decay, "0 keeps the old memory, 1 keeps only the newest |v|")
        check_choice("groups", self.groups, ("rows", "columns", None))
        if self.groups is not None:
            check_shares(self.k1, self.k2, self.groups)

    def layout(
        self, shapes: Shapes, device: torch.device, dimensions: Sequence[int] | None = None
    ) -> GroupLayout | None:
        """Where the groups of tensors with `shapes` are, if this selects groups; columns along `dimensions`."""
        return None if self.groups is None else GroupLayout(shapes, device, self.groups, self.per_tensor, dimensions)

    def density(self, shapes: Shapes, dimensions: Sequence[int] | None = None) -> float:
        """k/d for tensors with `shapes`; columns are counted along `dimensions`, or the second of each."""
        sizes = [math.prod(shape) for shape in shapes]
        layout = self.layout(shapes, torch.device("cpu"), dimensions)
        if layout is not None:
            counts = layout.counts(self.k1, self.k2)
            k = sum(sum(count) * c.length for count, c in zip(counts, layout.classes, strict=True))
        elif self.per_tensor:
            k = sum(sum(counts_within(self.k1, self.k2, size)) for size in sizes)
        else:
            k = sum(resolve_counts(self.k1, self.k2, sum(sizes)))
        return k / sum(sizes)
