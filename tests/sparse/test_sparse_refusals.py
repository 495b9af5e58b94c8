"""What sparse training refuses, each in a line with the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sparse_oracle import loss_of, network, seeded, train
from torch import nn

import spidersilk as silk
from spidersilk.sparse.sparse import Sparse

GROUPS = pytest.mark.parametrize("groups", [None, "columns", "rows"])


@GROUPS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_that_was_moved_to_another_dtype(groups: Any, dtype: torch.dtype) -> None:
    model = network(torch.float32)
    optimizer = Sparse(model, torch.optim.AdamW, lr=0.1, groups=groups, generator=seeded())
    train(model, optimizer, 1)
    model.to(dtype)
    with pytest.raises(RuntimeError, match="move the model first, then make the optimizer"):
        train(model, optimizer, 1)


@GROUPS
def test_a_model_in_another_memory_format(groups: Any) -> None:
    """Entries are counted as they lie in memory, so they would be others."""
    torch.manual_seed(0)
    model = nn.Conv2d(4, 6, 3)
    optimizer = Sparse(model, torch.optim.AdamW, lr=0.1, k2=0.5, groups=groups, generator=seeded())
    x = torch.randn(2, 4, 5, 5)
    model(x).sum().backward()
    optimizer.step()
    model.to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match=r"device, dtype or memory format.*move the model first"):
        model(x).sum().backward()
        optimizer.step()


def test_the_state_of_another_base() -> None:
    adamw = Sparse(network(), torch.optim.AdamW, lr=0.1)
    sgd = Sparse(network(), torch.optim.SGD, lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"group 0 .* no 'momentum'.*of another optimizer"):
        sgd.load_state_dict(adamw.state_dict())
    with pytest.raises(ValueError, match=r"group 0 .* no 'betas'.*of another optimizer"):
        adamw.load_state_dict(sgd.state_dict())


@pytest.mark.parametrize("base", [silk.SparseAdamW, silk.SVRG])
def test_our_own_optimizers_are_no_base(base: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a class of torch.optim"):
        Sparse(network(), base, lr=0.1)


def test_shares_beyond_all() -> None:
    with pytest.raises(ValueError, match=r"k1 \+ k2 = 1.4 exceeds 1"):
        Sparse(network(), torch.optim.SGD, lr=0.1, k1=0.7, k2=0.7)


def test_a_weight_without_entries_alone() -> None:
    optimizer = Sparse([nn.Parameter(torch.zeros(0, 3))], torch.optim.SGD, lr=0.1)
    optimizer.step()
    assert optimizer.density == 1.0


def test_shares_changed_in_a_group() -> None:
    """They were read when the optimizer was made, so a change would be without effect."""
    model = network()
    optimizer = Sparse(model, torch.optim.SGD, lr=0.1, inner_steps=2)
    optimizer.param_groups[0]["k2"] = 0.5
    with pytest.raises(ValueError, match=r"k2 of group 0 was changed from 0.1 to 0.5.*make a new one"):
        train(model, optimizer, 3)
    assert loss_of(model)


def test_a_group_for_a_closed_optimizer() -> None:
    """Nobody would take its compact parameters from the model again."""
    model = network()
    model[2].requires_grad_(False)
    optimizer = Sparse(model, torch.optim.SGD, lr=0.1)
    optimizer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        optimizer.add_param_group({"params": model[2].parameters()})
    assert len(list(model.parameters())) == 4


def test_compact_parameters_of_another_optimizer() -> None:
    model = network()
    first = Sparse(model[0], torch.optim.SGD, lr=0.1)
    model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"has a sparse optimizer already"):
        Sparse(model, torch.optim.SGD, lr=0.1)
    first.close()
    Sparse(model, torch.optim.SGD, lr=0.1)


@pytest.mark.filterwarnings("ignore:.*duplicate parameters")
def test_a_weight_that_is_given_twice() -> None:
    weight = nn.Parameter(torch.zeros(20, 20))
    with pytest.raises(ValueError, match=r"given twice"):
        Sparse([weight, weight], torch.optim.SGD, lr=0.1)


def test_a_state_of_torch_itself() -> None:
    model = network()
    theirs = torch.optim.AdamW(model.parameters()).state_dict()
    with pytest.raises(ValueError, match=r"selects nothing, such as torch's AdamW: load a state that this optimizer"):
        silk.SparseAdamW(model).load_state_dict(theirs)


def test_a_frozen_part_that_was_made_in_inference_mode() -> None:
    model = network()
    with torch.inference_mode():
        model.append(nn.Linear(3, 3).double())
    for p in model[3].parameters():
        p.requires_grad = False
    Sparse(model, torch.optim.SGD, lr=0.1)
