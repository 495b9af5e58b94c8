"""What others do to gradients around a step or inside a closure and would be lost, or spoil a difference: refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from torch import Tensor
from torch.optim import Optimizer

INSTEAD = "let the closure compute the whole loss (several backward() calls add up inside it)"
NO_CLOSURE = (
    "step() without a closure: this method evaluates a batch at two points, so call step(closure) with a function that "
    "computes the loss, calls backward() and returns the loss; SparseSGD and SparseAdamW need one evaluation alone"
)
LOST = (
    "a gradient was there before step(closure), which evaluates the closure anew at two points, so it would be lost: "
    f"{INSTEAD}, turn off the trainer's gradient accumulation, or call zero_grad() first if it is not wanted"
)
ADDED_TO_V = (
    "a gradient was added to the v that the last step left in p.grad, or p.grad was changed: call zero_grad() before "
    "backward(), and clip with max_norm="
)
UNUSABLE = (
    "a gradient was there before the step, and sparse_backward computes the selected rows of the closure's own alone: "
    f"{INSTEAD}, or leave sparse_backward=False"
)
CHANGED_IN_CLOSURE = (
    "the closure changed gradients after backward() (clipping, unscaling, averaging by hand): at two points that would "
    "spoil their difference, so turn off the trainer's gradient clipping and give the optimizer max_norm=, scale the "
    "loss instead of gradients, and average over ranks with process_group="
)
SCALED = (
    "a GradScaler calls step: it unscales gradients before the step, and the closure's come later, still scaled; call "
    "optimizer.step(closure) itself with an unscaled loss, under bfloat16 autocast, which needs no scaler"
)


def refuse_scaler(optimizer: Optimizer) -> NoReturn:
    """Forget what a GradScaler has told the optimizer: it would do so itself after a step that does not raise."""
    for name in ("grad_scale", "found_inf"):
        optimizer.__dict__.pop(name, None)
    raise RuntimeError(SCALED)


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
