"""Updates for the tests of kernels, from what a step has in hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spidersilk.kernels.interface import Flag, Update


def no_formula(_: Update) -> None:
    raise AssertionError("the fused kernel was not used")


def update_of(
    form: Any,
    v: Tensor,
    v_anchor: Tensor | None,
    memory: Tensor,
    top: Tensor,
    random: Tensor,
    values: Tensor,
    scale: float | Tensor,
    decay: float,
    params: Sequence[Tensor] = (),
    lr: float | Sequence[float] | None = None,
    flag: Flag | None = None,
) -> Update:
    """`lr`: x moves too, by one rate or one for each of `params`."""
    rates = None if lr is None else [lr] * len(params) if isinstance(lr, float) else lr
    both, k1 = torch.cat([top, random]), top.numel()
    return Update(v, values, no_formula, form, v_anchor, memory, both, k1, scale, decay, params, rates, flag)
