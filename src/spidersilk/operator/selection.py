"""The random-top-k operator: which k1 + k2 coordinates a step looks at, and with which scale (Section 2, Lemma 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spidersilk.checks import Count, check_choice, check_count, check_fraction, check_shares, count_of, resolve_counts
from spidersilk.kernels import backends as dispatch
from spidersilk.kernels import plain as torch_ops
from spidersilk.kernels.backends import Ops
from spidersilk.operator.groups import PickedRows, RowLayout
from spidersilk.operator.stream import Stream, fresh_seed, mix
from spidersilk.variance.flat import Slab


@dataclass(frozen=True)
class Selection:
    """k1 top and k2 random coordinates of d; a value read at a random one counts `scale` times.

    `top` and `random` are int64, ascending and disjoint. `scale` is (d - k1) / k2, or one value per random coordinate
    where tensors or rows were selected from separately; it is 1 where nothing was left to draw from or nothing was
    drawn. `picked` tells which rows it consists of, where whole rows were selected.
    """

    top: Tensor
    random: Tensor
    scale: float | Tensor
    d: int
    picked: PickedRows | None = None

    @property
    def k1(self) -> int:
        return self.top.numel()

    @property
    def k2(self) -> int:
        return self.random.numel()

    @property
    def k(self) -> int:
        return self.k1 + self.k2

    @cached_property
    def indices(self) -> Tensor:
        """All k coordinates: `top`, then `random`."""
        same = self.top.untyped_storage().data_ptr() == self.random.untyped_storage().data_ptr()
        if same and self.k1 and self.top.storage_offset() + self.k1 == self.random.storage_offset():
            return self.top.as_strided((self.k,), (1,))  # they lie one behind the other already
        return torch.cat([self.top, self.random])

    @cached_property
    def rows(self) -> tuple[Tensor, ...] | None:
        """For each parameter the selected rows, top and random, ascending; None where coordinates were selected."""
        return None if self.picked is None else self.picked.split()

    def gather(self, y: Tensor) -> Tensor:
        """The k values of y, in the order of `indices`."""
        return y[self.indices]

    def weigh(self, values: Tensor) -> Tensor:
        """k values in the order of `indices`, the random ones rescaled so that the selection is unbiased."""
        if isinstance(self.scale, float) and self.scale == 1.0:
            return values
        return torch.cat([values[: self.k1], (values[self.k1 :] * self.scale).to(values.dtype)])

    def apply(self, y: Tensor) -> Tensor:
        """rtop(y) for this draw: the selected entries of y, the random ones rescaled, zero elsewhere. Linear in y."""
        out = torch.zeros_like(y)
        out[self.indices] = self.weigh(self.gather(y))
        return out

    def state_dict(self) -> dict[str, Any]:
        state = {"top": self.top, "random": self.random, "scale": self.scale, "d": self.d}
        return state if self.picked is None else state | {"rows": self.picked.state_dict()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], device: torch.device) -> Selection:
        scale = state["scale"].to(device) if isinstance(state["scale"], Tensor) else state["scale"]
        picked = PickedRows.from_state_dict(state["rows"], device) if "rows" in state else None
        return cls(state["top"].to(device), state["random"].to(device), scale, state["d"], picked)

    def between(self, start: int, stop: int, device: torch.device) -> Selection:
        """The part of this selection in [start, stop), counted from start."""
        in_top = (self.top >= start) & (self.top < stop)
        in_random = (self.random >= start) & (self.random < stop)
        scale = self.scale[in_random].to(device) if isinstance(self.scale, Tensor) else self.scale
        top, random = (self.top[in_top] - start).to(device), (self.random[in_random] - start).to(device)
        picked = None if self.picked is None else self.picked.between(start, stop, device)
        return Selection(top, random, scale, stop - start, picked)


@dataclass(frozen=True)
class RTop:
    """How a sparse method selects. A float k is a fraction in [0, 1], rounded up; an int is a count.

    `scaling`: "unbiased" (the paper's operator), "none" (the random part as it is), "refresh" (as "none", and a
    coordinate keeps its refreshed value until it is selected again or a new anchor comes), or None: the method's own.
    `per_tensor` selects from each parameter tensor separately; a tensor smaller than a given count is taken whole.
    `groups="rows"` selects whole rows (`operator/groups.py`) by the sum of M over each. k1 and k2, fractions then, are
    shares of the rows of each length, at least one row of each.
    """

    k1: Count = 0.05
    k2: Count = 0.05
    scaling: str | None = None
    memory_decay: float = 0.5
    memory_reset: bool = False
    per_tensor: bool = False
    groups: str | None = None

    def __post_init__(self) -> None:
        check_count("k1", self.k1)
        check_count("k2", self.k2)
        if self.k1 + self.k2 == 0:
            raise ValueError("k1 + k2 = 0 selects nothing: raise k1 or k2 to at least 1 (or a fraction above 0)")
        check_choice("scaling", self.scaling, ("unbiased", "none", "refresh", None))
        check_fraction("memory_decay", self.memory_decay, "0 keeps the old memory, 1 keeps only the newest |v|")
        check_choice("groups", self.groups, ("rows", None))
        if self.groups == "rows":
            check_shares(self.k1, self.k2)

    def layout(self, shapes: Sequence[Sequence[int]], device: torch.device) -> RowLayout | None:
        """Where the rows of tensors with `shapes` are, if this selects rows."""
        return None if self.groups is None else RowLayout(shapes, device, self.per_tensor)

    def density(self, shapes: Sequence[Sequence[int]]) -> float:
        """k/d for tensors with `shapes`."""
        sizes = [math.prod(shape) for shape in shapes]
        rows = self.layout(shapes, torch.device("cpu"))
        if rows is not None:
            k = sum(sum(counts_within(self.k1, self.k2, c.count)) * c.length for c in rows.classes)
        elif self.per_tensor:
            k = sum(sum(counts_within(self.k1, self.k2, size)) for size in sizes)
        else:
            k = sum(resolve_counts(self.k1, self.k2, sum(sizes)))
        return k / sum(sizes)

    def draw(
        self,
        memory: Tensor,
        sizes: Sequence[int],
        stream: Stream,
        ops: Ops,
        hint: Any = None,
        rows: RowLayout | None = None,
    ) -> Selection:
        """Select from `memory`, the concatenation of tensors with `sizes` entries; `rows` is their `layout`."""
        seed = stream.counter(memory.device) if ops.draws_on_device else stream.next()
        if self.groups is not None:
            assert rows is not None
            return draw_rows(memory, self.k1, self.k2, rows, seed, ops)
        if not self.per_tensor:
            return draw(memory, *resolve_counts(self.k1, self.k2, memory.numel()), seed, ops, hint)
        parts: list[Selection] = []
        for number, (piece, size) in enumerate(zip(memory.split(list(sizes)), sizes, strict=True)):
            own = mix(seed, number) if isinstance(seed, int) else seed
            parts.append(draw(piece, *counts_within(self.k1, self.k2, size), own, ops))
        return _join(parts, memory)


def counts_within(k1: Count, k2: Count, size: int) -> tuple[int, int]:
    """The counts for one tensor, or for the rows of one length, as far as they reach."""
    top = min(count_of(k1, size), size)
    return top, min(count_of(k2, size), size - top)


def draw_over(
    slabs: Sequence[Slab],
    memories: Sequence[Tensor],
    sparsity: RTop,
    stream: Stream,
    ops: Ops,
    hint: Any = None,
    rows: RowLayout | None = None,
) -> list[Selection]:
    """One draw over the parameters of all slabs together, as a selection for each slab."""
    if len(slabs) == 1:
        return [sparsity.draw(memories[0], slabs[0].sizes, stream, ops, hint, rows)]
    dtype = torch.float64 if any(m.dtype == torch.float64 for m in memories) else torch.float32
    whole = torch.cat([m.to(memories[0].device, dtype) for m in memories])
    selection = sparsity.draw(whole, [size for slab in slabs for size in slab.sizes], stream, ops, None, rows)
    parts, start = [], 0
    for slab in slabs:
        parts.append(selection.between(start, start + slab.d, slab.device))
        start += slab.d
    return parts


def draw(memory: Tensor, k1: int, k2: int, seed: int | Tensor, ops: Ops = torch_ops, hint: Any = None) -> Selection:
    """`select` for counts already resolved and memory already checked."""
    d = memory.numel()
    top, random = ops.select(memory, k1, k2, seed, hint)
    return Selection(top, random, (d - k1) / k2 if k2 else 1.0, d)


def draw_rows(memory: Tensor, k1: Count, k2: Count, rows: RowLayout, seed: int | Tensor, ops: Ops) -> Selection:
    """Of the rows of each length, the share k1 with the largest sums of |memory| and the share k2 of random others."""
    counts = [counts_within(k1, k2, of_class.count) for of_class in rows.classes]
    top, random, scale, picked = rows.draw(memory, counts, seed, ops)
    return Selection(top, random, scale, rows.d, picked)


def _join(parts: list[Selection], like: Tensor) -> Selection:
    """One selection over the concatenation, each random coordinate with the scale of its own tensor."""
    tops, randoms, scales, offset = [], [], [], 0
    for part in parts:
        tops.append(part.top + offset)
        randoms.append(part.random + offset)
        scales.append(torch.full((part.k2,), float(part.scale), dtype=torch.float64, device=like.device))
        offset += part.d
    return Selection(torch.cat(tops), torch.cat(randoms), torch.cat(scales), offset)


Shapes = Sequence[Sequence[int]] | None


def select(
    memory: Tensor, k1: Count, k2: Count, *, shapes: Shapes = None, generator: torch.Generator | None = None
) -> Selection:
    """Take the k1 coordinates with the largest |memory| (ties: lower index first) and k2 random others.

    k2 = 0 is plain top-k (no draw, scale 1, biased); k1 = 0 is plain random coordinates. With `shapes` of the tensors
    that memory is made of, take whole rows, as `RTop(groups="rows")` does.

    >>> memory = torch.tensor([11.0, 12.0, 13.0, -14.0, -15.0])
    >>> selection = select(memory, k1=1, k2=1)
    >>> selection.top.tolist(), selection.scale
    ([4], 4.0)
    """
    _check_vector("memory", memory)
    if not bool(torch.isfinite(memory).all()):
        raise ValueError("memory has entries that are not finite: there is no order among them, so mend them first")
    ops = dispatch.find("auto", [(memory.device, memory.dtype)])
    if shapes is not None:
        rows = _rows_of(memory, k1, k2, shapes)
        return draw_rows(memory.contiguous(), k1, k2, rows, fresh_seed(generator) if k2 else 0, ops)
    top, random = resolve_counts(k1, k2, memory.numel())
    return draw(memory.contiguous(), top, random, fresh_seed(generator) if random else 0, ops)


def rtop(
    memory: Tensor,
    y: Tensor,
    k1: Count,
    k2: Count,
    *,
    shapes: Shapes = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The operator rtop_{k1,k2}(memory, y): an unbiased, sparse version of y; a dense tensor comes back."""
    check_pair(memory, y)
    return select(memory, k1, k2, shapes=shapes, generator=generator).apply(y)


