"""What every backend must do with single entries, on any device: for test_entries.py, triton_cases.py, test_cuda.py."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Kernels
from spidersilk.kernels.plain import PLAIN
from spidersilk.sparse import at_once

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


def check_through(kernels: Kernels, device: str, dtype: torch.dtype) -> None:
    """Several weights, masters that agree, that differ in what rounding drops, and that are not what a weight holds."""
    parts = []
    for number, (size, k) in enumerate(SIZES):
        weight, indices = normal(size, device, dtype, number), some(size, k, device, number)
        master = weight[indices.long()].to(master_of(dtype))
        if dtype == torch.bfloat16:
            master = master * (1 + 2**-12)
        master[::3] = normal(len(master[::3]), device, master.dtype, 9)
        parts.append(Entries(weight, indices, master))
    wanted = [master.clone() for _, _, master in parts]
    PLAIN.refresh([Entries(weight, indices, new) for (weight, indices, _), new in zip(parts, wanted, strict=True)])
    kernels.refresh(parts)
    for (weight, indices, master), new in zip(parts, wanted, strict=True):
        assert torch.equal(master, new)
        assert torch.equal(master.to(dtype), weight[indices.long()])
        master.copy_(normal(len(master), device, master.dtype, 5))
    before = [weight.clone() for weight, _, _ in parts]
    kernels.write_through(parts)
    for (weight, indices, master), old in zip(parts, before, strict=True):
        assert torch.equal(weight[indices.long()], master.to(dtype))
        others = torch.ones(len(weight), dtype=torch.bool, device=device).index_fill_(0, indices.long(), False)
        assert torch.equal(weight[others], old[others])


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
        parts = []
        for number, (size, k) in enumerate(SIZES):
            weight, indices = normal(size, device, dtype, number), some(size, k, device, number)
            parts.append(Entries(weight, indices, weight[indices.long()].to(master_of(dtype))))
        params = [part.master for part in parts] + [normal(300, device, master_of(dtype), 7)]
        groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "lr": 0.02}]
        return parts, kind(groups, **options)

    (parts, base), (wanted_parts, wanted) = build(), build()
    assert kernels.step is not None
    for turn in range(4):
        for optimizer in (base, wanted):
            for number, p in enumerate(q for group in optimizer.param_groups for q in group["params"]):
                p.grad = normal(p.numel(), device, p.dtype, 100 * turn + number)
        if turn == 2:  # somebody changes weights
            parts[3].weight[::2] = wanted_parts[3].weight[::2] = 0.75
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
        rule, steps = at_once.steps_of(base, by_master.get)
        kernels.step(rule, steps)
    tolerance = 1e-13 if dtype == torch.float64 else 3e-6
    same = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    for part in parts:
        assert torch.equal(part.weight[part.indices.long()], part.master.to(dtype))
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
