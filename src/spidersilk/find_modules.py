"""Finds modules that nobody gave us: by looking through Python's live objects, and by watching which are called.

It is the fallback for users who give an optimizer parameters and no `model=`. Nothing else in the library patches
`nn.Module` or asks the garbage collector.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Owned = dict[int, list[tuple[nn.Module, str]]]
"""For each parameter, by its id, the modules that own it and its name there."""


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


def owners_of(params: Sequence[Tensor], model: nn.Module | None = None) -> Owned:
    """The modules of `model`, or without one of those around `params`, that hold each of them themselves."""
    modules = modules_around(params) if model is None else model.modules()
    owned: Owned = {id(p): [] for p in params}
    for module in {id(module): module for module in modules}.values():
        for name, p in module._parameters.items():
            if id(p) in owned and not isinstance(module, torch.jit.ScriptModule):
                owned[id(p)].append((module, name))
    return owned


@contextmanager
def calls_of_others(known: Container[nn.Module], notice: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call `notice(module)` before each call of a module that is not among those `known`.

    It wraps `nn.Module.__call__` rather than register a global hook: torch.compile warns of those. Wrapping takes half
    a millisecond, as it clears caches of the interpreter.
    """
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and module not in known:
            notice(module)
        return original(module, *args, **kwargs)

    nn.Module.__call__ = call
    try:
        yield
    finally:
        nn.Module.__call__ = original
