"""Sparse: any torch optimizer on the selected entries of each weight, in an ordinary training loop."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from spidersilk.checks import check_number, check_positive_int
from spidersilk.loop.markers import WHOLE, Anchor, IsAnchor, Small
from spidersilk.operator.counts import Count
from spidersilk.operator.groups import Groups
from spidersilk.operator.random_stream import Stream, mix
from spidersilk.parallel.workers import Alone, Group, Share, Traffic
from spidersilk.sparse import bases, saved, together
from spidersilk.sparse.averaging import Averaging
from spidersilk.sparse.compact import Compact
from spidersilk.sparse.pieces import Pieces
from spidersilk.sparse.sharded import rank_of, ranks_of
from spidersilk.sparse.weights import CLOSED, Weights, check_group, trainable
from spidersilk.variance.over_base import OverBase


class Sparse(OverBase):
    """A torch optimizer that holds gradient and state for the selected entries of each weight alone.

    `loss.backward(); optimizer.step(); optimizer.zero_grad()`: a gradient of a weight is read at the selected entries
    when it arrives, and freed, so that one dense gradient exists at a time. What is stepped are small parameters of the
    selected values (float32 where weights are in half precision); they live on the modules of their weights.

    model_or_params: a module, parameters, or parameter groups; a group may have its own k1, k2 and step_scale
        beside lr and the like, and with k2=1.0 is trained whole. Vectors of at most 65,536 entries (norms, biases) are
        trained whole.
    base_class: a torch.optim class; `base_arguments` go to it.
    k1, k2: how many entries of each weight are chosen by the size of their gradient, and at random. A float is a share
        of the weight, rounded up; an int is a count. 1.0 is all, 1 is one entry (refused for 1000 entries or more).
    groups: "columns": whole input features of linear layers, input channels of convolutions, features of embeddings;
        layers compute the gradients of these alone, and k1 and k2 are shares of them. "rows": whole outputs. From 64
        on a multiple of 8 is selected, for which GPUs have fast products; single columns of a matrix that has a
        multiple of 8 of them then come as 8 neighbours each.
    step_scale: selected parts of weights step by step_scale * lr. None: one over the share of the weight that they are,
        at most 50, for which the dense optimizer's lr is about right; 1 for nn.Embedding and nn.EmbeddingBag (other
        tables want a group with step_scale=1.0). What is trained whole steps by lr.
    inner_steps: updates for which a selection lasts; None: for good. What stays selected keeps its state.
    max_norm: clips the gradients of all selected entries together.
    generator: seeds the selections, once. process_group: ranks that train together; None: all (docs/distributed.md).

    `steps`, `age`: updates, and those since the selection was made. `d`, `k`, `density`: entries of all weights, those
    that are trained, their ratio. `gradient_queries`: nan if a step did not say `samples`.
    """

    def __init__(
        self,
        model_or_params: nn.Module | ParamsT,
        base_class: type[Optimizer],
        *,
        k1: Count = 0.0,
        k2: Count = 0.1,
        groups: Groups | None = None,
        step_scale: float | None = None,
        inner_steps: int | None = 200,
        max_norm: float | None = None,
        backend: str = "auto",
        generator: torch.Generator | None = None,
        process_group: Group = None,
        **base_arguments: Any,
    ):
        if inner_steps is not None:
            check_positive_int("inner_steps", inner_steps, "None keeps one selection for good")
        if max_norm is not None:
            check_number("max_norm", max_norm, "None turns clipping off", above_zero=True)
        bases.check_base(base_class)
        model = model_or_params if isinstance(model_or_params, nn.Module) else None
        self.inner_steps, self.max_norm = inner_steps, max_norm
        self.steps, self.age, self.gradient_queries = 0, 0, 0.0
        self._shares: dict[str, Any] = {"k1": k1, "k2": k2, "groups": groups, "step_scale": step_scale}
        self._pieces = Pieces()
        self._share: Share | None = None  # of this rank, while a closure is called
        self._weights = Weights(model, backend, self._collect)
        given: ParamsT = trainable(model_or_params) if isinstance(model_or_params, nn.Module) else model_or_params
        super().__init__(given, self._shares)
        weights = [p for group in self._given for p in group["params"]]
        self._shards, self._rank = ranks_of(weights), rank_of(weights)
        self._workers = Alone() if self._shards > 1 else together.workers_of(process_group)
        self._stream = Stream(self._workers.seed(generator))
        self._averaging = Averaging(self._workers, self._share_now, self._check_ranks)
        self._together = self._workers.world > 1
        if self._together:
            self._weights.arrived = self._averaging.arrived
        small = [self._stepped(group) for group in self._given]
        self.base = base_class(small, **bases.arguments_for(base_class, small, base_arguments))
        self.defaults = self.base.defaults
        if model is not None and self._together:
            together.hide_from_ddp(model, [t for c in self._weights for t in (c.weight, c.param)])
        self._renew()

    # Groups and state are the base's own, so that schedulers and trainers see them.

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return self.base.state if hasattr(self, "base") else defaultdict(dict)

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if hasattr(self, "base"):
            self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not hasattr(self, "base"):
            super().add_param_group(param_group)
            return
        new = self._stepped(Optimizer([param_group], self._shares).param_groups[0])  # as torch reads it
        self.base.add_param_group(new)
        self._select([self._weights.by_param[p] for p in new["params"] if p in self._weights.by_param])

    def _stepped(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group with what the base steps in place of the weights."""
        check_group(group)
        stand_ins = self._weights.stand_ins(group["params"], group["k1"], group["k2"], group["groups"])
        return {**group, "params": stand_ins}

    def _params(self) -> list[Tensor]:
        return [p for group in self.base.param_groups for p in group["params"]]

    # What a user asks: how many entries the weights have, how many are trained, and k / d.

    d = property(lambda self: self._weights.d)
    k = property(lambda self: self._weights.k)
    density = property(lambda self: self.k / self.d if self.d else 1.0)

    @property
    def traffic(self) -> Traffic:
        """What this rank has handed over to be sent to others."""
        return self._workers.traffic

    def check_agreement(self) -> None:
        """Raise DisagreementError on every rank if one differs; to be called on all of them. New selections do so."""
        sizes = [
            [(p.numel(), *(group[name] for name in self._shares)) for p in group["params"]]
            for group in self.param_groups
        ]
        settings, progress = [sizes, self.inner_steps, self.max_norm], [self._stream.state_dict(), self.steps]
        weights = [compact.weight for compact in self._weights]
        self._workers.verify(lambda: together.facts(settings, progress, self.param_groups, weights))

    def _check_ranks(self) -> None:
        """Before anything is sent."""
        weights = [compact.weight for compact in self._weights]
        self._averaging.wrappers = together.check_ddp(weights)
        self.check_agreement()

    def no_sync(self) -> AbstractContextManager[None]:
        """In it backward passes send nothing to other ranks: for all micro-batches of a step but the last."""
        return self._averaging.pause()

    def close(self) -> None:
        """Let go of the model, which is then as it was: no hooks, no compact parameters. It cannot step any more."""
        self._weights.close()

    # Gradients and selections.

    def _collect(self, compact: Compact) -> None:
        """Read a gradient that has arrived at the selected entries, and free it."""
        gradient = compact.arrived()
        if gradient is None:
            return
        if compact.is_due:
            with torch.no_grad():
                chosen_by = self._averaging.average(gradient) if self._together else gradient
                compact.choose(chosen_by, self._seed(compact), self.state.get(compact.param, {}))
        compact.collect(gradient)
        if self._together:
            self._averaging.arrived(compact.param)

    def _share_now(self) -> Share:
        """Of this rank: as the loader says while a closure is called; else all count the same."""
        return self._share or self._workers.share(None, None)

    def _seed(self, compact: Compact) -> int:
        """Of the present selection, for one weight, or this rank's part of it."""
        return mix(self._stream.seed, self._stream.position, compact.number, self._rank)

    def _renew(self) -> None:
        """Make a new selection of all weights."""
        self._weights.check_shares(self.param_groups)
        self._stream.next()
        self.age = 0
        if self.steps:
            self.check_agreement()
        self._select(self._weights)

    @torch.no_grad()
    def _select(self, compacts: Iterable[Compact]) -> None:
        """At random now, by the gradient when the next one arrives; until then, the first is at random too."""
        for compact in compacts:
            if compact.is_whole:
                continue
            compact.param.grad = None  # it was of other entries
            compact.is_due = compact.is_dense = compact.chooses
            if not compact.chooses or not compact.is_selected:
                compact.draw(self._seed(compact), self.state.get(compact.param, {}))

    # A step.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's, and gradients that somebody has put on a weight are discarded."""
        super().zero_grad(set_to_none)
        for compact in self._weights:
            compact.weight.grad = None

    @torch._disable_dynamo  # pyright: ignore[reportPrivateImportUsage] (a graph would not count steps)
    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], object] | None = None, anchor: IsAnchor = None, samples: int | None = None
    ) -> Any:
        """One update with the gradients that have arrived; a closure is called first, and its loss returned.

        anchor: what an `AnchorLoader` yields: a new selection is made at an anchor, and `inner_steps` does not count.
        samples: how many samples the gradients are of, for `gradient_queries`.
        """
        if not self._weights.close.alive:
            raise RuntimeError(CLOSED)
        if isinstance(anchor, Small):
            raise ValueError("inner_steps = 'auto' of the loader: a fresh gradient has no difference to end a loop by")
        piece = anchor if isinstance(anchor, Anchor) else WHOLE
        if anchor and piece.first and self.age:
            if closure is None:
                raise ValueError(f"anchor = {anchor}: {together.NO_CLOSURE}")
            self._renew()
        density = 1.0 if any(compact.is_due for compact in self._weights) else self.density
        share = self._workers.share(getattr(anchor, "portion", None), samples)
        if closure is None and not share.even:
            raise ValueError(f"ranks have unequal parts of this batch: {together.NO_CLOSURE}")
        self._share = share
        try:
            loss = self._pieces.evaluate(closure, piece, self._params())
            self._weights.collect_rest()
            stepped = [p for p in self._params() if p.grad is not None]
            if piece.last and self._together:
                self._averaging.rest(stepped)
        finally:
            self._share = None
        self.gradient_queries += math.nan if share.samples is None else share.samples * density
        if piece.last:
            self._move(stepped)
            if anchor is None and self.inner_steps is not None and self.age >= self.inner_steps:
                self._renew()
        return loss

    def _move(self, stepped: list[Tensor]) -> None:
        """Let the base step these, and write what stands for weights through to them."""
        if self.max_norm is not None:
            clip_grad_norm_(stepped, self.max_norm)
        bases.step(self.base, self._weights, stepped)
        self._weights.count_change(stepped)
        for compact in self._weights:
            compact.is_dense = False
        self.steps, self.age = self.steps + 1, self.age + 1

    # Saving and loading.

    def _save(self) -> dict[str, Any]:
        counters = {"steps": self.steps, "age": self.age, "queries": self.gradient_queries, "shards": self._shards}
        return saved.save(self.base, self._in_order(), counters | self._stream.state_dict())

    def _check(self, state: dict[str, Any]) -> None:
        saved.check(state, self.base, self._in_order(), self._shards)

    @torch.no_grad()
    def _load(self, state: dict[str, Any]) -> None:
        counters = saved.load(state, self.base, self._in_order())
        self.steps, self.age, self.gradient_queries = (counters[name] for name in ("steps", "age", "queries"))
        self._stream.load_state_dict(counters)

    def _in_order(self) -> list[Compact | None]:
        return [self._weights.by_param.get(p) for p in self._params()]
