"""The output that the paper's theorems speak of: the end of an outer loop, chosen uniformly among all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spidersilk.checks import Form, check_saved
from spidersilk.operator.random_stream import generator_at
from spidersilk.variance.flat import make_slabs
from spidersilk.variance.method import check_model
from spidersilk.variance.variance_reduced import VarianceReduced

_OUTPUT = 2  # the stream of these draws, apart from those of selections and loop lengths


class UniformOutput:
    """x_out of Theorems 1 and 2: the point at which an outer loop ended, each of the loops so far with equal chance.

    It watches `optimizer` from now on: when an anchor begins, the loop before it has ended, and its last point is kept
    with a chance of one in the number of loops. So one point is kept at a time, and no number of loops is needed
    beforehand. `model`: its buffers (BatchNorm's statistics) are kept with the parameters. Draws depend on the
    generator that the optimizer was made with, alone.

        output = silk.UniformOutput(optimizer)
        ...                          # train
        output.end_loop()            # the last loop is over
        with output.applied():       # the parameters are x_out here
            evaluate(model)
    """

    def __init__(self, optimizer: VarianceReduced, model: nn.Module | None = None):
        if not isinstance(optimizer, VarianceReduced):
            raise ValueError(
                f"optimizer = {type(optimizer).__name__} has no outer loops: give a VarianceReduced one, such as "
                "SparseSpiderBoost"
            )
        check_model(model, optimizer.param_groups)
        self.loops = 0  # that have ended
        self._optimizer, self._model = optimizer, model
        self._anchors = optimizer.anchors  # done when the last of these loops ended, or when this was made
        self._kept: list[Tensor] = []
        optimizer.register_step_pre_hook(self._before_step)

    def end_loop(self) -> None:
        """Say that the loop under way is over; to be called once after training. Anchors end loops by themselves."""
        if self._optimizer.anchors == self._anchors:
            return  # none is under way
        self._anchors = self._optimizer.anchors
        self.loops += 1
        seed = self._optimizer._stream.seed
        if int(torch.randint(self.loops, (), generator=generator_at("cpu", seed, _OUTPUT, self.loops))) == 0:
            self._kept = [t.detach().clone() for t in self._tensors()]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, parameters (and the model's buffers) are x_out. Before any loop has ended they stay as they are."""
        tensors = self._tensors() if self._kept else []
        now = [t.detach().clone() for t in tensors]
        try:
            _copy(tensors, self._kept)
            yield
        finally:
            _copy(tensors, now)

    def state_dict(self) -> dict[str, Any]:
        return {"loops": self.loops, "anchors": self._anchors, "kept": list(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        shapes: list[Form] = [t.shape for t in self._tensors()] if state.get("kept") else []
        check_saved("state", state, {"loops": int, "anchors": int, "kept": shapes})
        self.loops, self._anchors = state["loops"], state["anchors"]
        self._kept = [k.to(t, copy=True) for k, t in zip(state["kept"], self._tensors(), strict=False)]

    def _tensors(self) -> list[Tensor]:
        params = [p for slab in make_slabs(self._optimizer.param_groups) for p in slab.params]
        return [*params, *(self._model.buffers() if self._model is not None else ())]

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        anchor = kwargs.get("anchor", args[2] if len(args) > 2 else None)  # after the optimizer and the closure
        if self._optimizer.next_is_anchor(anchor):
            self.end_loop()


@torch.no_grad()
def _copy(tensors: list[Tensor], values: list[Tensor]) -> None:
    for t, value in zip(tensors, values, strict=True):
        t.copy_(value)
