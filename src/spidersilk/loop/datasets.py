"""Data sets as a loader sees them: tensors that are indexed directly or anything map-style, and random subsets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


def subset(n: int, size: int, generator: torch.Generator) -> Tensor:
    """A uniform subset of range(n) in random order. For a small one, what repeats is drawn again: O(size), not O(n)."""
    if size > n // 8:
        return torch.randperm(n, generator=generator)[:size]
    drawn = torch.randint(n, (size,), generator=generator)
    chosen = dict.fromkeys(drawn.tolist())
    if len(chosen) == size:
        return drawn
    while len(chosen) < size:
        chosen.update(dict.fromkeys(torch.randint(n, (size - len(chosen),), generator=generator).tolist()))
    return torch.tensor(list(chosen))


def count_samples(dataset: object) -> int:
    """The number of samples of anything that a loader takes."""
    tensors = as_tensors(dataset)
    return len(tensors[0]) if tensors else _length(dataset)


def as_tensors(dataset: object) -> tuple[Tensor, ...] | None:
    if isinstance(dataset, Tensor):
        tensors: tuple[Tensor, ...] = (dataset,)
    elif type(dataset) is TensorDataset:  # a subclass may transform what it gives
        tensors = tuple(dataset.tensors)
    elif isinstance(dataset, list | tuple) and dataset and all(isinstance(t, Tensor) for t in dataset):
        tensors = tuple(dataset)
    else:
        return None
    lengths = {len(t) if t.dim() else 0 for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"the tensors have {sorted(lengths)} samples: they must agree, and have at least one")
    return tensors


def _length(dataset: object) -> int:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"dataset is a {type(dataset).__name__} without __getitem__ and __len__: sampling needs a map-style one, "
            "so load an iterable data set into tensors first"
        )
    return len(dataset)  # pyright: ignore[reportArgumentType]
