"""Parameters and their groups: frozen, unused, several groups, other bases, schedules, clipping, limits."""

from __future__ import annotations

import pytest
import torch
from cases import METHODS, SPARSE
from small_net import base_of, flat, make, net, simple, train
from torch import Tensor, nn

import spidersilk as silk


@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_are_left_out_of_d(name: str) -> None:
    """The same as if the frozen layer had no parameters; and it never changes."""
    model, other = net(), net()
    model[0].requires_grad_(False)
    optimizer = make(name, model, k1=4, k2=3)
    assert optimizer.d == 27
    frozen = [p.clone() for p in model[0].parameters()]
    train(optimizer, simple(model, optimizer))
    assert all(map(torch.equal, frozen, model[0].parameters()))
    assert all(p.grad is None for p in model[0].parameters())
    for p in other[0].parameters():
        p.requires_grad_(False)
    head = METHODS[name].make(other[2].parameters(), 0.05, k1=4, k2=3, generator=torch.Generator().manual_seed(2))
    train(head, simple(other, head))
    assert torch.equal(flat(model), flat(other))
    assert optimizer.gradient_queries == head.gradient_queries


@pytest.mark.parametrize("name", METHODS)
def test_a_parameter_without_gradient_counts_as_zero(name: str) -> None:
    model = net()
    unused = nn.Parameter(torch.ones(5, dtype=torch.float64))
    params = [*model.parameters(), unused]
    optimizer = METHODS[name].make(params, 0.05, k1=20, k2=10, generator=torch.Generator().manual_seed(2))
    losses = train(optimizer, simple(model, optimizer))
    assert torch.equal(unused, torch.ones_like(unused))
    assert optimizer.d == flat(model).numel() + 5
    assert losses[18] < losses[0]


@pytest.mark.parametrize("name", METHODS)
def test_two_parameter_groups(name: str) -> None:
    """Two groups with the same lr are one group; with lr 0, a group stays where it is."""
    joined, split = net(), net()
    one = make(name, joined)
    groups = [{"params": split[0].parameters()}, {"params": split[2].parameters(), "lr": 0.05}]
    two = METHODS[name].make(groups, 0.05, generator=torch.Generator().manual_seed(2))
    train(one, simple(joined, one))
    train(two, simple(split, two))
    torch.testing.assert_close(flat(split), flat(joined), rtol=0, atol=1e-13)
    still = [p.clone() for p in split[2].parameters()]
    two.param_groups[1]["lr"] = 0.0
    train(two, simple(split, two))
    assert all(map(torch.equal, still, split[2].parameters()))
    assert not torch.equal(flat(split[0]), flat(joined[0]))


@pytest.mark.parametrize("which", ["momentum", "adamw"])
@pytest.mark.parametrize("point", ["previous", "anchor"])
def test_momentum_and_adamw_as_base_step_with_v(which: str, point: str) -> None:
    """A second copy of the base, fed with the v that p.grad shows, takes the very same steps."""
    model, other = net(), net()
    optimizer = silk.VarianceReduced(base_of(model.parameters(), which), point, sparsity=silk.RTop(10, 10))
    base = base_of(other.parameters(), which)
    closure_for = simple(model, optimizer)
    for t in range(24):
        optimizer.step(closure_for(torch.arange(64) if t % 6 == 0 else torch.arange(8)), anchor=t % 6 == 0)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            q.grad = p.grad.clone()  # type: ignore[union-attr]
            assert torch.equal(q.grad, optimizer.state[p]["estimate"])
            assert p.grad.data_ptr() != optimizer.state[p]["estimate"].data_ptr()  # type: ignore[union-attr]
        base.step()
        assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize("name", ["svrg", "sparse-svrg, selected", "sparse-svrg, selected, once per anchor"])
def test_an_lr_scheduler_of_torch(name: str) -> None:
    """A schedule through torch's scheduler equals one set by hand."""
    by_torch, by_hand = net(), net()
    one, two = make(name, by_torch, lr=0.1), make(name, by_hand, lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(one, T_max=30)
    rates = []
    one_closure, two_closure = simple(by_torch, one), simple(by_hand, two)
    for t in range(24):
        batch = torch.arange(64) if t % 6 == 0 else torch.arange(8)
        rates.append(one.param_groups[0]["lr"])
        one.step(one_closure(batch), anchor=t % 6 == 0)
        scheduler.step()
        two.param_groups[0]["lr"] = rates[-1]
        two.step(two_closure(batch), anchor=t % 6 == 0)
    assert rates[-1] < 0.2 * rates[0]
    assert torch.equal(flat(by_torch), flat(by_hand))


@pytest.mark.parametrize("name", METHODS)
def test_max_norm_clips_what_moves_x_and_not_the_estimate(name: str) -> None:
    model = net()
    optimizer = make(name, model, lr=1.0, max_norm=0.01)
    closure_for = simple(model, optimizer)
    for t in range(13):
        before = flat(model)
        batch = torch.arange(64) if t % 6 == 0 else torch.arange(8)
        optimizer.step(closure_for(batch), anchor=t % 6 == 0)
        assert float((flat(model) - before).norm()) == pytest.approx(0.01, rel=1e-3)
        if t == 0 and "estimate" in optimizer.state[model[0].weight]:
            estimate = torch.cat([optimizer.state[p]["estimate"].reshape(-1) for p in model.parameters()])
            assert float(estimate.norm()) > 0.1


# Limits that are no errors.


@pytest.mark.parametrize("name", METHODS)
def test_lr_zero_is_valid_and_moves_nothing(name: str) -> None:
    model = net()
    before = flat(model)
    optimizer = make(name, model, lr=0.0)
    train(optimizer, simple(model, optimizer))
    assert torch.equal(flat(model), before)


def test_top_k_alone_draws_nothing() -> None:
    model = net()
    optimizer = make("sparse-svrg", model, k1=10, k2=0)
    train(optimizer, simple(model, optimizer))
    assert isinstance(optimizer.selection, silk.Selection)
    assert (optimizer.selection.k2, optimizer.selection.scale) == (0, 1.0)


@pytest.mark.parametrize("name", SPARSE)
def test_the_same_generator_gives_the_same_run(name: str) -> None:
    results = []
    for seed in (2, 2, 3):
        model = net()
        optimizer = METHODS[name].make(model.parameters(), 0.05, generator=torch.Generator().manual_seed(seed))
        train(optimizer, simple(model, optimizer))
        results.append(flat(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_refused_step_builds_nothing() -> None:
    """Groups can be added until the first step, whatever was asked or refused before."""
    x, y = (nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = silk.SVRG([x], 0.1)

    def closure() -> Tensor:
        loss = (x * y).sum()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="needs inner_steps"):
        optimizer.step(closure)
    with pytest.raises(ValueError, match="samples = -1"):
        optimizer.step(closure, anchor=True, samples=-1)
    optimizer.check_agreement()
    optimizer.add_param_group({"params": [y]})
    optimizer.step(closure, anchor=True)
    assert optimizer.d == 6
