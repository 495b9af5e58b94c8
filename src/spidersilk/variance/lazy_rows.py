"""Rows of x that lag behind: those of embedding tables under an anchored v, moved only when they are read."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from spidersilk.checks import Form
from spidersilk.kernels.interface import Kernels
from spidersilk.kernels.plain import all_finite
from spidersilk.operator.groups import GroupLayout
from spidersilk.operator.random_stream import mix
from spidersilk.operator.settings import RTop
from spidersilk.variance.flat import Slab


class LazyRows:
    """x, v_anchor and the anchor point as rows, the sums of M over each, and how far each row of x has moved.

    `clock` is the sum of step sizes since the last `flush`, `paid` what it was when a row was last brought up to date.
    """

    def __init__(self, slab: Slab, sparsity: RTop, kernels: Kernels):
        self.slab, self.sparsity, self.kernels = slab, sparsity, kernels
        layout = GroupLayout([p.shape for p in slab.params], slab.device, "rows", sparsity.per_tensor)
        self.shapes = [(tensor.count, tensor.inner) for tensor in layout.tensors]
        self.classes = layout.classes
        self.counts = layout.counts(sparsity.k1, sparsity.k2)
        self.density = sum(sum(n) * c.length for n, c in zip(self.counts, self.classes, strict=True)) / slab.d
        self.is_table = [False] * len(slab.params)
        self.v = slab.zeros()
        self.points = slab.twins()
        self._v_of = [piece.view(shape) for piece, shape in zip(self.v.split(slab.sizes), self.shapes, strict=True)]
        self._every = [torch.arange(rows, device=slab.device) for rows, _ in self.shapes]
        self.clock = 0.0
        self.paid = [torch.zeros(rows, dtype=torch.float64, device=slab.device) for rows, _ in self.shapes]
        # Of each class: sums of |v_anchor| and of M over a row, and how much a difference there counts.
        self.drift = [c.scores(self.v) for c in self.classes]
        self.sums = [torch.zeros_like(s) for s in self.drift]
        self.weights = [torch.zeros_like(s, dtype=torch.float64) for s in self.drift]
        self._drift_of, self._sums_of, self._weights_of = map(self._by_parameter, (self.drift, self.sums, self.weights))

    def _by_parameter(self, values: list[Tensor]) -> list[Tensor]:
        """Views of values per class, one for each parameter."""
        at: dict[int, Tensor] = {}  # by where a parameter begins in the flat vector
        for of_class, of_rows in zip(self.classes, values, strict=True):
            parts = of_rows.split([tensor.count for tensor in of_class.tensors])
            at |= {tensor.begin: part for tensor, part in zip(of_class.tensors, parts, strict=True)}
        starts = accumulate(self.slab.sizes[:-1], initial=0)
        return [at[start] if size else values[0][:0] for start, size in zip(starts, self.slab.sizes, strict=True)]

    def _x(self, number: int) -> Tensor:
        return self.slab.params[number].data.view(self.shapes[number])

    def catch_up(self, number: int, indices: Tensor) -> None:
        """Move rows of a parameter to where they are by now; an index may come twice."""
        if self.clock:
            x, v, paid = self._x(number), self._v_of[number], self.paid[number]
            due = (self.clock - paid.index_select(0, indices)).to(x.dtype).unsqueeze(1)
            moved = x.index_select(0, indices).addcmul_(v.index_select(0, indices), due, value=-1)
            x.index_copy_(0, indices, moved)
            paid.index_fill_(0, indices, self.clock)

    def flush(self) -> None:
        if self.clock:
            for number, (v, paid) in enumerate(zip(self._v_of, self.paid, strict=True)):
                due = (self.clock - paid).to(v.dtype).unsqueeze(1)
                self._x(number).addcmul_(v, due, value=-1)
                paid.zero_()
            self.clock = 0.0

    def accumulate(self, weight: float, first: bool) -> None:
        """v := weight g for the first piece of an anchor, v := v + weight g for the others."""
        if first:
            self.v.zero_()
        for p, v in zip(self.slab.params, self._v_of, strict=True):
            if p.grad is not None:
                v.view(p.shape).add_(p.grad, alpha=weight)

    def begin_loop(self, start_memory: bool, lr: float) -> None:
        """The anchor point, the sums of |v|, those of M if they start anew, and the first move of all rows."""
        for point, p in zip(self.points, self.slab.params, strict=True):
            point.copy_(p.detach())
        for number, of_class in enumerate(self.classes):
            self.drift[number].copy_(of_class.scores(self.v))
            if start_memory:
                self.sums[number].copy_(self.drift[number])
        self.clock = lr
        self._move_dense()

    def _move_dense(self) -> None:
        """Parameters that are no tables are read without a hook, so they are always up to date."""
        for number, is_table in enumerate(self.is_table):
            if not is_table:
                self.catch_up(number, self._every[number])

    def draw(self, seed: int) -> None:
        """Select rows by the sums of M; what is kept of it is how much a difference on each row counts."""
        for number, (g1, g2) in enumerate(self.counts):
            sums = self.sums[number].clamp(max=torch.finfo(self.sums[number].dtype).max)
            top, random = self.kernels.select(sums, g1, g2, mix(seed, number))
            weights = self.weights[number].zero_().index_fill_(0, top, 1.0)
            scaled = g2 > 0 and self.sparsity.scaling == "unbiased"
            weights.index_fill_(0, random, (weights.numel() - g1) / g2 if scaled else 1.0)

    def difference(self, number: int, current: Tensor | None, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """The touched rows of a parameter, and the difference of its gradients there."""
        shape = self.shapes[number]
        if not self.is_table[number]:
            zeros = torch.zeros((), dtype=self.v.dtype, device=self.v.device).expand(shape)
            pair = [zeros if g is None else g.to_dense().reshape(shape) for g in (current, before)]
            return self._every[number], pair[0] - pair[1]
        gradients = [(sign, g) for sign, g in ((1, current), (-1, before)) if g is not None]
        if any(not g.is_sparse for _, g in gradients):
            raise RuntimeError(
                "a table has a dense gradient: it is used other than by its lookup, so construct it with sparse=False"
            )
        indices = torch.cat([self._every[number][:0], *(g._indices()[0] for _, g in gradients)])
        values = torch.cat([self.v[:0].view(0, shape[1]), *(g._values() * sign for sign, g in gradients)])
        both = torch.sparse_coo_tensor(indices[None], values, shape, check_invariants=False).coalesce()
        return both.indices()[0], both.values()

    def advance(self, touched: list[tuple[Tensor, Tensor]], lr: float) -> bool:
        """v on the touched rows, M, and x; the others wait. If v is not finite, nothing is done: False comes back."""
        changes = [
            y * weights.index_select(0, rows).to(y.dtype).unsqueeze(1)
            for (rows, y), weights in zip(touched, self._weights_of, strict=True)
        ]
        news = [v.index_select(0, rows).add_(u) for (rows, _), v, u in zip(touched, self._v_of, changes, strict=True)]
        if not all_finite(news):
            return False
        decay = self.sparsity.memory_decay
        for sums, drift in zip(self.sums, self.drift, strict=True):
            sums.mul_(1 - decay).add_(drift, alpha=decay)
        self.clock += lr
        for number, ((rows, _), u, v) in enumerate(zip(touched, changes, news, strict=True)):
            size = torch.linalg.vector_norm(v, 1, dim=1, dtype=self.sums[0].dtype)
            size.sub_(self._drift_of[number].index_select(0, rows))
            self._sums_of[number].index_add_(0, rows, size, alpha=decay)
            self._x(number).index_add_(0, rows, u, alpha=-lr)
        self._move_dense()
        return True

    def state_dict(self) -> dict[str, Any]:
        points = self.slab.flatten(self.points)
        return {"v": self.v, "points": points, "sums": self.sums, "drift": self.drift, "weights": self.weights}

    def form(self) -> Form:
        """Of what is saved."""
        names = ("sums", "drift", "weights")
        lists: dict[str, Form] = {name: [x.shape for x in getattr(self, name)] for name in names}
        return {"v": self.v.shape, "points": self.v.shape, **lists}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clock = 0.0
        for paid in self.paid:
            paid.zero_()
        self.v.copy_(state["v"])
        self.slab.spread(state["points"].to(self.v.device), self.points)
        for name in ("sums", "drift", "weights"):
            for values, saved in zip(getattr(self, name), state[name], strict=True):
                values.copy_(saved)
