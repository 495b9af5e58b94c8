"""Lets a layer rule take the place of a module's `forward` for a while: the module's class becomes a subclass of it."""

from __future__ import annotations

import functools
import types
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import Proxy
from torch.utils._device import DeviceContext

from spidersilk.layers.registry import Part, Rule

PLAIN = (Tensor, nn.Parameter)


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
        plain = object.__new__(_without(type(self)))
        plain.__dict__ |= self._undressed()
        return plain.__reduce_ex__(1)  # from 2 on pickle compares the class with this object's


class Ruled(Dressed):
    """One whose weight gets the gradient of selected groups, by the rule for its kind of layer."""

    _rule: ClassVar[Rule]
    _source: Source | None = None  # as it is of another module of this class, which somebody has made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Ruled):  # somebody kept this method, and the module, or a copy, is ordinary again
            return type(self).forward(self, *args, **kwargs)
        source = self._source
        part = source.part() if source is not None and self._is_open(source) and _are_plain(args, kwargs) else None
        output = None if part is None else type(self)._rule(self, part, *args, **kwargs)
        return super().forward(*args, **kwargs) if output is None else output

    def _is_open(self, source: Source) -> bool:
        weight = self._parameters.get("weight")  # not there while the module is parametrized
        if torch.compiler.is_compiling():
            usual = not torch.compiler._is_exporting_flag  # torch 2.11 compiles is_exporting() to True
        else:
            usual = not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0
            usual = usual and not torch._C._is_tracing() and not torch.is_inference_mode_enabled()
            usual = usual and not _is_changed_by_a_mode()
        return weight is source.weight and usual and torch.is_grad_enabled() and source.weight.requires_grad


def _is_changed_by_a_mode() -> bool:
    """Whether a mode may make something else of `F.linear` and the like; that of a default device does not."""
    modes = (torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack()))
    return any(not isinstance(mode, DeviceContext) for mode in modes)


def _are_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether no input stands for other tensors: a nested one, torch.fx's, or a subclass, which makes its outputs."""
    given = (*args, *kwargs.values()) if kwargs else args
    return not any(x.is_nested if type(x) in PLAIN else isinstance(x, Tensor | Proxy) for x in given)


def dress(module: Any, *kinds: type[Dressed], source: Source | None = None, rule: Rule | None = None) -> None:
    """Let a module be of these kinds as well, in the place of those that it was before."""
    undress(module)
    module.__class__ = _dressed(type(module), kinds, rule)
    if source is not None:
        module.__dict__["_source"] = source


def undress(module: Any) -> None:
    """Give a module its own class back."""
    module.__class__ = _without(type(module))
    module.__dict__.pop("_source", None)


def _without(kind: type[nn.Module]) -> type[nn.Module]:
    """The class without ours, also if somebody (a parametrization) has put a class of theirs above it."""
    if "_plain" in vars(kind):
        return vars(kind)["_plain"]
    if not issubclass(kind, Dressed):
        return kind
    names = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return types.new_class(kind.__name__, tuple(map(_without, kind.__bases__)), exec_body=lambda to: to.update(names))


@functools.cache
def _dressed(plain: type[nn.Module], kinds: tuple[type[Dressed], ...], rule: Rule | None) -> type[nn.Module]:
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    return type(plain.__name__, (*kinds, plain), {**names, "_plain": plain, "_rule": rule and staticmethod(rule)})
