"""VarianceReduced: one mechanism made of three independent choices (reference, scaling, move), over any base."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spidersilk.checks import check_choice, check_same_settings, resolve_counts
from spidersilk.kernels import backends as dispatch
from spidersilk.loop.lengths import Adaptive, Anchor, InnerLength, Portion, Small, as_inner_length
from spidersilk.operator.selection import RTop, Selection
from spidersilk.operator.sparsity import QueryCounter
from spidersilk.operator.stream import Stream, mix
from spidersilk.parallel.agreement import facts_of
from spidersilk.parallel.workers import Group, Share, Traffic, as_workers
from spidersilk.variance.backprop.evaluate import Evaluator
from spidersilk.variance.divergence import Guard, Secants
from spidersilk.variance.engine import CHANGED, Choices, Mechanics
from spidersilk.variance.errors import DivergenceError
from spidersilk.variance.flat import make_slabs
from spidersilk.variance.measures import Measures, Meter
from spidersilk.variance.method import check_adaptive, check_base, check_choices, errors_are_independent
from spidersilk.variance.two_point import Closure, TwoPoint, capturing, loss_of


class VarianceReduced(Optimizer):
    """Gives any `torch.optim` optimizer a variance-reduced, optionally sparse, gradient estimate to step with.

    base_optimizer: what moves the parameters: SGD for the paper's algorithms, momentum, AdamW, a fused one.
    reference: what a small step's gradient is compared with: the "previous" iterate, the "anchor" point, or None (no
        difference: one evaluation instead of two).
    sparsity: `RTop(k1, k2, ...)`, or None for the dense method.
    move: "all" coordinates of v move x, or only the "selected" ones, which are fresh and never rescaled.
    choose: draw the selection at every "step" or once per "anchor".
    anchor_move: with move="selected", whether an anchor moves "all" coordinates (the base has one full-size state) or
        only the newly "selected" ones (the base's state has size k).
    inner_steps: lets `step(closure)` count by itself which step is an anchor: an int, `Geometric(mean)`, or "auto",
        which ends a loop when v has become too noisy (`Adaptive(...)` sets how noisy).
    max_norm: clips the v that moves x to this norm; the running estimate stays as it is. Do not clip inside the
        closure: it would spoil the differences.
    sparse_backward: whether small steps compute the selected gradient entries alone where a layer has a rule for it;
        "auto" does so for whole rows of large weights on a CPU, True where the clock shows a gain, "always" always.
    generator: seeds the selections, once; torch's default one if None.
    process_group: a ProcessGroup of ranks that train together, or "world" (docs/distributed.md).

    After a step with move="all", `p.grad` is v (a copy). After a small step with move="selected" it is None: nothing of
    size d is kept. `state[p]` holds views of the flat vectors, by name: "estimate", "memory", "reference" ...
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        reference: str | None = "anchor",
        *,
        move: str = "all",
        choose: str = "step",
        anchor_move: str = "all",
        sparsity: RTop | None = None,
        inner_steps: int | str | InnerLength | None = None,
        max_norm: float | None = None,
        backend: str = "auto",
        sparse_backward: bool | str = "auto",
        generator: torch.Generator | None = None,
        process_group: Group = None,
    ):
        check_choice("sparse_backward", sparse_backward, (True, False, "auto", "always"))
        check_base(base_optimizer, move, anchor_move)
        self.scaling = check_choices(reference, move, choose, anchor_move, sparsity)
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm = {max_norm} must be positive: None turns clipping off")
        length = None if inner_steps is None else as_inner_length(inner_steps)
        if isinstance(length, Adaptive):
            check_adaptive(reference, self.scaling, choose, sparsity)
        super().__init__(base_optimizer.param_groups, {})
        self.base = base_optimizer
        self.defaults = base_optimizer.defaults
        self.reference, self.move, self.choose, self.anchor_move = reference, move, choose, anchor_move
        self.sparsity, self.max_norm, self.sparse_backward = sparsity, max_norm, sparse_backward
        self._choices = Choices(reference, self.scaling, move, choose, anchor_move, sparsity, max_norm)
        self.inner_length = length
        self.steps = 0  # updates done
        self.anchors = 0  # anchors done
        self.inner_step = -1  # the last update's place in its loop, 0 for the anchor's; -1 if an anchor must come
        self.loop_length = 0  # of the loop under way, where the optimizer counts by itself
        self.anchor_share = 0.0  # how much of an anchor in pieces has come, 0 outside of one
        self.anchor_samples: int | None = 0  # of the last anchor, None if a step did not say
        self._queries = QueryCounter()
        self._ops = dispatch.find(backend, [(slab.device, slab.dtype) for slab in make_slabs(self.param_groups)])
        self._workers = as_workers(process_group)
        self._stream = Stream(self._workers.seed(generator))
        self._work: Mechanics | None = None  # laid out at the first step
        self._secants = Secants()
        independent = errors_are_independent(self.scaling, choose, sparsity)
        self._meter = Meter(reference == "previous", self.scaling, move == "selected", independent)
        self._hooks: dict[int, Callable[[Measures], None]] = OrderedDict()
        self._longest_loop = 1
        d = self.d
        if sparsity is not None and not sparsity.per_tensor:
            resolve_counts(sparsity.k1, sparsity.k2, d)

    # What a user asks.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's own, also after the base has loaded a state."""
        return self.base.param_groups if hasattr(self, "base") else self._groups_at_start

    @param_groups.setter
    def param_groups(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, groups: list[dict[str, Any]]
    ) -> None:
        if hasattr(self, "base"):
            self.base.param_groups = groups
        else:
            self._groups_at_start = groups  # torch's constructor fills a list of its own

    @property
    def d(self) -> int:
        """The number of coordinates: the entries of all parameters that require a gradient."""
        return sum(slab.d for slab in make_slabs(self.param_groups)) if self._work is None else self._work.d

    @property
    def evaluating(self) -> str | None:
        """Which point the closure is being evaluated at: "current" or "reference"; None outside of it."""
        return None if self._work is None else self._points.evaluating

    @property
    def gradient_queries(self) -> float:
        """Queries so far in the paper's accounting; nan if a step did not say its number of samples."""
        return self._queries.total

    @property
    def selection(self) -> Selection | list[Selection] | None:
        """The selection in use: one, or a list where the parameters are of several devices or dtypes."""
        selections = None if self._work is None else self._work.selections
        return selections if selections is None or len(selections) > 1 else selections[0]

    def next_is_anchor(self, anchor: bool | Anchor | Small | Portion | None = None) -> bool:
        """Whether the next step is an anchor, given what will be passed to it as `anchor`."""
        if anchor is not None:
            return bool(anchor)
        if self.inner_length is None:
            raise ValueError(
                "anchor = None needs inner_steps: pass anchor=True or False, or construct with inner_steps"
            )
        return self.inner_step < 0 or self.inner_step + 1 >= self.loop_length

    @property
    def smoothness(self) -> float | None:
        """The largest |g(x) - g(y)| / |x - y| seen at first small steps: a lower bound of L. None if none was seen."""
        return self._secants.largest()

    def register_measures_hook(self, hook: Callable[[Measures], None]) -> RemovableHandle:
        """Call `hook(measures)` at each small step, with what the step can tell of itself; off by default, and free."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    @property
    def traffic(self) -> Traffic:
        """What this rank has handed over to be sent to others."""
        return self._workers.traffic

    def check_agreement(self) -> None:
        """Raise DisagreementError on every rank if one differs; to be called on all of them. Anchors do so anyway."""
        self._workers.verify(lambda: facts_of(self))

    def check(self) -> None:
        """Wait for the device and raise DivergenceError if v was not finite at any step so far."""
        if self._work is not None:
            self._guard.wait()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not hasattr(self, "base"):  # torch's constructor registers the base's own groups through this method
            super().add_param_group(param_group)
        elif self._work is not None:
            raise RuntimeError(CHANGED)
        else:
            self.base.add_param_group(param_group)

    # A step.

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Closure, anchor: bool | Anchor | Small | Portion | None = None, samples: int | None = None
    ) -> Any:
        """One update; returns the closure's loss at the current point.

        anchor: True for a large batch, False for a small one; an `AnchorLoader` gives it. None counts by `inner_steps`.
        samples: how many samples the closure's batch has, for `gradient_queries`.
        """
        if not callable(closure):
            raise ValueError(f"closure = {closure!r} must be a function that computes the loss and calls backward()")
        if samples is not None and samples < 0:
            raise ValueError(f"samples = {samples} must be at least 0: it is the number of samples of the batch")
        marker = self._marker(anchor)
        work = self._prepared()
        self._workers.attach(work.vectors.params)
        self._workers.apart(self._guard.poll)
        share = self._workers.share(anchor, samples)
        samples = share.samples  # on all ranks together
        if marker is not None:
            return self._anchor_step(work, closure, marker, share)
        if self.anchor_share:
            raise RuntimeError(f"a small step after {self.anchor_share:.0%} of an anchor: give its other pieces first")
        if self.inner_step < 0:
            raise RuntimeError("a small step before any anchor: v is not set, so give an anchor first (anchor=True)")
        if isinstance(anchor, Small):
            check_adaptive(self.reference, self.scaling, self.choose, self.sparsity)
            anchor.seen = True
        if anchor is None and isinstance(self.inner_length, Adaptive):
            if not samples or self.anchor_samples is None:
                raise ValueError("inner_steps = 'auto' weighs batches by their size: pass samples= to each step")
            anchor = Small(self.inner_length, samples, self.anchor_samples, lambda: None)
        small = anchor if isinstance(anchor, Small) else None
        try:
            return self._small_step(work, closure, share, small)
        except DivergenceError:
            if small is not None:
                small.end_loop()
            raise

    def _marker(self, anchor: bool | Anchor | Small | Portion | None) -> Anchor | None:
        if isinstance(anchor, Anchor):
            return anchor
        if isinstance(anchor, Small | Portion):
            return None
        if anchor is not None and not isinstance(anchor, bool):
            raise ValueError(f"anchor = {anchor!r} must be True, False, None, or what an AnchorLoader yields")
        if not self.next_is_anchor(anchor):
            return None
        return Anchor(idle=anchor is None and self._next_length() == 0)

    def _next_length(self) -> int:
        """Of the loop that the next anchor begins, where the optimizer counts by itself; an adaptive one has no end."""
        if self.inner_length is None:
            return 0
        if isinstance(self.inner_length, Adaptive):
            return self.inner_length.ceiling or _ENDLESS
        return self.inner_length.length(mix(self._stream.seed, _LENGTHS), self.anchors)

    def _anchor_step(self, work: Mechanics, closure: Closure, marker: Anchor, at: Share) -> Any:
        """v := gradient of a large batch, or of the pieces that make it up (lines 5-6); the first move (line 9)."""
        if marker.first:
            self.anchor_share, self.anchor_samples = 0.0, 0
            self._workers.together(self._guard.wait)  # when a device tells of a bad step differs between ranks
            self.check_agreement()
        share = self.anchor_share + marker.weight
        if share > 1 + 1e-6 or (marker.last and share < 1 - 1e-6):
            raise RuntimeError(f"the pieces of an anchor make up {share:.0%} of it: give each once, in order")
        work.prepare_anchor()
        loss, weight = self._workers.at_anchor(lambda: self._points.at_current(closure), marker, at)
        work.vectors.accumulate(marker.weight * weight, marker.first)
        self._queries.add(at.samples, 1, 1.0)
        self.anchor_share = share
        known = None not in (at.samples, self.anchor_samples)
        self.anchor_samples = (self.anchor_samples or 0) + (at.samples or 0) if known else None
        if not marker.last:
            return loss
        self.anchor_share, self.loop_length = 0.0, self._next_length()
        self.anchors += 1
        self.inner_step = -1
        if marker.idle:
            return loss
        self._workers.reduce_anchor(work.vectors.v)
        self._meter.restart()
        work.begin_loop(self._guard.watch(work.vectors.v, self.steps, 0))
        self._done(0)
        return loss

    def _small_step(self, work: Mechanics, closure: Closure, share: Share, small: Small | None) -> Any:
        """v from a small batch at two points (lines 10-11), M (line 12), and a move (line 9)."""
        inner_step = self.inner_step + 1
        selections = work.select()  # M alone decides it, so it is drawn before any gradient is known
        evaluate = lambda: self._evaluator.evaluate(closure, selections)  # noqa: E731
        loss, before, values = self._workers.at_small(evaluate, share)
        density = sum(x.numel() for x in values) / work.d
        self._queries.add(share.samples, 1 if self.reference is None else 2, density)
        if self.reference is not None and inner_step == 1 and not capturing():  # what a DivergenceError will tell of
            self._secants.observe(values, work.vectors.distance())
        watched = small is not None or bool(self._hooks)
        finite = None if watched else work.advance(values, selections, self._guard.flag(self.steps, inner_step))
        if finite is not None:
            if not finite:
                raise self._divergence(self.steps, inner_step)
            self._guard.report()
            self._done(inner_step)
            return loss
        estimates = work.estimate(values, selections)
        frozen = self._guard.watch(estimates, self.steps, inner_step)
        if small is not None or self._hooks:
            where, size = (self.steps, inner_step), share.samples if small is None else small.samples
            change = math.nan if before is None else self._workers.mean(loss_of(loss) - loss_of(before), share)
            measures = self._meter.measure(where, values, selections, estimates, change, work.vectors.memory, size)
            for hook in list(self._hooks.values()):
                hook(measures)
            recursive = self.reference == "previous"
            if small is not None and recursive and not small.rule.is_safe(inner_step, measures.noise):
                self._end_loop(small)
                for p in work.vectors.params:
                    p.grad = None  # v was not taken
                return loss
        work.take(estimates, frozen)
        self._done(inner_step)
        if small is not None:
            price = small.anchor_samples / (2 * small.samples * density)
            pays = self.reference == "previous" or small.rule.pays(self._meter.changes, price)
            if not pays or small.rule.is_over(inner_step + 1, price):
                self._end_loop(small)
        return loss

    def _end_loop(self, small: Small) -> None:
        """Let an anchor come next, and the loader know."""
        self.loop_length = self.inner_step = -1
        small.end_loop()

    def _prepared(self) -> Mechanics:
        """Lay out the flat vectors at the first step; later, see that the parameters are still the same."""
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if self._work is None:
            self._work = Mechanics(self.base, self.state, self._choices, self._stream, self._ops)
            self._points = TwoPoint(self._work.vectors.params)
            two_points = self.reference is not None
            sparse = self._workers.without_clock(self.sparse_backward)
            self._evaluator = Evaluator(self._points, self._work.vectors, self._ops, two_points, sparse)
            self._guard = Guard([slab.device for slab in self._work.slabs], self._divergence)
            self._trained = trained
        elif len(trained) != len(self._trained) or any(p is not q for p, q in zip(trained, self._trained, strict=True)):
            raise RuntimeError(CHANGED)
        return self._work

    def _done(self, inner_step: int) -> None:
        self.inner_step = inner_step
        self.steps += 1
        self._longest_loop = max(self._longest_loop, inner_step + 1)

    def _divergence(self, step: int, inner_step: int) -> DivergenceError:
        """Describe what happened, and let the next step be an anchor that starts v and M anew."""
        work = self._prepared()
        norms = work.vectors.norms()
        self.inner_step, self.anchor_share, work.vectors.has_memory = -1, 0.0, False
        known = self.inner_length is not None and math.isfinite(self.inner_length.mean)
        length = self.inner_length.mean if self.inner_length and known else max(inner_step + 1, self._longest_loop)
        lr = [float(group["lr"]) for group in self.param_groups if "lr" in group]
        return DivergenceError(step, inner_step, norms, lr, work.theorem_1_step(length), self._secants.largest())

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """All that the next step needs; tensors are the optimizer's own, as with torch's optimizers."""
        self._workers.check_can_pass(self.anchor_share)
        state: dict[str, Any] = {
            "settings": self._settings(),
            "stream": self._stream.state_dict(),
            "counters": {name: getattr(self, name) for name in _COUNTERS} | {"queries": self._queries.total},
            "meter": self._meter.state_dict() | {"smoothness": self.smoothness, "longest": self._longest_loop},
        }
        if self._work is not None:
            self._workers.apart(self.check)
            state |= self._work.state_dict()
        return state | {"base": self.base.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the `state_dict` of an optimizer with the same settings, over parameters of the same sizes."""
        if "settings" not in state_dict:
            raise ValueError(f"not a state of {type(self).__name__}: it has {', '.join(state_dict)} and no settings")
        check_same_settings(self._settings(), state_dict["settings"], "construct the same one")
        self._workers.check_can_pass(state_dict["counters"]["anchor_share"])
        self.base.load_state_dict(state_dict["base"])
        self._stream.load_state_dict(state_dict["stream"])
        self._queries.total = state_dict["counters"]["queries"]
        self._meter.load_state_dict(state_dict["meter"])
        self._secants, self._longest_loop = Secants(state_dict["meter"]["smoothness"]), state_dict["meter"]["longest"]
        for name in _COUNTERS:
            setattr(self, name, state_dict["counters"][name])
        if "vectors" not in state_dict:
            self._work = None  # saved before the first step
        else:
            self._prepared().load_state_dict(state_dict)
            self._guard.reset()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a VarianceReduced optimizer holds views of its parameters: save its state_dict() instead")

    def _settings(self) -> dict[str, Any]:
        sizes = [slab.sizes for slab in make_slabs(self.param_groups)]
        own = {"base": type(self.base).__name__, "inner_steps": repr(self.inner_length), "sizes": sizes}
        return self._choices.settings() | own


_ENDLESS = 10**12  # updates
_LENGTHS = 1  # the stream of loop lengths, apart from that of selections
_COUNTERS = ("steps", "anchors", "inner_step", "loop_length", "anchor_share", "anchor_samples")
