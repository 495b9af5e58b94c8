"""Which k1 + k2 coordinates a step looks at, and with which scale (Section 2): the record, and who draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NotRequired, TypedDict, cast

import torch
from torch import Tensor

from spidersilk.checks import Form, check_saved
from spidersilk.kernels.interface import Kernels, Seed, weigh
from spidersilk.operator.counts import counts_within, resolve_counts
from spidersilk.operator.groups import RowShapes, Shapes
from spidersilk.operator.random_stream import Stream, mix
from spidersilk.operator.settings import RTop


class SavedSelection(TypedDict):
    """A selection in a state_dict; `rows`, {"shapes": row_shapes}, only where whole rows were selected."""

    top: Tensor
    random: Tensor
    scale: float | Tensor
    d: int
    rows: NotRequired[dict[str, list[list[int]]]]


@dataclass(frozen=True)
class Selection:
    """k1 top and k2 random coordinates of d; a value read at a random one counts `scale` times.

    `top` and `random` are int64, ascending and disjoint. `scale` is (d - k1) / k2, or one value per random coordinate
    where tensors or groups were selected from separately; it is 1 where nothing was left to draw from or nothing was
    drawn. `row_shapes` has (rows, length) of each tensor, where whole rows were selected.
    """

    top: Tensor
    random: Tensor
    scale: float | Tensor
    d: int
    row_shapes: RowShapes | None = None

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
        top, random = self.top, self.random
        same = top.untyped_storage().data_ptr() == random.untyped_storage().data_ptr()
        if same and top.numel() and top.storage_offset() + top.numel() == random.storage_offset():
            return top.as_strided((top.numel() + random.numel(),), (1,))  # they lie one behind the other already
        return torch.cat([top, random])

    @cached_property
    def rows(self) -> tuple[Tensor, ...] | None:
        """For each parameter the selected rows, top and random, ascending; None where no rows were selected.

        How many these are is data: it waits for CUDA.
        """
        if self.row_shapes is None:
            return None
        coordinates, begins = self.indices.sort().values, self._begins(self.row_shapes)
        cuts = torch.searchsorted(coordinates, torch.tensor(begins, device=coordinates.device)).tolist()
        parts = zip(begins, cuts, cuts[1:], self.row_shapes, strict=False)
        return tuple((coordinates[a : b : length or 1] - begin) // (length or 1) for begin, a, b, (_, length) in parts)

    @staticmethod
    def _begins(row_shapes: RowShapes) -> list[int]:
        """Where each tensor begins, and the end."""
        return list(accumulate((rows * length for rows, length in row_shapes), initial=0))

    def gather(self, y: Tensor) -> Tensor:
        """The k values of y, in the order of `indices`."""
        return y[self.indices]

    def weigh(self, values: Tensor) -> Tensor:
        """k values in the order of `indices`, the random ones rescaled so that the selection is unbiased."""
        return weigh(values, self.k1, self.scale)

    def apply(self, y: Tensor) -> Tensor:
        """rtop(y) for this draw: the selected entries of y, the random ones rescaled, zero elsewhere. Linear in y."""
        out = torch.zeros_like(y)
        out[self.indices] = self.weigh(self.gather(y))
        return out

    def state_dict(self) -> SavedSelection:
        state: SavedSelection = {"top": self.top, "random": self.random, "scale": self.scale, "d": self.d}
        if self.row_shapes is not None:
            state["rows"] = {"shapes": [list(shape) for shape in self.row_shapes]}
        return state

    @classmethod
    def from_state_dict(cls, state: SavedSelection, device: torch.device) -> Selection:
        scale = state["scale"].to(device) if isinstance(state["scale"], Tensor) else state["scale"]
        shapes = tuple((rows, length) for rows, length in state["rows"]["shapes"]) if "rows" in state else None
        return cls(state["top"].to(device), state["random"].to(device), scale, state["d"], shapes)

    @classmethod
    def checked(cls, state: object, d: int, device: torch.device) -> Selection:
        """The selection of a saved state, which may be damaged."""
        form: Form = {"top": Tensor, "random": Tensor, "scale": (float, Tensor), "d": int}
        check_saved("the saved selection", state, form)
        saved = cast(SavedSelection, state)
        if "rows" in saved:
            check_saved("the saved selection's rows", saved["rows"], {"shapes": list})
        found = cls.from_state_dict(saved, device)
        indices = found.indices
        is_vector = found.top.dim() == 1 and found.random.dim() == 1 and indices.dtype == torch.int64
        if found.d != d or not is_vector or (indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < d):
            raise ValueError(f"the saved selection is not one of d = {d} coordinates: the state is damaged")
        return found

    def between(self, start: int, stop: int, device: torch.device) -> Selection:
        """The part of this selection in [start, stop), counted from start."""
        in_top = (self.top >= start) & (self.top < stop)
        in_random = (self.random >= start) & (self.random < stop)
        scale = self.scale[in_random].to(device) if isinstance(self.scale, Tensor) else self.scale
        top, random = (self.top[in_top] - start).to(device), (self.random[in_random] - start).to(device)
        shapes = None
        if self.row_shapes is not None:
            pairs = zip(self._begins(self.row_shapes), self.row_shapes, strict=False)
            shapes = tuple(shape for begin, shape in pairs if start <= begin < stop)
        return Selection(top, random, scale, stop - start, shapes)


class Selector:
    """Draws the selections of a method. It owns where the groups lie, the random stream and the kernels' hint on M.

    slabs: for each flat vector of parameters (one a device and dtype) the shapes of its tensors, and the device. The
    selection is over all of them together. dimensions: of all these tensors, along which columns are counted.
    """

    def __init__(
        self,
        sparsity: RTop,
        slabs: Sequence[tuple[Shapes, torch.device]],
        stream: Stream,
        kernels: Kernels,
        dimensions: Sequence[int] | None = None,
    ):
        self.sparsity, self.stream, self.kernels = sparsity, stream, kernels
        self.hint: object = None  # from the kernels' last update of M, where there is one slab
        shapes = [shape for of_slab, _ in slabs for shape in of_slab]
        device = slabs[0][1]
        self._sizes = [math.prod(shape) for shape in shapes]
        self._cuts = [(sum(math.prod(s) for s in of_slab), device) for of_slab, device in slabs]
        self._layout = sparsity.layout(shapes, device, dimensions)
        self._counts = (0, 0)
        if self._layout is None and not sparsity.per_tensor:
            self._counts = resolve_counts(sparsity.k1, sparsity.k2, sum(self._sizes))
        if kernels.draws_on_device:
            stream.counter(device)  # now: a graph that is being captured could not make it

    def draw(self, memories: Sequence[Tensor]) -> list[Selection]:
        """Select by M, one vector for each slab; a selection for each slab comes back."""
        if len(memories) > 1:
            return self._draw_over_all(memories)
        memory, sparsity, kernels, layout = memories[0], self.sparsity, self.kernels, self._layout
        seed = self.stream.counter(memory.device) if kernels.draws_on_device else self.stream.next()
        if layout is not None:
            return [Selection(*layout.draw(memory, layout.counts(sparsity.k1, sparsity.k2), seed, kernels))]
        if sparsity.per_tensor:
            return [self._draw_per_tensor(memory, seed)]
        (k1, k2), d = self._counts, memory.numel()
        return [Selection(*kernels.select(memory, k1, k2, seed, self.hint), (d - k1) / k2 if k2 else 1.0, d)]

    def _draw_over_all(self, memories: Sequence[Tensor]) -> list[Selection]:
        """One draw over several slabs, cut into their parts."""
        dtype = torch.float64 if any(m.dtype == torch.float64 for m in memories) else torch.float32
        self.hint = None
        (whole,) = self.draw([torch.cat([m.to(memories[0].device, dtype) for m in memories])])
        parts, start = [], 0
        for size, device in self._cuts:
            parts.append(whole.between(start, start + size, device))
            start += size
        return parts

    def _draw_per_tensor(self, memory: Tensor, seed: Seed) -> Selection:
        """A draw from each tensor, each random coordinate with the scale of its own tensor."""
        tops, randoms, scales, offset = [], [], [], 0
        for number, part in enumerate(memory.split(self._sizes)):
            k1, k2 = counts_within(self.sparsity.k1, self.sparsity.k2, part.numel())
            of_tensor = mix(seed, number) if isinstance(seed, int) else seed
            top, random = self.kernels.select(part, k1, k2, of_tensor)
            tops.append(top + offset)
            randoms.append(random + offset)
            scale = (part.numel() - k1) / k2 if k2 else 1.0
            scales.append(torch.full((k2,), scale, dtype=torch.float64, device=memory.device))
            offset += part.numel()
        return Selection(torch.cat(tops), torch.cat(randoms), torch.cat(scales), offset)
