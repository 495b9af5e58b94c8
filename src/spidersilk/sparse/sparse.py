"""Sparse: any torch optimizer on the selected entries of each weight, in an ordinary training loop."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.optimizer import ParamsT
from torch.utils.weak import WeakTensorKeyDictionary

from spidersilk.checks import check_number, check_positive_int, check_saved
from spidersilk.kernels import backends
from spidersilk.kernels.interface import Entries, Kernels
from spidersilk.loop.markers import WHOLE, Anchor, IsAnchor
from spidersilk.operator.counts import Count, check_count
from spidersilk.operator.random_stream import Stream, mix
from spidersilk.parallel.workers import Group, as_workers
from spidersilk.sparse import saved
from spidersilk.sparse.compact import HALVES, Compact, is_dense, is_trained_whole, laid_out_like
from spidersilk.sparse.owners import Owners

Closure = Callable[[], Any]
_TRAINED = WeakTensorKeyDictionary()  # of weights: the optimizer that reads their gradients, weakly


class Sparse(Optimizer):
    """A torch optimizer that holds gradient and state for the selected entries of each weight alone.

    `loss.backward(); optimizer.step(); optimizer.zero_grad()`: a gradient of a weight is read at the selected entries
    when it arrives, and freed, so that one dense gradient exists at a time. What is stepped are small parameters of the
    selected values (float32 where weights are in half precision); they live on the modules of their weights.

    model_or_params: a module, parameters, or parameter groups; a group may have its own k1 and k2 beside lr and the
        like, and with k2=1.0 is trained whole. Vectors of at most 65,536 entries (norms, biases) are trained whole.
    base_class: a torch.optim class; `base_arguments` go to it.
    k1, k2: how many entries of each weight are chosen by the size of their gradient, and at random. A float is a share
        of the weight, rounded up; an int is a count.
    inner_steps: updates for which a selection lasts; None: for good. What stays selected keeps its state.
    max_norm: clips the gradients of all selected entries together.
    generator: seeds the selections, once; torch's default one if None. process_group: a ProcessGroup of ranks that
        train together, or "world": gradients of the selected entries are averaged over it.
    """

    def __init__(
        self,
        model_or_params: nn.Module | ParamsT,
        base_class: type[Optimizer],
        *,
        k1: Count = 0.0,
        k2: Count = 0.1,
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
        _check_base(base_class)
        model = model_or_params if isinstance(model_or_params, nn.Module) else None
        self.inner_steps, self.max_norm, self._backend = inner_steps, max_norm, backend
        self.steps, self.age = 0, 0  # updates, in all and since the selection was made
        self.gradient_queries = 0.0  # in the paper's accounting; nan if a step did not say how many samples
        self.d = 0  # entries of all weights
        self._base: Optimizer | None = None
        self._compacts: dict[Tensor, Compact] = {}  # by the parameter that is stepped
        self._kernels: dict[tuple[torch.device, torch.dtype], Kernels] = {}
        self._pieces: list[Tensor | None] = []  # gradients of the pieces of an anchor that came so far
        self._handles: list[Any] = []
        self._owners = Owners(model)
        self._closed = weakref.finalize(self, _let_go, self._handles, self._owners)
        self._workers = as_workers(process_group)
        self._stream = Stream(self._workers.seed(generator))
        given: ParamsT = _trainable(model_or_params) if isinstance(model_or_params, nn.Module) else model_or_params
        self._shares: dict[str, Any] = {"k1": k1, "k2": k2}
        super().__init__(given, self._shares)
        groups = [self._stepped(group) for group in self._given]
        self._base = base_class(groups, **base_arguments)
        self.defaults = self._base.defaults
        self._renew()

    # Groups and state are the base's own, so that schedulers and trainers see them.

    @property
    def base(self) -> Optimizer:
        assert self._base is not None
        return self._base

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._given if self._base is None else self._base.param_groups

    @param_groups.setter
    def param_groups(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, groups: list[dict[str, Any]]
    ) -> None:
        if self._base is None:
            self._given = groups  # torch's constructor fills a list of its own
        else:
            self._base.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return defaultdict(dict) if self._base is None else self._base.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._base is not None:
            self._base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._base is None:
            super().add_param_group(param_group)
            return
        group = Optimizer([param_group], self._shares).param_groups[0]  # as torch reads it
        new = self._stepped(group)
        self.base.add_param_group(new)
        self._renew([self._compacts[p] for p in new["params"] if p in self._compacts])

    def _stepped(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group with what the base steps in place of the weights."""
        k1, k2 = group["k1"], group["k2"]
        check_count("k1", k1)
        check_count("k2", k2)
        if k1 + k2 == 0:
            raise ValueError("k1 + k2 = 0 selects nothing: raise k1 or k2 to at least 1 (or a fraction above 0)")
        params = [self._stand_in(weight, k1, k2) for weight in group["params"]]
        self._owners.place([self._compacts[p] for p in params if p in self._compacts])
        return {**group, "params": params}

    def _stand_in(self, weight: Tensor, k1: Count, k2: Count) -> Tensor:
        """The compact parameter of a weight; the weight itself where it is trained whole in its own precision."""
        _check_weight(weight)
        self.d += weight.numel()
        whole = is_trained_whole(weight, k1, k2)
        if not is_dense(weight) or (whole and weight.dtype not in HALVES):
            return weight
        compact = Compact(len(self._compacts), weight, k1, k2)
        self._compacts[compact.param] = compact
        self._kernels[compact.kind] = backends.find(self._backend, [compact.kind])
        me, needs = weakref.ref(self), weight.requires_grad

        def arrived(_: Tensor) -> None:
            optimizer = me()
            if optimizer is not None:
                optimizer._collect(compact)

        weight.requires_grad_(True)  # torch wants it for a hook; frozen ones may be unfrozen later
        self._handles.append(weight.register_post_accumulate_grad_hook(arrived))
        weight.requires_grad_(needs)
        _TRAINED[weight] = me
        return compact.param

    # Gradients.

    def _collect(self, compact: Compact) -> None:
        """Read a gradient that has arrived at the selected entries, and free it."""
        weight, kernels = compact.weight, self._kernels[compact.kind]
        gradient, weight.grad = weight.grad, None
        if gradient is None:
            return
        gradient = laid_out_like(gradient.detach(), weight)
        if compact.is_due:
            with torch.no_grad():
                if self._workers.world > 1:
                    self._workers.average([gradient], self._workers.share(None, None))
                compact.choose(gradient, self._seed(compact), kernels, self.state.get(compact.param, {}))
        compact.collect(gradient, kernels)

    def _seed(self, compact: Compact) -> int:
        """Of the present selection, for one weight."""
        return mix(self._stream.seed, self._stream.position, compact.number)

    def _renew(self, compacts: Iterable[Compact] | None = None) -> None:
        """Make a new selection: at random now, by the gradient when the next one arrives."""
        if compacts is None:
            self._stream.next()
            self.age = 0
        for compact in self._compacts.values() if compacts is None else compacts:
            if compact.is_whole:
                continue
            compact.param.grad = None  # it was of other entries
            if compact.chooses:
                compact.is_due = True
            else:
                kernels, state = self._kernels[compact.kind], self.state.get(compact.param, {})
                compact.draw(self._seed(compact), kernels, state)

    # A step.

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Closure | None = None, anchor: IsAnchor = None, samples: int | None = None
    ) -> Any:
        """One update with the gradients that have arrived; a closure is called first, and its loss returned.

        anchor: what an `AnchorLoader` yields: a new selection is made at an anchor, and `inner_steps` does not count.
        samples: how many samples the gradients are of, for `gradient_queries`.
        """
        if not self._closed.alive:
            raise RuntimeError("this optimizer is closed, it no longer sees gradients: make a new one")
        piece = anchor if isinstance(anchor, Anchor) else WHOLE
        if anchor and piece.first and self.age:
            self._renew()
        due = any(compact.is_due for compact in self._compacts.values())
        loss = self._evaluate(closure, piece)
        share = self._workers.share(getattr(anchor, "portion", None), samples)
        density = 1.0 if due else self.density
        self.gradient_queries += math.nan if share.samples is None else share.samples * density
        if not piece.last:
            return loss
        stepped = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self._workers.average([p.grad for p in stepped if p.grad is not None], share)
        if self.max_norm is not None:
            clip_grad_norm_(stepped, self.max_norm)
        parts = self._parts(stepped)
        for kernels, entries in parts:
            kernels.refresh(entries)
        self.base.step()
        for kernels, entries in parts:
            kernels.write_through(entries)
        self.steps, self.age = self.steps + 1, self.age + 1
        if anchor is None and self.inner_steps is not None and self.age >= self.inner_steps:
            self._renew()
        return loss

    def _evaluate(self, closure: Closure | None, piece: Anchor) -> Any:
        """Call the closure. Of an anchor in pieces, each counts by its weight, whatever the closure zeroes."""
        if closure is None or (piece.first and piece.last):
            with torch.enable_grad():
                return None if closure is None else closure()
        params = [p for group in self.param_groups for p in group["params"]]
        before = [None] * len(params) if piece.first else self._pieces
        for p in params:
            p.grad = None
        with torch.enable_grad():
            loss = closure()
        for p, old in zip(params, before, strict=True):
            if p.grad is not None:
                p.grad.mul_(piece.weight)
            if old is not None:
                p.grad = old if p.grad is None else p.grad.add_(old)
        self._pieces = [] if piece.last else [p.grad for p in params]
        return loss

    def _parts(self, stepped: list[Tensor]) -> list[tuple[Kernels, list[Entries]]]:
        """The entries that stand for weights, by the kernels that work on them."""
        parts: dict[tuple[torch.device, torch.dtype], list[Entries]] = defaultdict(list)
        for p in stepped:
            compact = self._compacts.get(p)
            if compact is not None:
                parts[compact.kind].append(compact.entries)
        return [(self._kernels[kind], entries) for kind, entries in parts.items()]

    @property
    def k(self) -> int:
        """Entries that are trained."""
        return sum(p.numel() for group in self.param_groups for p in group["params"])

    @property
    def density(self) -> float:
        """k / d, for all weights together."""
        return self.k / self.d

    def close(self) -> None:
        """Let go of the model, which is then as it was: no hooks, no compact parameters. It cannot step any more."""
        self._closed()

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """In torch's format: state by number of the parameter, and groups. Tensors are the optimizer's own."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        counters = {"steps": self.steps, "age": self.age, "queries": self.gradient_queries}
        state = saved.save(self.base, self._in_order(), counters | self._stream.state_dict())
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`; weights come with the model's own. A state that does not fit changes nothing."""
        check_saved("the state", state_dict, {})
        state = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        saved.check(state, self.base, self._in_order())
        counters = saved.load(state, self.base, self._in_order())
        self.steps, self.age, self.gradient_queries = (counters[name] for name in ("steps", "age", "queries"))
        self._stream.load_state_dict(counters)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _in_order(self) -> list[Compact | None]:
        return [self._compacts.get(p) for group in self.param_groups for p in group["params"]]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a sparse optimizer holds hooks of its weights: save its state_dict() instead")


