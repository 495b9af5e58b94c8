"""How layers are found: a mode that sees every torch function a closure calls, and a rule for some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from spidersilk.variance.backprop.conv import conv2d
from spidersilk.variance.backprop.embedding import embedding
from spidersilk.variance.backprop.linear import linear

if TYPE_CHECKING:
    from spidersilk.variance.backprop.context import Capture

autograd: Any = torch.autograd
LAYERS: dict[Any, Callable[..., Any]] = {F.linear: linear, torch.conv2d: conv2d, F.embedding: embedding}
"""By torch function: what stands in for it, with the capture as first argument and the same ones after it."""


class Mode(TorchFunctionMode):
    """Has the layer rules, and the few functions below, do what they know; the rest goes on as it is."""

    def __init__(self, capture: Capture):
        super().__init__()
        self.capture = capture

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        layer = LAYERS.get(func)
        if layer is not None:
            return layer(self.capture, *args, **kwargs)
        other = _OTHERS.get(func)
        return func(*args, **kwargs) if other is None else other(self, func, args, kwargs)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """On, also inside backward passes, which torch would run without it: checkpointed segments run again there."""
        original = autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            if self in _get_current_function_mode_stack():
                return original(*args, **kwargs)
            with self:
                return original(*args, **kwargs)

        autograd._engine_run_backward = run
        try:
            with self:
                yield
        finally:
            autograd._engine_run_backward = original


def _backward(mode: Mode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if mode.capture.has_cut and not args[0].requires_grad:  # nothing that it depends on is wanted
        mode.capture.caught = True
        return
    func(*args, **kwargs)


def _cut(mode: Mode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cut = mode.capture.cut
    return func(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()})


def _grad(mode: Mode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.capture.note_use_of_grad(args[0])
    return func(*args, **kwargs)


_descriptor: Any = Tensor.grad
_OTHERS: dict[Any, Callable[..., Any]] = {
    Tensor.backward: _backward,
    _descriptor.__get__: _grad,
    _descriptor.__set__: _grad,
    **dict.fromkeys((F.batch_norm, F.layer_norm, F.group_norm, torch.conv1d, torch.conv3d), _cut),
}
