"""Which backend does the work on flat vectors. A named one is used, or refused with the reason; "auto" finds one.

A further backend is one file: a class with the methods of `interface.Kernels`, and a call of `register`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence

import torch

from spidersilk.kernels.interface import Kernels
from spidersilk.kernels.plain import PLAIN

Kinds = Sequence[tuple[torch.device, torch.dtype]]
WhyNot = Callable[[Kinds], str | None]
_NUMBA = (torch.float32, torch.float64, torch.bfloat16)
_TRITON = (*_NUMBA, torch.float16)
_BACKENDS: dict[str, tuple[Callable[[], Kernels], WhyNot]] = {}


def register(name: str, make: Callable[[], Kernels], why_not: WhyNot = lambda _: None) -> None:
    """Let `backend=name` mean what `make()` gives.

    why_not(kinds): the reason why it cannot work on vectors of these devices and dtypes; None if it can.
    """
    _BACKENDS[name] = make, why_not


def find(backend: str, kinds: Kinds) -> Kernels:
    """The kernels of `backend` for vectors of these devices and dtypes; ValueError if it is unknown or unfit.

    "auto" is triton, numba or torch: the first of these that can work.
    """
    if backend == "auto":
        for name in ("triton", "numba"):
            make, why_not = _BACKENDS[name]
            if why_not(kinds) is None and (name == "numba" or any(device.type != "cpu" for device, _ in kinds)):
                return make()
        return PLAIN
    if backend not in _BACKENDS:
        raise ValueError(f"backend = {backend!r} is not one of {', '.join(map(repr, ('auto', *_BACKENDS)))}")
    make, why_not = _BACKENDS[backend]
    reason = why_not(kinds)
    if reason is not None:
        raise ValueError(f"backend = {backend!r} cannot be had: {reason}; use 'auto' for the fastest that can")
    return make()


def _numba() -> Kernels:
    from spidersilk.kernels.numba.backend import NumbaKernels  # imports take a while: not before they are needed

    return NumbaKernels()


def _triton() -> Kernels:
    from spidersilk.kernels.triton.backend import TritonKernels

    return TritonKernels()


def _why_not_numba(kinds: Kinds) -> str | None:
    for device, dtype in kinds:
        if device.type != "cpu" or dtype not in _NUMBA:
            return f"it cannot work on {dtype} on {device}: it has float32, float64 and bfloat16 on the CPU"
    return None


def _why_not_triton(kinds: Kinds) -> str | None:
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


register("torch", lambda: PLAIN)
register("numba", _numba, _why_not_numba)
register("triton", _triton, _why_not_triton)