def _trainable(model: nn.Module) -> list[Tensor]:
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    if not params:
        raise ValueError("no parameter of the model requires a gradient: unfreeze at least one")
    return params


def _check_base(base_class: object) -> None:
    if not isinstance(base_class, type) or not issubclass(base_class, Optimizer):
        raise ValueError(f"base_class = {base_class!r} must be a class of torch.optim, such as torch.optim.AdamW")
    if issubclass(base_class, LBFGS | SparseAdam) or base_class.__name__ in ("Adafactor", "Muon"):
        raise ValueError(f"base_class = {base_class.__name__} cannot step single entries: use SGD, AdamW or the like")


def _check_weight(weight: Tensor) -> None:
    if not weight.is_floating_point():
        raise ValueError(f"a parameter of {weight.dtype}: only real floating-point parameters can be selected from")
    if weight.is_meta:
        raise ValueError("parameters on the meta device have no values: give them some first (model.to_empty(...))")
    reference = _TRAINED.get(weight)
    other = None if reference is None else reference()
    if other is not None and other._closed.alive:
        raise ValueError("a parameter has a sparse optimizer already, or is given twice: call close() on the other one")


def _let_go(handles: list[Any], owners: Owners) -> None:
    """Take hooks and compact parameters from the model; also when an optimizer is no longer there."""
    for handle in handles:
        handle.remove()
    owners.close()
