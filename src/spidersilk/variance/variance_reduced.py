"""VarianceReduced: one mechanism made of three independent choices (reference, scaling, move), over any base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spidersilk.checks import check_choice
from spidersilk.kernels import backends
from spidersilk.kernels.plain import all_finite
from spidersilk.loop.counter import CountsLoops, LoopCounter
from spidersilk.loop.lengths import Adaptive, InnerLength, as_inner_length
from spidersilk.loop.markers import Batch, IsAnchor
from spidersilk.operator.random_stream import Stream
from spidersilk.operator.selection import Selection
from spidersilk.operator.settings import RTop
from spidersilk.parallel.workers import Group, Traffic, as_workers
from spidersilk.variance.divergence import DeviceFlag, DivergenceError
from spidersilk.variance.engine import Engine
from spidersilk.variance.flat import make_slabs
from spidersilk.variance.graph import capturing
from spidersilk.variance.measures import Measures
from spidersilk.variance.method import Choose, Method, Move, check_base, check_model
from spidersilk.variance.over_base import CHANGED, OverGivenBase
from spidersilk.variance.rank_facts import facts_of
from spidersilk.variance.refusals import NO_CLOSURE, refuse_scaler, refuse_skipped_batches
from spidersilk.variance.saving import check_base_state, check_counted, check_engine_state, check_settings
from spidersilk.variance.smoothness import Secants
from spidersilk.variance.two_point import Closure, Point
from spidersilk.variance.watch import Watch


class VarianceReduced(CountsLoops, OverGivenBase):
    """Gives any `torch.optim` optimizer a variance-reduced, optionally sparse, gradient estimate to step with.

    base_optimizer: what moves the parameters: SGD for the paper's algorithms, momentum, AdamW, a fused one.
    reference: what a small step's gradient is compared with: the "previous" iterate or the "anchor" point; or the name
        of an estimator that was registered.
    sparsity: `RTop(k1, k2, ...)`, or None for the dense method.
    move: "all" coordinates of v move x, or only the "selected" ones, which are fresh and never rescaled.
    choose: draw the selection at every "step" or once per "anchor".
    anchor_move: with move="selected", whether an anchor moves "all" coordinates (the base has one full-size state) or
        only the newly "selected" ones (the base's state has size k).
    inner_steps: lets `step(closure)` count by itself which step is an anchor: an int, `Geometric(mean)`, or "auto",
        which ends a loop when v has become too noisy (`Adaptive(...)` sets how noisy).
    max_norm: clips the v that moves x to this norm; the running estimate stays as it is. Do not clip inside the
        closure: it would spoil the differences.
    sparse_backward: whether small steps compute the selected groups of a weight's gradient alone, where whole rows or
        columns are selected and its layer has a rule for it (docs/backprop.md).
    model: the module that holds the parameters: its buffers (BatchNorm's) are kept the same for both evaluations, and
        its modules tell which dimension of a weight has columns; without it these are searched for.
    generator: seeds the selections, once. process_group: ranks that train together, or "world" (docs/distributed.md).

    After a step with move="all" `p.grad` is v (a copy), after a small one with move="selected" None. `state[p]` holds
    "reference", and views of flat vectors: "estimate", "memory", "anchor_estimate". `steps`, `anchors`: done so far;
    `inner_step`: place in the loop, -1 if an anchor is due; `anchor_share`: of an anchor in pieces; `gradient_queries`.
    """

    _step_supports_amp_scaling = True  # so that a GradScaler shows itself, and can be refused

    def __init__(
        self,
        base_optimizer: Optimizer,
        reference: str = "anchor",
        *,
        move: Move = "all",
        choose: Choose = "step",
        anchor_move: Move = "all",
        sparsity: RTop | None = None,
        inner_steps: int | str | InnerLength | None = None,
        max_norm: float | None = None,
        backend: str = "auto",
        sparse_backward: bool = False,
        model: nn.Module | None = None,
        generator: torch.Generator | None = None,
        process_group: Group = None,
    ):
        self.method = Method(reference, move, choose, anchor_move, sparsity, max_norm)
        check_choice("sparse_backward", sparse_backward, (True, False))
        check_base(base_optimizer, self.method)
        length = None if inner_steps is None else as_inner_length(inner_steps)
        if isinstance(length, Adaptive):
            self.method.check_adaptive()
        super().__init__(base_optimizer)
        self._kernels = backends.find(backend, [(s.device, s.dtype) for s in make_slabs(self.param_groups)])
        self._workers = as_workers(process_group)
        self._stream = Stream(self._workers.seed(generator))
        self._loop = LoopCounter(length, self._stream)
        self._sparse_backward, self._model = sparse_backward, model
        self._engine: Engine | None = None  # built at the first step, with the flag
        self._attached = False
        self._flag: DeviceFlag | None = None
        self._secants = Secants()
        self._watch = Watch(self.method, self._divergence)
        self.method.check_counts(self.d)
        check_model(model, self.param_groups)

    # What a user asks.

    reference = property(lambda self: self.method.reference)
    sparsity = property(lambda self: self.method.sparsity)
    scaling = property(lambda self: self.method.scaling)
    move = property(lambda self: self.method.move)
    choose = property(lambda self: self.method.choose)
    anchor_move = property(lambda self: self.method.anchor_move)
    max_norm = property(lambda self: self.method.max_norm)
    sparse_backward = property(lambda self: self._sparse_backward)

    @property
    def d(self) -> int:
        """The number of coordinates: the entries of all parameters that require a gradient."""
        return sum(slab.d for slab in make_slabs(self.param_groups)) if self._engine is None else self._engine.d

    @property
    def evaluating(self) -> Point | None:
        """Which point the closure is being evaluated at: "current" or "reference"; None outside of it."""
        return None if self._engine is None else self._engine.points.evaluating

    @property
    def selection(self) -> Selection | list[Selection] | None:
        """The selection in use: one, or a list where the parameters are of several devices or dtypes."""
        selections = None if self._engine is None else self._engine.selections
        return selections if selections is None or len(selections) > 1 else selections[0]

    @property
    def smoothness(self) -> float | None:
        """The largest |g(x) - g(y)| / |x - y| seen at first small steps: a lower bound of L. None if none was seen."""
        return self._secants.largest()

    def register_measures_hook(self, hook: Callable[[Measures], None]) -> RemovableHandle:
        """Call `hook(measures)` at each small step, with what the step can tell of itself; off by default, and free."""
        handle = RemovableHandle(self._watch.hooks)
        self._watch.hooks[handle.id] = hook
        return handle

    @property
    def traffic(self) -> Traffic:
        """What this rank has handed over to be sent to others."""
        return self._workers.traffic

    def check_agreement(self) -> None:
        """Raise DisagreementError on every rank if one differs; to be called on all of them. Anchors do so anyway."""
        parts = self._loop, self._stream, self.param_groups, [self._settings(), self.max_norm], bool(self._watch.hooks)
        self._workers.verify(lambda: facts_of(self._built(), *parts))

    def check(self) -> None:
        """Wait for the device and raise DivergenceError if v was not finite at any step so far."""
        if self._flag is not None:
            self._flag.wait()

    # A step.

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Closure | None = None, anchor: IsAnchor = None, samples: int | None = None
    ) -> Any:
        """One update; returns the closure's loss at the current point.

        anchor: True for a large batch, False for a small one; an `AnchorLoader` gives it. None counts by `inner_steps`.
        samples: how many samples the closure's batch has, for `gradient_queries`.
        """
        if not callable(closure):
            raise ValueError(NO_CLOSURE if closure is None else f"closure = {closure!r} must be a function")
        if hasattr(self, "found_inf"):
            refuse_scaler(self)
        batch = self._loop.read(anchor, samples, self._workers)
        engine = self._built()
        if not self._attached:  # not when it is built, which loading a state does too: a wrapper may come later
            self._workers.attach(engine.vectors.params)
            refuse_skipped_batches(engine.vectors.params)
            self._attached = True
        if self._flag is not None and self._workers.world == 1:
            self._flag.poll()
        with engine.points.one_step():
            return (self._anchor_step if batch.kind == "anchor" else self._small_step)(engine, closure, batch)

    def _anchor_step(self, engine: Engine, closure: Closure, batch: Batch) -> Any:
        """v := gradient of a large batch, or of the pieces that make it up (lines 5-6); the first move (line 9)."""
        loop, piece = self._loop, batch.piece
        loop.begin_piece(piece)
        if piece.first:
            if self._flag is not None and self._workers.world > 1:
                self._flag.wait()  # ranks learn of a bad step at different times
            self.check_agreement()
        engine.prepare_anchor()
        whole = piece.first and piece.last
        loss, weight = self._workers.at_anchor(lambda: engine.points.at_current(closure), whole, batch.share)
        engine.vectors.accumulate(piece.weight * weight, piece.first)
        loop.end_piece(piece, batch.share.samples)
        if not piece.last or piece.idle:
            return loss
        self._workers.reduce_anchor(engine.vectors.v)
        self._watch.meter.restart()
        flag = None if self._flag is None else self._flag.at(loop.steps, 0)
        if not all_finite(engine.vectors.v, flag):
            raise self._divergence(loop.steps, 0)
        engine.begin_loop(None if flag is None else flag.raised[0] != 0)
        loop.done(0)
        if self._flag is not None:
            self._flag.report()
        return loss

    def _small_step(self, engine: Engine, closure: Closure, batch: Batch) -> Any:
        """v from a small batch at two points (lines 10-11), M (line 12), and a move (line 9)."""
        loop, inner_step = self._loop, self._loop.inner_step + 1
        if batch.adaptive is not None:
            self.method.check_adaptive()
            batch.adaptive.seen = True
        selections = engine.select()  # M alone decides it, so it is drawn before any gradient is known
        with self._workers.quiet:
            evaluated = engine.evaluate(closure, selections)  # line 10
        values = evaluated.values
        self._workers.average(values, batch.share)
        density = sum(x.numel() for x in values) / engine.d
        loop.count(batch.share.samples, 2, density)
        if inner_step == 1 and not capturing():  # a DivergenceError will quote it
            self._secants.observe(values, engine.vectors.distance())
        flag = None if self._flag is None else self._flag.at(loop.steps, inner_step)
        if self._watch.hooks or batch.adaptive is not None:
            self._watch.step(engine, evaluated, selections, batch, loop, self._workers, flag)
        elif engine.advance(values, selections, flag):  # lines 11, 12 and 9
            loop.done(inner_step)
        else:
            raise self._divergence(loop.steps, inner_step)
        if self._flag is not None:
            self._flag.report()
        return evaluated.loss

    def _built(self) -> Engine:
        """Built at the first step; later, see that the parameters are still the same."""
        everything = (p for group in self.param_groups for p in group["params"])
        trained = [(id(p), p.device, p.dtype) for p in everything if p.requires_grad]
        if self._engine is None:
            self._engine = self._make_engine()
            self._trained, self.is_built = trained, True
            on_cuda = [slab.device for slab in self._engine.slabs if slab.device.type == "cuda"]
            self._flag = DeviceFlag(on_cuda[0], self._divergence) if on_cuda else None
        elif trained != self._trained:
            raise RuntimeError(CHANGED)
        return self._engine

    def _make_engine(self) -> Engine:
        """The one in use, or a new one."""
        parts = self.base, self.state, self.method, self._stream, self._kernels, self._model, self._sparse_backward
        return Engine(*parts) if self._engine is None else self._engine

    def _divergence(self, step: int, inner_step: int) -> DivergenceError:
        """Describe what happened, and let the next step be an anchor that starts v and M anew."""
        engine = self._built()
        norms = engine.vectors.norms()
        self._loop.start_anew()
        engine.vectors.has_memory = False
        lr = [float(group["lr"]) for group in self.param_groups if "lr" in group]
        allowed = engine.theorem_1_step(self._loop.mean_length(inner_step))
        return DivergenceError(step, inner_step, norms, lr, allowed, self._secants.largest())

    # Saving and loading.

    def _save(self) -> dict[str, Any]:
        self._workers.check_can_pass(self.anchor_share)
        meter = self._watch.meter.state_dict() | {"smoothness": self.smoothness, "longest": self._loop.longest}
        state = {"settings": self._settings(), "stream": self._stream.state_dict()}
        state |= {"counters": self._loop.state_dict(), "meter": meter}
        if self._engine is not None and self._workers.world == 1:
            self.check()
        state |= {} if self._engine is None else self._engine.state_dict()
        return state | {"base": self.base.state_dict()}

    def _check(self, state: dict[str, Any]) -> None:
        check_settings(state, self._settings(), type(self).__name__)
        check_counted(state)
        self._workers.check_can_pass(state["counters"]["anchor_share"])
        check_base_state(state["base"], self.base)
        if "vectors" in state:
            check_engine_state(state, self._make_engine())

    def _load(self, state: dict[str, Any]) -> None:
        self.base.load_state_dict(state["base"])
        self._stream.load_state_dict(state["stream"])
        meter = state["meter"]
        self._watch.meter.load_state_dict(meter)
        self._secants = Secants(meter["smoothness"])
        self._loop.load_state_dict(state["counters"] | {"longest": meter["longest"]})
        if "vectors" not in state:
            self._engine, self._flag, self.is_built = None, None, False  # saved before the first step
        else:
            self._built().load_state_dict(state)
            if self._flag is not None:
                self._flag.reset()

    def _settings(self) -> dict[str, Any]:
        sizes = [slab.sizes for slab in make_slabs(self.param_groups)]
        more = {"base": type(self.base).__name__, "inner_steps": repr(self._loop.length), "sizes": sizes}
        return self.method.settings() | more
