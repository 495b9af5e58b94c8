"""Counts the bytes of tensors that are alive while torch works, on any device: what a training step holds, and when."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """While it is active, `live` are the bytes of all tensors that are alive, and `peak` the most of them at a time.

    `held` are tensors that are there already. What torch's kernels and libraries use within one operation is not seen.
    `events` says what happened, in order: the number of a new piece of memory, or minus that of one that was freed;
    `sizes` has their bytes. Numbers begin at 1.
    """

    def __init__(self, held: Iterable[Tensor] = ()):
        super().__init__()
        self.live = self.peak = 0
        self.events: list[int] = []
        self.sizes: list[int] = [0]
        self._numbers: dict[int, int] = {}  # of pieces that are alive, by the address of their storage
        for tensor in held:
            self.number(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_iter(results):
            if isinstance(result, Tensor):
                self.number(result)
        return results

    def number(self, tensor: Tensor) -> int:
        """Of the memory of this tensor; a new one if it was not seen before. 0: it has none."""
        if tensor.layout != torch.strided:
            return 0
        storage = tensor.untyped_storage()
        known = self._numbers.get(storage._cdata)
        if known is not None:
            return known
        number, size = len(self.sizes), storage.nbytes()
        self.sizes.append(size)
        self.events.append(number)
        self._numbers[storage._cdata] = number
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, storage._cdata, number)
        return number

    def find(self, tensor: Tensor) -> int:
        """The number of this tensor's memory, 0 if it has none, or was not seen."""
        return 0 if tensor.layout != torch.strided else self._numbers.get(tensor.untyped_storage()._cdata, 0)

    def _freed(self, address: int, number: int) -> None:
        self._numbers.pop(address, None)
        self.events.append(-number)
        self.live -= self.sizes[number]
