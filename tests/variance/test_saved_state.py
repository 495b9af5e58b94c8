"""Saved, loaded and continued: as if training had never stopped."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import METHODS
from small_net import X, Y, continue_training, flat, make, net, resumable, simple, train

import spidersilk as silk

# Method, base optimizer, and after how many batches it is saved.
STOPS = [
    ("spiderboost", "sgd", 7),
    ("sparse-spiderboost", "momentum", 7),
    ("sparse-svrg, refresh", "adamw", 6),
    ("sparse-svrg, selected", "adamw", 7),
    ("sparse-svrg, selected, once per anchor", "adamw", 8),
    ("sparse-svrg, selected at anchors too", "adamw", 8),
    ("sparse-svrg, selected", "momentum", 2),  # in the middle of an anchor's pieces
]
RESUME = """
import sys
import torch
from small_net import continue_training, flat, resumable

torch.set_num_threads(1)
cases = torch.load(sys.argv[1] + "/stopped.pt", weights_only=True)
ends = []
for case in cases:
    model, optimizer, loader = resumable(case["name"], case["base"])
    model.load_state_dict(case["model"])
    optimizer.load_state_dict(case["optimizer"])
    loader.load_state_dict(case["loader"])
    torch.set_rng_state(case["rng"])
    continue_training(model, optimizer, loader)
    ends.append({"x": flat(model), "queries": optimizer.gradient_queries})
torch.save(ends, sys.argv[1] + "/ends.pt")
"""


@pytest.mark.slow
def test_resumed_in_a_new_process_is_bit_identical(tmp_path: Path) -> None:
    """One new process continues all of them."""
    whole, stopped = [], []
    for name, base, batches in STOPS:
        torch.manual_seed(5)
        model, optimizer, loader = resumable(name, base)
        continue_training(model, optimizer, loader)
        whole.append((flat(model), optimizer.gradient_queries))
        torch.manual_seed(5)
        model, optimizer, loader = resumable(name, base)
        continue_training(model, optimizer, loader, batches)
        position = loader.state_dict()["position"]
        assert position["update"] + position["piece"] > 0  # inside a loop
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        stopped.append({"name": name, "base": base, "rng": torch.get_rng_state(), **states})
    torch.save(stopped, tmp_path / "stopped.pt")
    paths = [str(path) for path in (Path(__file__).parent, Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", RESUME, str(tmp_path)], check=True, env=environment)
    ends = torch.load(tmp_path / "ends.pt", weights_only=True)
    for case, end, (x, queries) in zip(STOPS, ends, whole, strict=True):
        assert torch.equal(end["x"], x), case
        assert end["queries"] == queries, case


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_saving_changes_nothing(name: str, base: str) -> None:
    results = []
    for saves in (False, True):
        torch.manual_seed(5)
        model, optimizer, _ = resumable(name, base)
        closure_for = simple(model, optimizer)
        for t in range(20):
            batch = torch.arange(40) if t % 6 == 0 else torch.arange(8)
            optimizer.step(closure_for(batch), anchor=t % 6 == 0)
            if saves:
                optimizer.state_dict()
        results.append(flat(model))
    assert torch.equal(*results)


def test_loading_while_an_anchor_in_pieces_is_under_way() -> None:
    """The v of an unfinished anchor must not survive loading."""
    results = []
    for dirty in (False, True):
        model = net()
        optimizer = make("sparse-svrg, selected", model)
        closure_for = simple(model, optimizer)
        train(optimizer, closure_for, steps=3)
        state = {"x": {k: v.clone() for k, v in model.state_dict().items()}}
        state["o"] = copy.deepcopy(optimizer.state_dict())
        if dirty:
            optimizer.step(closure_for(torch.arange(9)), anchor=silk.Anchor(0.5, last=False))
        model.load_state_dict(state["x"])
        optimizer.load_state_dict(state["o"])
        train(optimizer, closure_for, steps=12, start=3)
        results.append(flat(model))
    assert torch.equal(*results)


def test_the_base_may_load_a_state_of_its_own() -> None:
    model = net()
    optimizer = make("svrg", model)
    optimizer.base.load_state_dict(optimizer.base.state_dict())
    assert optimizer.param_groups is optimizer.base.param_groups
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.0)
    before = flat(model)
    train(optimizer, simple(model, optimizer))
    assert scheduler.get_last_lr() == [0.0]
    assert torch.equal(flat(model), before)


def test_breaking_out_of_an_anchor_and_beginning_another() -> None:
    model = net()
    optimizer = make("sparse-svrg", model)
    loader = silk.AnchorLoader((X, Y), 40, 8, 4, micro_batch_size=10, generator=torch.Generator().manual_seed(1))
    continue_training(model, optimizer, loader, 2)  # in the middle of an anchor
    continue_training(model, optimizer, loader, 6)
    assert (optimizer.anchors, optimizer.steps) == (1, 3)
