"""Which backend does the flat-vector work. A named one is used or refused with the reason; "auto" always finds one."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from spidersilk.kernels import plain as torch_ops

BACKENDS = ("auto", "torch", "numba", "triton")
_NUMBA = (torch.float32, torch.float64, torch.bfloat16)
_TRITON = (*_NUMBA, torch.float16)


class Ops(Protocol):
    """What a backend offers; `torch_ops` documents each function.

    A backend may also have `advance`, which updates v and M in one pass, and with it `advance_and_move` or `move`. One
    with `draws_on_device` takes a counter on the device for a seed.
    """

    @property
    def draws_on_device(self) -> bool: ...

    def select(self, memory: Tensor, k1: int, k2: int, seed: Any, hint: Any = None, /) -> tuple[Tensor, Tensor]: ...
    def gather(
        self, pieces: Sequence[Tensor | None], sizes: Sequence[int], indices: Tensor, dtype: torch.dtype, /
    ) -> Tensor: ...
    def scatter(self, pieces: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor, /) -> None: ...
    def add_at(self, target: Tensor, indices: Tensor, values: Tensor, /) -> None: ...
    def put_at(self, target: Tensor, indices: Tensor, values: Tensor, /) -> None: ...
    def blend(self, memory: Tensor, estimate: Tensor, decay: float, /) -> Any: ...
    def blend_at(self, memory: Tensor, indices: Tensor, values: Tensor, decay: float, /) -> None: ...


def find(backend: str, kinds: Sequence[tuple[torch.device, torch.dtype]]) -> Ops:
    """The operations of `backend` for vectors of these devices and dtypes; ValueError if unknown or not to be had."""
    if backend not in BACKENDS:
        raise ValueError(f"backend = {backend!r} is not one of {', '.join(map(repr, BACKENDS))}")
    if backend == "torch":
        return torch_ops
    on_cpu = all(device.type == "cpu" for device, _ in kinds)
    if backend == "triton" or (backend == "auto" and not on_cpu):
        reason = _why_not_triton(kinds)
        if reason is None:
            from spidersilk.kernels.triton.backend import TritonOps  # imports take a while: not before they are needed

            return TritonOps()
        if backend == "triton":
            raise ValueError(f"backend = 'triton' cannot be had: {reason}; use 'auto' for the fastest that can")
        return torch_ops
    unfit = next((k for k in kinds if k[0].type != "cpu" or k[1] not in _NUMBA), None)
    if unfit is not None:
        if backend == "numba":
            raise ValueError(
                f"backend = 'numba' cannot work on {unfit[1]} on {unfit[0]}: it has float32, float64 and bfloat16 on "
                "the CPU; use 'auto'"
            )
        return torch_ops
    from spidersilk.kernels.numba import backend as numba_ops

    return numba_ops


def _why_not_triton(kinds: Sequence[tuple[torch.device, torch.dtype]]) -> str | None:
    """Why the Triton kernels cannot work on such vectors; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed (it comes with torch for CUDA)"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # then Triton itself runs on the CPU
    if not interpreted and torch.version.hip:
        return "its kernels are tuned for CUDA and not tried on ROCm"
    if not interpreted and not os.environ.get("CC") and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "triton needs a C compiler, and there is none (cc, gcc, clang, or the variable CC)"
    for device, dtype in kinds:
        if device.type != "cuda" and not (interpreted and device.type == "cpu"):
            return f"it has kernels for CUDA, not for {device}"
        if dtype not in _TRITON:
            return f"it has no kernels for {dtype}"
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0"
    if len({device for device, _ in kinds}) > 1:
        return "the parameters are on several devices"
    return None
