"""The vectors a method keeps (v, v at the anchor, M, the reference point), one set for each slab of parameters."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from spidersilk.checks import Form, check_saved
from spidersilk.variance.flat import Slab, copy_all


class Vectors:
    """Flat vectors over `slabs`, with per-parameter views in `state[p]` under their names.

    `v_anchor` and `memory` are empty for a method that has no use for them. `points` are views that can stand in for
    the parameters.
    """

    def __init__(
        self,
        slabs: Sequence[Slab],
        state: MutableMapping[Tensor, dict[str, Tensor]],
        *,
        anchor_estimate: bool,
        memory: bool,
    ):
        self.slabs = list(slabs)
        self.params = [p for slab in self.slabs for p in slab.params]
        self._state = state
        self.v = self._allocate("estimate")
        self.v_anchor = self._allocate("anchor_estimate") if anchor_estimate else []
        self.memory = self._allocate("memory") if memory else []
        self.has_memory = False  # whether M was started
        self.points = [twin for slab in self.slabs for twin in slab.twins()]
        for p, view in zip(self.params, self.points, strict=True):
            state[p]["reference"] = view

    def _allocate(self, name: str) -> list[Tensor]:
        vectors = [slab.zeros() for slab in self.slabs]
        for slab, vector in zip(self.slabs, vectors, strict=True):
            for p, view in zip(slab.params, slab.views(vector), strict=True):
                self._state[p][name] = view
        return vectors

    def accumulate(self, weight: float, first: bool) -> None:
        """v := weight g for the first piece of an anchor, v := v + weight g for the others, g what the closure left."""
        gradients = [slab.flatten(p.grad for p in slab.params) for slab in self.slabs]
        for v, gradient in zip(self.v, gradients, strict=True):
            if first:
                v.copy_(gradient if weight == 1 else gradient.mul_(weight))
            else:
                v.add_(gradient, alpha=weight)

    def mark_anchor(self) -> None:
        for v, v_anchor in zip(self.v, self.v_anchor, strict=False):
            v_anchor.copy_(v)

    def mark_point(self) -> None:
        """The reference point is where x is now."""
        copy_all(self.points, [p.detach() for p in self.params])

    def start_memory(self) -> None:
        for m, v in zip(self.memory, self.v, strict=True):
            m.copy_(v).abs_()
        self.has_memory = True

    def distance(self) -> Tensor:
        """|x - reference point|, in float64 on the first slab's device."""
        device = self.slabs[0].device
        pairs = zip(self.params, self.points, strict=True)
        return torch.stack([torch.dist(p, point).to(device) for p, point in pairs]).double().norm()

    def norms(self) -> dict[str, float]:
        named = {"x": self.params, "v": self.v, "M": self.memory if self.has_memory else []}
        return {n: sum(float(t.detach().double().norm()) ** 2 for t in ts) ** 0.5 for n, ts in named.items() if ts}

    def state_dict(self) -> dict[str, Any]:
        named = {"estimate": self.v, "anchor_estimate": self.v_anchor, "memory": self.memory}
        named["reference"] = [slab.flatten(self._points_of(slab)) for slab in self.slabs]
        return {"has_memory": self.has_memory, "flat": {name: vectors for name, vectors in named.items() if vectors}}

    def check_state(self, state: object) -> None:
        """Raise ValueError unless all of it fits."""
        check_saved("state['vectors']", state, {"has_memory": bool, "flat": dict})
        flat = cast(dict[str, Any], state)["flat"]
        needed = {"estimate": self.v, "anchor_estimate": self.v_anchor}
        needed |= {"memory": self.memory, "reference": self.points}
        sizes: Form = [torch.Size([slab.d]) for slab in self.slabs]
        check_saved("state['vectors']['flat']", flat, {name: sizes for name, kept in needed.items() if kept})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.has_memory = state["has_memory"]
        flat = state["flat"]
        for name, vectors in (("estimate", self.v), ("anchor_estimate", self.v_anchor), ("memory", self.memory)):
            for target, saved in zip(vectors, flat.get(name, []), strict=False):
                target.copy_(saved)
        for slab, saved in zip(self.slabs, flat.get("reference", []), strict=False):
            slab.spread(saved.to(slab.device), self._points_of(slab))

    def _points_of(self, slab: Slab) -> list[Tensor]:
        return [self._state[p]["reference"] for p in slab.params]
