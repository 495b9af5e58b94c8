"""Modules that others wrap, patch or parametrize while they are in training, and steps that are compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from sparse_oracle import batch, flat, loss_of, network, seeded, train
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spidersilk.sparse.sparse import Sparse

GROUPS = pytest.mark.parametrize("groups", [None, "columns", "rows"])


def adamw(model: nn.Module, groups: str | None, **options: Any) -> Sparse:
    defaults = {"lr": 0.05, "k2": 0.3, "groups": groups, "inner_steps": 2, "generator": seeded()}
    return Sparse(model, torch.optim.AdamW, **(defaults | options))


@GROUPS
@pytest.mark.parametrize("what", ["step", "loop"])
def test_a_compiled_step_is_the_same(groups: Any, what: str) -> None:
    ends = []
    for is_compiled in (False, True):
        model = network()
        optimizer = adamw(model, groups)

        def one(step: int, model: nn.Module = model, optimizer: Sparse = optimizer) -> None:
            loss_of(model, batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()

        if is_compiled and what == "loop":
            one = torch.compile(one, backend="eager")
        elif is_compiled:
            optimizer.step = torch.compile(optimizer.step, backend="eager")
        for step in range(5):
            one(step)
        assert optimizer.steps == 5
        ends.append(flat(model))
        torch._dynamo.reset()
    assert torch.equal(*ends)


@GROUPS
def test_a_forward_that_was_wrapped_outlives_the_optimizer(groups: Any) -> None:
    """As accelerate's hooks do it: the module's own forward is kept, and called by another one."""
    model = network()
    optimizer = adamw(model, groups)
    inner = model[0].forward
    model[0].forward = lambda x: 2 * inner(x)
    train(model, optimizer, 2)
    optimizer.close()
    loss_of(model).backward()
    assert model[0].weight.grad is not None


@GROUPS
def test_a_copy_of_a_module_whose_forward_was_kept(groups: Any) -> None:
    model = network()
    optimizer = adamw(model, groups)
    model[0].kept = model[0].forward
    twin = copy.deepcopy(model)
    x = torch.randn(4, 12, dtype=torch.float64)
    assert torch.equal(twin[0].kept(x), model[0].kept(x))
    assert optimizer.k


@GROUPS
def test_a_parametrization_that_came_later_stays(groups: Any) -> None:
    model = network()
    optimizer = adamw(model, groups)
    parametrizations.weight_norm(model[0])
    wanted = loss_of(model)
    optimizer.close()
    assert parametrize.is_parametrized(model[0])
    torch.testing.assert_close(loss_of(model), wanted)
    parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[0]) is nn.Linear


@GROUPS
def test_forward_mode_derivatives(groups: Any) -> None:
    model = network()
    twin = copy.deepcopy(model)
    optimizer = adamw(model, groups)
    x = torch.randn(4, 12, dtype=torch.float64)
    tangents: list[Tensor] = []
    for of in (model, twin):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangents.append(torch.autograd.forward_ad.unpack_dual(of(dual)).tangent)
    torch.testing.assert_close(*tangents)
    assert optimizer.k


@GROUPS
def test_another_layer_of_the_same_class(groups: Any) -> None:
    """As code that grows or rebuilds a model makes it: type(layer)(...)."""
    model = network()
    optimizer = adamw(model, groups)
    layer = type(model[0])(12, 5).double()
    layer(torch.ones(2, 12, dtype=torch.float64)).sum().backward()
    assert layer.weight.grad is not None
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert layer.load_state_dict(copy.deepcopy(layer).state_dict()) == ([], [])
    assert optimizer.k
