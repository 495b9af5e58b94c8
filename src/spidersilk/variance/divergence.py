"""A v that is not finite: the error, and on CUDA a flag on the device, so that no step waits to find out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from spidersilk.kernels.interface import Flag

_FIRST, _LONGEST = 1 << 62, 1 << 24  # the mark before all others; no loop is longer


_GO_ON = (
    "x is as it was: lower lr, shorten the inner loop (inner_steps='auto'), or let only the selected coordinates move, "
    "and go on with an anchor."
)
_X_IS_LOST = (
    "The parameters themselves are not finite: an earlier v was finite but so large that its move overflowed, and no "
    "step can mend that. Load the last good parameters and a new optimizer, lower lr, or bound the move with max_norm."
)


class DivergenceError(RuntimeError):
    """The estimate v is not finite. x is as it was before the step, and the next step must be an anchor.

    Where x itself is not finite, an earlier move has made it so (`x_is_finite` tells): it must be given values again.
    `step` counts updates from 0, `inner_step` those since the anchor; `norms` holds the Euclidean norms that were at
    hand; `theorem_1_lr` is the step size of Theorem 1 for the smoothness seen in this run, None if none was seen.
    """

    def __init__(
        self,
        step: int,
        inner_step: int,
        norms: dict[str, float],
        lr: list[float],
        step_times_smoothness: float,
        smoothness: float | None,
    ):
        self._arguments = (step, inner_step, norms, lr, step_times_smoothness, smoothness)
        self.step, self.inner_step, self.norms, self.lr = step, inner_step, norms, lr
        self.theorem_1_lr = step_times_smoothness / smoothness if smoothness else None
        where = "an anchor" if inner_step == 0 else f"small step {inner_step} after its anchor"
        sizes = ", ".join(f"|{name}| = {value:.3g}" for name, value in norms.items())
        self.x_is_finite = math.isfinite(norms.get("x", 0.0))
        theory = f"Theorem 1 allows lr <= {step_times_smoothness:.2g} / L"
        if smoothness:
            theory += f"; this run's secants give L >= {smoothness:.2g}, so lr <= {self.theorem_1_lr:.2g}"
        super().__init__(
            f"the estimate v is not finite at step {step} ({where}): {sizes}, lr = {', '.join(f'{x:g}' for x in lr)}. "
            f"{theory}. {_GO_ON if self.x_is_finite else _X_IS_LOST}"
        )

    def __reduce__(self) -> tuple:
        return type(self), self._arguments  # so that it can cross to another process


class DeviceFlag:
    """Raises what `error(step, inner_step)` makes; x stays as it was from the first bad step on.

    A raise at once would have to wait for the device. The flag keeps x and says which step was bad; the error comes at
    a later `poll` or at `wait`. The flag is 0 or the largest of the marks of bad steps; marks fall from step to step.
    """

    def __init__(self, device: torch.device, error: Callable[[int, int], DivergenceError]):
        self._error, self._device = error, device
        self._raised = torch.zeros(1, dtype=torch.int64, device=device)
        self._on_host = torch.zeros(1, dtype=torch.int64).pin_memory()
        self._copied: torch.cuda.Event | None = None

    def at(self, step: int, inner_step: int) -> Flag:
        """The flag with the mark of this step."""
        return Flag(self._raised, _FIRST - step * _LONGEST - min(inner_step, _LONGEST - 1))

    def report(self) -> None:
        """Let the flag come to the host when it is ready; within the capture of a graph nothing can."""
        if torch.cuda.is_current_stream_capturing():
            return
        if self._copied is None or self._copied.query():  # one copy under way is enough, and it will arrive
            self._on_host.copy_(self._raised, non_blocking=True)
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
        self._on_host.copy_(self._raised)
        self._raise_if_bad()

    def reset(self) -> None:
        """Forget what was seen; the flag stays where it is, as a captured graph knows it."""
        self._raised.zero_()
        self._on_host = torch.zeros(1, dtype=torch.int64).pin_memory()  # a copy to the old one may be under way
        self._copied = None

    def _raise_if_bad(self) -> None:
        self._copied = None
        mark = int(self._on_host[0])
        if mark:
            self._raised.zero_()
            self._on_host.zero_()
            raise self._error(*divmod(_FIRST - mark, _LONGEST))
