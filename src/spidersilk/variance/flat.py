"""The parameters of one device and dtype seen as one vector of length d."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Slab:
    """Trainable parameters of one device and dtype, in the order of the parameter groups, seen as one vector.

    `spans` gives for each group with parameters here (group number, start, stop) in that vector.
    """

    def __init__(self, params: Sequence[Tensor], groups: Sequence[int]):
        self.params = list(params)
        self.sizes = [p.numel() for p in self.params]
        self.d = sum(self.sizes)
        self.device, self.dtype = self.params[0].device, self.params[0].dtype
        self.spans: list[tuple[int, int, int]] = []
        offset = 0
        for group, size in zip(groups, self.sizes, strict=True):
            if self.spans and self.spans[-1][0] == group:
                self.spans[-1] = (group, self.spans[-1][1], offset + size)
            else:
                self.spans.append((group, offset, offset + size))
            offset += size

    def zeros(self) -> Tensor:
        return torch.zeros(self.d, dtype=self.dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Per-parameter views of a vector."""
        return [piece.view(p.shape) for piece, p in zip(flat.split(self.sizes), self.params, strict=True)]

    def twins(self) -> list[Tensor]:
        """A tensor for each parameter, fit to stand in for it: with its strides (channels last, say).

        Parameters that share storage (a cuDNN LSTM wants its weights in one piece) share a twin of it.
        """
        sharing: dict[int, list[Tensor]] = defaultdict(list)
        for p in self.params:
            sharing[p.untyped_storage().data_ptr()].append(p)
        twins: dict[int, Tensor] = {}
        for params in sharing.values():
            entries = params[0].untyped_storage().nbytes() // params[0].element_size()
            if len(params) > 1 and entries <= 2 * sum(p.numel() for p in params):
                shared = torch.zeros(entries, dtype=self.dtype, device=self.device)
                twins |= {id(p): shared.as_strided(p.shape, p.stride(), p.storage_offset()) for p in params}
            else:
                twins |= {id(p): torch.zeros_like(p) for p in params}
        return [twins[id(p)] for p in self.params]

    def flatten(self, tensors: Iterable[Tensor | None]) -> Tensor:
        """A new vector with the entries of `tensors`, one for each parameter; None counts as zeros."""
        pieces = []
        for tensor, size in zip(tensors, self.sizes, strict=True):
            if tensor is None:
                pieces.append(torch.zeros(size, dtype=self.dtype, device=self.device))
            else:
                pieces.append((tensor.to_dense() if tensor.layout != torch.strided else tensor).reshape(-1))
        return torch.cat(pieces)

    def spread(self, flat: Tensor, tensors: list[Tensor]) -> None:
        """Copy a vector into `tensors`, one for each parameter."""
        copy_all(tensors, self.views(flat))

    def write_gradients(self, flat: Tensor) -> None:
        """Make p.grad a copy of the vector, in new tensors: those of the closure may be its own, or one for two."""
        for p, view in zip(self.params, self.views(flat), strict=True):
            p.grad = torch.empty_like(p).copy_(view)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, in as few launches as torch can."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def make_slabs(param_groups: Sequence[dict[str, Any]]) -> list[Slab]:
    """One slab for each device and dtype of the parameters that require a gradient."""
    alike: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[int]]] = defaultdict(lambda: ([], []))
    everything = [p for group in param_groups for p in group["params"]]
    if len({id(p) for p in everything}) < len(everything):
        raise ValueError("a parameter is given twice: its coordinates would count twice, so give each parameter once")
    for number, group in enumerate(param_groups):
        for p in group["params"]:
            if p.requires_grad:
                params, groups = alike[p.device, p.dtype]
                params.append(p)
                groups.append(number)
    if not alike:
        raise ValueError("no parameter requires a gradient: unfreeze at least one, or leave the optimizer out")
    if not any(p.numel() for p in everything if p.requires_grad):
        raise ValueError("all trainable parameters are empty (d = 0): there is nothing to select from")
    for device, dtype in alike:
        if device.type == "meta":
            raise ValueError("parameters on the meta device have no values: give them some first (model.to_empty(...))")
        if not dtype.is_floating_point:
            raise ValueError(f"parameters of {dtype} on {device}: only real floating-point parameters can be selected")
    return [Slab(params, groups) for params, groups in alike.values()]


def is_dense(p: Tensor) -> bool:
    """Whether the entries fill a block of memory, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(p.stride(), p.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
