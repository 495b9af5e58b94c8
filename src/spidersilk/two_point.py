"""A closure evaluated at two points: parameters swapped, randomness replayed, buffers guarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Closure = Callable[[], Any]


class TwoPoint:
    """Runs a closure at the current point and then, on equal terms, at a reference point.

    `evaluating` is "current" or "reference" while the closure runs, else None. After either call the gradients are in
    `p.grad`, where they belong to the caller of the closure: copy what is to stay.
    """

    def __init__(self, params: Sequence[Tensor]):
        self.params = list(params)
        self.evaluating: str | None = None
        self._devices = sorted({p.device.index or 0 for p in self.params if p.is_cuda})
        self._randomness: list[Tensor] = []
        self._seen_values = False

    def at_current(self, closure: Closure) -> Any:
        """Evaluate at the parameters as they are, remembering the random state for `at_reference`."""
        self._randomness = self._random_state()
        return self._run(closure, "current")

    def at_reference(self, closure: Closure, points: Sequence[Tensor]) -> Any:
        """Evaluate with the parameters' values replaced by `points`, the random numbers of the last `at_current`.

        Parameters, buffers and random state are afterwards as before, also if the closure raises.
        """
        after = self._random_state()
        self._set_random_state(self._randomness)
        try:
            with swapped(self.params, points), guarded_buffers():
                return self._run(closure, "reference")
        finally:
            self._set_random_state(after)

    def _run(self, closure: Closure, point: str) -> Any:
        for p in self.params:
            p.grad = None
        versions = [p._version for p in self.params]
        values = None if self._seen_values else [p.detach().clone() for p in self.params]
        self.evaluating = point
        try:
            with torch.enable_grad():
                loss = closure()
        finally:
            self.evaluating = None
        if loss is None:
            raise RuntimeError("the closure returned None: let it return the loss")
        if all(p.grad is None for p in self.params):
            raise RuntimeError("the closure left no gradient in any parameter: let it call loss.backward()")
        # In-place changes raise the version; changes through .data do not, so the first evaluation compares values.
        changed = versions != [p._version for p in self.params]
        if changed or (values is not None and not all(map(torch.equal, self.params, values))):
            raise RuntimeError(
                "the closure changed the parameters: let it compute the loss and call backward() only; "
                "optimizer.step, weight clipping and the like belong after the step"
            )
        self._seen_values = True
        return loss

    def _random_state(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in self._devices)]

    def _set_random_state(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for index, state in zip(self._devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, index)


@contextmanager
def swapped(params: Sequence[Tensor], points: Sequence[Tensor]) -> Iterator[None]:
    """Let `params` show the values of `points` for a while, by exchanging storage: no value is copied."""
    own = [p.data for p in params]
    for p, point in zip(params, points, strict=True):
        p.data = point
    try:
        yield
    finally:
        for p, data in zip(params, own, strict=True):
            p.data = data


@contextmanager
def guarded_buffers() -> Iterator[None]:
    """Undo every change to a buffer (BatchNorm's running statistics, say) of any module called inside.

    It wraps `nn.Module.__call__` rather than register a global hook: hooks do not run outside of a graph for a module
    compiled in place, and torch.compile warns of them.
    """
    seen: set[int] = set()
    saved: list[tuple[nn.Module, str, Tensor, Tensor]] = []
    original = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in seen and not torch.compiler.is_compiling():
            for module in self.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    for name, buffer in module._buffers.items():
                        if buffer is not None and 0 not in buffer.stride():  # an expanded one cannot be written to
                            saved.append((module, name, buffer, buffer.detach().clone()))
        return original(self, *args, **kwargs)

    nn.Module.__call__ = call
    try:
        yield
    finally:
        nn.Module.__call__ = original
        with torch.no_grad():
            for module, name, buffer, value in saved:
                buffer.copy_(value)
                module._buffers[name] = buffer
