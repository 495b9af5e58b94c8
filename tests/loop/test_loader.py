"""AnchorLoader: what it yields, how it samples, and that it resumes to the batch."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import spidersilk as silk
from spidersilk.loop.datasets import checksum_of_data


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(data: Any = None, anchor: int | None = 20, small: int = 5, inner: Any = 4, **rest: Any) -> silk.AnchorLoader:
    rest.setdefault("generator", seeded(1))
    return silk.AnchorLoader(torch.arange(100) if data is None else data, anchor, small, inner, **rest)


def listed(batches: silk.AnchorLoader, count: int | None = None) -> list[tuple[list[int], bool]]:
    return [(batch.tolist(), bool(is_anchor)) for batch, is_anchor in itertools.islice(batches, count)]


def test_one_anchor_then_its_small_batches() -> None:
    got = listed(loader(loops=3))
    assert [(len(batch), is_anchor) for batch, is_anchor in got] == ([(20, True)] + [(5, False)] * 3) * 3
    assert len(loader(loops=3)) == len(got) == 12
    assert all(len(set(batch)) == len(batch) for batch, _ in got)


def test_an_iteration_visits_about_the_data_set() -> None:
    batches = loader(anchor=10, small=2, inner=6)  # 10 + 5 * 2 = 20 samples a loop
    assert batches.loops == 5
    assert sum(len(batch) for batch, _ in listed(batches)) == 100


def test_iterations_go_on_and_do_not_repeat() -> None:
    batches = loader(loops=2)
    first, second = listed(batches), listed(batches)
    assert first != second
    assert listed(loader(loops=4)) == first + second


@pytest.mark.statistical
@pytest.mark.parametrize("size", [5, 30])  # both ways of drawing a subset
def test_uniform_sampling(size: int) -> None:
    """Each sample, and each pair, is as likely as any other: 5 standard deviations over all of them."""
    n, draws = 41, 4000
    batches = loader(torch.arange(n), anchor=n, small=size, inner=draws + 1, loops=1)
    counts, pairs = torch.zeros(n), torch.zeros(n, n)
    firsts = Counter()
    for batch, is_anchor in batches:
        if not is_anchor:
            counts[batch] += 1
            pairs[batch[:, None], batch[None, :]] += 1
            firsts[int(batch[0])] += 1
    p, q = size / n, size * (size - 1) / (n * (n - 1))
    assert float((counts - draws * p).abs().max()) < 5 * math.sqrt(draws * p * (1 - p))
    off = ~torch.eye(n, dtype=torch.bool)
    assert float((pairs[off] - draws * q).abs().max()) < 5 * math.sqrt(draws * q * (1 - q))
    assert max(abs(firsts[i] - draws / n) for i in range(n)) < 5 * math.sqrt(draws / n)  # the order is random too


def test_shuffled_passes_see_each_sample_once() -> None:
    batches = loader(torch.arange(23), anchor=7, small=5, inner=5, sampling="shuffle", loops=6)
    anchors = [b for b, is_anchor in listed(batches) if is_anchor]
    for start in (0, 3):  # 3 anchors of 7 in a pass of 23, 2 samples left out
        seen = [i for batch in anchors[start : start + 3] for i in batch]
        assert len(set(seen)) == len(seen) == 21
    batches = loader(torch.arange(20), 10, 5, 5, sampling="shuffle", loops=3)
    smalls = [b for b, is_anchor in listed(batches) if not is_anchor]
    for start in (0, 4, 8):
        assert sorted(i for batch in smalls[start : start + 4] for i in batch) == list(range(20))


def test_the_whole_data_set_as_anchor_is_not_copied() -> None:
    data = (torch.randn(30, 4), torch.arange(30))
    batch, is_anchor = next(iter(loader(data, anchor=None)))
    assert is_anchor
    assert batch[0].data_ptr() == data[0].data_ptr()
    pieces = [b for b, a in loader(torch.arange(30), anchor=None, micro_batch_size=12, loops=1) if a]
    assert torch.cat(pieces).tolist() == list(range(30))
    assert [len(p) for p in pieces] == [12, 12, 6]


def test_pieces_of_an_anchor() -> None:
    whole = listed(loader(loops=2))
    batches = loader(loops=2, micro_batch_size=8)
    assert len(batches) == 2 * (3 + 3)
    got = list(batches)
    markers = [a for _, a in got if a]
    assert [(a.weight, a.first, a.last) for a in markers] == [
        (0.4, True, False), (0.4, False, False), (0.2, False, True)
    ] * 2  # fmt: skip
    first = torch.cat([b for b, a in got[:3]]).tolist()
    assert (first, True) == whole[0]
    assert [(b.tolist(), False) for b, a in got if not a] == [w for w in whole if not w[1]]


def test_geometric_lengths_and_idle_anchors() -> None:
    law = silk.Geometric(2)
    batches = loader(inner=law, loops=200)
    lengths: list[int] = []
    for _, marker in batches:
        if marker:
            lengths.append(0 if marker.idle else 1)
        else:
            lengths[-1] += 1
    assert len(lengths) == 200
    assert abs(sum(lengths) / 200 - 2) < 4 * math.sqrt(2 * 3 / 200)
    assert 0 in lengths
    with pytest.raises(TypeError, match="no fixed number"):
        len(batches)


def test_an_idle_anchor_moves_nothing_but_is_counted() -> None:
    p = torch.nn.Parameter(torch.ones(4))
    optimizer = silk.SparseSpiderBoost([p], 0.1, k1=1, k2=1)

    def closure() -> Tensor:
        p.grad = None
        loss = p.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure, anchor=silk.Anchor(idle=True), samples=50)
    assert p.tolist() == [1, 1, 1, 1]
    assert (optimizer.gradient_queries, optimizer.steps, optimizer.anchors) == (50, 0, 1)
    with pytest.raises(RuntimeError, match="before any anchor"):
        optimizer.step(closure, anchor=False)


class Squares(Dataset):
    """A map-style data set that is no tensor."""

    def __init__(self, n: int = 100):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([index, index**2]), index


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_data_sets_through_the_dataloader(workers: int) -> None:
    got = list(loader(Squares(), loops=2, micro_batch_size=8, num_workers=workers))
    want = list(loader(torch.arange(100), loops=2, micro_batch_size=8))
    assert len(got) == len(want)
    for ((x, y), marker), (indices, expected) in zip(got, want, strict=True):
        assert marker == expected
        assert torch.equal(y, indices)
        assert torch.equal(x[:, 1], indices**2)


def test_a_transforming_subclass_of_tensor_dataset_is_heeded() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            return tuple(2 * t for t in super().__getitem__(index))

    batch, _ = next(iter(loader(Doubled(torch.arange(100)))))
    assert bool((batch[0] % 2 == 0).all())


def test_batches_are_drawn_as_they_are_needed() -> None:
    batches = iter(loader(Squares(), loops=10**9))
    for _ in range(3):
        next(batches)


def test_tensor_forms_agree() -> None:
    x, y = torch.randn(100, 3), torch.arange(100)
    forms = [TensorDataset(x, y), (x, y), [x, y]]
    runs = [list(loader(form, loops=2)) for form in forms]
    for run in runs:
        for ((a, b), marker), (indices, expected) in zip(run, loader(y, loops=2), strict=True):
            assert marker == expected
            assert torch.equal(b, indices)
            assert torch.equal(a, x[indices])


@pytest.mark.parametrize("inner", [4, silk.Geometric(3)])
@pytest.mark.parametrize("sampling", ["uniform", "shuffle"])
@pytest.mark.parametrize("data", [torch.arange(100), Squares()], ids=["tensor", "map-style"])
def test_resume_at_every_batch(inner: Any, sampling: str, data: Any) -> None:
    options = {"inner": inner, "sampling": sampling, "micro_batch_size": 8, "loops": 3}

    def rows(batches: silk.AnchorLoader, stop: int | None = None) -> list[tuple[list[int], Any]]:
        def of(b):
            return (b if isinstance(b, Tensor) else b[1]).tolist()

        return [(of(batch), marker) for batch, marker in itertools.islice(batches, stop)]

    whole = loader(data, **options)
    want = rows(whole) + rows(whole)  # two iterations
    length = len(rows(loader(data, **options)))
    for stop in range(1, length):
        stopped = loader(data, **options)
        head = rows(stopped, stop)
        again = loader(data, **options, generator=seeded(99))  # another seed: all comes from the state
        again.load_state_dict(stopped.state_dict())
        assert head + rows(again) + rows(again) == want


def test_a_break_without_loading_starts_at_the_next_anchor() -> None:
    batches = loader(loops=2)
    listed(batches, 2)
    assert listed(batches, 1)[0][1]


def test_iterating_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    batches = [loader(loops=2), loader(Squares(), loops=2)]
    before = torch.get_rng_state()
    for each in batches:
        list(each)
    assert torch.equal(before, torch.get_rng_state())


class Noisy(Dataset):
    """Samples of their own kinds, with noise from the three usual generators, or from one that nobody can seed."""

    def __init__(self, data: list[Any], noise: str = ""):
        self.data, self.noise = data, noise

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        noise = {"torch": lambda: float(torch.rand(())), "random": random.random, "numpy": np.random.random}
        unknown = {"": lambda: 0.0, "system": random.SystemRandom().random}
        return self.data[number], (noise | unknown)[self.noise]()


def test_the_checksum_of_data_tells_data_apart() -> None:
    tensors = torch.arange(40.0), torch.arange(40) % 7
    everything: list[tuple[Any, Any]] = [
        (tensors, (tensors[0], tensors[1].flip(0))),
        (tensors[0].to(torch.bfloat16), tensors[0].flip(0).to(torch.bfloat16)),
        (torch.ones(40, dtype=torch.complex128), 2 * torch.ones(40, dtype=torch.complex128)),
        (list(range(40)), list(range(1, 41))),
        ([{"text": f"a{i}"} for i in range(40)], [{"text": f"b{i}"} for i in range(40)]),
        ([np.full(3, i) for i in range(40)], [np.full(3, -i - 1) for i in range(40)]),
        (Noisy([torch.ones(2) * i for i in range(40)]), Noisy([torch.ones(2) * (i + 1) for i in range(40)])),
    ]
    for data, other in everything:
        for indices in (None, torch.arange(3, 30)):
            assert checksum_of_data(data, indices) == checksum_of_data(data, indices)
            assert checksum_of_data(data, indices) != checksum_of_data(other, indices)


@pytest.mark.parametrize("noise", ["torch", "random", "numpy", "system"])
def test_random_transforms_are_no_disagreement(noise: str) -> None:
    """Seeded ones are compared under one seed; those of another source are not compared. No generator moves."""
    data = Noisy(list(range(20)), noise)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert checksum_of_data(data, None) == checksum_of_data(data, None)
    assert (checksum_of_data(data, None) == 0) == (noise == "system")
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
