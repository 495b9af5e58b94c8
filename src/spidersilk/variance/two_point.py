"""A closure evaluated at two points: parameters swapped, randomness replayed, buffers guarded."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from spidersilk.find_modules import calls_of_others, modules_around
from spidersilk.variance.graph import capturing
from spidersilk.variance.group_gradients import GroupGradients
from spidersilk.variance.refusals import ADDED_TO_V, LOST, unchanged_after_backward

Closure = Callable[[], Any]
Point = Literal["current", "reference"]


class TwoPoint:
    """Runs a closure at the current point and then, on equal terms, at a reference point.

    `evaluating` is "current" or "reference" while the closure runs, else None. After either call the gradients are in
    `p.grad`, where they belong to the caller of the closure: copy what is to stay. `model`: whose buffers to guard;
    without one they are searched for.
    """

    def __init__(self, params: Sequence[Tensor], model: nn.Module | None = None):
        self.params = list(params)
        self.evaluating: Point | None = None
        self._model = model
        self._left: list[tuple[weakref.ref[Tensor] | None, int]] = [(None, 0)] * len(self.params)
        self._devices = sorted({p.device.index or 0 for p in self.params if p.is_cuda})
        self._randomness: list[Tensor] = []
        self._draws: bool | None = None  # whether the closure was seen to draw random numbers on a CUDA device
        self._buffers: BufferGuard | None = None
        self._seen_values = self._seen_gradients = False

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Around a step: take away what the last one left in `p.grad`, and refuse gradients that would be lost."""
        for p, (left, version) in zip(self.params, self._left, strict=True):
            if p.grad is None:
                continue
            ours = left is not None and p.grad is left()
            if ours and (p.grad._version == version or not _has_values(p.grad)):
                p.grad = None
            elif ours or _has_values(p.grad):
                raise RuntimeError(ADDED_TO_V if ours else LOST)
        try:
            yield
        finally:  # also after an error: what is there then is of this step
            self._left = [(None, 0) if p.grad is None else (weakref.ref(p.grad), p.grad._version) for p in self.params]

    def at_current(self, closure: Closure, then_reference: bool = False, groups: GroupGradients | None = None) -> Any:
        """Evaluate at the parameters as they are; remember what `at_reference` needs if it is to follow.

        With `groups`, gradients go there as well as to `p.grad`.
        """
        if not then_reference:
            return self._run(closure, "current", groups)
        if self._buffers is None:
            self._buffers = BufferGuard(self.params, self._model)
        if self._devices and capturing() and self._draws is not False:
            raise RuntimeError(
                "a two-point step within the capture of a CUDA graph: its random numbers cannot be replayed there; "
                "use a model without dropout and the like, and run a small step before the capture, which shows it"
            )
        self._randomness = self._swap_random_state()
        with self._buffers.at_current():
            if self._seen_gradients:
                return self._run(closure, "current", groups)
            with unchanged_after_backward(self.params):
                loss = self._run(closure, "current", groups)
            self._seen_gradients = True  # what one closure does, the next ones do
            return loss

    def at_current_again(self, closure: Closure, groups: GroupGradients) -> None:
        """Evaluate as the last `at_current` with `then_reference` did; randomness and buffers stay as it left them."""
        self.at_reference(closure, [p.data for p in self.params], groups, point="current")

    def at_reference(
        self,
        closure: Closure,
        points: Sequence[Tensor],
        groups: GroupGradients | None = None,
        point: Point = "reference",
    ) -> Any:
        """Evaluate with the values of `points`, and the randomness and buffers that the last `at_current` began with.

        Parameters, buffers and random state are afterwards as before, also if the closure raises.
        """
        assert self._buffers is not None
        after = self._swap_random_state(self._randomness)
        if len(after) > 1:
            pairs = zip(after[1:], self._randomness[1:], strict=True)
            self._draws = bool(self._draws) or not all(torch.equal(a, b) for a, b in pairs)
        try:
            with swapped(self.params, points), self._buffers.at_reference():
                return self._run(closure, point, groups)
        finally:
            self._swap_random_state(after)

    def _run(self, closure: Closure, point: Point, groups: GroupGradients | None) -> Any:
        for p in self.params:
            p.grad = None
        versions = [p._version for p in self.params]
        values = None if self._seen_values else [p.detach().clone() for p in self.params]
        torch.clear_autocast_cache()  # an autocast around the step would keep casts of the other point's weights
        self.evaluating = point
        try:
            with torch.enable_grad(), nullcontext() if groups is None else groups.collected():
                loss = closure()
        finally:
            self.evaluating = None
            torch.clear_autocast_cache()
        if loss is None:
            raise RuntimeError("the closure returned None: let it return the loss")
        if all(p.grad is None for p in self.params) and not (groups is not None and groups.arrived):
            raise RuntimeError("the closure left no gradient in any parameter: let it call loss.backward()")
        # In-place changes raise the version; changes through .data do not, so the first evaluation compares values.
        changed = versions != [p._version for p in self.params]
        if changed or (values is not None and not all(map(_same, self.params, values))):
            raise RuntimeError(
                "the closure changed the parameters: let it compute the loss and call backward() only; "
                "optimizer.step, weight clipping and the like belong after the step"
            )
        self._seen_values = True
        return loss

    def _swap_random_state(self, new: Sequence[Tensor] = ()) -> list[Tensor]:
        """The random state, of the CPU and of each device in use; then it is `new`, if that is given."""
        devices = [] if not self._devices or capturing() else self._devices  # see `at_current` for a capture
        old = [torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in devices)]
        if new:
            torch.set_rng_state(new[0])
        for index, state in zip(devices, new[1:], strict=False):
            torch.cuda.set_rng_state(state, index)
        return old


