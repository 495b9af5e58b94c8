"""Damaged states: each is refused with what is wrong, and nothing of it is loaded. And torch's hooks around saving."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_net import flat, net, simple, train
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

State = dict[str, Any]
Damage = Callable[[State], Any]


def dropped(*path: Any) -> Damage:
    def damage(state: State) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    return damage


def put(value: Any, *path: Any) -> Damage:
    def damage(state: State) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return damage


FLAT = "vectors", "flat"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no settings": (dropped("settings"), "no settings"),
    "settings are text": (put("svrg", "settings"), "state['settings'] is 'svrg'"),
    "no stream": (dropped("stream"), "state has no 'stream'"),
    "no seed": (dropped("stream", "seed"), "state['stream'] has no 'seed'"),
    "seed is text": (put("7", "stream", "seed"), "state['stream']['seed'] is '7' and must be int"),
    "position is None": (put(None, "stream", "position"), "state['stream']['position'] is None"),
    "stream is a list": (put([1, 2], "stream"), "state['stream'] is a list and must be a mapping"),
    "no counters": (dropped("counters"), "state has no 'counters'"),
    "no steps": (dropped("counters", "steps"), "has no 'steps'"),
    "steps are text": (put("9", "counters", "steps"), "['steps'] is '9' and must be int"),
    "steps are a fraction": (put(1.5, "counters", "steps"), "['steps'] is 1.5 and must be int"),
    "anchors are true": (put(True, "counters", "anchors"), "['anchors'] = True must be a number"),
    "queries are None": (put(None, "counters", "queries"), "['queries'] is None"),
    "samples are text": (put("many", "counters", "anchor_samples"), "['anchor_samples'] is 'many'"),
    "no meter": (dropped("meter"), "state has no 'meter'"),
    "no smoothness": (dropped("meter", "smoothness"), "has no 'smoothness'"),
    "smoothness is text": (put("L", "meter", "smoothness"), "['smoothness'] is 'L'"),
    "longest is None": (put(None, "meter", "longest"), "['longest'] is None"),
    "no base": (dropped("base"), "state has no 'base'"),
    "base is None": (put(None, "base"), "state['base'] is None"),
    "no state in base": (dropped("base", "state"), "state['base'] has no 'state'"),
    "no groups in base": (dropped("base", "param_groups"), "has no 'param_groups'"),
    "a group too many": (lambda s: s["base"]["param_groups"].append(s["base"]["param_groups"][0]), "has 2 entries"),
    "a group without lr": (dropped("base", "param_groups", 0, "lr"), "a parameter group without 'lr'"),
    "a parameter too few": (put([0, 1], "base", "param_groups", 0, "params"), "has 2 entries and must have"),
    "momentum of another shape": (
        put({"momentum_buffer": torch.ones(7, 7)}, "base", "state", 0),
        "['momentum_buffer'] has shape (7, 7), the parameter",
    ),
    "momentum is text": (put({"momentum_buffer": "x"}, "base", "state", 0), "['momentum_buffer'] is 'x'"),
    "state of a parameter that is not there": (put({}, "base", "state", 99), "parameter 99, which no group has"),
    "no vectors": (dropped("vectors"), "state has no 'vectors' after"),
    "vectors are None": (put(None, "vectors"), "state['vectors'] is None"),
    "no has_memory": (dropped("vectors", "has_memory"), "has no 'has_memory'"),
    "has_memory is 3": (put(3, "vectors", "has_memory"), "['has_memory'] is 3"),
    "no flat vectors": (dropped(*FLAT), "has no 'flat'"),
    "no estimate": (dropped(*FLAT, "estimate"), "has no 'estimate'"),
    "no anchor estimate": (dropped(*FLAT, "anchor_estimate"), "has no 'anchor_estimate'"),
    "no memory": (dropped(*FLAT, "memory"), "has no 'memory'"),
    "no reference": (dropped(*FLAT, "reference"), "has no 'reference'"),
    "a shorter estimate": (put([torch.ones(3)], *FLAT, "estimate"), "has shape (3,) and must have"),
    "an estimate that is a list": (put([[1.0]], *FLAT, "estimate"), "is a list and must be a tensor"),
    "no estimate of a slab": (put([], *FLAT, "estimate"), "has 0 entries and must have 1"),
    "no selections": (dropped("selections"), "state has no 'selections'"),
    "selections are a number": (put(5, "selections"), "state['selections'] is 5"),
    "a selection too many": (lambda s: s["selections"].append(s["selections"][0]), "has 2 entries"),
    "a selection without top": (dropped("selections", 0, "top"), "has no 'top'"),
    "a selection of another d": (put(10**6, "selections", 0, "d"), "is not one of d ="),
    "a selection outside": (put(torch.tensor([10**6]), "selections", 0, "random"), "is not one of d ="),
    "a selection of floats": (put(torch.ones(2), "selections", 0, "random"), "is not one of d ="),
    "everything is a list": (lambda s: [1, 2], "the state is a list and must be a mapping"),
    "nothing": (lambda s: {}, "no settings"),
    "None": (lambda s: "nothing", "the state is 'nothing'"),
}


def trained(**options: Any) -> tuple[nn.Module, silk.SparseSVRG, Callable[[Tensor], Callable[[], Tensor]]]:
    model = net()
    seed = torch.Generator().manual_seed(3)
    optimizer = silk.SparseSVRG(model.parameters(), 0.05, 0.1, 0.1, momentum=0.9, generator=seed, **options)
    closure_for = simple(model, optimizer)
    train(optimizer, closure_for, steps=9)
    return model, optimizer, closure_for


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_is_refused_whole(name: str) -> None:
    """And training goes on as if it had never been given."""
    damage, message = DAMAGES[name]
    ends = []
    for damaged in (False, True):
        model, optimizer, closure_for = trained()
        state = copy.deepcopy(optimizer.state_dict())
        train(optimizer, closure_for, steps=12, start=9)
        if damaged:
            changed = damage(state)
            with pytest.raises(ValueError, match=re.escape(message)):
                optimizer.load_state_dict(state if changed is None else changed)
        train(optimizer, closure_for, steps=20, start=12)
        ends.append(flat(model))
    assert torch.equal(*ends)


COMPACT: dict[str, tuple[Damage, str]] = {
    "no compact": (dropped("compact"), "state has no 'compact'"),
    "no parts": (dropped("compact", "parts"), "has no 'parts'"),
    "a part too many": (lambda s: s["compact"]["parts"].append(s["compact"]["parts"][0]), "has 2 entries"),
    "other indices": (put(torch.tensor([1, 2]), "compact", "parts", 0, "indices"), "are not those of its selection"),
    "moments of another shape": (
        put(torch.ones(3), "compact", "parts", 0, "state", "exp_avg"),
        "['exp_avg'] has shape (3,)",
    ),
    "moments are text": (put("m", "compact", "parts", 0, "state", "exp_avg"), "['exp_avg'] is 'm'"),
    "no indices": (dropped("compact", "parts", 0, "indices"), "has no 'indices'"),
}


@pytest.mark.parametrize("name", COMPACT)
def test_a_damaged_compact_state_is_refused(name: str) -> None:
    damage, message = COMPACT[name]
    model = net()
    base = torch.optim.AdamW(model.parameters(), 0.01)
    sparsity = silk.RTop(0.1, 0.1)
    options: Any = {"move": "selected", "anchor_move": "selected", "choose": "anchor", "sparsity": sparsity}
    optimizer = silk.VarianceReduced(base, **options)
    train(optimizer, simple(model, optimizer), steps=7)
    state = copy.deepcopy(optimizer.state_dict())
    damage(state)
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.load_state_dict(state)


LAZY: dict[str, tuple[Damage, str]] = {
    "no rows": (dropped("rows"), "state has no 'rows'"),
    "no v": (dropped("rows", "v"), "has no 'v'"),
    "a shorter v": (put(torch.ones(2), "rows", "v"), "has shape (2,)"),
    "a class too few": (put([], "rows", "sums"), "has 0 entries"),
    "counters of another kind": (put("x", "counters", "_has_memory"), "['_has_memory'] is 'x'"),
    "no groups": (put([], "param_groups"), "has 0 entries and must have 1"),
    "lr is text": (put("0.1", "param_groups", 0, "lr"), "['lr'] is '0.1'"),
    "no settings": (dropped("settings"), "not a state of LazySVRG"),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_damaged_state_of_lazy_svrg_is_refused(name: str) -> None:
    damage, message = LAZY[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))
    optimizer = silk.LazySVRG(model, 0.1)
    tokens, labels = torch.randint(8, (4, 2)), torch.randint(3, (4,))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        return loss

    optimizer.step(closure, anchor=True)
    state = copy.deepcopy(optimizer.state_dict())
    damage(state)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.load_state_dict(state)
    assert str(optimizer.state_dict()) == str(before)


LOADER: dict[str, tuple[Damage, str]] = {
    "nothing": (lambda s: {}, "the loader's state has no 'seed'"),
    "no position": (dropped("position"), "has no 'position'"),
    "no loop": (dropped("position", "loop"), "has no 'loop'"),
    "loop is text": (put("3", "position", "loop"), "['loop'] is '3'"),
    "a negative update": (put(-1, "position", "update"), "negative"),
    "seed is None": (put(None, "seed"), "['seed'] is None"),
    "other settings": (put(17, "settings", "batch_size"), "batch_size: 17 there, 5 here"),
    "a list": (lambda s: [], "is a list"),
}


@pytest.mark.parametrize("name", LOADER)
def test_a_damaged_state_of_a_loader_is_refused(name: str) -> None:
    damage, message = LOADER[name]
    loader = silk.AnchorLoader(torch.arange(40.0), 20, 5, 4, generator=torch.Generator().manual_seed(0))
    next(iter(loader))
    state = copy.deepcopy(loader.state_dict())
    before = copy.deepcopy(state)
    changed = damage(state)
    with pytest.raises(ValueError, match=re.escape(message)):
        loader.load_state_dict(state if changed is None else changed)
    assert loader.state_dict() == before


@pytest.mark.parametrize("lazy", [False, True])
def test_hooks_around_saving_and_loading_are_called(lazy: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = silk.LazySVRG(model, 0.1) if lazy else silk.SVRG(model.parameters(), 0.1)
    calls: list[str] = []

    def note(name: str, value: Any = None) -> Any:
        calls.append(name)
        return value

    optimizer.register_state_dict_pre_hook(lambda o: note("before saving"))
    optimizer.register_state_dict_post_hook(lambda o, state: note("after saving", {**state, "more": 1}))
    optimizer.register_load_state_dict_pre_hook(lambda o, state: note("before loading", {**state, "less": 1}))
    optimizer.register_load_state_dict_post_hook(lambda o: note("after loading"))
    state = optimizer.state_dict()
    assert state["more"] == 1
    optimizer.load_state_dict(state)
    assert calls == ["before saving", "after saving", "before loading", "after loading"]
    assert "less" not in state  # hooks get a copy
