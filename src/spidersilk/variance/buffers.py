"""Buffers of the modules that a closure runs: the same at the start of both evaluations, changed by the first alone."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Saved(NamedTuple):
    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor


class BufferGuard:
    """Knows the modules that hold `params`, all modules around them, and every module called under it so far.

    The first are found among the live objects, so that compiled functions and methods other than `forward` are covered;
    the last by wrapping `nn.Module.__call__`, so that a part of the model without parameters of ours is covered too.
    Wrapping takes half a millisecond, as it clears caches of the interpreter: once `QUIET` steps have shown no new
    module, it is done at one of `QUIET` steps only. So a module that has none of our parameters around it and is first
    called late may have its buffers moved by both evaluations of a few steps.
    """

    QUIET = 16

    def __init__(self, params: Sequence[Tensor]):
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet(modules_around(params))
        self._before: list[_Saved] = []
        self._quiet = 0  # steps since a new module was seen
        self._watches = True  # at this step

    @contextmanager
    def at_current(self, notice: bool = True) -> Iterator[None]:
        """Remember the buffers as they are before this evaluation; without `notice`, those of known modules only."""
        self._before = _snapshot(self._known)
        self._quiet += 1
        self._watches = self._quiet <= self.QUIET or self._quiet % self.QUIET == 0
        with self._noticing(self._before) if notice else nullcontext():
            yield

    @contextmanager
    def at_reference(self) -> Iterator[None]:
        """Start from the buffers that the last current evaluation started from; afterwards, those it left."""
        after = _snapshot(self._known)
        _reinstate(self._before)
        try:
            with self._noticing(after):
                yield
        finally:
            _reinstate(after)

    @contextmanager
    def _noticing(self, saved: list[_Saved]) -> Iterator[None]:
        """Add modules not known yet, as they are called, and their buffers to `saved`.

        It wraps `nn.Module.__call__` rather than register a global hook: torch.compile warns of those.
        """
        if not self._watches:
            yield
            return
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and module not in self._known:
                new = [part for part in module.modules() if part not in self._known]
                self._known.update(new)
                self._quiet = 0
                saved.extend(_snapshot(new))
            return original(module, *args, **kwargs)

        nn.Module.__call__ = call
        try:
            yield
        finally:
            nn.Module.__call__ = original


def _snapshot(modules: Iterable[nn.Module]) -> list[_Saved]:
    found = [
        (module, name, buffer)
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
        if 0 not in buffer.stride()  # an expanded one cannot be written to
    ]
    values = [torch.empty_like(buffer, requires_grad=False) for _, _, buffer in found]
    _copy([buffer for _, _, buffer in found], values)
    return [_Saved(*place, value) for place, value in zip(found, values, strict=True)]


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """All at once for each device and dtype: a launch for each would take longer than the copies."""
    if not sources:
        return
    alike: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for source, target in zip(sources, targets, strict=True):
        for held, tensor in zip(alike[source.device, source.dtype], (source, target), strict=True):
            held.append(tensor)
    with torch.no_grad():
        for ours, theirs in alike.values():
            torch._foreach_copy_(theirs, ours)  # pyright: ignore[reportPrivateImportUsage]


def _reinstate(saved: list[_Saved]) -> None:
    _copy([entry.value for entry in saved], [entry.buffer for entry in saved])
    with torch.no_grad():
        for module, name, buffer, _ in saved:
            held = module.__dict__.get("_buffers")  # a scripted module has none to assign to
            if held is not None:
                held[name] = buffer


def modules_around(params: Sequence[Tensor]) -> list[nn.Module]:
    """The live modules that hold one of `params`, those that contain such a one, and all that is in them."""
    wanted = {id(p) for p in params}
    parents: dict[int, list[nn.Module]] = defaultdict(list)
    reached: list[nn.Module] = []
    for thing in gc.get_objects():
        if issubclass(type(thing), nn.Module):  # isinstance would ask proxies for their class
            for child in thing.__dict__.get("_modules", {}).values():
                parents[id(child)].append(thing)
            if any(id(p) in wanted for p in thing.__dict__.get("_parameters", {}).values()):
                reached.append(thing)
    around: dict[int, nn.Module] = {}
    while reached:
        module = reached.pop()
        if id(module) not in around:
            around[id(module)] = module
            reached += parents[id(module)]
    return [part for module in around.values() for part in module.modules()]
