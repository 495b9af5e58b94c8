"""The capture: while a closure is evaluated under it, wanted gradient entries come straight into a short vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spidersilk.backprop import rules
from spidersilk.backprop.rules import Rule
from spidersilk.backprop.wanted import Part, Wanted
from spidersilk.kernels.dispatch import Ops

Call = Callable[..., Any]


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
        self._found: dict[int, Tensor] = {}
        self._held: dict[int, list[_Held]] = {}
        self._taken: set[int] = set()  # in this evaluation
        self._gathered: list[Tensor] = []
        self._sign = 0.0  # of the evaluation under way, 0 outside of one

    @contextmanager
    def evaluation(self, sign: float = 1.0) -> Iterator[None]:
        self._sign, self._again = sign, bool(self._gathered)
        self.caught = self.has_cut = False
        self._taken.clear()
        try:
            with _Mode(self):
                yield
        finally:
            self._sign = 0.0
        self._gather(sign)

    def values(self) -> list[Tensor]:
        """The k values of each slab, top ones first, in tensors of our own."""
        if self.spoiled:
            raise RuntimeError(f"{self.spoiled}: evaluate without a capture")
        with torch.no_grad():
            for address, held in self._held.items():
                for product in held:
                    self._add(address, product.rule, product.delta, self._unchanged(product), product.sign)
            self._held.clear()
            for w, values in zip(self.wanted, self._gathered, strict=True):
                for p, part in zip(w.params, w.parts, strict=True):
                    found = self._found.pop(id(p), None)
                    if found is not None:
                        for slot, piece in zip(part.slots, found.split(_lengths(part)), strict=True):
                            values[slot] += piece
        if self.spoiled:
            raise RuntimeError(f"{self.spoiled}: evaluate without a capture")
        return self._gathered

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

    def take(self, node: Any, number: int, rule: Rule, weight: Tensor, delta: Tensor, x: Tensor) -> bool:
        """Take over the gradient of input `number` of `node`; False if an ordinary gradient must be returned."""
        if not self._sign or torch.is_grad_enabled():  # after the evaluation, or to be differentiated again
            return False
        due = rules.grad_is_due(node, number)
        if due is None:
            return False
        if not due:
            return True
        address = id(weight)
        self.caught = True
        self._taken.add(address)
        part = self._parts[address]
        delta, x = rule.prepare(part, delta.detach(), x.detach())
        if self.shares and not node.needs_input_grad[0] and not x.is_inference():
            if not self._again:
                self._held.setdefault(address, []).append(_Held(rule, delta, x, x._version, self._sign))
                return True
            delta = self._with_partner(address, delta, x)
        self._add(address, rule, delta, x, self._sign)
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

    def _with_partner(self, address: int, delta: Tensor, x: Tensor) -> Tensor:
        """delta, plus that of the first evaluation on the same input, so that one product does for both."""
        for number, held in enumerate(self._held.get(address, [])):
            if held.delta.shape == delta.shape and _same(self._unchanged(held), x):
                del self._held[address][number]
                return torch.add(delta, held.delta, alpha=held.sign * self._sign)  # signs are 1 or -1
        return delta

    def _unchanged(self, held: _Held) -> Tensor:
        if held.x._version != held.version:
            self.spoiled = "the closure wrote into an input after the backward pass that used it"
        return held.x

    def _add(self, address: int, rule: Rule, delta: Tensor, x: Tensor, sign: float) -> None:
        self._found[address] = rule.add(self._parts[address], delta, x, sign, self._found.get(address))

    def _gather(self, sign: float) -> None:
        """Take note of what came through p.grad."""
        with torch.no_grad():
            for number, w in enumerate(self.wanted):
                gradients = [p.grad for p in w.params]
                values = self.ops.gather(gradients, w.sizes, w.indices, w.params[0].dtype)
                if self._again:
                    self._gathered[number].add_(values, alpha=sign)
                else:
                    self._gathered.append(values if sign == 1 else values.mul_(sign))

    def read_by_user(self, p: Tensor) -> None:
        """The closure looks at, or sets, the gradient of a parameter."""
        if id(p) in self._taken:
            self.spoiled = "the closure used a gradient that is not in p.grad"


class _Mode(TorchFunctionMode):
    """Sees every torch function that the closure calls, and has the layer rules do those that they know."""

    def __init__(self, capture: Capture):
        super().__init__()
        self.capture = capture

    def __torch_function__(self, func: Call, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _rules().get(func)
        if rule is not None and not torch.compiler.is_compiling():
            return rule(self, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


def _backward(mode: _Mode, func: Call, args: Any, kwargs: Any) -> None:
    """Tensor.backward, with the mode on: checkpointed segments are run again inside of it."""
    return _run_backward(mode, *args, **kwargs)


def _run_backward(
    mode: _Mode,
    tensor: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    if mode.capture.has_cut and not tensor.requires_grad:  # nothing that it depends on is wanted
        mode.capture.caught = True
        return
    with mode:
        torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _grad_of(mode: _Mode, func: Call, args: Any, kwargs: Any) -> Any:
    mode.capture.read_by_user(args[0])
    return func(*args, **kwargs)


def _cut(mode: _Mode, func: Call, args: Any, kwargs: Any) -> Any:
    cut = mode.capture.cut
    return func(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()})


def _layer(function: Call) -> Call:
    return lambda mode, func, args, kwargs: function(mode.capture, *args, **kwargs)


_known: dict[Any, Call] = {}


def _rules() -> dict[Any, Call]:
    if not _known:
        from torch.nn import functional as F

        from spidersilk.backprop.conv import conv2d
        from spidersilk.backprop.embedding import embedding
        from spidersilk.backprop.linear import linear

        grad: Any = torch.Tensor.grad
        _known.update({F.linear: _layer(linear), torch.conv2d: _layer(conv2d), F.embedding: _layer(embedding)})
        _known.update({Tensor.backward: _backward, grad.__get__: _grad_of, grad.__set__: _grad_of})
        _known.update(dict.fromkeys((F.batch_norm, F.layer_norm, F.group_norm, torch.conv1d, torch.conv3d), _cut))
    return _known


def _lengths(part: Part) -> list[int]:
    return [part.top.numel(), part.random.numel()]


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same values, without a wait for the device."""
    if a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride():
        return True
    return a.device.type == "cpu" and torch.equal(a, b)
