"""When a step is done in one pass, and what the pass is told (the pass itself: tests/kernels/entry_cases.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from spidersilk.sparse import bases


class Other(AdamW):
    pass


def stepped(kind: type[Optimizer], **options: Any) -> Optimizer:
    """After its first step, with the state that it made on the device of its parameter."""
    p = torch.ones(5)
    p.grad = torch.ones(5)
    base = kind([p], **options)
    base.step()
    return base


def none(_: Tensor) -> None:
    return None


@pytest.mark.parametrize(
    ("kind", "options", "rule", "numbers", "names"),
    [
        (SGD, {"lr": 0.5}, "sgd", (0.5, 0, 0, 0, 0.0, 1.0), ()),
        (
            SGD,
            {"lr": 0.5, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1, "maximize": True},
            "sgd",
            (0.5, 0.9, 0.2, 0.1, 0.0, -1.0),
            ("momentum_buffer",),
        ),
        (SGD, {"momentum": 0.9, "nesterov": True}, "sgd", (1e-3, 0.9, 0, 0, 1.0, 1.0), ("momentum_buffer",)),
        (
            AdamW,
            {"lr": 0.5, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.1},
            "adamw",
            (0.5, 0.8, 0.9, 1e-5, 0.1, 1.0),
            ("exp_avg", "exp_avg_sq", "step"),
        ),
    ],
)
def test_what_the_pass_is_told(
    kind: type[Optimizer], options: Any, rule: str, numbers: tuple[float, ...], names: tuple[str, ...]
) -> None:
    base = stepped(kind, **options)
    found = bases.steps_of(base, none)
    assert found is not None
    (given,) = found[1]
    (p,) = base.param_groups[0]["params"]
    assert (found[0], given.numbers) == (rule, numbers)
    assert given.param is p
    assert given.gradient is p.grad
    assert [id(x) for x in given.state] == [id(base.state[p][name]) for name in names]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {}),
        (Other, {}),
        (AdamW, {"amsgrad": True}),
        (AdamW, {"lr": torch.tensor(0.1)}),
        (SGD, {"lr": torch.tensor(0.1)}),
    ],
)
def test_another_base_or_a_special_one_steps_itself(kind: type[Optimizer], options: Any) -> None:
    assert bases.steps_of(stepped(kind, **options), none) is None


def test_what_cannot_be_done_in_the_pass_is_left_to_the_base() -> None:
    base = stepped(AdamW)
    assert bases.steps_of(base, none) is not None
    base.param_groups[0]["capturable"] = True
    assert bases.steps_of(base, none) is None
    base = stepped(AdamW)
    handle = base.register_step_pre_hook(lambda *_: None)
    assert bases.steps_of(base, none) is None
    handle.remove()
    (p,) = base.param_groups[0]["params"]
    base.state.clear()
    assert bases.steps_of(base, none) is None
    base = stepped(AdamW)
    (p,) = base.param_groups[0]["params"]
    p.grad = torch.ones(5, 2)[:, 0]
    assert bases.steps_of(base, none) is None


def test_the_fused_form_is_chosen_on_cuda_alone_and_never_against_the_user() -> None:
    assert bases.arguments_for(AdamW, [{"params": [torch.ones(2)]}], {"lr": 0.1}) == {"lr": 0.1}
    pretended: Any = type("OnCuda", (), {"is_cuda": True})()
    assert bases.arguments_for(AdamW, [{"params": [pretended]}], {"lr": 0.1, "fused": None}) == {
        "lr": 0.1,
        "fused": True,
    }
    assert bases.arguments_for(AdamW, [{"params": [pretended]}], {"foreach": True}) == {"foreach": True}
    assert bases.arguments_for(AdamW, [{"params": [pretended, torch.ones(2)]}], {}) == {}
    assert bases.arguments_for(Adam, [{"params": [pretended]}], {}) == {}
