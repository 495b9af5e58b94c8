"""What all layer rules have in common: which weights they take, and how a backward hands over what it has."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from spidersilk.variance.backprop.wanted import Part

SMALLEST = 4096  # entries of a weight below which the ordinary backward is as fast


class Rule(Protocol):
    """How a layer type makes the wanted entries of a weight's gradient from delta (of its output) and its input."""

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """What of delta and of the input the product needs; linear in delta."""
        ...

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        """`into` (count values, None for zeros) plus sign times the wanted entries, in place where it can."""
        ...


def grad_is_due(node: Any, number: int) -> bool | None:
    """In the backward of `node`: whether this pass accumulates the gradient of its input `number`, a leaf, in p.grad.

    None: the pass returns it to the caller (`torch.autograd.grad`).
    """
    leaf = node.next_functions[number][0]
    if leaf is None:
        return False
    try:
        return torch._C._will_engine_execute_node(leaf)
    except RuntimeError:
        return None
