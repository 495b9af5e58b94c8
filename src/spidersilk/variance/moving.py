"""Moving all of x: the base optimizer steps with v as its gradient. `compact.py` moves the selected coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer

from spidersilk.variance.flat import Slab


def move_all(
    base: Optimizer, slabs: Sequence[Slab], v: Sequence[Tensor], max_norm: float | None, frozen: Tensor | None
) -> None:
    """Let the base step with v as gradient. Where `frozen` (on the device) is true, x stays."""
    params = [p for slab in slabs for p in slab.params]
    for slab, part in zip(slabs, v, strict=True):
        slab.write_gradients(part)
    if max_norm is not None:
        clip_grad_norm_(params, max_norm)
    if frozen is None:
        base.step()
        return
    for p in params:
        assert p.grad is not None
        p.grad.copy_(torch.where(frozen.to(p.device), 0, p.grad))
    before = None if _moves_by_gradient_alone(base) else [p.clone() for p in params]
    base.step()
    for p, old in zip(params, before or [], strict=False):
        p.copy_(torch.where(frozen.to(p.device), old, p))


def _moves_by_gradient_alone(base: Optimizer) -> bool:
    """Whether a zero gradient leaves x as it is, bit for bit: plain SGD."""
    return type(base) is SGD and all(g["momentum"] == 0 and g["weight_decay"] == 0 for g in base.param_groups)
