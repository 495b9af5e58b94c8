"""Launching Triton kernels cheaply: Triton's own launch once, then the compiled kernel with plain addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spidersilk.kernels.compiling import compiling

MOST = 4096  # launches that are remembered; where sizes change from draw to draw there is no end of them
_READY: dict[Any, tuple[Callable[..., None], tuple[None, ...]]] = {}


def launch(
    key: Any,
    kernel: Any,
    grid: int,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    options: Callable[[], dict[str, Any]],
) -> None:
    """Launch kernel[grid](*tensors, *numbers, **options()), whose parameters have that order, tensors first.

    `key` tells apart whatever Triton would compile apart, the grid and the device: dtypes, options, and integers below
    and from 2^31 on (kernels must not specialize on numbers otherwise). Triton also compiles apart which addresses are
    multiples of 16; that is added to the key here, unless all are.
    """
    device = tensors[0].get_device()  # -1: the CPU, by the interpreter
    if device >= 0 and device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            launch(key, kernel, grid, tensors, numbers, options)
        return
    addresses = [tensor.data_ptr() for tensor in tensors]
    together = 0
    for address in addresses:
        together |= address
    if together & 15:
        key = (key, *[address & 15 == 0 for address in addresses])
    ready = _READY.get(key)
    if ready is not None:
        ready[0](*addresses, *numbers, *ready[1], stream=torch._C._cuda_getCurrentRawStream(device))
        return
    with compiling():
        compiled = kernel[grid,](*tensors, *numbers, **options())
    if compiled is not None:  # None: from the interpreter
        if len(_READY) >= MOST:
            _READY.clear()
        constants = len(kernel.arg_names) - len(tensors) - len(numbers)
        _READY[key] = compiled[(grid, 1, 1)], (None,) * constants


def ceil_div(n: int, size: int) -> int:
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
