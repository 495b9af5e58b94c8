"""LazySVRG: a small step over embedding tables that costs the rows its batch touches, not all of them.

The anchored v is v_anchor on every row that the batch does not touch, so there x moves along a line and the sum of M
over a row decays towards that of |v_anchor|. A row moves when it is read, by v_anchor times the step sizes since then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.checks import Form, check_number, check_saved
from spidersilk.kernels import backends
from spidersilk.kernels.plain import all_finite
from spidersilk.loop.counter import CountsLoops, LoopCounter
from spidersilk.loop.markers import Anchor
from spidersilk.loop.step_size import theorem_1_step
from spidersilk.operator.random_stream import Stream, fresh_seed
from spidersilk.operator.settings import RTop, Scaling
from spidersilk.parallel.workers import Alone, Group
from spidersilk.variance.divergence import DivergenceError
from spidersilk.variance.flat import Slab, make_slabs
from spidersilk.variance.lazy_rows import LazyRows
from spidersilk.variance.method import Choose, Method
from spidersilk.variance.over_base import CHANGED
from spidersilk.variance.refusals import NO_CLOSURE, refuse_scaler
from spidersilk.variance.saving import Saves, check_settings
from spidersilk.variance.two_point import Closure, TwoPoint


class LazySVRG(CountsLoops, Saves):
    """`SparseSVRG(groups="rows")` with plain SGD, for models that are mostly embedding tables: the same x, less time.

    Tables are the `nn.Embedding` and `nn.EmbeddingBag` modules of `model` with sparse=True; other parameters are moved
    at each step as always. Looking a row up through its module brings it up to date, and so does `state_dict` of the
    model, for all rows; call `flush()` before reading `weight` directly, and `close()` to be done with the model.

    M is kept as its sum over each row, which is all that a selection of rows needs. After a step `p.grad` is None. It
    trains in one process: a `process_group` is refused.
    """

    _step_supports_amp_scaling = True  # so that a GradScaler shows itself, and can be refused

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        k1: float = 0.05,
        k2: float = 0.05,
        memory_decay: float = 0.5,
        memory_reset: bool = False,
        scaling: Scaling = "unbiased",
        choose: Choose = "step",
        per_tensor: bool = False,
        backend: str = "auto",
        generator: torch.Generator | None = None,
        process_group: Group = None,
    ):
        if process_group is not None:
            raise ValueError(
                "LazySVRG with process_group: each rank's batch touches other rows, so there are no shared coordinates "
                "to average; use SparseSVRG(groups='rows') over the ranks, or LazySVRG in one process"
            )
        check_number("lr", lr, "0.1 is a common start")
        self.sparsity = RTop(k1, k2, scaling, memory_decay, memory_reset, per_tensor, groups="rows")
        Method("anchor", "all", choose, "all", self.sparsity)
        if scaling == "refresh":
            raise ValueError("scaling = 'refresh' changes rows that no batch touched: use SparseSVRG for it")
        super().__init__([p for p in model.parameters() if p.requires_grad], {"lr": lr})
        self.choose = choose
        self._stream = Stream(fresh_seed(generator))
        self._loop = LoopCounter(None, self._stream)
        self._slab = _one_slab(self.param_groups)
        kernels = backends.find(backend, [(self._slab.device, self._slab.dtype)])
        self._rows = LazyRows(self._slab, self.sparsity, kernels)
        self._points = TwoPoint(self._slab.params)  # the closure may call modules around `model`
        self._has_memory = self._has_selection = self._closed = False
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse]
        self._handles = [handle for table in tables for handle in self._watch(table)]

    def _watch(self, module: nn.Embedding | nn.EmbeddingBag) -> list[Any]:
        """Hooks by which a table is up to date wherever it is looked up, saved or loaded."""
        if module.max_norm is not None:
            raise ValueError("a table with max_norm renormalises rows as they are read: leave max_norm=None")
        number = next((i for i, p in enumerate(self._slab.params) if p is module.weight), None)
        if number is None:
            return []  # frozen
        self._rows.is_table[number] = True

        def read(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._points.evaluating != "reference":  # the anchor point does not move
                indices = args[0] if args else kwargs["input"]
                self._rows.catch_up(number, indices.reshape(-1).long())

        return [
            module.register_forward_pre_hook(read, with_kwargs=True),
            module.register_state_dict_pre_hook(lambda *_: self.flush()),
            module.register_load_state_dict_pre_hook(lambda *_: self.flush()),
        ]

    # What a user asks.

    @property
    def d(self) -> int:
        return self._slab.d

    @property
    def evaluating(self) -> str | None:
        """Which point the closure is being evaluated at: "current" or "reference"; None outside of it."""
        return self._points.evaluating

    @torch.no_grad()
    def flush(self) -> None:
        """Bring all rows up to date. Changes nothing but rounding."""
        self._rows.flush()

    def close(self) -> None:
        """Bring all rows up to date and let go of the model, which is then a plain one: before it is copied, say."""
        self.flush()
        self._closed = True
        for handle in self._handles:
            handle.remove()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise RuntimeError("a LazySVRG has the parameters of its model: make a new one for another model")
        super().add_param_group(param_group)

    # A step.

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Closure | None = None, anchor: bool | Anchor | None = None, samples: int | None = None
    ) -> Any:
        """One update; returns the closure's loss at the current point. The arguments are those of `SparseSVRG`."""
        if self._closed:
            raise RuntimeError("this LazySVRG is closed, its tables are not watched: make a new one")
        if closure is None:
            raise ValueError(NO_CLOSURE)
        if not isinstance(anchor, bool | Anchor):
            raise ValueError(f"anchor = {anchor!r} must be True, False, or what an AnchorLoader of fixed loops yields")
        if hasattr(self, "found_inf"):
            refuse_scaler(self)
        if any((p.device, p.dtype) != (self._slab.device, self._slab.dtype) for p in self._slab.params):
            raise RuntimeError(CHANGED)
        batch = self._loop.read(anchor, samples, ALONE)
        with self._points.one_step():
            if batch.kind == "small":
                return self._small_step(closure, samples)
            return self._anchor_step(closure, batch.piece, samples)

    def _anchor_step(self, closure: Closure, piece: Anchor, samples: int | None) -> Any:
        self._loop.begin_piece(piece)
        if piece.first:
            self._rows.flush()
        loss = self._points.at_current(closure)
        self._loop.inner_step = -1
        self._rows.accumulate(piece.weight, piece.first)
        self._loop.end_piece(piece, samples)
        if not piece.last or piece.idle:
            return loss
        if not all_finite([self._rows.v]):
            raise self._divergence(0)
        self._rows.begin_loop(not self._has_memory or self.sparsity.memory_reset, self._lr())
        self._has_memory, self._has_selection = True, False
        self._done(0)
        return loss

    def _small_step(self, closure: Closure, samples: int | None) -> Any:
        rows = self._rows
        if not self._has_selection or self.choose == "step":
            rows.draw(self._stream.next())
            self._has_selection = True
        loss = self._points.at_current(closure, then_reference=True)
        current = [None if p.grad is None else p.grad.clone() for p in self._slab.params]  # may be used again
        self._points.at_reference(closure, rows.points)
        pairs = zip(current, [p.grad for p in self._slab.params], strict=True)
        touched = [rows.difference(number, *pair) for number, pair in enumerate(pairs)]
        self._loop.count(samples, 2, rows.density)
        if not rows.advance(touched, self._lr()):
            raise self._divergence(self.inner_step + 1)
        self._done(self.inner_step + 1)
        return loss

    def _lr(self) -> float:
        return float(self.param_groups[0]["lr"])

    def _done(self, inner_step: int) -> None:
        self._loop.done(inner_step)
        for p in self._slab.params:
            p.grad = None

    def _divergence(self, inner_step: int) -> DivergenceError:
        self.flush()
        vectors = {"x": self._slab.flatten(p.detach() for p in self._slab.params), "v": self._rows.v}
        sizes = {name: float(vector.double().norm()) for name, vector in vectors.items()}
        self._loop.start_anew()
        self._has_memory = False
        allowed = theorem_1_step(max(1, round(self.sparsity.k2 * self.d)), self.d, inner_step + 1)
        return DivergenceError(self.steps, inner_step, sizes, [self._lr()], allowed, None)

    # Saving and loading.

    def _save(self) -> dict[str, Any]:
        """All that the next step needs beside the model's own state."""
        self.flush()
        flags = {"_has_memory": self._has_memory, "_has_selection": self._has_selection}
        groups = [{name: value for name, value in g.items() if name != "params"} for g in self.param_groups]
        return {
            "settings": self._settings(),
            "stream": self._stream.state_dict(),
            "counters": self._loop.state_dict() | flags,
            "param_groups": groups,
            "rows": self._rows.state_dict(),
        }

    def _check(self, state: dict[str, Any]) -> None:
        check_settings(state, self._settings(), "LazySVRG")
        counters: Form = {**LoopCounter.FORM, "_has_memory": bool, "_has_selection": bool}
        groups: list[Form] = [{"lr": (float, Tensor)} for _ in self.param_groups]
        form: Form = {"stream": Stream.FORM, "counters": counters, "param_groups": groups, "rows": self._rows.form()}
        check_saved("state", state, form)

    @torch.no_grad()
    def _load(self, state: dict[str, Any]) -> None:
        self._stream.load_state_dict(state["stream"])
        counters = state["counters"]
        self._loop.load_state_dict(counters)
        self._has_memory, self._has_selection = counters["_has_memory"], counters["_has_selection"]
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            group.update(saved)
        self._rows.load_state_dict(state["rows"])

    def _settings(self) -> dict[str, Any]:
        shapes = [list(p.shape) for p in self._slab.params]
        return {"sparsity": vars(self.sparsity), "choose": self.choose, "shapes": shapes}


ALONE = Alone()


def _one_slab(param_groups: list[dict[str, Any]]) -> Slab:
    slabs = make_slabs(param_groups)
    if len(slabs) > 1:
        kinds = ", ".join(f"{slab.dtype} on {slab.device}" for slab in slabs)
        raise ValueError(f"parameters of {kinds}: LazySVRG takes one device and dtype")
    if not all(p.is_contiguous() for p in slabs[0].params):
        raise ValueError("a parameter is not contiguous, so its rows are not in one piece: make it contiguous")
    return slabs[0]
