"""The memory M, an exponential average of |v|: it decides which coordinates look promising."""

from __future__ import annotations

from torch import Tensor

from spidersilk.kernels.interface import Update
from spidersilk.operator.selection import Selection


def start(memory: Tensor, estimate: Tensor) -> None:
    """M := |v|, at the first anchor, or at every anchor where memory is reset."""
    memory.copy_(estimate).abs_()


def update(update: Update) -> None:
    """M := decay |v| + (1 - decay) M (Algorithm 1, line 12), where there is an M. Fused kernels do the same."""
    if update.memory is not None:
        update.memory.mul_(1 - update.decay).add_(update.v.abs(), alpha=update.decay)


def update_selected(memory: Tensor, selection: Selection, values: Tensor, decay: float) -> None:
    """The same on the selection alone, where v has `values`: the rest of v is stale, so M keeps what it knew there."""
    at = selection.indices
    memory[at] = memory[at].mul_(1 - decay).add_(values.abs(), alpha=decay)
