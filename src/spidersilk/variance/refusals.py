"""What others do to gradients around a step or inside a closure and would be lost, or spoil a difference: refused."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from torch import Tensor
from torch.optim import Optimizer

INSTEAD = "let the closure compute the whole loss (several backward() calls add up inside it)"
NO_CLOSURE = (
    "step() without a closure: this method evaluates the batch itself, so call step(closure) with a function that "
    "computes the loss, calls backward() and returns the loss; a trainer that calls step() alone cannot run it"
)
LOST = (
    "a gradient was there before step(closure), which evaluates the closure anew at two points, so it would be lost: "
    f"{INSTEAD}, turn off the trainer's gradient accumulation, or call zero_grad() first if it is not wanted"
)
ADDED_TO_V = (
    "a gradient was added to the v that the last step left in p.grad, or p.grad was changed: call zero_grad() before "
    "backward(), and clip with max_norm="
)
CHANGED_IN_CLOSURE = (
    "the closure changed gradients after backward() (clipping, unscaling, averaging by hand): at two points that would "
    "spoil their difference, so turn off the trainer's gradient clipping and give the optimizer max_norm=, scale the "
    "loss instead of gradients, and average over ranks with process_group="
)
SKIPPED = (
    "accelerate with gradient_accumulation_steps = {steps} skips step(closure) for all micro-batches but the last, so "
    "their gradients would never be computed: set it to 1, and let the closure go through the micro-batches itself"
)
SCALED = (
    "a GradScaler calls step: it unscales gradients before the step, and the closure's come later, still scaled; call "
    "optimizer.step(closure) itself with an unscaled loss, under bfloat16 autocast, which needs no scaler"
)

OTHER_BY_RULES = (
    "sparse_backward = True: without the whole gradients of weights the closure {what}, because it uses gradients "
    "itself (p.grad, torch.autograd.grad, backward(inputs=...)) or differs from call to call: leave "
    "sparse_backward=False"
)
ALIKE = 0.05  # of their norm: how far gradients may be apart by rounding, under bfloat16 autocast too


def refuse_scaler(optimizer: Optimizer) -> NoReturn:
    """Forget what a GradScaler has told the optimizer: it would do so itself after a step that does not raise."""
    for name in ("grad_scale", "found_inf"):
        optimizer.__dict__.pop(name, None)
    raise RuntimeError(SCALED)


def refuse_skipped_batches(params: Sequence[Tensor]) -> None:
    """Refuse a step by accelerate with gradient accumulation: it calls step(closure) for the last micro-batch alone."""
    state = sys.modules.get("accelerate.state")
    accumulates = state is not None and bool(state.GradientState._shared_state) and all(p.grad is None for p in params)
    steps = state.GradientState().num_steps if state is not None and accumulates else 1
    frame = sys._getframe() if steps > 1 else None
    while frame is not None:
        if frame.f_code.co_filename.endswith(os.path.join("accelerate", "optimizer.py")):
            raise RuntimeError(SKIPPED.format(steps=steps))
        frame = frame.f_back


@contextmanager
def unchanged_after_backward(params: Sequence[Tensor]) -> Iterator[None]:
    """Around a closure: refuse one that changes gradients after they have arrived."""
    arrived: dict[int, tuple[Tensor, int]] = {}

    def note(p: Tensor) -> None:
        assert p.grad is not None
        arrived[id(p)] = p.grad, p.grad._version

    handles = [p.register_post_accumulate_grad_hook(note) for p in params]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for p in params:
        grad, version = arrived.get(id(p), (p.grad, -1))
        if p.grad is not grad or (grad is not None and version not in (-1, grad._version)):
            raise RuntimeError(CHANGED_IN_CLOSURE)


@contextmanager
def same_by_rules(values: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Around an evaluation by layer rules, which puts its values in the list: refuse it if they are not as `values`."""
    found: list[Tensor] = []
    try:
        yield found
    except Exception as error:
        raise RuntimeError(OTHER_BY_RULES.format(what="fails")) from error
    whole = math.hypot(*(float(a.norm()) for a in values))
    apart = math.hypot(*(float((a - b).norm()) for a, b in zip(values, found, strict=True)))
    if apart > ALIKE * whole:
        raise RuntimeError(OTHER_BY_RULES.format(what="has other gradients"))
