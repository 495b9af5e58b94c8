"""Gradients that do not come by an ordinary backward pass, and parameters that are frozen for a while."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sparse_oracle import batch, flat, loss_of, network, seeded, train
from torch import Tensor, nn

from spidersilk.sparse.sparse import Sparse

GROUPS = pytest.mark.parametrize("groups", [None, "columns", "rows"])


def sgd(model: nn.Module, groups: str | None, **options: Any) -> Sparse:
    defaults = {"lr": 0.1, "k2": 0.3, "groups": groups, "generator": seeded(), "step_scale": 1.0}
    return Sparse(model, torch.optim.SGD, **(defaults | options))


def weights_of(model: nn.Module) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if not name.endswith("_compact")]


def moved_as(optimizer: Sparse, before: list[Tensor], weights: list[Tensor], gradients: list[Tensor]) -> None:
    """The selected entries have moved by these gradients, the others not at all."""
    compacts = {id(c.weight): c for c in optimizer._weights}
    for old, weight, gradient in zip(before, weights, gradients, strict=True):
        compact, mask = compacts.get(id(weight)), torch.ones_like(weight)
        if compact is not None and compact.dimension is None:
            mask = torch.zeros(weight.numel(), dtype=mask.dtype).index_fill(0, compact.indices.long(), 1.0)
        elif compact is not None:
            mask = torch.zeros_like(weight).index_fill(compact.dimension, compact.indices.long(), 1.0)
        torch.testing.assert_close(weight.detach(), old - 0.1 * gradient * mask.view(weight.shape))


@GROUPS
@pytest.mark.parametrize("k1", [0.0, 0.2])
def test_gradients_put_there_by_hand(groups: Any, k1: float) -> None:
    """Torch's optimizers step by p.grad, whoever wrote it."""
    model = network()
    optimizer = sgd(model, groups, k1=k1)
    weights = weights_of(model)
    gradients = [torch.randn_like(w) for w in weights]
    before = [w.detach().clone() for w in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.clone()
    optimizer.step()
    moved_as(optimizer, before, weights, gradients)
    assert model[0].weight.grad is None


@GROUPS
def test_zero_grad_discards_what_an_earlier_optimizer_left(groups: Any) -> None:
    model = network()
    loss_of(model).backward()
    optimizer = sgd(model, groups)
    optimizer.zero_grad()
    assert model[0].weight.grad is None
    weights = weights_of(model)
    before = [w.detach().clone() for w in weights]
    twin = plain(model)
    gradients = list(torch.autograd.grad(loss_of(twin, batch(1)), list(twin.parameters())))
    loss_of(model, batch(1)).backward()
    optimizer.step()
    moved_as(optimizer, before, weights, gradients)


def plain(model: nn.Module) -> nn.Module:
    twin = network()
    twin.load_state_dict(model.state_dict())
    return twin


@GROUPS
def test_loading_discards_gradients_of_another_selection(groups: Any) -> None:
    model = network()
    optimizer = sgd(model, groups, inner_steps=2)
    state = optimizer.state_dict()
    state = {"state": {n: {k: v.clone() for k, v in s.items()} for n, s in state["state"].items()},
             "param_groups": state["param_groups"]}  # fmt: skip
    train(model, optimizer, 2)
    loss_of(model).backward()
    optimizer.load_state_dict(state)
    assert all(c.param.grad is None for c in optimizer._weights)


@GROUPS
def test_a_frozen_group_is_left_alone(groups: Any) -> None:
    """As Lightning's toggle_optimizer freezes the parameters of the other optimizer."""
    model = network()
    optimizer = sgd(model, groups)
    own = [p for group in optimizer.param_groups for p in group["params"]]
    for p in own:
        p.requires_grad_(False)
    before = flat(model)
    loss_of(model).backward()
    assert all(p.grad is None for p in own)
    assert model[0].weight.grad is None
    for p in own:
        p.requires_grad_(True)
    optimizer.step()
    assert torch.equal(flat(model), before)


@GROUPS
def test_a_weight_whose_compact_parameter_stays_frozen_is_not_passed_over_in_silence(groups: Any) -> None:
    model = network()
    optimizer = sgd(model, groups)
    model.requires_grad_(False)
    model[2].weight.requires_grad_(True)  # and not what stands for it
    loss_of(model).backward()
    with pytest.warns(UserWarning, match=r"shape \(3, 20\).*module.requires_grad_\(\)"):
        optimizer.step()
    model[2].requires_grad_(True)
    before = flat(model)
    train(model, optimizer, 1)
    assert not torch.equal(flat(model), before)


@GROUPS
def test_a_weight_that_was_frozen_at_first_is_not_passed_over_in_silence(groups: Any) -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = sgd(model, groups)
    train(model, optimizer, 1)
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"shape \(20, 12\).*add_param_group"):
        loss_of(model).backward()
    model[0].weight.grad = None
    optimizer.add_param_group({"params": model[0].parameters()})
    before = model[0].weight.detach().clone()
    train(model, optimizer, 2)
    assert not torch.equal(model[0].weight, before)


@GROUPS
def test_hooks_on_a_weight_see_and_change_its_gradient(groups: Any) -> None:
    model = network()
    optimizer = sgd(model, groups)
    seen = []
    model[0].weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 0.0)
    before = model[0].weight.detach().clone()
    train(model, optimizer, 1)
    assert seen[0].shape == (20, 12)
    assert torch.equal(model[0].weight, before)


def test_a_penalty_on_compact_parameters_is_refused() -> None:
    """It would count the selected entries twice: as part of their weight, and once more."""
    model = network()
    optimizer = sgd(model, None)
    own = optimizer.param_groups[0]["params"]
    with pytest.raises(RuntimeError, match=r"a loss uses a compact parameter.*'_compact'"):
        (loss_of(model) + sum(p.square().sum() for p in own)).backward()


@GROUPS
def test_a_penalty_on_weights(groups: Any) -> None:
    model = network()
    optimizer = sgd(model, groups)
    weights = weights_of(model)
    before = [w.detach().clone() for w in weights]
    (loss_of(model) * 0 + sum(w.square().sum() for w in weights)).backward()
    optimizer.step()
    moved_as(optimizer, before, weights, [2 * w for w in before])
