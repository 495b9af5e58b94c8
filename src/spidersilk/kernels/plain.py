"""The kernels in plain torch: readable, on any device, the yardstick of every other backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Flag, Outcome, Seed, Tensors, Update


class PlainKernels:
    """See `interface.Kernels`."""

    draws_on_device = False
    refuses_non_finite = False
    step = None

    def select(self, memory: Tensor, k1: int, k2: int, seed: Seed, hint: object = None) -> tuple[Tensor, Tensor]:
        d = memory.numel()
        top = top_indices(memory.abs(), k1)
        if k2 == 0:
            return top, top[:0]
        is_rest = torch.ones(d, dtype=torch.bool, device=memory.device).index_fill_(0, top, False)
        rest = torch.nonzero_static(is_rest, size=d - k1, fill_value=0).squeeze(1)
        generator = torch.Generator(memory.device).manual_seed(int(seed))
        drawn = torch.randperm(d - k1, generator=generator, device=memory.device)[:k2]
        return top, rest[drawn].sort().values

    def gather(self, tensors: Tensors, sizes: Sequence[int], indices: Tensor, dtype: torch.dtype) -> Tensor:
        flat = [
            torch.zeros(size, dtype=dtype, device=indices.device)
            if tensor is None
            else (tensor if tensor.layout == torch.strided else tensor.to_dense()).reshape(-1)
            for tensor, size in zip(tensors, sizes, strict=True)
        ]
        return torch.cat(flat)[indices]

    def scatter(self, tensors: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        flat[indices] = values
        for tensor, part in zip(tensors, flat.split(list(sizes)), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def advance(self, update: Update) -> Outcome:
        update.formula(update)
        finite = all_finite([update.v], update.flag)
        if finite and update.memory is not None:
            remember(update.memory, update.v, update.decay)
        return Outcome(finite)

    def take(self, source: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
        view = source.detach() if is_grouped(out) else source.detach().as_strided((source.numel(),), (1,))
        taken = view.index_select(out.dim() // 2, indices).to(out.dtype)
        out.add_(taken) if add else out.copy_(taken)

    def carry(self, old: Tensor, new: Tensor, values: Sequence[Tensor], entering: Sequence[Tensor]) -> list[Tensor]:
        place = torch.searchsorted(old, new).clamp_(max=max(old.numel() - 1, 0))
        stays = old[place] == new
        carried = []
        for value, other in zip(values, entering, strict=True):
            kept = value.index_select(value.dim() // 2, place)
            carried.append(torch.where(stays.view(-1, 1) if is_grouped(value) else stays, kept, other))
        return carried

    def refresh(self, parts: Sequence[Entries]) -> None:
        for weight, indices, master in parts:
            held = weight.index_select(weight.dim() // 2, indices)
            if held.device.type == "cpu" and torch.equal(master.to(held.dtype), held):  # the usual case, in one pass
                continue
            same = (master.to(held.dtype) == held) | (held.isnan() & master.isnan())
            master.copy_(torch.where(same, master, held.to(master.dtype)))

    def write_through(self, parts: Sequence[Entries]) -> None:
        for weight, indices, master in parts:
            weight.index_copy_(weight.dim() // 2, indices.long(), master.to(weight.dtype))


def is_grouped(values: Tensor) -> bool:
    """Whether they are [outer, groups, inner], whose middle dimension is selected from, and no vector of entries."""
    return values.dim() == 3


PLAIN = PlainKernels()


def remember(memory: Tensor, v: Tensor, decay: float) -> Tensor:
    """M := decay |v| + (1 - decay) M, in place (Algorithm 1, line 12)."""
    return memory.mul_(1 - decay).add_(v.abs(), alpha=decay)


def top_indices(scores: Tensor, k: int) -> Tensor:
    """The k largest of `scores`, equal ones by lower index first; indices ascending, without waiting for the device."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    threshold = torch.topk(scores, k, sorted=False).values.amin()
    above = scores > threshold
    level = scores == threshold
    wanted = k - above.sum()  # torch.topk breaks ties as it likes, so ties are counted from the left here
    chosen = above | (level & (level.cumsum(0) <= wanted))
    # Scores that are not finite may leave fewer than k: any valid index will do then, as the step is not taken.
    return torch.nonzero_static(chosen, size=k, fill_value=0).squeeze(1)


def all_finite(vectors: Sequence[Tensor], flag: Flag | None = None) -> bool:
    """Whether all entries are finite. With a flag, divergence is reported through it, and True comes back."""
    checks = [is_finite(v) for v in vectors if v.numel()]
    if flag is None:
        return all(map(bool, checks))
    if checks:
        good = torch.stack([check.to(flag.raised.device) for check in checks]).all()
        flag.raised.copy_(torch.maximum(flag.raised, torch.where(good, 0, flag.mark)))
    return True


def is_finite(v: Tensor) -> Tensor:
    """One boolean, on the device of v."""
    if v.device.type == "cpu":  # aminmax keeps nan, and is ten times as fast there as isfinite
        return torch.isfinite(torch.stack(torch.aminmax(v))).all()
    return torch.isfinite(torch.linalg.vector_norm(v, ord=float("inf")))
