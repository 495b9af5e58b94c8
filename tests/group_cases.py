"""Groups of coordinates found by plain indexing, and a network that has groups of many lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from cases import Problem, mlp
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk import reference

Shape = tuple[int, ...]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups_of(shape: Shape, dimension: int, begin: int = 0) -> list[list[int]]:
    """The coordinates of each group of a tensor that begins at `begin`."""
    entries = torch.arange(begin, begin + math.prod(shape)).reshape(shape)
    if len(shape) < 2:
        return [[i] for i in entries.reshape(-1).tolist()]
    return [entries.select(dimension, j).reshape(-1).tolist() for j in range(shape[dimension])]


def groups_by_length(
    shapes: Sequence[Shape], dimensions: Sequence[int], per_tensor: bool = False
) -> list[list[list[int]]]:
    """The coordinates of each group, in classes of equal length over all tensors or within each."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    begin = 0
    for number, (shape, dimension) in enumerate(zip(shapes, dimensions, strict=True)):
        if math.prod(shape):
            groups = groups_of(shape, dimension, begin)
            found.setdefault((len(groups[0]), number if per_tensor else 0), []).extend(groups)
        begin += math.prod(shape)
    return list(found.values())


def shares(k1: float, k2: float, count: int) -> tuple[int, int]:
    g1 = math.ceil(round(k1 * count, 9))
    return g1, min(math.ceil(round(k2 * count, 9)), count - g1)


def top_groups(memory: Tensor, groups: list[list[int]], g1: int) -> list[int]:
    return reference.top(torch.stack([memory[group].abs().sum() for group in groups]), g1)


def conv(seed: int = 5, n: int = 40) -> Problem:
    """A small network with a convolution, a norm, an embedding and linear layers: groups of many lengths."""
    g = seeded(seed)
    x = torch.randn(n, 2, 6, 6, generator=g, dtype=torch.float64)
    words, y = torch.randint(7, (n,), generator=g), torch.randint(3, (n,), generator=g)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.GroupNorm(1, 4)
            self.words, self.out = nn.Embedding(7, 5), nn.Linear(9, 3)

        def forward(self, x: Tensor, words: Tensor) -> Tensor:
            h = self.norm(self.conv(x)).tanh().mean((2, 3))
            return self.out(torch.cat([h, self.words(words)], 1))

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Net().double()
    return Problem("conv", model, lambda m, b: F.cross_entropy(m(x[b], words[b]), y[b]), n, lr=0.05)


PROBLEMS = {"conv": conv, "mlp": mlp}
# Along which dimension each parameter has its columns.
COLUMNS = {"conv": [1, 0, 0, 0, 1, 1, 0], "mlp": [1, 0, 1, 0]}
LOOPS, INNER = 4, 6


def dimensions_of(problem: str, groups: str) -> list[int]:
    return COLUMNS[problem] if groups == "columns" else [0] * len(COLUMNS[problem])


def shapes_of(problem: Problem) -> list[Shape]:
    return [tuple(p.shape) for p in problem.model.parameters()]


def batches(problem: Problem) -> tuple[list[Tensor], list[Tensor]]:
    g = seeded(3)
    draw = lambda size: torch.randperm(problem.samples, generator=g)[:size]  # noqa: E731
    return [draw(20) for _ in range(LOOPS)], [draw(5) for _ in range(LOOPS * (INNER - 1))]


def train(problem: Problem, optimizer: silk.VarianceReduced, start: int = 0, stop: int = LOOPS * INNER) -> list:
    """Steps [start, stop); each selection once."""
    large, small = batches(problem)
    selections = []
    for t in range(start, stop):
        loop, place = divmod(t, INNER)
        batch = small[loop * (INNER - 1) + place - 1] if place else large[loop]
        optimizer.step(problem.closure(optimizer, batch), anchor=place == 0, samples=len(batch))
        if optimizer.selection is not None and optimizer.selection is not (selections or [None])[-1]:
            selections.append(optimizer.selection)
    return selections
