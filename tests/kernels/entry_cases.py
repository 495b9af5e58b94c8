"""What every backend must do with single entries, on any device: for test_entries.py, triton_cases.py, test_cuda.py."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Kernels
from spidersilk.kernels.plain import PLAIN
from spidersilk.sparse import bases

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SIZES = [(1, 1), (50, 7), (2500, 2500), (3000, 1300)]


def master_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def some(size: int, k: int, device: str, seed: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
    """k of `size` indices, ascending."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(size, generator=generator)[:k].sort().values.to(device, dtype)


def normal(size: int, device: str, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def check_take(kernels: Kernels, device: str, dtype: torch.dtype, size: int, k: int) -> None:
    vector, indices = normal(size, device, dtype), some(size, k, device)
    out = torch.full((k,), torch.nan, dtype=master_of(dtype), device=device)
    kernels.take(vector, indices, out, False)
    assert torch.equal(out, vector[indices.long()].to(out.dtype))
    before = out.clone()
    kernels.take(vector, indices, out, True)
    assert torch.equal(out, before + before)
    table = normal(6 * 4, device, dtype).view(4, 6).t()  # as it lies in memory
    first = torch.zeros(2, dtype=master_of(dtype), device=device)
    kernels.take(table, torch.tensor([1, 7], dtype=torch.int32, device=device), first, False)
    assert torch.equal(first, table.t().reshape(-1)[[1, 7]].to(first.dtype))


GROUPS = [
    ((6, 5), 1),
    ((40, 70), 1),
    ((30, 8), 0),
    ((4, 6, 3, 2), 1),
    ((300, 40), 1),  # from here on several tiles
    ((700, 9), 0),
    ((3, 30, 70), 1),
]  # shapes, and which dimension is selected from


def grouped(shape: tuple[int, ...], dimension: int, device: str, dtype: torch.dtype, seed: int) -> Entries:
    """Some groups of a weight: columns, rows, input channels; every second one lies in memory the other way round."""
    numel, n = math.prod(shape), shape[dimension]
    weight = normal(numel, device, dtype, seed).view(shape)
    if seed % 2 and len(shape) == 2:
        weight = weight.t().contiguous().t()
    view = weight.view(math.prod(shape[:dimension]), n, math.prod(shape[dimension + 1 :]))
    indices = some(n, (n + 2) // 3, device, seed)
    return Entries(view, indices, view[:, indices.long()].to(master_of(dtype)).contiguous())


def some_parts(device: str, dtype: torch.dtype) -> list[Entries]:
    """Entries and groups."""
    parts = []
    for number, (size, k) in enumerate(SIZES):
        weight, indices = normal(size, device, dtype, number), some(size, k, device, number)
        parts.append(Entries(weight, indices, weight[indices.long()].to(master_of(dtype))))
    return parts + [grouped(*group, device, dtype, number) for number, group in enumerate(GROUPS)]


def check_groups(kernels: Kernels, device: str, dtype: torch.dtype) -> None:
    """Groups are taken, and carried over from one selection to the next."""
    for seed, group in enumerate(GROUPS):
        part, other = grouped(*group, device, dtype, seed), some(group[0][group[1]], 2, device, 9)
        out = torch.full_like(part.master, torch.nan)
        kernels.take(part.weight, part.indices, out, False)
        assert torch.equal(out, part.master)
        kernels.take(part.weight, part.indices, out, True)
        assert torch.equal(out, part.master + part.master)
        mine = part.master.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)
        kernels.take(part.weight, part.indices, mine, True)  # a gradient that somebody has put there
        assert torch.equal(mine, part.master + part.master)
        held, mean = (
            part.weight[:, other.long()].to(part.master.dtype),
            torch.tensor(0.5, device=device).to(part.master),
        )
        taken, state = kernels.carry(part.indices, other, [part.master + 1, part.master], [held, mean])
        places = {index: place for place, index in enumerate(part.indices.tolist())}
        for at, index in enumerate(other.tolist()):
            stays = index in places
            assert torch.equal(taken[:, at], part.master[:, places[index]] + 1 if stays else held[:, at])
            kept = part.master[:, places[index]] if stays else torch.full_like(held[:, at], 0.5)
            assert torch.equal(state[:, at], kept)


def check_through(kernels: Kernels, device: str, dtype: torch.dtype) -> None:
    """Several weights, masters that agree, that differ in what rounding drops, and that are not what a weight holds."""
    parts = some_parts(device, dtype)
    for part in parts:
        if dtype == torch.bfloat16:
            part.master.mul_(1 + 2**-12)
        some_of = part.master.view(-1)[::3]
        some_of.copy_(normal(len(some_of), device, part.master.dtype, 9))
    wanted = [part.master.clone() for part in parts]
    PLAIN.refresh([Entries(weight, indices, new) for (weight, indices, _), new in zip(parts, wanted, strict=True)])
    kernels.refresh(parts)
    for (weight, indices, master), new in zip(parts, wanted, strict=True):
        assert torch.equal(master, new)
        assert torch.equal(master.to(dtype), weight.index_select(weight.dim() // 2, indices))
        master.copy_(normal(master.numel(), device, master.dtype, 5).view(master.shape))
    before = [weight.clone() for weight, _, _ in parts]
    kernels.write_through(parts)
    for (weight, indices, master), old in zip(parts, before, strict=True):
        dim = weight.dim() // 2
        assert torch.equal(weight.index_select(dim, indices), master.to(dtype))
        others = [i for i in range(weight.shape[dim]) if i not in set(indices.tolist())]
        left = torch.tensor(others, dtype=torch.int64, device=device)
        assert torch.equal(weight.index_select(dim, left), old.index_select(dim, left))


OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"weight_decay": 0.1, "maximize": True}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"betas": (0.0, 0.9), "weight_decay": 0.3, "maximize": True}),
]


