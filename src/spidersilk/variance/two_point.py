"""A closure evaluated at two points: parameters swapped, randomness replayed, buffers guarded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spidersilk.variance.buffers import BufferGuard

if TYPE_CHECKING:
    from spidersilk.variance.backprop import Capture

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
        self._draws: bool | None = None  # whether the closure was seen to draw random numbers on a CUDA device
        self._buffers: BufferGuard | None = None
        self._seen_values = False

    def at_current(
        self, closure: Closure, then_reference: bool = False, capture: Capture | None = None, notice: bool = True
    ) -> Any:
        """Evaluate at the parameters as they are; remember what `at_reference` needs if it is to follow.

        With a `capture`, gradients go there as well as to `p.grad`. `notice`: look for modules not seen before.
        """
        if not then_reference:
            return self._run(closure, "current", capture)
        if self._buffers is None:
            self._buffers = BufferGuard(self.params)
        if capturing() and self._draws is not False:
            raise RuntimeError(
                "a two-point step within the capture of a CUDA graph: its random numbers cannot be replayed there; "
                "use a model without dropout and the like, and run a small step before the capture, which shows it"
            )
        self._randomness = self._random_state()
        with self._buffers.at_current(notice):
            return self._run(closure, "current", capture)

    def at_current_again(self, closure: Closure, then_reference: bool = False) -> Any:
        """Evaluate as the last `at_current` with `then_reference` did; randomness and buffers stay as it left them."""
        return self._replay(closure, [p.data for p in self.params], "current", None)

    def at_reference(self, closure: Closure, points: Sequence[Tensor], capture: Capture | None = None) -> Any:
        """Evaluate with the values of `points`, and the randomness and buffers that the last `at_current` began with.

        Parameters, buffers and random state are afterwards as before, also if the closure raises.
        """
        return self._replay(closure, points, "reference", capture)

    def _replay(self, closure: Closure, points: Sequence[Tensor], point: str, capture: Capture | None) -> Any:
        assert self._buffers is not None
        after = self._random_state()
        if not capturing():
            pairs = zip(after[1:], self._randomness[1:], strict=True)
            self._draws = bool(self._draws) or not all(torch.equal(a, b) for a, b in pairs)
        self._set_random_state(self._randomness)
        try:
            with swapped(self.params, points), self._buffers.at_reference():
                return self._run(closure, point, capture)
        finally:
            self._set_random_state(after)

    def _run(self, closure: Closure, point: str, capture: Capture | None) -> Any:
        for p in self.params:
            p.grad = None
        versions = [p._version for p in self.params]
        values = None if self._seen_values else [p.detach().clone() for p in self.params]
        torch.clear_autocast_cache()  # an autocast around the step would keep casts of the other point's weights
        self.evaluating = point
        try:
            sign = 1.0 if point == "current" else -1.0
            with torch.enable_grad(), nullcontext() if capture is None else capture.evaluation(sign):
                loss = closure()
        finally:
            self.evaluating = None
            torch.clear_autocast_cache()
        if loss is None:
            raise RuntimeError("the closure returned None: let it return the loss")
        if all(p.grad is None for p in self.params) and not (capture is not None and capture.caught):
            raise RuntimeError("the closure left no gradient in any parameter: let it call loss.backward()")
        # In-place changes raise the version; changes through .data do not, so the first evaluation compares values.
        changed = versions != [p._version for p in self.params]
        if changed or (values is not None and not all(map(_same, self.params, values))):
            raise RuntimeError(
                "the closure changed the parameters: let it compute the loss and call backward() only; "
                "optimizer.step, weight clipping and the like belong after the step"
            )
        self._seen_values = True
        return loss

    def _random_state(self) -> list[Tensor]:
        devices = [] if capturing() else self._devices  # there the devices draw nothing: see `at_current`
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in devices)]

    def _set_random_state(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) == 1:
            return
        for index, state in zip(self._devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, index)


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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


def loss_of(value: Any) -> Tensor | float:
    """What a closure returned, as a number that does not wait for the device; nan if it is not one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().double().reshape(())
    return float(value) if isinstance(value, int | float) else math.nan


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal, nan for nan."""
    return bool(((a == b) | ((a != a) & (b != b))).all())
