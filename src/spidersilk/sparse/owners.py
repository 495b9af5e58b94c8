"""Compact parameters live on the module that owns their weight, as adapters do.

`model.parameters()`, and so clipping, `zero_grad` and trainers, then see them. The module's class becomes a subclass
that leaves them out of `state_dict`, copies and pickles, and that lets a layer rule take the place of `forward`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spidersilk.find_modules import modules_around
from spidersilk.sparse.compact import Compact
from spidersilk.sparse.layers.registry import Part, Rule, rule_for
from spidersilk.sparse.sharded import is_sharded

SUFFIX = "_compact"
Places = dict[int, list[tuple[nn.Module, str]]]
"""For each weight, by its id, the modules that own it and its name there."""


class Owners:
    """Puts compact parameters on modules; `close` takes them away again.

    model: whose modules to look through; without one, those around the weights are searched for.
    """

    def __init__(self, model: nn.Module | None):
        self._model = model
        self._placed: list[tuple[nn.Module, str]] = []

    def find(self, weights: Sequence[Tensor]) -> Places:
        modules = modules_around(weights) if self._model is None else self._model.modules()
        wanted: Places = {id(weight): [] for weight in weights}
        for module in {id(module): module for module in modules}.values():
            for name, p in module._parameters.items():
                if id(p) in wanted and not isinstance(module, torch.jit.ScriptModule):
                    wanted[id(p)].append((module, name))
        return wanted

    def place(self, compact: Compact, places: Sequence[tuple[nn.Module, str]]) -> None:
        """On all modules that own the weight: parameters() names it once."""
        for module, name in places:
            if not isinstance(module, Owner):
                module.__dict__["_compacts"] = {}
            module.register_parameter(name + SUFFIX, compact.param)
            module.__dict__["_compacts"][name] = compact
            _dress(module)
            self._placed.append((module, name))

    def close(self) -> None:
        for module, name in self._placed:
            if isinstance(module, Owner):
                module._compacts.pop(name, None)
                module._parameters.pop(name + SUFFIX, None)
                _dress(module)
        self._placed = []


class Owner(nn.Module):
    """What a module is while it has compact parameters; its own class comes behind this one."""

    _plain: ClassVar[type[nn.Module]]
    _compacts: dict[str, Compact]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._compacts:
            destination.pop(prefix + name + SUFFIX, None)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: Any, error_msgs: Any,
    ) -> None:  # fmt: skip
        given = state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(*given)
        ours = {prefix + name + SUFFIX for name in self._compacts}
        missing_keys[:] = [key for key in missing_keys if key not in ours]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle is an ordinary module."""
        plain = object.__new__(self._plain)
        ours = {name + SUFFIX for name in self._compacts}
        plain.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "_compacts"}
        plain.__dict__["_parameters"] = {name: p for name, p in self._parameters.items() if name not in ours}
        return plain.__reduce_ex__(1)  # from 2 on pickle compares the class with this object's


class RuledOwner(Owner):
    """One whose weight is trained by groups, with a rule for its kind of layer."""

    _rule: ClassVar[Rule]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        compact, weight = self._compacts["weight"], self.weight
        trains = torch.is_grad_enabled() and weight.requires_grad and not compact.is_dense
        if trains and weight is compact.weight and not torch.compiler.is_exporting():
            assert compact.dimension is not None
            output = type(self)._rule(self, Part(compact.param, compact.indices, compact.dimension), *args, **kwargs)
            if output is not None:
                return output
        return super().forward(*args, **kwargs)


def _dress(module: Any) -> None:
    """Give a module the class that its compact parameters ask for; without any, its own."""
    plain = getattr(type(module), "_plain", type(module))
    compacts = module.__dict__["_compacts"]
    module.__class__ = plain
    if not compacts:
        del module.__dict__["_compacts"]
        return
    compact = compacts.get("weight")
    ruled = compact is not None and compact.dimension is not None and not is_sharded(compact.weight)
    module.__class__ = _dressed(plain, rule_for(module) if ruled else None)


@functools.cache
def _dressed(plain: type[nn.Module], rule: Rule | None) -> type[nn.Module]:
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    if rule is None:
        return type(plain.__name__, (Owner, plain), {**names, "_plain": plain})
    return type(plain.__name__, (RuledOwner, plain), {**names, "_plain": plain, "_rule": staticmethod(rule)})
