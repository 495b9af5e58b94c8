"""Compact parameters live on the module that owns their weight, as adapters do.

`model.parameters()`, and so clipping, `zero_grad` and trainers, then see them. A `state_dict` of the model leaves them
out, and loading one does not miss them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.find_modules import modules_around
from spidersilk.sparse.compact import Compact

SUFFIX = "_compact"


class Owners:
    """Puts compact parameters on modules; `close` takes them away again.

    model: whose modules to look through; without one, those around the weights are searched for.
    """

    def __init__(self, model: nn.Module | None):
        self._model = model
        self._placed: list[tuple[nn.Module, str]] = []
        self._handles: list[Any] = []

    def place(self, compacts: Sequence[Compact]) -> None:
        modules = modules_around([c.weight for c in compacts]) if self._model is None else self._model.modules()
        by_weight = {id(c.weight): c for c in compacts}
        for module in _distinct(modules):
            found = {name: by_weight.pop(id(p)) for name, p in _own(module) if id(p) in by_weight}
            if not found or isinstance(module, torch.jit.ScriptModule):
                continue
            names = [name + SUFFIX for name in found]
            for name, compact in zip(names, found.values(), strict=True):
                module.register_parameter(name, compact.param)
                self._placed.append((module, name))
            self._hide(module, names)

    def _hide(self, module: nn.Module, names: list[str]) -> None:
        self._handles.append(module.register_state_dict_post_hook(_LeaveOut(names)))
        self._handles.append(module.register_load_state_dict_post_hook(_NotMissed(names)))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        for module, name in self._placed:
            module._parameters.pop(name, None)
        self._handles, self._placed = [], []


@dataclass
class _LeaveOut:
    """A hook, and no function inside of one, so that a model can be pickled."""

    names: list[str]

    def __call__(self, _: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in self.names:
            state.pop(prefix + name, None)


@dataclass
class _NotMissed:
    names: list[str]

    def __call__(self, _: nn.Module, keys: Any) -> None:
        ends = tuple(f".{name}" for name in self.names)
        keys.missing_keys[:] = [k for k in keys.missing_keys if k not in self.names and not k.endswith(ends)]


def _own(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in module._parameters.items() if p is not None]


def _distinct(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return list({id(module): module for module in modules}.values())
