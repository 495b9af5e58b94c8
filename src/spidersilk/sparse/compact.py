"""The selected part of one weight, and the small parameter that is trained in its place."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spidersilk.kernels.interface import Entries, Kernels, Seed
from spidersilk.layers import Part
from spidersilk.operator.counts import Count, counts_within
from spidersilk.sparse.sharded import as_listed, as_parameter, counts_of, from_list, is_sharded, local
from spidersilk.variance.compact import is_second_moment

HALVES = (torch.bfloat16, torch.float16)
CHANGED = (
    "a weight was moved to another device, dtype or memory format after the optimizer was made, which does not follow: "
    "move the model first, then make the optimizer"
)
SMALL = 1 << 16  # entries of a vector (a norm, a bias) that is trained whole
MANY, MULTIPLE = 64, 8  # from so many selected groups on there is a multiple of 8
RUN = 8  # neighbouring columns that are selected together
LARGEST_SCALE = 50.0  # of steps: shares below 2 % were best at less than one over the share
DECAY = 0.5  # weight of the newest norms in the scores of groups


class Counts(NamedTuple):
    """How many of a weight's entries, or groups, are selected; groups in runs of `run` neighbours."""

    k1: int
    k2: int
    run: int = 1

    @property
    def k(self) -> int:
        return self.k1 + self.k2


