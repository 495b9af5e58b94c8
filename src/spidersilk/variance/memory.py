"""The memory M, an exponential average of |v|: it decides which coordinates look promising (Algorithm 1, line 12)."""

from __future__ import annotations

from torch import Tensor

from spidersilk.kernels.backends import Ops
from spidersilk.operator.selection import Selection


def start(memory: Tensor, estimate: Tensor) -> None:
    """M := |v|, at the first anchor, or at every anchor where memory is reset."""
    memory.copy_(estimate).abs_()


def update(memory: Tensor, estimate: Tensor, decay: float, ops: Ops) -> None:
    """M := decay |v| + (1 - decay) M (line 12)."""
    ops.blend(memory, estimate, decay)


def update_selected(memory: Tensor, selection: Selection, values: Tensor, decay: float, ops: Ops) -> None:
    """The same on the selection alone, where v has `values`: the rest of v is stale, so M keeps what it knew."""
    ops.blend_at(memory, selection.indices, values, decay)
