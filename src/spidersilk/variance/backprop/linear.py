"""Linear layers: delta^T a on wanted rows, or at wanted entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spidersilk.variance.backprop import rules, timing
from spidersilk.variance.backprop.sampled import add_entries, case_of
from spidersilk.variance.backprop.wanted import Part

if TYPE_CHECKING:
    from spidersilk.variance.backprop.context import Capture


class Rows:
    """delta[:, rows]^T a: a smaller dense product."""

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        assert part.rows is not None
        flat, rows = delta.reshape(-1, delta.shape[-1]), part.rows
        return flat.index_select(1, rows), x

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        if into is None:
            return torch.mm(delta.t() if sign == 1 else -delta.t(), flat).view(-1)
        into.view(-1, part.width).addmm_(delta.t(), flat, alpha=sign)
        return into


class Entries:
    """Sampled entries of delta^T a."""

    def prepare(self, part: Part, delta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return delta.reshape(-1, delta.shape[-1]), x

    def add(self, part: Part, delta: Tensor, x: Tensor, sign: float, into: Tensor | None) -> Tensor:
        if into is None:
            into = torch.zeros(part.count, dtype=delta.dtype, device=delta.device)
        add_entries(part, delta, x.reshape(-1, x.shape[-1]), sign, into)
        return into


ROWS, ENTRIES = Rows(), Entries()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, capture: Capture, part: Part) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.capture, ctx.part = capture, part
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        with torch._C.DisableTorchFunction():  # of our own calls the mode has nothing to see
            at_x, at_weight, at_bias = ctx.needs_input_grad[:3]
            dx = dw = db = None
            if at_x:
                dx = delta @ weight
            if at_weight and not ctx.capture.take(
                ctx, 1, ROWS if ctx.part.rows is not None else ENTRIES, ctx.part, delta, x
            ):
                dw = delta.reshape(-1, delta.shape[-1]).t() @ x.reshape(-1, x.shape[-1])
            if at_bias:
                db = delta.reshape(-1, delta.shape[-1]).sum(0)
            return dx, dw, db, None, None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight^T + bias, by whichever library is the faster for these shapes."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not torch.backends.mkldnn.is_available() or not x.numel():
        return F.linear(x, weight, bias)
    ways = {
        "plain": lambda: F.linear(x, weight, bias),
        "onednn": lambda: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""),
    }
    case = ("linear", x.shape, weight.shape, bias is None, x.is_contiguous(), weight.is_contiguous())
    return timing.run(case, ways, x.device)


def linear(capture: Capture, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, which hands the weight's gradient to `capture` where it can."""
    weight, bias = capture.cut(weight), capture.cut(bias)
    part = capture.part_of(weight)
    if part is None or input.dim() == 0 or weight.dim() != 2 or part.shape.numel() < rules.SMALLEST:
        return F.linear(input, weight, bias)
    if input.requires_grad and part.rows is None:
        case = case_of(part, input.shape[:-1].numel(), weight)
        if timing.found(case) == "whole":  # nothing is gained: autograd does that product too
            return F.linear(input, weight, bias)
    return _Linear.apply(input, weight, bias, capture, part)  # pyright: ignore[reportReturnType]
