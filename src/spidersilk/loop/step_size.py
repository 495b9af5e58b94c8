"""Step sizes inside a loop: the one that Theorem 1 allows, and a line that falls within each loop."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from spidersilk.checks import check_number, check_positive_int


def theorem_1_step(k2: int, d: int, inner_steps: float) -> float:
    """Theorem 1's step size times the smoothness constant: eta L = sqrt(k2 / (6 d m)).

    >>> round(theorem_1_step(5, 100, 10), 3)
    0.029
    """
    return math.sqrt(k2 / (6 * d * inner_steps))


class InnerLine(LRScheduler):
    """The step size falls along a line inside each inner loop: end + (start - end) (m - t) / m at update t = 0, 1, ...

    Call `step()` after each `optimizer.step(...)`, as with any scheduler. The line starts again by itself at every
    anchor, whatever the length of the loop before; in a loop longer than m the step size stays at `end`.
    """

    def __init__(self, optimizer: Optimizer, inner_steps: int, start: float, end: float, last_epoch: int = -1):
        check_positive_int("inner_steps", inner_steps, "it is the m of the line")
        for name, value in (("start", start), ("end", end)):
            check_number(name, value, "it is a step size")
        self.inner_steps, self.start, self.end = inner_steps, start, end
        self.update = -1
        if not hasattr(optimizer, "next_is_anchor"):
            raise ValueError(
                f"optimizer = {type(optimizer).__name__} has no anchors: InnerLine needs a variance-reduced one"
            )
        super().__init__(optimizer, last_epoch)
        optimizer.register_step_pre_hook(self._at_step)

    def _at_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        anchor = kwargs.get("anchor", args[2] if len(args) > 2 else None)  # after the optimizer and the closure
        if optimizer.next_is_anchor(anchor):  # pyright: ignore[reportAttributeAccessIssue]
            self.update = 0
            self._apply()

    def step(self, epoch: int | None = None) -> None:
        self.update += 1
        super().step(epoch)

    def get_lr(self) -> list[float | Tensor]:
        share = max(self.inner_steps - max(self.update, 0), 0) / self.inner_steps
        return [self.end + (self.start - self.end) * share for _ in self.optimizer.param_groups]

    def _apply(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]
