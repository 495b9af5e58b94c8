"""What every backend must do with single entries, on any device: for test_entries.py, triton_cases.py, test_cuda.py."""

from __future__ import annotations

import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Kernels
from spidersilk.kernels.plain import PLAIN

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
