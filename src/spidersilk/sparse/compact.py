"""The selected entries of one weight, and the small parameter that is trained in their place."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.kernels.interface import Entries, Kernels, Seed
from spidersilk.operator.counts import Count, counts_within
from spidersilk.sparse.sharded import as_parameter, counts_of, is_sharded, local
from spidersilk.variance.compact import is_second_moment
from spidersilk.variance.flat import is_dense

HALVES = (torch.bfloat16, torch.float16)
CHANGED = (
    "a weight was moved to another device or dtype after the optimizer was made, which does not follow: move the model "
    "first, then make the optimizer"
)
SMALL = 1 << 16  # entries of a vector (a norm, a bias) that is trained whole


def is_trained_whole(weight: Tensor, k1: Count, k2: Count) -> bool:
    """Whether all of its entries are trained: it is a small vector, or k is all of it."""
    return (weight.dim() < 2 and weight.numel() <= SMALL) or sum(
        counts_within(k1, k2, weight.numel())
    ) == weight.numel()


class Compact:
    """`param` holds the entries of `weight` at `indices`, in float32 where the weight is in half precision.

    Its size never changes. `is_due`: the next gradient that arrives decides on new indices.
    """

    def __init__(self, number: int, weight: Tensor, k1: Count, k2: Count, kernels: Kernels):
        part = local(weight)
        size = part.numel()
        self.number, self.weight, self.flat = number, weight, as_vector(part)
        self.kind, self.kernels = (part.device, part.dtype), kernels
        self._stride, self._is_sharded = part.stride(), is_sharded(weight)
        self.index_dtype = torch.int32 if size < 2**31 else torch.int64
        self.is_whole = is_trained_whole(weight, k1, k2)
        self.k1, self.k2 = (size, 0) if self.is_whole else counts_of(weight, k1, k2)
        self.values = torch.zeros(self.k1 + self.k2, dtype=master_dtype(part), device=part.device)
        of_row = math.prod(weight.shape[1:])
        self._width = of_row if self.is_whole else sum(counts_within(k1, k2, of_row))
        self.param = nn.Parameter(self.as_parameter(self.values))
        self.indices: Tensor | None = None
        self._entries: Entries | None = None  # while they are the same
        self._addresses = part.data_ptr(), self.values.data_ptr()
        self.chooses = not self.is_whole and self.k1 > 0  # by the gradient
        self.is_due = self.chooses
        if self.is_whole:
            self.show(torch.arange(size, device=part.device))

    @property
    def entries(self) -> Entries:
        """With the weight where it is now. The same object, as long as nothing is elsewhere."""
        part = local(self.weight)
        addresses = part.data_ptr(), local(self.param).data_ptr()
        if addresses != self._addresses:
            moved = addresses[1] != self._addresses[1] or (part.device, part.dtype) != self.kind
            if moved or not is_dense(part):
                raise RuntimeError(CHANGED)
            self.flat, self._stride, self._addresses = as_vector(part), part.stride(), addresses
            self._entries = None
        if self._entries is None or self._entries.indices is not self.indices:
            assert self.indices is not None
            self._entries = Entries(self.flat, self.indices, self.values)
        return self._entries

    def show(self, indices: Tensor) -> None:
        """Stand for these entries, as the weight holds them."""
        self.indices = indices.to(self.index_dtype)
        self.values.copy_(self.flat[indices])

    def draw(self, seed: Seed, state: MutableMapping[str, Any]) -> None:
        """Choose all entries at random, which needs no gradient."""
        if not self.values.numel():
            self.show(torch.empty(0, dtype=torch.int64, device=self.flat.device))  # a part without rows
        else:
            self._change(self.kernels.select(self.flat, 0, self.k1 + self.k2, seed)[1], state)

    def choose(self, gradient: Tensor, seed: Seed, state: MutableMapping[str, Any]) -> None:
        """Choose the k1 entries with the largest gradient, and k2 others at random."""
        self.is_due = False
        if not self.values.numel():
            return
        gradient = as_vector(gradient)
        if gradient.device.type == "cpu" and not bool(gradient.isfinite().all()):
            gradient = gradient.nan_to_num()
        top, random = self.kernels.select(gradient, self.k1, self.k2, seed)
        self._change(torch.cat([top, random]).sort().values if self.k2 else top, state)

    def _change(self, indices: Tensor, state: MutableMapping[str, Any]) -> None:
        """Stand for other entries. What stays selected keeps its value and its `state`.

        For what enters, a momentum starts at 0, and a second moment at the mean of those that the weight has so far.
        """
        old = self.indices
        if old is None:
            self.show(indices)
            return
        new, held = indices.to(self.index_dtype), torch.empty_like(self.values)
        self.kernels.take(self.flat, new, held, False)
        of_entries = {n: local(x).view(-1) for n, x in state.items() if isinstance(x, Tensor) and n != "step"}
        kept = {name: x for name, x in of_entries.items() if x.shape == self.values.shape}
        entering = [x.mean() if is_second_moment(name) else x.new_zeros(()) for name, x in kept.items()]
        targets = [self.values, *kept.values()]
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            targets, self.kernels.carry(old, new, targets, [held, *entering])
        )
        self.indices = new

    def arrived(self) -> Tensor | None:
        """The gradient that the weight has, which it then has no more, laid out as the weight is."""
        gradient, self.weight.grad = self.weight.grad, None
        if gradient is None:
            return None
        if gradient.requires_grad:
            gradient = gradient.detach()
        gradient = local(gradient) if self._is_sharded else gradient
        if gradient.layout == torch.strided and gradient.stride() == self._stride:
            return gradient
        like = torch.empty_like(local(self.weight), dtype=gradient.dtype, requires_grad=False)
        return like.copy_(gradient.to_dense() if gradient.layout != torch.strided else gradient)

    def collect(self, gradient: Tensor) -> None:
        """Add a gradient of the weight, at the indices, to that of `param`."""
        assert self.indices is not None
        old = self.param.grad
        total = torch.empty_like(self.values) if old is None else local(old).view(-1)
        self.kernels.take(gradient, self.indices, total, old is not None)
        if old is None:
            self.param.grad = self.as_parameter(total) if self._is_sharded else total

    def as_parameter(self, values: Tensor) -> Tensor:
        """One value for each selected entry as the base and checkpoints see it: sharded, if the weight is."""
        return as_parameter(values, self.weight, self._width)


def master_dtype(weight: Tensor) -> torch.dtype:
    return torch.float32 if weight.dtype in HALVES else weight.dtype


def as_vector(tensor: Tensor) -> Tensor:
    """A view of all entries, in the order in which they lie in memory; they must fill it, each once."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))
