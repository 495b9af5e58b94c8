"""Data sets as a loader sees them: tensors that are indexed directly or anything map-style, and random subsets."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from spidersilk.parallel.agreement import checksum_of, hash_of

_LOOKED_AT = 8  # samples of a data set that is not tensors


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
    if isinstance(dataset, Mapping):
        raise ValueError(
            f"dataset is a mapping ({', '.join(map(repr, list(dataset)[:5]))}): samples are found by number, so give "
            "one of its data sets, or its tensors as a tuple"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"dataset is a {type(dataset).__name__} without __getitem__ and __len__: sampling needs a map-style one, "
            "so load an iterable data set into tensors first"
        )
    return len(dataset)  # pyright: ignore[reportArgumentType]


def checksum_of_data(dataset: Any, indices: Tensor | None) -> int:
    """One number for the samples at `indices` (None: all): the same on ranks that hold the same data in the same order.

    Of a data set that is not tensors it looks at a few samples. If these are not the same when they are asked for
    twice, there is nothing to compare: the number is 0.
    """
    tensors = as_tensors(dataset)
    if tensors:
        taken = tensors if indices is None else [t[indices.to(t.device)] for t in tensors]
        return int(checksum_of([torch.view_as_real(t) if t.is_complex() else t for t in taken]))
    numbers = range(len(dataset))[:_LOOKED_AT] if indices is None else indices[:_LOOKED_AT].tolist()
    seen = []
    for _ in range(2):
        with _seeded():
            seen.append(hash_of([_plain(dataset[number]) for number in numbers]))
    return seen[0] if seen[0] == seen[1] else 0


@contextmanager
def _seeded() -> Iterator[None]:
    """Random transforms give the same on every rank; afterwards all generators are as before."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _plain(sample: Any) -> object:
    """What tells samples apart, as something with a `repr`; of unknown objects it is their type alone."""
    if isinstance(sample, Tensor):
        return str(sample.dtype), tuple(sample.shape), sample.detach().cpu().tolist()
    if isinstance(sample, Mapping):
        return [(str(key), _plain(value)) for key, value in sample.items()]
    if isinstance(sample, list | tuple):
        return [_plain(part) for part in sample]
    if hasattr(sample, "tobytes"):  # arrays and pictures
        return sample.tobytes()
    return sample if isinstance(sample, int | float | str | bytes | None) else type(sample).__name__
