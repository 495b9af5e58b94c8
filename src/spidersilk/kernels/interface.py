"""What a backend of kernels offers: operations on flat vectors, and the records that go in and come out.

A backend is a file with a class that has these methods; a subclass of `PlainKernels` needs those alone that it does
otherwise. `backends.py` says which one is used where. Vectors are 1-D and contiguous; "flat" indices count through the
entries of several tensors as if these were concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Form = Literal["recursive", "anchored", "refresh"]
"""The updates of v that backends have as fused kernels:

- "recursive": v += w value on the selection;
- "anchored": v = v_anchor, plus w value on the selection;
- "refresh": v = v_anchor + w value on the selection, the rest of v as it was.
"""

Rule = Literal["sgd", "adamw"]
"""The base optimizers whose steps a backend may do itself."""

Seed = int | Tensor
"""What decides a random draw: a number, or [seed, position] on the device for a backend that draws there."""

Tensors = Sequence[Tensor | None]


class Flag(NamedTuple):
    """A word on a device that says whether v was finite, so that no step waits for the device.

    Where v is not finite, `raised` (int64, one entry) becomes the larger of itself and `mark`.
    """

    raised: Tensor
    mark: int


@dataclass(frozen=True, slots=True)
class Update:
    """What a small step does: v by its formula, then M := decay |v| + (1 - decay) M, then x, if `rates` are given.

    The step read `values` at `indices` (the first k1 of them the top ones; None: everywhere). A value counts w times:
    w = 1 at a top coordinate, and `scale` (one number, or one for each) at a random one.
    """

    v: Tensor
    values: Tensor
    formula: Callable[[Update], None]
    """Updates v in plain torch."""
    form: Form | None = None
    """The fused kernel that does the same; None: there is none."""
    v_anchor: Tensor | None = None
    memory: Tensor | None = None
    indices: Tensor | None = None
    k1: int = 0
    scale: float | Tensor = 1.0
    decay: float = 0.0
    params: Sequence[Tensor] = ()
    """x, as tensors whose entries make up the flat vector."""
    rates: Sequence[float] | None = None
    """x -= rate v, one rate for each tensor of x; None: x is left to the caller."""
    flag: Flag | None = None

    def weighed(self) -> Tensor:
        """w times each value."""
        return self.values if self.indices is None else weigh(self.values, self.k1, self.scale)


def weigh(values: Tensor, k1: int, scale: float | Tensor) -> Tensor:
    """The values, those from k1 on times `scale`."""
    if isinstance(scale, float) and scale == 1.0:
        return values
    return torch.cat([values[:k1], (values[k1:] * scale).to(values.dtype)])


class Entries(NamedTuple):
    """A part of a weight, and a copy of it that is trained in its place: single entries, or whole groups of them."""

    weight: Tensor
    """A view of it: a vector of its entries; or [outer, groups, inner], with any strides."""
    indices: Tensor
    """Of entries or groups; ascending, int32 or int64."""
    master: Tensor
    """The selected values, of the weight's dtype or a wider one: a vector, or [outer, selected groups, inner]."""


class Step(NamedTuple):
    """What an optimizer does to one parameter, for kernels that do it themselves."""

    param: Tensor
    gradient: Tensor
    state: tuple[Tensor, ...]
    """"sgd": the momentum, or nothing; "adamw": both averages, and how many steps they are of, which is counted up."""
    entries: Entries | None
    """Where the parameter is a copy: of what. It is brought up to date before the step, and written through after."""
    numbers: tuple[float, ...]
    """Of SGD: lr, momentum, dampening, weight decay, Nesterov (1 or 0), sign; of AdamW: lr, beta1, beta2, eps, weight
    decay, sign. The sign is that of the gradient, -1 to maximize."""


class Outcome(NamedTuple):
    """What came of an update."""

    finite: bool
    """Whether v is finite; True where the flag on the device says it instead. If not, x is as it was."""
    gradients: list[Tensor] | None = None
    """v as one new tensor for each tensor of x, if x was moved. None: the caller has to move it."""
    hint: object = None
    """What this backend's `select` can use to select from the new M faster."""


class Kernels(Protocol):
    """A backend."""

    draws_on_device: bool
    """Whether `select` takes a counter on the device for a seed, and advances it."""
    refuses_non_finite: bool
    """Whether `select` with k1 > 0 raises ValueError for a memory with inf or nan, which it then sees at no cost."""

    def select(self, memory: Tensor, k1: int, k2: int, seed: Seed, hint: object = None) -> tuple[Tensor, Tensor]:
        """The k1 largest of |memory| (ties: lower index first) and k2 drawn uniformly from the others.

        Both are int64 and ascending. If they lie in memory one behind the other, nothing needs to join them.
        """
        ...

    def gather(self, tensors: Tensors, sizes: Sequence[int], indices: Tensor, dtype: torch.dtype) -> Tensor:
        """The entries at flat `indices`; None, of its size, stands for zeros."""
        ...

    def scatter(self, tensors: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
        """Write `values` at flat `indices`, which are distinct."""
        ...

    def advance(self, update: Update) -> Outcome:
        """Do all of an update in as few passes over the vectors as the backend can.

        One without a form, a memory or indices is for `PLAIN`, whose formulas need none of them.
        """
        ...

    def take(self, source: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
        """out := the source's entries at `indices`, in the dtype of `out`; with `add`, they are added to it.

        `source` may be any tensor whose entries fill a block of memory: they count in the order in which they lie. If
        `out` is [outer, selected groups, inner], the source is [outer, groups, inner].
        """
        ...

    def carry(self, old: Tensor, new: Tensor, values: Sequence[Tensor], entering: Sequence[Tensor]) -> list[Tensor]:
        """For each of `values`, which belong to the indices `old`: those of the indices `new`.

        An index that is not among the old ones gets what is `entering`: one number, or a value for each of `new`. Both
        lists of indices ascend. Values are vectors, or [outer, selected groups, inner].
        """
        ...

    def refresh(self, parts: Sequence[Entries]) -> None:
        """A master that is not what its weight holds, rounded to the weight's dtype, becomes what the weight holds."""
        ...

    def write_through(self, parts: Sequence[Entries]) -> None:
        """Weights := masters, rounded."""
        ...

    @property
    def step(self) -> Callable[[Rule, Sequence[Step]], None] | None:
        """Refresh, step by torch's formulas, and write through, in one pass; None if there is no such pass."""
        ...