def counts_among(shape: Sequence[int], k1: Count, k2: Count, dimension: int | None) -> Counts:
    """Of a weight of this shape. Of many groups a multiple of 8 is selected, for which GPUs have fast products.

    Many columns of a matrix come in runs: memory is read in pieces, and 10 % of single columns touch most of them.
    """
    n = math.prod(shape) if dimension is None else shape[dimension]
    top, random = counts_within(k1, k2, n)
    if dimension is None or top + random < MANY:
        return Counts(top, random)
    if n % RUN == 0 and math.prod(shape[dimension + 1 :]) == 1:
        top, random = counts_within(k1, k2, n // RUN)
        return Counts(top * RUN, random * RUN, RUN)
    more = min(-(top + random) % MULTIPLE, n - top - random)
    return Counts(top, random + more) if random else Counts(top + more, 0)


def is_trained_whole(weight: Tensor, k1: Count, k2: Count, dimension: int | None) -> bool:
    """Whether all of its entries are trained: it is a small vector, or k is all of it."""
    n = weight.numel() if dimension is None else weight.shape[dimension]
    return (weight.dim() < 2 and weight.numel() <= SMALL) or counts_among(weight.shape, k1, k2, dimension).k == n


class Compact:
    """`param` holds the selected part of `weight`, in float32 where the weight is in half precision.

    Selected are single entries (`dimension` None), or groups of them: indices along a dimension. `indices` says which;
    it is one tensor for good, whose values change. `is_due`: the next gradient that arrives decides on new ones.
    `is_dense`: a whole gradient is wanted, for that decision, until the next step.
    """

    def __init__(
        self, number: int, weight: Tensor, k1: Count, k2: Count, kernels: Kernels, dimension: int | None = None
    ):
        part, self.shares = local(weight), (k1, k2)
        self.number, self.weight, self.kernels = number, weight, kernels
        self.is_whole = is_trained_whole(weight, k1, k2, dimension)
        self.dimension = None if self.is_whole else dimension
        self.view = self._view_of(part)
        self.kind, self._stride, self._is_sharded = (part.device, part.dtype), part.stride(), is_sharded(weight)
        self._shape, options = self._measure(k1, k2), {"dtype": master_dtype(part), "device": part.device}
        self.values = torch.zeros(self._shape, **options)
        self.param = nn.Parameter(self.as_parameter(self.values))
        self.indices = torch.zeros(self.k, dtype=torch.int32 if self.n < 2**31 else torch.int64, device=part.device)
        self._entries: Entries | None = None  # while they are the same
        self._addresses = part.data_ptr(), self.values.data_ptr()
        self.step_scale = min(self.n / max(1, self.k), LARGEST_SCALE)  # unless its group gives another
        self.chooses = not self.is_whole and self.k1 > 0  # by the gradient
        scored = self.chooses and self.dimension is not None
        self.scores = self.values.new_zeros(self.n // self.run) if scored else None  # how large gradients have been
        self.is_due = self.is_dense = self.chooses
        self.is_selected = False
        if self.is_whole:
            self.show(torch.arange(self.n, device=part.device))

    def _view_of(self, tensor: Tensor) -> Tensor:
        """Its entries as a vector, in the order in which they lie in memory; or as [outer, groups, inner]."""
        if self.dimension is None:
            return as_vector(tensor)
        shape = tensor.shape
        before, after = math.prod(shape[: self.dimension]), math.prod(shape[self.dimension + 1 :])
        return tensor.detach().view(before, shape[self.dimension], after)

    def _measure(self, k1: Count, k2: Count) -> tuple[int, ...]:
        """How many entries or groups there are, and are selected; the shape of the selected values."""
        self.n = self.view.shape[self.view.dim() // 2]
        if self.dimension is not None:
            self.k1, self.k2, self.run = counts_among(local(self.weight).shape, k1, k2, self.dimension)
        else:
            self.k1, self.k2 = (self.n, 0) if self.is_whole else counts_of(self.weight, k1, k2)
            self.run = 1
        self.k = self.k1 + self.k2
        of_row = math.prod(self.weight.shape[1:])
        self._width = of_row if self.is_whole else sum(counts_within(k1, k2, of_row))
        if self.dimension is None:
            return (self.k,)
        outer, _, inner = self.view.shape
        self._width = self.k * inner
        return outer, self.k, inner

    @property
    def what(self) -> str:
        """What is selected."""
        return "entries" if self.dimension is None else "groups"

    @property
    def entries(self) -> Entries:
        """With the weight where it is now."""
        part = local(self.weight)
        addresses = part.data_ptr(), local(self.param).data_ptr()
        if addresses != self._addresses:
            moved = addresses[1] != self._addresses[1] or (part.device, part.dtype) != self.kind
            if moved or part.stride() != self._stride:
                raise RuntimeError(CHANGED)
            self.view, self._addresses = self._view_of(part), addresses
            self._entries = None
        if self._entries is None:
            self._entries = Entries(self.view, self.indices, self.values)
        return self._entries

    def part(self) -> Part | None:
        """What a layer rule is to give the gradient of; none while a whole one is wanted, by us or by a hook."""
        if self.is_dense or self.dimension is None or self.weight._backward_hooks:
            return None
        if not torch.compiler.is_compiling() and self._others_listen():
            return None
        return Part(self.param, self.indices, self.dimension)

    def _others_listen(self) -> bool:
        hooks = self.weight._post_accumulate_grad_hooks or {}
        return any(not str(getattr(hook, "__module__", "")).startswith("spidersilk.") for hook in hooks.values())

    def show(self, indices: Tensor) -> None:
        """Stand for these, as the weight holds them."""
        self.indices.copy_(indices)
        self.kernels.take(self.view, self.indices, self.values, False)
        self.is_selected = True

    def draw(self, seed: Seed, state: MutableMapping[str, Any]) -> None:
        """Choose all at random, which needs no gradient."""
        if not self.values.numel():
            self.is_selected = True  # a part without rows
            return
        among = self.view if self.dimension is None else self.values.new_zeros(self.n // self.run)
        self._change(self._in_runs(self.kernels.select(among, 0, self.k // self.run, seed)[1]), state)

    def choose(self, gradient: Tensor, seed: Seed, state: MutableMapping[str, Any]) -> None:
        """Choose the k1 with the largest gradient (groups: on average so far), and k2 others at random."""
        self.is_due = False
        if not self.values.numel():
            return
        size = as_vector(gradient) if self.dimension is None else self._scored(self._view_of(gradient))
        if size.device.type == "cpu" and not bool(size.isfinite().all()):
            size = size.nan_to_num()
        top, random = self.kernels.select(size, self.k1 // self.run, self.k2 // self.run, seed)
        self._change(self._in_runs(torch.cat([top, random]).sort().values if self.k2 else top), state)

    def _in_runs(self, selected: Tensor) -> Tensor:
        """The groups of the runs that are selected."""
        if self.run == 1:
            return selected
        return (self.run * selected[:, None] + torch.arange(self.run, device=selected.device)).view(-1)

    def _scored(self, gradient: Tensor) -> Tensor:
        """The scores of all groups or runs, with the norms of this gradient in them, as far as they are finite."""
        of_runs = gradient.unflatten(1, (-1, self.run))
        norms = torch.linalg.vector_norm(of_runs, dim=(0, 2, 3), dtype=self.values.dtype).nan_to_num_(0.0, 0.0, 0.0)
        assert self.scores is not None
        return self.scores.lerp_(norms, DECAY)

    def _change(self, indices: Tensor, state: MutableMapping[str, Any]) -> None:
        """Stand for others. What stays selected keeps its value and its `state`.

        For what enters, a momentum starts at 0, and a second moment at the mean of those that the weight has so far:
        each entry of a group at the mean of the same entry of the others, so that of a column at its row's.
        """
        if not self.is_selected:
            self.show(indices)
            return
        new, held = indices.to(self.indices.dtype), torch.empty_like(self.values)
        self.kernels.take(self.view, new, held, False)
        of_values = {n: local(x) for n, x in state.items() if isinstance(x, Tensor) and n != "step"}
        kept = {name: x.view(self._shape) for name, x in of_values.items() if x.numel() == self.values.numel()}
        entering = [_mean(x) if is_second_moment(name) else x.new_zeros(()) for name, x in kept.items()]
        targets = [self.values, *kept.values()]
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            targets, self.kernels.carry(self.indices, new, targets, [held, *entering])
        )
        self.indices.copy_(new)

    def arrived(self) -> Tensor | None:
        """The gradient that the weight has, which it then has no more, laid out as the weight is; none if frozen."""
        gradient, self.weight.grad = self.weight.grad, None
        if gradient is None or not self.param.requires_grad:
            return None
        if (gradient.device, self.weight.dtype) != self.kind:
            raise RuntimeError(CHANGED)
        if gradient.requires_grad:
            gradient = gradient.detach()
        gradient = local(gradient) if self._is_sharded else gradient
        if gradient.layout == torch.strided and gradient.stride() == self._stride:
            return gradient
        like = torch.empty_like(local(self.weight), dtype=gradient.dtype, requires_grad=False)
        return like.copy_(gradient.to_dense() if gradient.layout != torch.strided else gradient)

    def collect(self, gradient: Tensor) -> None:
        """Add the selected part of a gradient of the weight to that of `param`."""
        old = self.param.grad
        total = torch.empty_like(self.values) if old is None else local(old).view(self._shape)
        source = gradient if self.dimension is None else self._view_of(gradient)
        self.kernels.take(source, self.indices, total, old is not None)
        if old is None:
            self.param.grad = self.as_parameter(total)

    def as_parameter(self, values: Tensor) -> Tensor:
        """The selected values as the base and checkpoints see them: shaped, and sharded, as the weight is."""
        if self._is_sharded:
            return as_parameter(values, self.weight, self._width)
        if self.dimension is None:
            return values
        shape = self.weight.shape
        return values.view(*shape[: self.dimension], self.k, *shape[self.dimension + 1 :])

    def as_saved(self, numbers: Tensor) -> Tensor:
        """One number for each index, or for each group, as checkpoints see them: with those of other ranks."""
        if self.dimension is None:
            return self.as_parameter(numbers)
        return as_listed(numbers, self.weight)

    def from_saved(self, saved: Tensor) -> Tensor:
        """The numbers of this rank, of what `as_saved` gave."""
        if self.dimension is None:
            return local(saved).reshape(-1)
        return from_list(saved, self.weight) if self.values.numel() else self.indices[:0]


def _mean(values: Tensor) -> Tensor:
    """Of a vector; of [outer, groups, inner] over the groups, as a tensor of that shape."""
    return values.mean() if values.dim() == 1 else values.mean(1, keepdim=True).expand_as(values).contiguous()


def master_dtype(weight: Tensor) -> torch.dtype:
    return torch.float32 if weight.dtype in HALVES else weight.dtype


def as_vector(tensor: Tensor) -> Tensor:
    """A view of all entries, in the order in which they lie in memory; they must fill it, each once."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))
