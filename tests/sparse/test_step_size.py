"""How large a step is: lr over the share of a weight that is trained, and lr for what is trained whole."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from sparse_oracle import seeded
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.sparse.sparse import Sparse


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm, self.bag = nn.Embedding(6, 20), nn.LayerNorm(20), nn.EmbeddingBag(6, 20)
        self.mix, self.inside, self.head = nn.Conv1d(3, 30, 2), nn.Linear(20, 10), nn.Linear(10, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens) + self.bag(tokens[:, None]))
        return self.head(self.inside(x).tanh()).square().mean() + self.mix.weight.sum()


def moved(model: nn.Module, optimizer: Sparse, wanted: dict[str, Tensor]) -> dict[str, float]:
    """Of each parameter, how far its selected entries have moved, over the gradient that they had."""
    before = {name: p.detach().clone() for name, p in model.named_parameters() if not name.endswith("_compact")}
    optimizer.step()
    found = {}
    for name, p in model.named_parameters():
        if name in before and (changed := p != before[name]).any():
            ratios = ((before[name] - p) / wanted[name])[changed]
            torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))
            found[name] = float(ratios[0])
    return found


def gradients(model: nn.Module) -> dict[str, Tensor]:
    plain, tokens = copy.deepcopy(model), torch.arange(6)
    plain(tokens).backward()
    model(tokens).backward()
    return {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("groups", [None, "columns", "rows"])
def test_one_over_the_share_but_for_embeddings_and_what_is_whole(groups: Any) -> None:
    model = Words().double()
    optimizer = Sparse(model, torch.optim.SGD, lr=0.01, k2=0.3, groups=groups, generator=seeded())
    shares = {
        None: {"inside": 200 / 60, "head": 60 / 18, "mix": 180 / 54},
        "columns": {"inside": 20 / 6, "head": 10 / 3, "mix": 3 / 1},
        "rows": {"inside": 10 / 3, "head": 6 / 2, "mix": 30 / 9},
    }[groups]
    found = moved(model, optimizer, gradients(model))
    whole = ("table.weight", "bag.weight", "norm.weight", "norm.bias", "inside.bias", "head.bias")
    expected = dict.fromkeys(whole, 0.01) | {f"{name}.weight": 0.01 * scale for name, scale in shares.items()}
    assert found == pytest.approx(expected)


def test_another_scale_for_all_that_is_selected_and_by_group() -> None:
    model = Words().double()
    groups: list[dict[str, Any]] = [
        {"params": [model.table.weight, model.inside.weight, model.inside.bias], "step_scale": 2.0},
        {"params": [model.head.weight], "lr": 0.1},
        {"params": [model.mix.weight], "k2": 1.0},
    ]
    optimizer = silk.SparseSGD(groups, lr=0.01, k2=0.5, generator=seeded())
    found = moved(model, optimizer, gradients(model))
    expected = {"table.weight": 0.02, "inside.weight": 0.02, "inside.bias": 0.01, "head.weight": 0.2}
    assert found == pytest.approx(expected | {"mix.weight": 0.01})


@pytest.mark.parametrize("tensor", [False, True])
def test_schedulers_and_hands_change_lr_alone(tensor: bool) -> None:
    """Also where somebody sets the lr of all groups, as many training loops do."""
    model = Words().double()
    lr: Any = torch.tensor(0.01, dtype=torch.float64) if tensor else 0.01
    optimizer = Sparse(model, torch.optim.SGD, lr=lr, k2=0.5, inner_steps=None, generator=seeded())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    found = moved(model, optimizer, gradients(model))
    assert (found["inside.weight"], found["norm.bias"]) == pytest.approx((0.02, 0.01))
    scheduler.step()
    (group,) = optimizer.param_groups
    assert float(group["lr"]) == 0.005
    optimizer.zero_grad()
    assert moved(model, optimizer, gradients(model))["inside.weight"] == pytest.approx(0.01)
    for group in optimizer.param_groups:
        group["lr"], group["step_scale"] = 0.1, 3.0
    optimizer.zero_grad()
    assert moved(model, optimizer, gradients(model))["inside.weight"] == pytest.approx(0.3)


@pytest.mark.parametrize("scale", [0.0, -1.0, "x"])
def test_a_scale_that_is_set_later_is_checked(scale: Any) -> None:
    model = Words().double()
    optimizer = Sparse(model, torch.optim.SGD, lr=0.01, generator=seeded())
    gradients(model)
    optimizer.param_groups[0]["step_scale"] = scale
    with pytest.raises(ValueError, match=r"step_scale = .* must be a finite number above 0"):
        optimizer.step()


def test_what_is_whole_in_half_precision_steps_by_lr() -> None:
    """It has a float32 copy, as selected parts have."""
    model = Words().bfloat16()
    optimizer = Sparse(model, torch.optim.SGD, lr=0.5, step_scale=3.0, k2=0.5, inner_steps=None, generator=seeded())
    gradients(model)
    by_weight = {id(c.weight): c.param for c in optimizer._weights}
    found = {}
    for name, p in model.named_parameters():
        if id(p) in by_weight and name in ("norm.bias", "inside.weight"):
            param = by_weight[id(p)]
            assert param.grad is not None
            found[name] = param, param.detach().clone(), param.grad.clone()
    optimizer.step()
    for name, scale in (("norm.bias", 1.0), ("inside.weight", 3.0)):
        param, before, gradient = found[name]
        torch.testing.assert_close(param.detach(), before - scale * 0.5 * gradient)


def test_small_shares_have_a_bound() -> None:
    model = nn.Linear(100, 100, bias=False)
    optimizer = Sparse(model, torch.optim.SGD, lr=0.01, k2=10)
    before = model.weight.detach().clone()
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    assert float((before - model.weight.detach()).max()) == pytest.approx(0.5)


def test_groups_come_back_after_an_error() -> None:
    model = Words().double()
    optimizer = Sparse(model, torch.optim.SGD, lr=0.01, generator=seeded())
    groups = optimizer.param_groups

    def fail(*_: Any) -> None:
        raise KeyError

    optimizer.base.register_step_pre_hook(fail)
    gradients(model)
    with pytest.raises(KeyError):
        optimizer.step()
    assert optimizer.param_groups is groups


class Counting(torch.optim.SGD):
    """Counts in its groups, as optimizers of others do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if "tensor" in group:
                group["tensor"] += 1
            else:
                group["count"] = group.get("count", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize("in_place", [False, True])
def test_bases_that_keep_values_in_their_groups(in_place: bool) -> None:
    model = Words().double()
    optimizer = Sparse(model, Counting, lr=0.01, generator=seeded())
    if in_place:
        optimizer.param_groups[0]["tensor"] = torch.zeros(1)
    gradients(model)
    with pytest.raises(ValueError, match=r"'(count|tensor)' of .* while Counting stepped.* give step_scale=1.0"):
        optimizer.step()
    optimizer.close()
    optimizer = Sparse(model, Counting, lr=0.01, step_scale=1.0, generator=seeded())
    for _ in range(3):
        gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.param_groups[0]["count"] == 3


@pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan, "share", True])
def test_refused(scale: Any) -> None:
    with pytest.raises(
        ValueError, match=r"step_scale = .* must be a finite number above 0: None is one over the share"
    ):
        silk.SparseAdamW(nn.Linear(40, 4), step_scale=scale)


def test_states_of_another_scale_are_refused() -> None:
    model = nn.Linear(40, 4)
    optimizer = silk.SparseAdamW(model, step_scale=2.0)
    state = optimizer.state_dict()
    optimizer.close()
    optimizer = silk.SparseAdamW(model)
    with pytest.raises(
        ValueError, match=r"saved with step_scale = 2.0 and has None here: construct the same optimizer"
    ):
        optimizer.load_state_dict(state)
    del state["param_groups"][0]["step_scale"]  # as in states of before, which stepped by lr
    with pytest.raises(ValueError, match=r"saved with step_scale = 1.0 and has None here"):
        optimizer.load_state_dict(state)
    optimizer.close()
    silk.SparseAdamW(model, step_scale=1.0).load_state_dict(state)
