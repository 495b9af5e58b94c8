"""How long an inner loop lasts, and the step size inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from spidersilk.checks import check_positive_int
from spidersilk.streams import generator_at


@dataclass(frozen=True)
class Anchor:
    """What a loader says of an anchor batch. It is true, so `if is_anchor` works as with a plain True.

    An anchor may come in pieces: `weight` is the piece's share of the samples, `first` begins an anchor, whatever came
    of an earlier one, and `last` ends it. It may be `idle`: the anchor of an inner loop of length 0, which is evaluated
    and counted but moves nothing.
    """

    weight: float = 1.0
    first: bool = True
    last: bool = True
    idle: bool = False

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class Fixed:
    """Every inner loop has `mean` updates (N_j = m, the paper's implementation)."""

    mean: int

    def __post_init__(self) -> None:
        check_positive_int("inner_steps", self.mean, "an outer loop is one anchor step and inner_steps - 1 small steps")

    def length(self, seed: int, loop: int) -> int:
        return self.mean


@dataclass(frozen=True)
class Geometric:
    """N_j geometric on 0, 1, ... with mean m (the paper's analysis): P(N = n) = g^n (1 - g) with g = m / (m + 1)."""

    mean: float

    def __post_init__(self) -> None:
        if not self.mean > 0 or not math.isfinite(self.mean):
            raise ValueError(f"mean = {self.mean} must be a positive number: it is the mean length of an inner loop")

    def length(self, seed: int, loop: int) -> int:
        """The length of loop number `loop`; the same seed and loop give the same length."""
        uniform = torch.rand((), dtype=torch.float64, generator=generator_at("cpu", seed, loop)).item()
        return int(math.log1p(-uniform) / math.log(self.mean / (self.mean + 1)))


InnerLength = Fixed | Geometric


def as_inner_length(inner_steps: int | InnerLength) -> InnerLength:
    return inner_steps if isinstance(inner_steps, InnerLength) else Fixed(inner_steps)


class InnerLine(LRScheduler):
    """The step size falls along a line inside each inner loop: end + (start - end) (m - t) / m at update t = 0, 1, ...

    Call `step()` after each `optimizer.step(...)`, as with any scheduler. The line starts again by itself at every
    anchor, whatever the length of the loop before; in a loop longer than m the step size stays at `end`.
    """

    def __init__(self, optimizer: Optimizer, inner_steps: int, start: float, end: float, last_epoch: int = -1):
        check_positive_int("inner_steps", inner_steps, "it is the m of the line")
        for name, value in (("start", start), ("end", end)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} = {value} must be a step size of at least 0")
        self.inner_steps, self.start, self.end = inner_steps, start, end
        self.update = -1
        if not hasattr(optimizer, "next_is_anchor"):
            raise ValueError(f"optimizer = {type(optimizer).__name__} has no anchors: InnerLine needs a spidersilk one")
        super().__init__(optimizer, last_epoch)
        optimizer.register_step_pre_hook(self._at_step)

    def _at_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        given = kwargs.get("anchor", args[2] if len(args) > 2 else None)  # after the optimizer and the closure
        if optimizer.next_is_anchor(given):  # pyright: ignore[reportAttributeAccessIssue]
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
