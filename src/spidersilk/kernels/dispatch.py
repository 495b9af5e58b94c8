"""Which backend does the flat-vector work. A named one is used or refused with the reason; "auto" always finds one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from spidersilk.kernels import torch_ops

BACKENDS = ("auto", "torch", "numba", "triton")


class Ops(Protocol):
    """What a backend module offers; `torch_ops` documents each function."""

    def select(
        self, memory: Tensor, k1: int, k2: int, generator: torch.Generator | None, /
    ) -> tuple[Tensor, Tensor]: ...
    def add_at(self, target: Tensor, indices: Tensor, values: Tensor, /) -> None: ...
    def put_at(self, target: Tensor, indices: Tensor, values: Tensor, /) -> None: ...
    def blend(self, memory: Tensor, estimate: Tensor, decay: float, /) -> None: ...
    def blend_at(self, memory: Tensor, indices: Tensor, values: Tensor, decay: float, /) -> None: ...


def find(backend: str) -> Ops:
    """The operations of `backend`; ValueError if it is unknown or cannot run here."""
    if backend not in BACKENDS:
        raise ValueError(f"backend = {backend!r} is not one of {', '.join(map(repr, BACKENDS))}")
    if backend in ("numba", "triton"):
        raise ValueError(
            f"backend = {backend!r} is not in this release: use 'torch', or 'auto' for the fastest that is there"
        )
    return torch_ops
