"""Lets a layer rule take the place of a module's `forward` for a while: the module's class becomes a subclass of it."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from spidersilk.layers.registry import Part, Rule


class Source(Protocol):
    """Who says which groups of a weight are selected."""

    weight: Tensor

    def part(self) -> Part | None:
        """They and where their gradient goes; None where the weight is to get all of its gradient."""
        ...


class Dressed(nn.Module):
    """What a module is for a while; its own class comes behind this one. A copy or a pickle is an ordinary module."""

    _plain: ClassVar[type[nn.Module]]

    def _undressed(self) -> dict[str, Any]:
        """The attributes of the ordinary module."""
        return {name: value for name, value in self.__dict__.items() if name != "_source"}

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = object.__new__(self._plain)
        plain.__dict__ |= self._undressed()
        return plain.__reduce_ex__(1)  # from 2 on pickle compares the class with this object's


class Ruled(Dressed):
    """One whose weight gets the gradient of selected groups, by the rule for its kind of layer."""

    _rule: ClassVar[Rule]
    _source: Source

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        part = self._source.part() if self._is_open() else None
        output = None if part is None else type(self)._rule(self, part, *args, **kwargs)
        return super().forward(*args, **kwargs) if output is None else output

    def _is_open(self) -> bool:
        weight: Any = self.weight
        if torch.compiler.is_compiling():
            usual = not torch.compiler.is_exporting()
        else:
            usual = not torch._C._are_functorch_transforms_active()
        return usual and torch.is_grad_enabled() and weight.requires_grad and weight is self._source.weight


def dress(module: Any, *kinds: type[Dressed], source: Source | None = None, rule: Rule | None = None) -> None:
    """Let a module be of these kinds as well, in the place of those that it was before."""
    undress(module)
    module.__class__ = _dressed(type(module), kinds, rule)
    if source is not None:
        module.__dict__["_source"] = source


def undress(module: Any) -> None:
    """Give a module its own class back."""
    module.__class__ = getattr(type(module), "_plain", type(module))
    module.__dict__.pop("_source", None)


@functools.cache
def _dressed(plain: type[nn.Module], kinds: tuple[type[Dressed], ...], rule: Rule | None) -> type[nn.Module]:
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    return type(plain.__name__, (*kinds, plain), {**names, "_plain": plain, "_rule": rule and staticmethod(rule)})
