"""The engine of a method: the vectors that are built at the first step, and what each step does to them.

Who counts steps is `loop/counter.py`; how a closure is evaluated at two points is `two_point.py`.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from spidersilk.find_modules import modules_around
from spidersilk.kernels.interface import Flag, Kernels, Update
from spidersilk.kernels.plain import all_finite, remember
from spidersilk.loop.step_size import theorem_1_step
from spidersilk.operator.counts import resolve_counts
from spidersilk.operator.dimensions import group_dimensions
from spidersilk.operator.random_stream import Stream
from spidersilk.operator.selection import Selection, Selector
from spidersilk.variance.compact import CompactBase
from spidersilk.variance.flat import make_slabs
from spidersilk.variance.graph import capturing
from spidersilk.variance.group_gradients import GroupGradients
from spidersilk.variance.method import Method
from spidersilk.variance.moving import move_all
from spidersilk.variance.refusals import same_by_rules
from spidersilk.variance.two_point import Closure, TwoPoint
from spidersilk.variance.vectors import Vectors

Selections = list[Selection] | list[None]
"""One for each slab; None where the method is dense."""


class Evaluated(NamedTuple):
    loss: Any  # what the closure returned at the current point
    before: Any  # and at the reference point
    values: list[Tensor]  # for each slab the difference of the gradients on its selection


class Engine:
    """v, M, the reference point and the selection of one method over one set of parameters."""

    def __init__(
        self,
        base: Optimizer,
        state: MutableMapping[Tensor, dict[str, Tensor]],
        method: Method,
        stream: Stream,
        kernels: Kernels,
        model: nn.Module | None,
        sparse_backward: bool,
    ):
        self.base, self.method, self.kernels = base, method, kernels
        self.estimator, self.sparsity = method.estimator, method.sparsity
        self.slabs = make_slabs(base.param_groups)
        self.d = sum(slab.d for slab in self.slabs)
        self.vectors = Vectors(
            self.slabs,
            state,
            anchor_estimate=method.keeps_anchor_estimate,
            memory=method.sparsity is not None,
        )
        self.points = TwoPoint(self.vectors.params, model)
        self.selector: Selector | None = None
        self.dimensions: list[int] | None = None  # of the parameters: along which columns are counted
        if method.sparsity is not None:
            if method.sparsity.groups == "columns":
                modules = modules_around(self.vectors.params) if model is None else model.modules()
                self.dimensions = group_dimensions(self.vectors.params, modules)
            shapes = [([p.shape for p in slab.params], slab.device) for slab in self.slabs]
            self.selector = Selector(method.sparsity, shapes, stream, kernels, self.dimensions)
        self.groups: GroupGradients | None = None  # for layer rules
        if sparse_backward and method.sparsity is not None and method.sparsity.groups is not None:
            dimensions = self.dimensions or [0] * len(self.vectors.params)
            self.groups = GroupGradients([slab.params for slab in self.slabs], dimensions, model)
        full_state = method.anchor_move == "all"
        self.compact = CompactBase(base, self.slabs, full_state, kernels) if method.moves_selected else None
        self.selections: list[Selection] | None = None
        self._rescales = method.scaling == "unbiased"
        self._on_cuda = any(slab.device.type == "cuda" for slab in self.slabs)

    # An anchor.

    def prepare_anchor(self) -> None:
        """Before its gradient is taken: x as the base knows it."""
        if self.compact is not None:
            self.compact.flush()

    def begin_loop(self, frozen: Tensor | None) -> None:
        """v is the anchor's gradient: remember where, start M if it is due, and make the first move (line 9)."""
        vectors, method = self.vectors, self.method
        vectors.mark_point()
        vectors.mark_anchor()
        self.selections = None
        if self.selector is not None:
            if not vectors.has_memory or self.selector.sparsity.memory_reset or method.moves_selected:
                vectors.start_memory()
                self.selector.hint = None
            if method.anchor_move == "selected":
                pairs = zip(self.select(at_anchor=True), vectors.v, strict=True)
                self._move_selected([s.gather(v) for s, v in pairs if s is not None], frozen)
        if method.anchor_move == "all":
            self._move_all(frozen)

    # A small step.

    def select(self, at_anchor: bool = False) -> Selections:
        """The selections of this step (M alone decides them)."""
        if self.selector is None:
            return [None] * len(self.slabs)
        if self.method.choose == "anchor" and not at_anchor and self._on_cuda and capturing():
            raise RuntimeError(
                "choose = 'anchor' in the capture of a CUDA graph: the graph would go on with this loop's selection, "
                "whose memory the next anchor frees; use choose='step' there"
            )
        if self.selections is None or self.method.choose == "step":
            self.selections = self.selector.draw(self.vectors.memory)
            if self.compact is not None:
                self.compact.enter(self.selections, self.vectors.memory)
        return self.selections

    def evaluate(self, closure: Closure, selections: Selections) -> Evaluated:
        """The difference of gradients at the current point and at the reference, on the selections (line 10)."""
        groups = self.groups
        if groups is not None:
            groups.select([s for s in selections if s is not None])
        trusted = groups if groups is not None and groups.is_compared else None
        loss = self.points.at_current(closure, True, trusted)
        values = self._read(selections, trusted)
        if groups is not None and not groups.is_compared:
            with same_by_rules(values) as by_rules:
                self.points.at_current_again(closure, groups)
                by_rules += self._read(selections, groups)
            values, groups.is_compared = by_rules, True
        before = self.points.at_reference(closure, self.vectors.points, groups)
        for here, there in zip(values, self._read(selections, groups), strict=True):
            here.sub_(there)
        return Evaluated(loss, before, values)

    def _read(self, selections: Selections, groups: GroupGradients | None) -> list[Tensor]:
        """The gradients that a closure left, on the selections, in tensors of our own."""
        values = [
            slab.flatten([p.grad for p in slab.params])
            if selection is None
            else self.kernels.gather([p.grad for p in slab.params], slab.sizes, selection.indices, slab.dtype)
            for slab, selection in zip(self.slabs, selections, strict=True)
        ]
        if groups is not None:
            groups.add_to(values)
        return values

    def advance(self, values: list[Tensor], selections: Selections, flag: Flag | None) -> bool:
        """v (line 11), M (line 12) and x (line 9). Returns whether v is finite; if it is not, x is as it was."""
        if self.compact is not None:
            estimates = self.estimate(values, selections)
            if not all_finite(estimates, flag):
                return False
            self.take(estimates, flag)
            return True
        rates = self._plain_rates() if len(self.slabs) == 1 else None
        if self.estimator.point == "previous":
            self.vectors.mark_point()
        outcomes = [self.kernels.advance(update) for update in self._updates(values, selections, flag, rates)]
        if not all(outcome.finite for outcome in outcomes):
            return False
        if self.selector is not None:
            self.selector.hint = outcomes[0].hint if len(outcomes) == 1 else None
        if outcomes[0].gradients is None:
            self._move_all(None if flag is None else flag.raised[0] != 0)
        else:
            for p, gradient in zip(self.vectors.params, outcomes[0].gradients, strict=True):
                p.grad = gradient
        return True

    def _updates(
        self, values: list[Tensor], selections: Selections, flag: Flag | None, rates: list[float] | None = None
    ) -> list[Update]:
        vectors = self.vectors
        return [
            Update(
                vectors.v[number],
                value,
                self.estimator.formula,
                self.estimator.fused,
                vectors.v_anchor[number] if vectors.v_anchor else None,
                vectors.memory[number] if vectors.memory else None,
                None if selection is None else selection.indices,
                0 if selection is None else selection.top.numel(),
                selection.scale if selection is not None and self._rescales else 1.0,
                self.sparsity.memory_decay if self.sparsity is not None else 0.0,
                self.slabs[number].params,
                rates,
                flag,
            )
            for number, (value, selection) in enumerate(zip(values, selections, strict=True))
        ]

    # The same in two halves, for who wants to look at v before it is taken.

    def estimate(self, values: list[Tensor], selections: Selections) -> list[Tensor]:
        """The new v: all of it, or, where only the selected move, its k values there (line 11)."""
        if self.compact is None:
            for update in self._updates(values, selections, None):
                self.estimator.formula(update)
            return self.vectors.v
        assert self.estimator.on_selection is not None
        parts = zip(self.vectors.v, values, self.selections or [], strict=True)
        return [self.estimator.on_selection(v, value, selection) for v, value, selection in parts]

    def take(self, estimates: list[Tensor], flag: Flag | None) -> None:
        """M (line 12), the reference point, and a move of x (line 9)."""
        frozen = None if flag is None else flag.raised[0] != 0
        if self.selector is not None:
            self.selector.hint = None
        if self.compact is None:
            if self.sparsity is not None:
                for m, v in zip(self.vectors.memory, estimates, strict=True):
                    remember(m, v, self.sparsity.memory_decay)
            if self.estimator.point == "previous":
                self.vectors.mark_point()
            self._move_all(frozen)
            return
        if self.sparsity is not None and self.method.choose == "step":  # else an anchor renews M before its next use
            for m, selection, v in zip(self.vectors.memory, self.selections or [], estimates, strict=True):
                at = selection.indices  # the rest of v is stale, so M keeps what it knew there
                m[at] = remember(m[at], v, self.sparsity.memory_decay)
        self._move_selected(estimates, frozen)
        for p in self.vectors.params:
            p.grad = None

    # Moving x.

    def _plain_rates(self) -> list[float] | None:
        """The step size of each parameter, where the base does x := x - lr g and nothing else; else None."""
        base, params = self.base, self.vectors.params
        if self.method.max_norm is not None or type(base) is not SGD or hasattr(base.step, "_wrapped_by_lr_sched"):
            return None
        if base._optimizer_step_pre_hooks or base._optimizer_step_post_hooks:
            return None
        for group in base.param_groups:
            unlike_plain = ("momentum", "weight_decay", "maximize", "differentiable")
            if any(group.get(name) for name in unlike_plain) or isinstance(group["lr"], Tensor):
                return None
        rates = {id(p): float(group["lr"]) for group in base.param_groups for p in group["params"]}
        return [rates[id(p)] for p in params] if all(p.is_contiguous() for p in params) else None

    def _move_all(self, frozen: Tensor | None) -> None:
        move_all(self.base, self.slabs, self.vectors.v, self.method.max_norm, frozen)

    def _move_selected(self, values: list[Tensor], frozen: Tensor | None) -> None:
        assert self.compact is not None
        assert self.selections is not None
        if not self.compact.entered:
            self.compact.enter(self.selections, self.vectors.memory)
        self.compact.step(values, self.method.max_norm, frozen)

    def theorem_1_step(self, length: float) -> float:
        """Theorem 1's step size times L, for an inner loop of that length."""
        k2 = self.d
        if self.sparsity is not None and not self.sparsity.per_tensor:
            k2 = resolve_counts(self.sparsity.k1, self.sparsity.k2, self.d)[1]
        return theorem_1_step(max(k2, 1), self.d, length)

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if self.compact is not None:
            self.compact.flush()
            state["compact"] = self.compact.state_dict()
        state["vectors"] = self.vectors.state_dict()
        if self.dimensions is not None:
            state["dimensions"] = self.dimensions
        state["selections"] = None if self.selections is None else [s.state_dict() for s in self.selections]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.vectors.load_state_dict(state["vectors"])
        self.selections = None
        if self.selector is not None:
            self.selector.hint = None
        if state["selections"] is not None:
            pairs = zip(state["selections"], self.slabs, strict=True)
            self.selections = [Selection.from_state_dict(saved, slab.device) for saved, slab in pairs]
        if self.compact is not None:
            self.compact.load_state_dict(state["compact"], self.selections or [])