def check_step(
    kernels: Kernels, device: str, dtype: torch.dtype, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    """One pass is refresh, torch's step and write_through, over two groups; one weight is trained as it is."""

    def build() -> tuple[list[Entries], torch.optim.Optimizer]:
        parts = some_parts(device, dtype)
        params = [part.master for part in parts] + [normal(300, device, master_of(dtype), 7)]
        groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "lr": 0.02}]
        return parts, kind(groups, **options)

    (parts, base), (wanted_parts, wanted) = build(), build()
    assert kernels.step is not None
    for turn in range(4):
        for optimizer in (base, wanted):
            for number, p in enumerate(q for group in optimizer.param_groups for q in group["params"]):
                p.grad = normal(p.numel(), device, p.dtype, 100 * turn + number).view(p.shape)
        if turn == 2:  # somebody changes weights
            parts[3].weight[::2] = wanted_parts[3].weight[::2] = 0.75
            parts[5].weight[::2] = wanted_parts[5].weight[::2] = 0.75
        PLAIN.refresh(wanted_parts)
        wanted.step()
        PLAIN.write_through(wanted_parts)
        by_master: dict[Tensor, Entries] = {part.master: part for part in parts}
        if turn == 0:  # the base makes its state
            base.step()
            kernels.write_through(parts)
            for state in base.state.values():
                state.update({name: x.to(device) for name, x in state.items() if isinstance(x, Tensor)})
            continue
        rule, steps = bases.steps_of(base, by_master.get)
        kernels.step(rule, steps)
    tolerance = 1e-13 if dtype == torch.float64 else 3e-6
    same = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    for part in parts:
        assert torch.equal(part.weight.index_select(part.weight.dim() // 2, part.indices), part.master.to(dtype))
    for p, q in zip(base.state, wanted.state, strict=True):
        same(p, q)
        for name in [name for name, value in base.state[p].items() if isinstance(value, Tensor)]:
            same(base.state[p][name], wanted.state[q][name].to(device))


def check_carry(kernels: Kernels, device: str, dtype: torch.dtype, size: int, k: int) -> None:
    old, new = some(size, k, device, 1), some(size, k, device, 2)
    values = [normal(k, device, dtype, 3), normal(k, device, dtype, 4)]
    entering = [normal(k, device, dtype, 5), torch.tensor(0.5, dtype=dtype, device=device)]
    carried = kernels.carry(old, new, values, entering)
    places = {index: place for place, index in enumerate(old.tolist())}
    for value, other, got in zip(values, entering, carried, strict=True):
        others = other.expand(k).tolist()
        held = value.tolist()
        wanted = [held[places[i]] if i in places else others[at] for at, i in enumerate(new.tolist())]
        assert got.tolist() == wanted
