"""What needs no second process: parts of batches, traffic, checksums, refusals, and a group of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import Training, trajectory
from torch import nn

import spidersilk as silk
from spidersilk.loop.markers import Anchor
from spidersilk.parallel import agreement
from spidersilk.parallel.agreement import checksum, checksum_of
from spidersilk.parallel.workers import Portion, Traffic


@pytest.mark.parametrize("by_dataloader", [False, True])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_parts_of_a_batch_make_it_up(world: int, by_dataloader: bool) -> None:
    """Each sample is on one rank; with fewer samples than ranks, the others get a placeholder of weight 0."""
    x = torch.arange(50)
    samples = x.tolist() if by_dataloader else x

    def loader() -> silk.AnchorLoader:
        return silk.AnchorLoader(
            samples, 23, 4, 3, micro_batch_size=10, loops=4, generator=torch.Generator().manual_seed(0)
        )

    split = [loader() for _ in range(world)]
    for rank, part in enumerate(split):
        part._workers = SimpleNamespace(rank=rank, world=world, verify=lambda _: None)
    for (batch, is_anchor), *parts in zip(loader(), *split, strict=True):
        markers = [marker for _, marker in parts]
        portions = [marker.portion if is_anchor else marker for marker in markers]
        assert all(bool(marker) == bool(is_anchor) for marker in markers)
        assert {p.total for p in portions} == {len(batch)}
        assert {p.even for p in portions} == {len(batch) % world == 0}
        assert max(p.samples for p in portions) - min(p.samples for p in portions) <= 1
        assert all(len(values) == max(1, p.samples) for (values, _), p in zip(parts, portions, strict=True))
        assert all(value in batch for values, _ in parts for value in values)
        counted = [values[: p.samples] for (values, _), p in zip(parts, portions, strict=True)]
        assert torch.equal(torch.cat(counted), batch)
    assert len({str(part.state_dict()) for part in split}) == 1


def test_ring() -> None:
    assert Traffic(4).ring(100) == 150
    assert Traffic(1).ring(100) == 0
    assert Traffic(2, 10, 20, 30).ring_bytes == 60


def test_checksums_see_every_bit_and_its_place() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5000, generator=generator)
    seen = {int(checksum(x))}
    for place in (0, 1, 1023, 1024, 4095, 4096, 4999):
        y = x.clone()
        y[place] = torch.nextafter(y[place], torch.tensor(9.0))
        seen.add(int(checksum(y)))
    for a, b in ((0, 1), (0, 1024), (4097, 4098), (7, 4999)):
        y = x.clone()
        y[[a, b]] = x[[b, a]]
        seen.add(int(checksum(y)))
    assert len(seen) == 12
    assert int(checksum_of([x, x[:5]])) != int(checksum_of([x[:5], x]))
    assert int(checksum(torch.cat([x[:1], x])[1:])) == int(checksum(x))  # wherever it lies
    assert int(checksum(torch.tensor([1, 4]))) != int(checksum(torch.tensor([2, 3])))
    for dtype in (torch.bfloat16, torch.float64):
        assert int(checksum(x.to(dtype))) != int(checksum((x + 1).to(dtype)))


def test_checksums_are_those_of_any_device() -> None:
    """The torch operations used on other devices give the same as the compiled kernel."""
    words = torch.randint(-(2**62), 2**62, (1000,), generator=torch.Generator().manual_seed(0))
    by_hand = agreement.mixed(words + torch.arange(1, 1001) * agreement._GOLDEN).sum()
    assert int(checksum(words)) == int(by_hand)
    assert int(checksum(words.view(torch.float32))) == int(by_hand)
    assert int(checksum(torch.cat([words, words[:1]]).view(torch.float32)[:2001])) != int(by_hand)
    assert int(checksum(words.view(torch.bfloat16)[1:])) == int(checksum(words.view(torch.bfloat16)[1:].clone()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_checksums_see_signs_and_shifts_of_weight(dtype: torch.dtype) -> None:
    x = torch.arange(1, 4097).to(dtype)
    assert len({int(checksum(torch.where(torch.arange(4096) == i, -x, x))) for i in range(0, 4096, 7)}) == 586
    assert int(checksum(-x)) != int(checksum(x))
    one, other = torch.zeros(3000, dtype=dtype), torch.zeros(3000, dtype=dtype)
    one[[0, 1025]], other[[1, 1024]] = 1, 1
    assert int(checksum(one)) != int(checksum(other))


def test_a_split_loader_needs_a_group_at_the_optimizer() -> None:
    training = Training(None)
    for marker in (Anchor(portion=Portion(3, 7)), Portion(3, 7)):
        training.batches = iter([((training.x, training.y), marker)])
        with pytest.raises(ValueError, match=r"3 of a batch's 7 samples.*process_group"):
            training.step()


def test_a_group_that_is_none() -> None:
    params = [nn.Parameter(torch.zeros(3))]
    with pytest.raises(ValueError, match="init_process_group"):
        silk.SVRG(params, lr=0.1, process_group="world")
    with pytest.raises(ValueError, match="init_process_group"):
        silk.AnchorLoader(torch.zeros(9, 1), 4, 2, 2, process_group="world")


def test_lazy_tables_are_of_one_process() -> None:
    with pytest.raises(ValueError, match=r"LazySVRG.*SparseSVRG\(groups='rows'\)"):
        silk.LazySVRG(nn.Embedding(5, 2, sparse=True), lr=0.1, process_group="world")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process as a group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:gc.freeze")  # conftest.py freezes; every wrapper here is made after it
@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 10}, {"ddp": True}], ids=str)
def test_a_group_of_one_goes_the_same_way(alone: None, options: dict[str, Any]) -> None:
    expected, queries = trajectory(None, "SparseSVRG", 20, **(options | {"ddp": False}))
    points, counted = trajectory(dist.group.WORLD, "SparseSVRG", 20, **options)
    torch.testing.assert_close(points, expected, rtol=0, atol=1e-12)
    assert counted == queries
