"""Two evaluations of one closure under equal conditions, without side effects."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spidersilk.variance.flat import make_slabs
from spidersilk.variance.two_point import BufferGuard, TwoPoint, swapped


def test_swap_shows_the_point_and_restores_the_same_storage() -> None:
    p = nn.Parameter(torch.arange(6.0).view(2, 3))
    address, point = p.data_ptr(), torch.full((2, 3), 7.0)
    with swapped([p], [point]):
        assert torch.equal(p, point)
        assert p.data_ptr() == point.data_ptr()  # not copied
        (p**2).sum().backward()
    assert p.data_ptr() == address
    assert torch.equal(p, torch.arange(6.0).view(2, 3))
    assert torch.equal(p.grad, 2 * point)  # type: ignore[arg-type]
    with pytest.raises(KeyError), swapped([p], [point]):
        raise KeyError
    assert p.data_ptr() == address


def test_twins_keep_channels_last() -> None:
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    (slab,) = make_slabs([{"params": list(conv.parameters())}])
    twins = slab.twins()
    for p, twin in zip(slab.params, twins, strict=True):
        assert twin.stride() == p.stride()
        twin.copy_(p.detach())
    x = torch.randn(2, 3, 8, 8)
    with swapped(slab.params, twins):
        assert torch.equal(conv(x), nn.functional.conv2d(x, *slab.params))
        assert conv.weight.data_ptr() == twins[0].data_ptr()


def test_twins_of_shared_storage_share_a_twin_of_it() -> None:
    """Weights in one block, as cuDNN needs for an LSTM; a slice does not copy the large buffer it belongs to."""
    buffer = torch.randn(20)
    params = [nn.Parameter(buffer[4:10]), nn.Parameter(buffer[10:20].view(5, 2).t()), nn.Parameter(torch.randn(3))]
    (slab,) = make_slabs([{"params": params}])
    twins = slab.twins()
    copied = [t.copy_(p.detach()) for t, p in zip(twins, params, strict=True)]
    assert all(map(torch.equal, copied, params))
    assert [t.storage_offset() for t in twins[:2]] == [4, 10]
    assert twins[0].untyped_storage().data_ptr() == twins[1].untyped_storage().data_ptr()
    assert twins[2].untyped_storage().data_ptr() != twins[0].untyped_storage().data_ptr()
    large = torch.randn(1000)
    (slab,) = make_slabs([{"params": [nn.Parameter(large[:5]), nn.Parameter(large[100:110:2])]}])
    twins = slab.twins()
    assert twins[0].untyped_storage().nbytes() == 5 * 4
    assert [t.copy_(p.detach()).tolist() for t, p in zip(twins, slab.params, strict=True)] == [
        p.tolist() for p in slab.params
    ]


def test_randomness_is_replayed_and_then_goes_on_as_after_one_evaluation() -> None:
    p = nn.Parameter(torch.ones(3))
    points = TwoPoint([p])
    drawn: list[Tensor] = []

    def closure() -> Tensor:
        noise = torch.rand(3)
        drawn.append(noise)
        loss = (p * noise).sum()
        loss.backward()
        return loss

    torch.manual_seed(1)
    closure()
    want = torch.rand(2)
    torch.manual_seed(1)
    drawn.clear()
    points.at_current(closure, then_reference=True)
    points.at_reference(closure, [torch.zeros(3)])
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.rand(2), want)


class Counting(nn.Module):
    """Buffers changed in place, replaced, integer, empty, expanded, and inside a child."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("replaced", torch.zeros(1))
        self.register_buffer("absent", None)
        self.register_buffer("expanded", torch.zeros(1).expand(4))

    def forward(self, x: Tensor) -> Tensor:
        self.replaced = self.replaced + 1
        return self.norm(x)


@pytest.mark.parametrize("known", [True, False])  # found by its parameters, or only when it is called
def test_buffers_start_alike_and_keep_the_first_evaluations_change(known: bool) -> None:
    model, alone = Counting(), Counting()
    guard = BufferGuard(list(model.parameters()) if known else [nn.Parameter(torch.ones(1))])
    seen = []
    for _ in range(3):
        x = torch.randn(8, 3)
        alone(x)
        for place in (guard.at_current, guard.at_reference):
            with place():
                model(x)
                seen.append(float(model.replaced))
        for (name, ours), theirs in zip(model.named_buffers(), alone.buffers(), strict=True):
            assert torch.equal(ours, theirs), name
    assert seen == [1, 1, 2, 2, 3, 3]
    model(torch.randn(8, 3))
    assert int(model.norm.num_batches_tracked) == 4  # type: ignore[arg-type]  # the guard is gone


@pytest.mark.slow
@pytest.mark.parametrize("form", ["compiled", "compiled in place", "inside a compiled function", "traced", "a method"])
def test_buffers_of_models_that_are_not_called_plainly(form: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    run = model
    if form == "compiled":
        run = torch.compile(model, backend="aot_eager")
    elif form == "compiled in place":
        model.compile(backend="aot_eager")
    elif form == "inside a compiled function":
        run = torch.compile(lambda x: model(x).square(), backend="aot_eager")
    elif form == "traced":
        run = torch.jit.trace_module(model, {"forward": x})
    elif form == "a method":
        run = lambda x: nn.Sequential.forward(model, x)  # noqa: E731
    own = list(run.parameters()) if form == "traced" else list(model.parameters())
    guard = BufferGuard(own)
    mean = next(b for n, b in (run if form == "traced" else model).named_buffers() if "running_mean" in n)
    with guard.at_current():
        run(x)
    kept = mean.clone()
    with guard.at_reference():
        run(x + 1)
        assert not torch.equal(mean, kept)
    assert torch.equal(mean, kept)
    run(x + 1)
    assert not torch.equal(mean, kept)


def test_evaluating_names_the_point_also_after_an_error() -> None:
    p = nn.Parameter(torch.ones(1))
    points = TwoPoint([p])
    seen = []

    def closure() -> Tensor:
        seen.append((points.evaluating, float(p.detach())))
        (p * 2).backward()
        return p

    points.at_current(closure, then_reference=True)
    points.at_reference(closure, [torch.full((1,), 5.0)])
    assert seen == [("current", 1.0), ("reference", 5.0)]

    def broken() -> Tensor:
        torch.rand(3)
        raise KeyError("mine")

    state = torch.get_rng_state()
    with pytest.raises(KeyError, match="mine"):
        points.at_reference(broken, [torch.full((1,), 5.0)])
    assert points.evaluating is None
    assert float(p.detach()) == 1.0
    assert torch.equal(torch.get_rng_state(), state)
