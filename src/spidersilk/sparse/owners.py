"""Compact parameters live on the module that owns their weight, as adapters do.

`model.parameters()`, and so clipping, `zero_grad` and trainers, then see them. The module's class becomes a subclass
that leaves them out of `state_dict`, copies and pickles, and that lets a layer rule take the place of `forward`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from spidersilk.find_modules import Owned, owners_of
from spidersilk.layers import rule_for
from spidersilk.layers.dressing import Dressed, Ruled, dress, undress
from spidersilk.sparse.compact import Compact
from spidersilk.sparse.sharded import is_sharded

SUFFIX = "_compact"


class Owners:
    """Puts compact parameters on modules; `close` takes them away again.

    model: whose modules to look through; without one, those around the weights are searched for.
    """

    def __init__(self, model: nn.Module | None):
        self._model = model
        self._placed: list[tuple[nn.Module, str]] = []

    def find(self, weights: Sequence[Tensor]) -> Owned:
        return owners_of(weights, self._model)

    def place(self, compact: Compact, places: Sequence[tuple[nn.Module, str]]) -> None:
        """On all modules that own the weight: parameters() names it once."""
        for module, name in places:
            module.register_parameter(name + SUFFIX, compact.param)
            module.__dict__.setdefault("_compacts", {})[name] = compact
            _dress(module)
            self._placed.append((module, name))

    def close(self) -> None:
        for module, name in self._placed:
            if isinstance(module, Owner):
                module.__dict__["_compacts"].pop(name, None)
                module._parameters.pop(name + SUFFIX, None)
                _dress(module)
        self._placed = []


class Owner(Dressed):
    """What a module is while it has compact parameters."""

    _compacts: Mapping[str, Compact] = MappingProxyType({})  # as in another module of this class

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

    def _undressed(self) -> dict[str, Any]:
        ours = {name + SUFFIX for name in self._compacts}
        plain = {name: value for name, value in super()._undressed().items() if name != "_compacts"}
        return plain | {"_parameters": {name: p for name, p in self._parameters.items() if name not in ours}}


def _dress(module: Any) -> None:
    """Give a module the class that its compact parameters ask for; without any, its own."""
    undress(module)
    compacts = module.__dict__["_compacts"]
    if not compacts:
        del module.__dict__["_compacts"]
        return
    compact = compacts.get("weight")
    ruled = compact is not None and compact.dimension is not None and not is_sharded(compact.weight)
    rule = rule_for(module) if ruled else None
    if rule is None:
        dress(module, Owner)
    else:
        dress(module, Owner, Ruled, source=compact, rule=rule)
