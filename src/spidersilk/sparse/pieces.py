"""An anchor that comes in pieces: the gradient of each counts by its weight, whatever the closure zeroes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spidersilk.loop.markers import Anchor


class Pieces:
    def __init__(self) -> None:
        self._gradients: list[Tensor | None] = []  # of the pieces that came so far

    def evaluate(self, closure: Callable[[], Any] | None, piece: Anchor, params: Sequence[Tensor]) -> Any:
        """Call the closure; after the last piece `params` have the gradients of all."""
        if closure is None or (piece.first and piece.last):
            with torch.enable_grad():
                return None if closure is None else closure()
        before = [None] * len(params) if piece.first else self._gradients
        for p in params:
            p.grad = None
        with torch.enable_grad():
            loss = closure()
        for p, old in zip(params, before, strict=True):
            if p.grad is not None:
                p.grad.mul_(piece.weight)
            if old is not None:
                p.grad = old if p.grad is None else p.grad.add_(old)
        self._gradients = [] if piece.last else [p.grad for p in params]
        return loss
