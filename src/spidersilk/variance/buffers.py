"""Buffers of the modules that a closure runs: the same at the start of both evaluations, changed by the first alone."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spidersilk.live_modules import calls_of_others, modules_around


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