@contextmanager
def swapped(params: Sequence[Tensor], points: Sequence[Tensor]) -> Iterator[None]:
    """Let `params` show the values of `points` for a while, by exchanging storage: no value is copied."""
    values = [p.data for p in params]
    for p, point in zip(params, points, strict=True):
        p.data = point
    try:
        yield
    finally:
        for p, data in zip(params, values, strict=True):
            p.data = data


def loss_of(value: object) -> Tensor | float:
    """What a closure returned, as a number that does not wait for the device; nan if it is not one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().double().reshape(())
    return float(value) if isinstance(value, int | float) else math.nan


def _has_values(gradient: Tensor) -> bool:
    """Whether it is other than zero; nobody can say during the capture of a CUDA graph."""
    return not capturing() and bool((gradient._values() if gradient.is_sparse else gradient).any())


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal, nan for nan."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


class _Saved(NamedTuple):
    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor


class BufferGuard:
    """Keeps the buffers (BatchNorm's statistics) of the modules in `model`, or, without one, of those that it finds.

    It finds the modules that hold `params` among the live objects, so that compiled functions and methods other than
    `forward` are covered, and all modules around them; and by watching calls, a part of the model without parameters of
    ours. Watching is slow: once `QUIET` steps have shown no new module, it is done at one of `QUIET` steps only. So a
    module that has none of our parameters around it and is first called late may have its buffers moved by both
    evaluations of a few steps. Giving `model=` avoids all that.
    """

    QUIET = 16

    def __init__(self, params: Sequence[Tensor], model: nn.Module | None = None):
        modules = modules_around(params) if model is None else model.modules()
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet(modules)
        self._searches = model is None
        self._before: list[_Saved] = []
        self._quiet = 0  # steps since a new module was seen
        self._watches = self._searches  # at this step

    @contextmanager
    def at_current(self) -> Iterator[None]:
        """Remember the buffers as they are before this evaluation."""
        self._before = self._snapshot(self._known)
        self._quiet += 1
        self._watches = self._searches and (self._quiet <= self.QUIET or self._quiet % self.QUIET == 0)
        notice = partial(self._notice, self._before)
        with calls_of_others(self._known, notice) if self._watches else nullcontext():
            yield

    @contextmanager
    def at_reference(self) -> Iterator[None]:
        """Start from the buffers that the last current evaluation started from; afterwards, those it left."""
        after = self._snapshot(self._known)
        if self._before:
            self._reinstate(self._before)
        try:
            notice = partial(self._notice, after)
            with calls_of_others(self._known, notice) if self._watches else nullcontext():
                yield
        finally:
            if after:
                self._reinstate(after)

    def _notice(self, saved: list[_Saved], module: nn.Module) -> None:
        """Add a module that was not known, and its buffers to `saved`."""
        new = [part for part in module.modules() if part not in self._known]
        self._known.update(new)
        self._quiet = 0
        saved.extend(self._snapshot(new))

    def _snapshot(self, modules: Iterable[nn.Module]) -> list[_Saved]:
        places = [
            (module, name, buffer)
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
            if 0 not in buffer.stride()  # an expanded one cannot be written to
        ]
        if not places:
            return []
        values = [torch.empty_like(buffer, requires_grad=False) for _, _, buffer in places]
        _copy([buffer for _, _, buffer in places], values)
        return [_Saved(*place, value) for place, value in zip(places, values, strict=True)]

    def _reinstate(self, saved: list[_Saved]) -> None:
        _copy([entry.value for entry in saved], [entry.buffer for entry in saved])
        for module, name, buffer, _ in saved:
            buffers = module.__dict__.get("_buffers")  # a scripted module has none to assign to
            if buffers is not None:
                buffers[name] = buffer


@torch.no_grad()
def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """All at once for each device and dtype: a launch for each would take longer than the copies."""
    alike: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for source, target in zip(sources, targets, strict=True):
        alike[source.device, source.dtype].append((source, target))
    for pairs in alike.values():
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            [target for _, target in pairs], [source for source, _ in pairs]
        )