def rtop_variance(memory: Tensor, y: Tensor, k1: Count, k2: Count, *, shapes: Shapes = None) -> float:
    """Lemma 1: the summed variance of rtop(memory, y), (d - k1 - k2) / k2 times the energy of y outside the top k1.

    k2 = 0 draws nothing, so the variance is 0 (and the operator biased). With rows it is the same for the rows of each
    length, (G - G1 - G2) / G2 times the energy outside the top G1 of G rows, summed over the lengths.
    """
    check_pair(memory, y)
    if shapes is not None:
        classes = _rows_of(memory, k1, k2, shapes).classes
        pairs = [(of_class.scores(memory), of_class.scores(y.double().square())) for of_class in classes]
        counts = [counts_within(k1, k2, scores.numel()) for scores, _ in pairs]
    else:
        pairs, counts = [(memory.abs(), y.double().square())], [resolve_counts(k1, k2, memory.numel())]
    variance = 0.0
    for (scores, energies), (top, random) in zip(pairs, counts, strict=True):
        if random:
            outside = energies.index_fill(0, torch_ops.top_indices(scores, top), 0.0)
            variance += (scores.numel() - top - random) / random * float(outside.sum())
    return variance


def _rows_of(memory: Tensor, k1: Count, k2: Count, shapes: Sequence[Sequence[int]]) -> RowLayout:
    check_count("k1", k1)
    check_count("k2", k2)
    check_shares(k1, k2)
    rows = RowLayout(shapes, memory.device)
    if rows.d != memory.numel():
        raise ValueError(f"shapes have {rows.d} entries and memory has {memory.numel()}: give those of all its tensors")
    return rows


def _check_vector(name: str, value: Tensor) -> None:
    if value.dim() != 1 or value.numel() == 0:
        shape = tuple(value.shape)
        raise ValueError(f"{name} has shape {shape}, not (d,) with d of at least 1: flatten it with reshape(-1)")
    if not value.is_floating_point():
        raise ValueError(f"{name} has dtype {value.dtype}: give a floating-point tensor, for example {name}.float()")


def check_pair(memory: Tensor, y: Tensor) -> None:
    """Two vectors of one length."""
    _check_vector("memory", memory)
    _check_vector("y", y)
    if memory.shape != y.shape:
        raise ValueError(f"memory has {memory.numel()} entries and y has {y.numel()}: they must have the same length")
