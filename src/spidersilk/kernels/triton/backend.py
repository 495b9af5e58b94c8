"""The Triton kernels as a backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spidersilk.kernels import plain as torch_ops
from spidersilk.kernels.triton import ops as triton_ops


class TritonOps:
    """The operations of `torch_ops` on CUDA. Keeps tables of addresses, so there is one for each optimizer.

    Nothing waits for the device. `select` takes a counter on the device for a seed, and moves it on itself.
    """

    draws_on_device = True
    add_at = staticmethod(triton_ops.add_at)
    put_at = staticmethod(triton_ops.put_at)
    blend_at = staticmethod(triton_ops.blend_at)

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, tuple[int, ...], torch.device], triton_ops.Pieces] = {}
        self._no_flag: dict[torch.device, Tensor] = {}

    def select(
        self, memory: Tensor, k1: int, k2: int, seed: int | Tensor, hint: object = None
    ) -> tuple[Tensor, Tensor]:
        """See `torch_ops.select`; `seed` may be a counter, [seed, position] on the device."""
        if not isinstance(seed, Tensor):
            seed = triton_ops.make_counter(seed & (2**63 - 1), 0, memory.device)
        return triton_ops.select(memory, k1, k2, seed)

    def gather(
        self, pieces: Sequence[Tensor | None], sizes: Sequence[int], indices: Tensor, dtype: torch.dtype
    ) -> Tensor:
        held = [None if p is None else (p if p.layout == torch.strided else p.to_dense()).contiguous() for p in pieces]
        out = torch.empty(indices.numel(), dtype=dtype, device=indices.device)
        if any(p is not None and (p.dtype != dtype or p.device != out.device) for p in held):
            return torch_ops.gather(pieces, sizes, indices, dtype)
        own = self._own("read", sizes, out.device)
        return triton_ops.gather(own, own.table(held), indices, out)

    def scatter(self, pieces: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
        if not all(p.is_contiguous() for p in pieces):
            torch_ops.scatter(pieces, sizes, indices, values)
            return
        own = self._own("write", sizes, values.device)
        triton_ops.scatter(own, own.table(pieces), indices, values)

    def blend(self, memory: Tensor, estimate: Tensor, decay: float) -> None:
        if memory.device not in self._no_flag:
            self._no_flag[memory.device] = torch.zeros(1, dtype=torch.int64, device=memory.device)
        flag = self._no_flag[memory.device]
        nothing = flag[:0]
        v, values = estimate, estimate[:0]
        triton_ops.advance(v, None, memory, nothing, nothing, values, 1.0, decay, "recursive", flag, 1 << 32)

    def advance(
        self, form: str, v: Tensor, v_anchor: Tensor | None, memory: Tensor, top: Tensor, random: Tensor,
        values: Tensor, scale: float | Tensor, decay: float, flag: Tensor, mark: int,
    ) -> tuple[bool, None]:  # fmt: skip
        """Update v on the selection and M everywhere in one pass; see `numba_ops.advance` for the forms.

        Where v is not finite, `flag` on the device is raised to `mark`; the host is told that all is well.
        """
        kind = "anchored" if form == "fresh" else form
        anchor = None if form in ("fresh", "recursive") else v_anchor
        scales = scale.to(v.device) if isinstance(scale, Tensor) else scale
        triton_ops.advance(v, anchor, memory, top, random, values, scales, decay, kind, flag, mark)
        return True, None

    def move(
        self, params: Sequence[Tensor], sizes: Sequence[int], v: Tensor, lr: float | Tensor, flag: Tensor
    ) -> list[Tensor]:
        """x := x - lr v, unless the flag is up. Returns the gradients: v in parts of a vector of their own."""
        own = self._own("write", sizes, v.device)
        gradient = torch.empty_like(v)
        triton_ops.move(own, own.table(params), gradient, v, lr, flag)
        return [part.view(p.shape) for part, p in zip(gradient.split(list(sizes)), params, strict=True)]

    def _own(self, use: str, sizes: Sequence[int], device: torch.device) -> triton_ops.Pieces:
        key = use, tuple(sizes), device
        if key not in self._pieces:
            self._pieces[key] = triton_ops.Pieces(sizes, device)
        return self._pieces[key]
