"""A backend of kernels added from outside the library, in this one file."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from cases import METHODS, mlp
from torch import Tensor

from spidersilk.kernels import backends
from spidersilk.kernels.interface import Outcome, Seed, Tensors, Update
from spidersilk.kernels.plain import PLAIN


class SortingKernels:
    """Selects by sorting, and counts what it is asked for; the rest in plain torch."""

    draws_on_device = False
    refuses_non_finite = False
    calls: dict[str, int] = {"select": 0, "gather": 0, "scatter": 0, "advance": 0}  # noqa: RUF012

    def select(self, memory: Tensor, k1: int, k2: int, seed: Seed, hint: object = None) -> tuple[Tensor, Tensor]:
        self.calls["select"] += 1
        order = memory.abs().sort(descending=True, stable=True).indices
        others = order[k1:].sort().values
        drawn = torch.randperm(len(others), generator=torch.Generator().manual_seed(int(seed)))[:k2]
        return order[:k1].sort().values, others[drawn].sort().values

    def gather(self, tensors: Tensors, sizes: Sequence[int], indices: Tensor, dtype: torch.dtype) -> Tensor:
        self.calls["gather"] += 1
        return PLAIN.gather(tensors, sizes, indices, dtype)

    def scatter(self, tensors: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
        self.calls["scatter"] += 1
        PLAIN.scatter(tensors, sizes, indices, values)

    def advance(self, update: Update) -> Outcome:
        self.calls["advance"] += 1
        return PLAIN.advance(update)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    def why_not(kinds: backends.Kinds) -> str | None:
        return "it sorts on the CPU alone" if any(device.type != "cpu" for device, _ in kinds) else None

    backends.register("sorting", SortingKernels, why_not)


@pytest.mark.parametrize("name", ["sparse-spiderboost", "sparse-svrg", "sparse-svrg, selected"])
def test_it_takes_the_steps_of_the_plain_one(name: str) -> None:
    ends = []
    for backend in ("torch", "sorting"):
        problem = mlp()
        optimizer = METHODS[name].make(
            problem.model.parameters(), 0.05, backend=backend, generator=torch.Generator().manual_seed(4)
        )
        for t in range(12):
            batch = torch.arange(t, t + (20 if t % 4 == 0 else 5))
            optimizer.step(problem.closure(optimizer, batch), anchor=t % 4 == 0)
        ends.append(problem.flat_x())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)
    assert SortingKernels.calls["select"]
    assert SortingKernels.calls["gather"]
    assert SortingKernels.calls["scatter" if "s" in name and ("selected" in name or "sgd" in name) else "advance"]


def test_it_is_refused_where_it_cannot_work() -> None:
    with pytest.raises(ValueError, match="it sorts on the CPU alone"):
        backends.find("sorting", [(torch.device("cuda"), torch.float32)])
