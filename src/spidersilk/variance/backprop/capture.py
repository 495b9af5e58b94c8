"""The capture: while a closure is evaluated under it, gradients of selected rows are added up in a short vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from spidersilk.variance.backprop import registry
from spidersilk.variance.backprop.wanted import Part, Wanted

_autograd: Any = torch.autograd
_grad: Any = Tensor.grad
_USES_OF_GRAD = frozenset([_grad.__get__, _grad.__set__])
_CUTTABLE = frozenset([F.batch_norm, F.layer_norm, F.group_norm, torch.conv1d, torch.conv3d])  # beside those with rules


class Capture:
    """The sum over evaluations of sign times the gradient, on the rows that `wanted` names.

    with capture.evaluation(1.0): closure()   # at the current point
    with capture.evaluation(-1.0): closure()  # at the reference point
    differences = capture.values()            # k values for each slab

    The weight of a layer with a rule gets no `p.grad`; all other gradients come through `p.grad`, which must be None
    before each evaluation. A parameter of which nothing is selected is cut out of the graph: backward may end early.
    """

    def __init__(self, wanted: Sequence[Wanted]):
        self.wanted = list(wanted)
        self.sign = 0.0  # of the evaluation under way, 0 outside of one
        self.caught = False  # whether some gradient of the last evaluation is rightly not in p.grad
        self.spoiled = ""  # why the values are not to be trusted, if so
        self._sums = [w.params[0].new_zeros(w.k) for w in self.wanted]
        self._parts = {id(p): part for w in self.wanted for p, part in zip(w.params, w.parts, strict=True)}
        self._targets = {part: total for w, total in zip(self.wanted, self._sums, strict=True) for part in w.parts}
        self.absent: set[Part] = set()  # whose gradient, or a portion of it, is not in p.grad
        self._cut: set[Part] = set()  # in this evaluation

    @contextmanager
    def evaluation(self, sign: float = 1.0) -> Iterator[None]:
        self.sign, self.caught, self.absent, self._cut = sign, False, set(), set()
        try:
            with _Mode(self).everywhere():
                yield
            with torch.no_grad():
                self._read_gradients()
        finally:
            self.sign = 0.0

    def values(self) -> list[Tensor]:
        """The k values of each slab, top ones first."""
        if self.spoiled:
            raise RuntimeError(f"{self.spoiled}: evaluate without a capture")
        return self._sums

    def part_of(self, weight: Tensor) -> Part | None:
        """The selected rows of this weight, if their gradient can be handed over here and now."""
        part = self._parts.get(id(weight))
        return part if part is not None and part.count and self._is_open_for(weight) else None

    def take(self, part: Part, gradient: Tensor) -> None:
        """Add the gradient of the part's rows."""
        self.caught = True
        self.absent.add(part)
        part.add(self._targets[part], gradient, self.sign)

    def cut(self, value: Any) -> Any:
        """A parameter of which nothing is selected, without its gradient; anything else as it is."""
        part = self._parts.get(id(value))
        if part is None or part.count or not self._is_open_for(value):
            return value
        self._cut.add(part)
        return value.detach()

    def note_backward(self, tensors: Sequence[Any], inputs: Sequence[Any], accumulates: bool) -> bool:
        """A backward pass is to begin, to p.grad or (`torch.autograd.grad`) for `inputs`: whether it has work to do."""
        if not accumulates:
            return not self.note_use(inputs, self._cut)
        self.absent |= self._cut
        ends = bool(self._cut) and not any(getattr(t, "requires_grad", True) for t in tensors)
        self.caught |= ends
        return not ends

    def note_use(self, params: Sequence[Any], missing: set[Part]) -> bool:
        """The closure uses gradients of `params`: whether they are among those that are `missing`."""
        spoils = not missing.isdisjoint(self._parts.get(id(p)) for p in params)
        self.spoiled = "the closure used a gradient that was not computed" if spoils else self.spoiled
        return spoils

    def _is_open_for(self, weight: Tensor) -> bool:
        hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
        special = torch.is_autocast_enabled(weight.device.type) or torch._C._are_functorch_transforms_active()
        return bool(self.sign) and weight.requires_grad and torch.is_grad_enabled() and not hooks and not special

    def _read_gradients(self) -> None:
        """Add what came through p.grad."""
        for w in self.wanted:
            for p, part in zip(w.params, w.parts, strict=True):
                if part.count and p.grad is not None:
                    gradient = p.grad if p.grad.layout == torch.strided else p.grad.to_dense()
                    part.add(self._targets[part], gradient.index_select(0, part.rows), self.sign)


class _Mode(TorchFunctionMode):
    """Sees every torch function that the closure calls."""

    def __init__(self, capture: Capture):
        super().__init__()
        self.capture = capture

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, has_rule = kwargs or {}, func in registry.RULES
        if has_rule or func in _CUTTABLE:
            args = tuple(map(self.capture.cut, args))
            kwargs = {name: self.capture.cut(value) for name, value in kwargs.items()}
        elif func in _USES_OF_GRAD:
            self.capture.note_use(args[:1], self.capture.absent)
        return registry.call(self.capture, func, args, kwargs) if has_rule else func(*args, **kwargs)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """On, also inside backward passes, which torch would run without it: checkpointed segments run again there."""
        original = _autograd._engine_run_backward

        def run(tensors: Any, grads: Any, retain: bool, create: bool, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
            if not self.capture.note_backward(tensors, inputs, kwargs["accumulate_grad"]):
                return tuple(map(torch.zeros_like, inputs))  # not for use
            with nullcontext() if self in _get_current_function_mode_stack() else self:
                return original(tensors, grads, retain, create, inputs, *rest, **kwargs)

        _autograd._engine_run_backward = run
        try:
            with self:
                yield
        finally:
            _autograd._engine_run_backward = original
