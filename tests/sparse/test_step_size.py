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
        self.table, self.norm = nn.Embedding(6, 20), nn.LayerNorm(20)
        self.mix, self.inside, self.head = nn.Conv1d(3, 30, 2), nn.Linear(20, 10), nn.Linear(10, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.inside(self.norm(self.table(tokens))).tanh()).square().mean() + self.mix.weight.sum()


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
    whole = ("table.weight", "norm.weight", "norm.bias", "inside.bias", "head.bias")
    expected = dict.fromkeys(whole, 0.01) | {f"{name}.weight": 0.01 * scale for name, scale in shares.items()}
    assert found == pytest.approx(expected)


def test_another_scale_for_all_that_is_selected_and_by_group() -> None:
    model = Words().double()
    groups: list[dict[str, Any]] = [
        {"params": [model.table.weight, model.inside.weight, model.inside.bias], "lr_scale": 2.0},
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
        group["lr"], group["lr_scale"] = 0.1, 3.0
    optimizer.zero_grad()
    assert moved(model, optimizer, gradients(model))["inside.weight"] == pytest.approx(0.3)


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
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


def test_bases_that_keep_values_in_their_groups() -> None:
    model = Words().double()
    optimizer = Sparse(model, Counting, lr=0.01, generator=seeded())
    gradients(model)
    with pytest.raises(ValueError, match=r"Counting keeps 'count' in its groups.* give lr_scale=1.0 and a larger lr"):
        optimizer.step()
    optimizer.close()
    optimizer = Sparse(model, Counting, lr=0.01, lr_scale=1.0, generator=seeded())
    for _ in range(3):
        gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.param_groups[0]["count"] == 3


@pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan, "share", True])
def test_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match=r"lr_scale = .* must be a finite number above 0: None is one over the share"):
        silk.SparseAdamW(nn.Linear(40, 4), lr_scale=scale)


def test_states_of_another_scale_are_refused() -> None:
    model = nn.Linear(40, 4)
    optimizer = silk.SparseAdamW(model, lr_scale=2.0)
    state = optimizer.state_dict()
    optimizer.close()
    optimizer = silk.SparseAdamW(model)
    with pytest.raises(ValueError, match=r"saved with lr_scale = 2.0 and has None here: construct the same optimizer"):
        optimizer.load_state_dict(state)
    del state["param_groups"][0]["lr_scale"]
    with pytest.raises(ValueError, match="saved with lr_scale = 'not there' and has None here"):
        optimizer.load_state_dict(state)
