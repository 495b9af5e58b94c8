"""The vectors of a method and what a step does to them. Who counts steps and evaluates closures is elsewhere."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from spidersilk.checks import resolve_counts
from spidersilk.kernels.backends import Ops
from spidersilk.operator.selection import RTop, Selection, draw_over
from spidersilk.operator.stream import Stream
from spidersilk.theory.planner import theorem_1_step
from spidersilk.variance import estimators, memory
from spidersilk.variance.compact import CompactBase
from spidersilk.variance.flat import make_slabs
from spidersilk.variance.moving import move_all, move_selected, plain_steps
from spidersilk.variance.two_point import capturing
from spidersilk.variance.vectors import Vectors

CHANGED = (
    "the trainable parameters changed after the first anchor (added, frozen or unfrozen): v and M have no place for "
    "that, so make a new optimizer"
)


@dataclass(frozen=True)
class Choices:
    """What makes a method; `VarianceReduced` describes each."""

    reference: str | None
    scaling: str
    move: str
    choose: str
    anchor_move: str
    sparsity: RTop | None
    max_norm: float | None

    def settings(self) -> dict[str, Any]:
        """What must be equal for a saved state to fit."""
        told = asdict(self)
        del told["max_norm"]
        if self.sparsity is not None and self.sparsity.groups is None:
            del told["sparsity"]["groups"]  # as in states that were saved before there were groups
        return told


class Mechanics:
    """v, M, the reference point and the selection of one method over one set of parameters."""

    def __init__(
        self,
        base: Optimizer,
        state: MutableMapping[Tensor, dict[str, Tensor]],
        choices: Choices,
        stream: Stream,
        ops: Ops,
    ):
        self.base, self.choices, self.stream, self.ops = base, choices, stream, ops
        self.slabs = make_slabs(base.param_groups)
        self.d = sum(slab.d for slab in self.slabs)
        selected = choices.move == "selected"
        self.vectors = Vectors(
            self.slabs,
            state,
            estimate=not (selected and choices.reference is None),
            anchor_estimate=choices.reference == "anchor" and not selected,  # selected: v is v_anchor, never updated
            memory=choices.sparsity is not None,
            reference=choices.reference is not None,
        )
        shapes = [p.shape for slab in self.slabs for p in slab.params]
        self.rows = choices.sparsity.layout(shapes, self.slabs[0].device) if choices.sparsity is not None else None
        self.compact = CompactBase(base, self.slabs, choices.anchor_move == "all", ops) if selected else None
        if ops.draws_on_device:
            stream.counter(self.slabs[0].device)  # now: a graph that is being captured could not make it
        self.selections: list[Selection] | None = None
        self._hint: Any = None  # of the backend, on M as its last update left it

    # An anchor.

    def prepare_anchor(self) -> None:
        """Before its gradient is taken: x as the base knows it."""
        if self.compact is not None:
            self.compact.flush()

    def begin_loop(self, frozen: Tensor | None) -> None:
        """v is the anchor's gradient: remember where, start M if it is due, and make the first move (line 9)."""
        vectors, choices = self.vectors, self.choices
        vectors.mark_point()
        vectors.mark_anchor()
        self.selections = None
        if choices.sparsity is not None:
            if not vectors.has_memory or choices.sparsity.memory_reset or choices.move == "selected":
                vectors.start_memory()
                self._hint = None
            if choices.anchor_move == "selected":
                selections = self._draw(choices.sparsity)
                self._move_selected([s.gather(v) for s, v in zip(selections, vectors.v, strict=True)], frozen)
        if choices.anchor_move == "all":
            move_all(self.base, self.slabs, vectors.v, choices.max_norm, frozen)
        vectors.forget_estimate()

    # A small step.

    def select(self) -> list[Selection | None]:
        """The selections of this step, one for each slab; None where the method is dense."""
        if self.choices.sparsity is None:
            return [None] * len(self.slabs)
        if capturing() and self.choices.choose == "anchor":
            raise RuntimeError(
                "choose = 'anchor' in the capture of a CUDA graph: the graph would go on with this loop's selection, "
                "whose memory the next anchor frees; use choose='step' there"
            )
        if self.selections is None or self.choices.choose == "step":
            self._draw(self.choices.sparsity)
        return list(self.selections or [])

    def _draw(self, sparsity: RTop) -> list[Selection]:
        memories = self.vectors.memory
        self.selections = draw_over(self.slabs, memories, sparsity, self.stream, self.ops, self._hint, self.rows)
        if self.compact is not None:
            self.compact.enter(self.selections, self.vectors.memory)
        return self.selections

    def advance(
        self, values: list[Tensor], selections: list[Selection | None], flag: tuple[Tensor, int] | None
    ) -> bool | None:
        """All of a small step after its gradients in one pass over the vectors, where the backend can.

        Returns whether v is finite; if it is not, x is as it was. None: it cannot be done so, and nothing has been.
        With a `flag`, of a device and with the mark of this step, it is the flag that tells, and True comes back.
        """
        choices, vectors, selection = self.choices, self.vectors, selections[0]
        if not hasattr(self.ops, "advance") or choices.move != "all" or choices.sparsity is None or len(self.slabs) > 1:
            return None
        assert selection is not None
        ops: Any = self.ops
        refreshes = choices.reference == "anchor" and choices.scaling == "refresh"
        form = {"previous": "recursive", None: "fresh"}.get(choices.reference, "refresh" if refreshes else "anchored")
        anchor = vectors.v_anchor[0] if choices.reference == "anchor" else None
        scale = selection.scale if choices.scaling == "unbiased" else 1.0
        given = form, vectors.v[0], anchor, vectors.memory[0], selection.top, selection.random, values[0], scale
        decay = choices.sparsity.memory_decay
        rates = None if choices.max_norm is not None else plain_steps(self.base, self.slabs)
        if choices.reference == "previous":
            vectors.mark_point()
        if ops.draws_on_device:
            flag, told = flag or (torch.zeros(1, dtype=torch.int64, device=values[0].device), 1 << 32), flag is not None
            ops.advance(*given, decay, *flag)
            for p in vectors.params:
                p.grad = None  # that of the closure: its memory is needed below
            if rates is None or len(set(rates)) > 1:
                move_all(self.base, self.slabs, vectors.v, choices.max_norm, flag[0][0] != 0)
                return told or not bool(flag[0])
            params, sizes = [p.detach() for p in vectors.params], self.slabs[0].sizes
            for p, g in zip(vectors.params, ops.move(params, sizes, vectors.v[0], rates[0], flag[0]), strict=True):
                p.grad = g
            return told or not bool(flag[0])
        if rates is None:
            finite, self._hint = ops.advance(*given, decay)
            if finite:
                move_all(self.base, self.slabs, vectors.v, choices.max_norm, None)
            return finite
        gradients = [torch.empty_like(p) for p in vectors.params]
        finite, self._hint = ops.advance_and_move(*given, decay, [p.detach() for p in vectors.params], rates, gradients)
        if finite:
            for p, g in zip(vectors.params, gradients, strict=True):
                p.grad = g
        return finite

    def estimate(self, values: list[Tensor], selections: list[Selection | None]) -> list[Tensor]:
        """The new v: all of it, or, where only the selected move, its k values there (line 11)."""
        vectors, choices, ops = self.vectors, self.choices, self.ops
        if self.compact is not None:
            v_anchors = vectors.v if choices.reference == "anchor" else [None] * len(values)
            parts = zip(v_anchors, values, self.selections or [], strict=True)
            return [estimators.selected(v, value, selection) for v, value, selection in parts]
        for number, (v, value, selection) in enumerate(zip(vectors.v, values, selections, strict=True)):
            if choices.reference == "previous":
                estimators.recursive(v, value, selection, choices.scaling, ops)
            elif choices.reference == "anchor":
                estimators.anchored(v, vectors.v_anchor[number], value, selection, choices.scaling, ops)
            else:
                estimators.fresh(v, value, selection, choices.scaling, ops)
        return vectors.v

    def take(self, estimates: list[Tensor], frozen: Tensor | None) -> None:
        """Take the step: M (line 12), the reference point, and a move of x (line 9)."""
        self._remember(estimates)
        if self.compact is not None:
            self._move_selected(estimates, frozen)
            for p in self.vectors.params:
                p.grad = None
            return
        if self.choices.reference == "previous":
            self.vectors.mark_point()
        move_all(self.base, self.slabs, self.vectors.v, self.choices.max_norm, frozen)

    def _remember(self, estimates: list[Tensor]) -> None:
        """M, on all coordinates or on those that are fresh; not where nobody looks at it before an anchor renews it."""
        if self.choices.sparsity is None or (self.compact is not None and self.choices.choose == "anchor"):
            return
        decay = self.choices.sparsity.memory_decay
        self._hint = None
        for number, (m, v) in enumerate(zip(self.vectors.memory, estimates, strict=True)):
            if self.compact is None:
                memory.update(m, v, decay, self.ops)
            else:
                assert self.selections is not None
                memory.update_selected(m, self.selections[number], v, decay, self.ops)

    def _move_selected(self, values: list[Tensor], frozen: Tensor | None) -> None:
        assert self.compact is not None
        assert self.selections is not None
        if not self.compact.entered:
            self.compact.enter(self.selections, self.vectors.memory)
        move_selected(self.compact, values, self.choices.max_norm, frozen)

    def theorem_1_step(self, length: float) -> float:
        """Theorem 1's step size times L, for an inner loop of that length."""
        sparsity, k2 = self.choices.sparsity, self.d
        if sparsity is not None and not sparsity.per_tensor:
            k2 = resolve_counts(sparsity.k1, sparsity.k2, self.d)[1]
        return theorem_1_step(max(k2, 1), self.d, length)

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if self.compact is not None:
            self.compact.flush()
            state["compact"] = self.compact.state_dict()
        state["vectors"] = self.vectors.state_dict()
        state["selections"] = None if self.selections is None else [s.state_dict() for s in self.selections]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.vectors.load_state_dict(state["vectors"])
        self._hint = None
        self.selections = None
        if state["selections"] is not None:
            pairs = zip(state["selections"], self.slabs, strict=True)
            self.selections = [Selection.from_state_dict(saved, slab.device) for saved, slab in pairs]
        if self.compact is not None:
            self.compact.load_state_dict(state["compact"], self.selections or [])
