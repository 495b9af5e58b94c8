"""Watches that v is finite: at once on the CPU; on CUDA through a flag on the device, so that no step waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spidersilk.variance.errors import DivergenceError


class Guard:
    """Raises what `error(step, inner_step)` makes, before x is touched.

    On CUDA a raise would have to wait for the device. There a flag on the device keeps x as it is from the first bad
    step on and tells which it was, and the error comes at a later `poll` or at `wait`. The flag is 0 or the largest of
    the marks of bad steps; marks fall from step to step.
    """

    def __init__(self, devices: Sequence[torch.device], error: Callable[[int, int], DivergenceError]):
        self._error = error
        self._device = next((device for device in devices if device.type == "cuda"), None)
        self._copied: torch.cuda.Event | None = None
        if self._device is not None:
            self._flag = torch.zeros(1, dtype=torch.int64, device=self._device)
            self._on_host = torch.zeros(1, dtype=torch.int64).pin_memory()

    def flag(self, step: int, inner_step: int) -> tuple[Tensor, int] | None:
        """For a kernel that watches by itself: the flag, and the mark of this step. None on the CPU."""
        return None if self._device is None else (self._flag, _mark(step, inner_step))

    def watch(self, vectors: Sequence[Tensor], step: int, inner_step: int) -> Tensor | None:
        """Check the vectors. On CUDA: a boolean, true from the first step on at which they were not finite."""
        finite = [_is_finite(v) for v in vectors if v.numel()]
        if self._device is None:
            if not all(map(bool, finite)):
                raise self._error(step, inner_step)
            return None
        good = torch.stack([f.to(self._device) for f in finite]).all() if finite else self._flag[0] == 0
        self._flag.copy_(torch.maximum(self._flag, torch.where(good, 0, _mark(step, inner_step))))
        self.report()
        return self._flag[0] != 0

    def report(self) -> None:
        """Let the flag come to the host when it is ready; within the capture of a graph nothing can."""
        if self._device is None or torch.cuda.is_current_stream_capturing():
            return
        if self._copied is None or self._copied.query():  # one copy under way is enough, and it will arrive
            self._on_host.copy_(self._flag, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))

    def poll(self) -> None:
        """Raise if the device has already reported a bad step; never waits."""
        if self._copied is None or torch.cuda.is_current_stream_capturing():
            return
        if self._copied.query():
            self._raise_if_bad()

    def wait(self) -> None:
        """Raise if any step so far was bad, waiting for the device."""
        if self._device is not None:
            self._on_host.copy_(self._flag)
            self._raise_if_bad()

    def reset(self) -> None:
        """Forget what was seen; the flag stays where it is, as a captured graph knows it."""
        if self._device is not None:
            self._flag.zero_()
            self._on_host = torch.zeros(1, dtype=torch.int64).pin_memory()  # a copy to the old one may be under way
            self._copied = None

    def _raise_if_bad(self) -> None:
        self._copied = None
        mark = int(self._on_host[0])
        if mark:
            self._flag.zero_()
            self._on_host.zero_()
            raise self._error(*divmod(_FIRST - mark, _LONGEST))


_FIRST, _LONGEST = 1 << 62, 1 << 24  # the mark before all others; no loop is longer


def _mark(step: int, inner_step: int) -> int:
    return _FIRST - step * _LONGEST - min(inner_step, _LONGEST - 1)


def _is_finite(v: Tensor) -> Tensor:
    if v.device.type == "cpu":  # aminmax keeps nan, and is ten times as fast there
        return torch.isfinite(torch.stack(torch.aminmax(v))).all()
    return torch.isfinite(torch.linalg.vector_norm(v, ord=float("inf")))


class Secants:
    """The largest |g(x) - g(y)| / |x - y| seen, a lower bound of the smoothness L; kept on the device."""

    def __init__(self, largest: float | None = None) -> None:
        self._largest = None if largest is None else torch.tensor(largest, dtype=torch.float64)

    def observe(self, differences: Sequence[Tensor], distance: Tensor) -> None:
        """Take note of a difference of gradients, in pieces, between two points at that distance."""
        size = torch.stack([x.double().norm().to(distance.device) for x in differences]).norm()
        secant = (size / distance.clamp(min=torch.finfo(torch.float64).tiny)).nan_to_num(0.0, 0.0, 0.0)
        self._largest = secant if self._largest is None else torch.maximum(self._largest.to(secant.device), secant)

    def largest(self) -> float | None:
        """None if nothing was seen, or nothing finite and positive."""
        return (None if self._largest is None else float(self._largest)) or None
