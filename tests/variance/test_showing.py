"""What `repr` of an optimizer says; and that the int 1, one coordinate, is not taken for 1.0, all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spidersilk as silk


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 5))  # d = 1125, 20 and 5 of them biases


def lines(optimizer: torch.optim.Optimizer) -> list[str]:
    return [line.strip() for line in repr(optimizer).splitlines()]


def test_sparse_training_shows_its_selection_and_how_much_it_trains() -> None:
    model = net()
    optimizer = silk.SparseAdamW(model, 0.004, k1=0.05, k2=0.1, groups="columns", inner_steps=40)
    trained = 20 * (3 + 5) + 5 * (1 + 2) + 25  # columns of 50 and of 20, and the biases
    assert lines(optimizer) == [
        "SparseAdamW (",
        "inner_steps: 40",
        f"k = {trained} of d = 1,125 entries (17.8 %)",
        "group 0: lr: 0.004, k1: 0.05, k2: 0.1, groups: columns",
        ")",
    ]
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == trained


def test_groups_show_their_own_shares() -> None:
    first, second = nn.Parameter(torch.zeros(40, 50)), nn.Parameter(torch.zeros(40, 10))
    groups = [{"params": [first]}, {"params": [second], "k2": 1.0, "lr": 0.5}]
    optimizer = silk.Sparse(groups, torch.optim.SGD, lr=0.1, k2=0.2, max_norm=2.0)
    assert lines(optimizer)[1:-1] == [
        "base: SGD, max_norm: 2.0, inner_steps: 200",
        "k = 800 of d = 2,400 entries (33.3 %)",
        "group 0: lr: 0.1, k1: 0.0, k2: 0.2",
        "group 1: lr: 0.5, k1: 0.0, k2: 1.0",
    ]


def test_variance_reduction_shows_its_choices() -> None:
    params = list(net().parameters())
    optimizer = silk.SparseSVRG(params, 0.1, k1=0.05, k2=100, move="selected", inner_steps=10)
    assert lines(optimizer) == [
        "SparseSVRG (",
        "base: SGD, k1: 0.05, k2: 100, memory_decay: 0.5, reference: anchor, move: selected, choose: step, "
        "anchor_move: all, scaling: none, inner_steps: 10",
        "k = 157 of d = 1,125 entries (14 %)",
        "group 0: lr: 0.1",
        ")",
    ]
    dense = silk.VarianceReduced(torch.optim.AdamW(params, 1e-3), "previous", inner_steps=silk.Geometric(5))
    assert lines(dense)[1:3] == [
        "base: AdamW, reference: previous, inner_steps: Geometric(mean=5)",
        "dense: all d = 1,125 entries",
    ]


def test_lazy_shows_rows() -> None:
    table = nn.EmbeddingBag(100, 16, sparse=True)
    assert "k = 160 of d = 1,600 entries (10 %)" in lines(silk.LazySVRG(table, 0.1))


def test_it_shows_itself_after_steps_too() -> None:
    model = net()
    optimizer = silk.SparseSVRG(model.parameters(), 0.01, k1=0.1, k2=0.1)
    before = repr(optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 50)).square().mean()
        loss.backward()
        return loss

    for anchor in (True, False):
        optimizer.step(closure, anchor=anchor)
    assert repr(optimizer) == before


Make = Callable[..., Any]
MAKERS: dict[str, Make] = {
    "SparseSVRG": lambda **k: silk.SparseSVRG(net().parameters(), 0.1, **{"k1": 0, "k2": 0, **k}),
    "per_tensor": lambda **k: silk.SparseSVRG(net().parameters(), 0.1, per_tensor=True, **{"k1": 0, "k2": 0, **k}),
    "SparseAdamW": lambda **k: silk.SparseAdamW(net(), 0.1, **{"k1": 0, "k2": 0, **k}),
    "a group": lambda **k: silk.SparseSGD([{"params": list(net().parameters()), "k2": 0, **k}], 0.1),
}


@pytest.mark.parametrize("name", ["k1", "k2"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_one_of_many_is_refused_with_what_was_meant(make: Make, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} = 1 is a count, one of [\d,]+ .*: write {name}=1\.0 for all"):
        make(**{name: 1})
    make(**{name: 1.0})
    make(**{name: 2})


def test_the_remedy_for_one_is_one() -> None:
    optimizer = silk.SparseSGD([nn.Parameter(torch.zeros(40, 50))], 0.1, k2=1 / 2000)
    assert optimizer.k == 1
    assert silk.SparseSGD([nn.Parameter(torch.zeros(40, 50))], 0.1, k2=1.0).k == 2000


def test_one_of_few_is_one() -> None:
    assert silk.SparseSGD([nn.Parameter(torch.zeros(5, 6))], 0.1, k2=1).k == 1
    assert len(silk.select(torch.arange(5000.0), 1, 0).top) == 1  # the operator itself takes what it is given


def test_one_with_groups_says_how_to_have_all() -> None:
    with pytest.raises(ValueError, match=r"k2 = 1 is a count, and columns .* give a fraction, k2=1\.0 for all"):
        silk.SparseAdamW(net(), 0.1, k2=1, groups="columns")


def test_a_plan_is_not_made_for_one_of_many_either() -> None:
    given = {"eps": 0.1, "smoothness": 10, "sigma2": 5, "delta_f": 2.3, "n": 60_000, "d": 62_006}
    with pytest.raises(ValueError, match=r"k1 = 1 is a count, one of 62,006 coordinates: write k1=1\.0 for all"):
        silk.plan(**given, k1=1, k2=0.05)
