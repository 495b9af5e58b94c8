"""The capture: while a closure is evaluated under it, wanted gradient entries come straight into a short vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spidersilk.kernels.interface import Kernels as Ops
from spidersilk.variance.backprop.mode import Mode
from spidersilk.variance.backprop.rules import Rule, grad_is_due
from spidersilk.variance.backprop.wanted import Part, Wanted


class _Held(NamedTuple):
    """A product of the first evaluation that waits for that of the second."""

    rule: Rule
    delta: Tensor
    x: Tensor
    version: int
    sign: float


class Capture:
    """The sum over evaluations of sign times the gradient, at the coordinates that `wanted` names.

    with capture.evaluation(1.0):
        closure()                         # at the current point
    with capture.evaluation(-1.0):
        closure()                         # at the reference point
    differences = capture.values()        # k values for each slab

    The weight of a layer with a rule gets no `p.grad`; all other gradients come through `p.grad`, which must be None
    before each evaluation. `shares`: products with an input that needs no gradient are put off to the next evaluation,
    where one product of the difference serves both if the input is the same; give False for a single evaluation.
    """

    def __init__(self, wanted: Sequence[Wanted], ops: Ops, shares: bool = True):
        self.wanted, self.ops, self.shares = list(wanted), ops, shares
        self.caught = False  # whether the last evaluation handed over anything
        self.has_cut = False  # whether it left out a parameter of which nothing is wanted
        self.spoiled = ""  # why the values are not to be trusted, if so
        self._parts = {id(p): part for w in self.wanted for p, part in zip(w.params, w.parts, strict=True)}
        self._found: dict[Part, Tensor] = {}
        self._held: dict[Part, list[_Held]] = {}
        self._taken: set[int] = set()  # in this evaluation
        self._few: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._bulk: list[Tensor | None] = [None] * len(self.wanted)
        self._evaluations = 0
        self._sign = 0.0  # of the evaluation under way, 0 outside of one

    @contextmanager
    def evaluation(self, sign: float = 1.0) -> Iterator[None]:
        self._sign = sign
        self.caught = self.has_cut = False
        self._taken.clear()
        try:
            with Mode(self).everywhere():
                yield
        finally:
            self._sign = 0.0
        with torch.no_grad():
            self._gather(sign)
        self._evaluations += 1

    def values(self) -> list[Tensor]:
        """The k values of each slab, top ones first, in tensors of our own."""
        with torch.no_grad():
            for part, held in self._held.items():
                for product in held:
                    self._add(part, product.rule, product.delta, self._unchanged(product), product.sign)
            self._held.clear()
            if self.spoiled:
                raise RuntimeError(f"{self.spoiled}: evaluate without a capture")
            return [self._join(w, number) for number, w in enumerate(self.wanted)]

    def _join(self, wanted: Wanted, number: int) -> Tensor:
        """What was found of each parameter, and what was gathered, in one vector."""
        values = self._bulk[number]
        if values is None:
            values = wanted.params[0].new_zeros(wanted.k)
        for part in wanted.parts:
            found = self._found.get(part)
            if found is not None:
                values[part.top_places] += found[: part.tops]
                if part.randoms:
                    values[part.random_places] += found[part.tops :]
        for (slab, numbers), few in self._few.items():
            if slab == number:
                values.index_add_(0, wanted.join(numbers)[1], few)
        return values

    # What rules ask.

    def part_of(self, weight: Tensor) -> Part | None:
        """What is wanted of this weight, if its gradient can be handed over here and now."""
        part = self._parts.get(id(weight))
        if part is None or not part.count or not self._open_for(weight):
            return None
        return part

    def cut(self, weight: Any) -> Any:
        """The weight without its gradient, if nothing of that is wanted: autograd then stops where it can."""
        part = self._parts.get(id(weight))
        if part is None or part.count or not self._open_for(weight):
            return weight
        self.has_cut = True
        return weight.detach()

    def take(self, node: Any, number: int, rule: Rule, part: Part, delta: Tensor, x: Tensor) -> bool:
        """Take over the gradient of input `number` of `node`; False if an ordinary gradient must be returned."""
        if not self._sign or torch.is_grad_enabled():  # after the evaluation, or to be differentiated again
            return False
        due = grad_is_due(node, number)
        if due is None:
            return False
        if not due:
            return True
        self.caught = True
        self._taken.add(part.address)
        delta, x = rule.prepare(part, delta.detach(), x.detach())
        if self.shares and not node.needs_input_grad[0] and not x.is_inference():
            if not self._evaluations:
                self._held.setdefault(part, []).append(_Held(rule, delta, x, x._version, self._sign))
                return True
            delta = self._with_partner(part, delta, x)
        self._add(part, rule, delta, x, self._sign)
        return True

    # Inside.

    def _open_for(self, weight: Tensor) -> bool:
        return (
            bool(self._sign)
            and weight.requires_grad
            and torch.is_grad_enabled()
            and not weight._backward_hooks
            and not getattr(weight, "_post_accumulate_grad_hooks", None)
            and not torch.is_autocast_enabled(weight.device.type)
            and not torch._C._are_functorch_transforms_active()
        )

    def _with_partner(self, part: Part, delta: Tensor, x: Tensor) -> Tensor:
        """delta, plus that of the first evaluation on the same input, so that one product does for both."""
        for number, held in enumerate(self._held.get(part, [])):
            if held.delta.shape == delta.shape and _same(self._unchanged(held), x):
                del self._held[part][number]
                return torch.add(delta, held.delta, alpha=held.sign * self._sign)  # signs are 1 or -1
        return delta

    def _unchanged(self, held: _Held) -> Tensor:
        if held.x._version != held.version:
            self.spoiled = "the closure wrote into an input after the backward pass that used it"
        return held.x

    def _add(self, part: Part, rule: Rule, delta: Tensor, x: Tensor, sign: float) -> None:
        self._found[part] = rule.add(part, delta, x, sign, self._found.get(part))

    def _gather(self, sign: float) -> None:
        """Take note of what came through p.grad: from small gradients joined, else from where they are."""
        for number, w in enumerate(self.wanted):
            present = tuple(i for i, p in enumerate(w.params) if w.parts[i].count and p.grad is not None)
            if sum(w.sizes[i] for i in present) > w.k:
                values = self.ops.gather([p.grad for p in w.params], w.sizes, w.indices, w.params[0].dtype)
                bulk = self._bulk[number]
                self._bulk[number] = (
                    (values if sign == 1 else values.neg_()) if bulk is None else bulk.add_(values, alpha=sign)
                )
            elif present:
                gradients = [_strided(w.params[i].grad).reshape(-1) for i in present]
                values = torch.cat(gradients).index_select(0, w.join(present)[0])
                few = self._few.get((number, present))
                if few is None:
                    self._few[number, present] = values if sign == 1 else values.neg_()
                else:
                    few.add_(values, alpha=sign)

    def note_use_of_grad(self, p: Tensor) -> None:
        """The closure looks at, or sets, the gradient of a parameter."""
        if id(p) in self._taken:
            self.spoiled = "the closure used a gradient that is not in p.grad"


def _strided(gradient: Any) -> Tensor:
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same values, without a wait for the device."""
    if a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride():
        return True
    return a.device.type == "cpu" and torch.equal(a, b)
