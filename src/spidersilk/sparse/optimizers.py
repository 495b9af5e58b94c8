"""SparseSGD and SparseAdamW: a fresh gradient, of which only the selected coordinates move."""

from __future__ import annotations

from typing import Any, Unpack

from torch.optim import AdamW
from torch.optim.optimizer import ParamsT

from spidersilk.operator.counts import Count
from spidersilk.operator.settings import Groups, RTop
from spidersilk.sparse import fresh
from spidersilk.variance.method import Choose, Move
from spidersilk.variance.optimizers import Common, Shared, check_rates, sgd
from spidersilk.variance.variance_reduced import VarianceReduced


class SparseSGD(VarianceReduced):
    """A fresh gradient, of which only the selected coordinates move: one evaluation a step, b k/d queries."""

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        k1: Count = 0.1,
        k2: Count = 0.0,
        memory_decay: float = 0.5,
        choose: Choose = "anchor",
        anchor_move: Move = "all",
        per_tensor: bool = False,
        groups: Groups | None = None,
        **common: Unpack[Common],
    ):
        sparsity = RTop(k1, k2, None, memory_decay, False, per_tensor, groups)
        base, rest = sgd(params, lr, common)
        options: dict[str, Any] = {"move": "selected", "choose": choose, "anchor_move": anchor_move, **rest}
        super().__init__(base, fresh.FRESH.name, sparsity=sparsity, **options)


class SparseAdamW(VarianceReduced):
    """`SparseSGD` over AdamW: a small step is one of AdamW's on the selected coordinates, with their moments.

    What is not selected keeps its moments until an anchor moves it. torch counts steps for a whole parameter, small
    ones too, so its correction of a young second moment is too weak for a coordinate that has moved at anchors alone:
    by AdamW's formula and beta2 = 0.999 it moves up to five times as far as AdamW by itself would move it, at the first
    few hundred anchors and right after it is first selected.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        k1: Count = 0.1,
        k2: Count = 0.0,
        memory_decay: float = 0.5,
        choose: Choose = "anchor",
        anchor_move: Move = "all",
        per_tensor: bool = False,
        groups: Groups | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        **shared: Unpack[Shared],
    ):
        remedies = {"lr": "0.001 is a common start", "weight_decay": "0 turns it off"}
        check_rates(remedies, lr=lr, weight_decay=weight_decay)
        sparsity = RTop(k1, k2, None, memory_decay, False, per_tensor, groups)
        base = AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        options: dict[str, Any] = {"move": "selected", "choose": choose, "anchor_move": anchor_move, **shared}
        super().__init__(base, fresh.FRESH.name, sparsity=sparsity, **options)
