"""Which backend does the flat-vector work. A named one is used or refused with the reason; "auto" always finds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from spidersilk.kernels import torch_ops

BACKENDS = ("auto", "torch", "numba", "triton")
_NUMBA = (torch.float32, torch.float64, torch.bfloat16)


class Ops(Protocol):
    """What a backend module offers; `torch_ops` documents each function.

    A backend may also have `advance` and `advance_and_move`, which update v and M, and x, in one pass.
    """

    def select(self, memory: Tensor, k1: int, k2: int, seed: int, hint: Any = None, /) -> tuple[Tensor, Tensor]: ...
    def gather(
        self, pieces: Sequence[Tensor | None], sizes: Sequence[int], indices: Tensor, dtype: torch.dtype, /
    ) -> Tensor: ...
    def add_at(self, target: Tensor, indices: Tensor, values: Tensor, /) -> None: ...
    def put_at(self, target: Tensor, indices: Tensor, values: Tensor, /) -> None: ...
    def blend(self, memory: Tensor, estimate: Tensor, decay: float, /) -> Any: ...
    def blend_at(self, memory: Tensor, indices: Tensor, values: Tensor, decay: float, /) -> None: ...


def find(backend: str, kinds: Sequence[tuple[torch.device, torch.dtype]]) -> Ops:
    """The operations of `backend` for vectors of these devices and dtypes; ValueError if unknown or not to be had."""
    if backend not in BACKENDS:
        raise ValueError(f"backend = {backend!r} is not one of {', '.join(map(repr, BACKENDS))}")
    if backend == "triton":
        raise ValueError(
            "backend = 'triton' is not in this release: use 'torch', or 'auto' for the fastest that is there"
        )
    if backend == "torch":
        return torch_ops
    unfit = next((k for k in kinds if k[0].type != "cpu" or k[1] not in _NUMBA), None)
    if unfit is not None:
        if backend == "numba":
            raise ValueError(
                f"backend = 'numba' cannot work on {unfit[1]} on {unfit[0]}: it has float32, float64 and bfloat16 on "
                "the CPU; use 'auto'"
            )
        return torch_ops
    from spidersilk.kernels import numba_ops  # not before it is needed: the import takes a while

    return numba_ops
