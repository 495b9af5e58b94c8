"""The state of a Sparse optimizer in torch's own format, so that trainers and distributed checkpoints understand it.

Beside the base's state a parameter has "indices" and "master", what is selected and its values, and "scores" if groups
are chosen by them; the first group has "selection": counters, and the random stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from spidersilk.checks import Form, check_entry, check_saved
from spidersilk.sparse.compact import Compact
from spidersilk.sparse.sharded import local

State = dict[str, Any]
Compacts = Sequence[Compact | None]
"""In the order of the parameters in all groups; None: a weight that is stepped itself."""
COUNTERS: Form = {"steps": int, "age": int, "queries": float, "shards": int, "seed": int, "position": int}
OURS = ("indices", "master", "scores")


def save(base: Optimizer, compacts: Compacts, counters: State) -> State:
    state = base.state_dict()
    entries = {number: dict(values) for number, values in state["state"].items()}
    for number, compact in enumerate(compacts):
        if compact is not None:
            ours = {"indices": compact.as_saved(compact.indices), "master": compact.param.detach()}
            if compact.scores is not None:
                ours["scores"] = compact.as_saved(compact.scores)
            entries[number] = entries.get(number, {}) | ours
    groups = [dict(group) for group in state["param_groups"]]
    groups[0]["selection"] = counters
    return state | {"state": entries, "param_groups": groups}


def check(state: State, base: Optimizer, compacts: Compacts, shards: int) -> None:
    """Raise ValueError unless all of it fits."""
    groups: list[Form] = [{"params": [(int, str)] * len(group["params"])} for group in base.param_groups]
    check_saved("the state", state, {"state": dict, "param_groups": groups})
    if "selection" not in state["param_groups"][0]:
        raise ValueError(
            f"the state is of an optimizer that selects nothing, such as torch's {type(base).__name__}: load a state "
            "that this optimizer has saved, or begin with a new one"
        )
    check_saved("the state's first group", state["param_groups"][0], {"selection": COUNTERS})
    found = state["param_groups"][0]["selection"]["shards"]
    if found != shards:
        raise ValueError(
            f"the state is of weights cut into {found} parts, and here they are cut into {shards}: entries are "
            "selected within a part, so load it on as many ranks, or begin with a new optimizer"
        )
    for number, (here, there) in enumerate(zip(base.param_groups, state["param_groups"], strict=True)):
        missing = [name for name in base.defaults if name not in there]
        if missing and there.keys() - here.keys() - {"selection"}:
            raise ValueError(
                f"group {number} of the state has no {missing[0]!r}, it is of another optimizer: construct the same"
            )
        for name in ("k1", "k2", "groups", "step_scale"):
            saved = there.get(name, 1.0 if name == "step_scale" else None)  # states of before have none
            if saved != here[name]:
                raise ValueError(
                    f"group {number} was saved with {name} = {saved!r} and has {here[name]!r} here: construct the same "
                    "optimizer"
                )
    params = [p for group in base.param_groups for p in group["params"]]
    places = [place for group in state["param_groups"] for place in group["params"]]
    for place, values in state["state"].items():
        if place not in places:
            raise ValueError(f"the state is for parameter {place!r}, which no group has: it is damaged")
        check_saved(f"state[{place}]", values, {})
    for number, (place, p, compact) in enumerate(zip(places, params, compacts, strict=True)):
        values = state["state"].get(place, {})
        for name in values.keys() - set(OURS):
            check_entry(f"state[{place}][{name!r}]", values[name], p.shape)
        if compact is not None:
            _check_compact(f"state[{number}]", values, compact)


def _check_compact(where: str, values: State, compact: Compact) -> None:
    check_saved(where, values, {"indices": compact.as_saved(compact.indices).shape, "master": compact.param.shape})
    indices, n = compact.from_saved(values["indices"]), compact.n
    if indices.is_floating_point() or (indices.numel() and (int(indices[0]) < 0 or int(indices[-1]) >= n)):
        raise ValueError(f"{where}['indices'] are not of {n} {compact.what}: the state is damaged")
    if bool((indices[1:] <= indices[:-1]).any()):
        raise ValueError(f"{where}['indices'] do not ascend: the state is damaged")
    if compact.scores is not None:
        check_saved(where, values, {"scores": compact.as_saved(compact.scores).shape})
        if not bool(compact.from_saved(values["scores"]).isfinite().all()):
            raise ValueError(f"{where}['scores'] are not finite: the state is damaged")


def load(state: State, base: Optimizer, compacts: Compacts) -> State:
    """Load what was checked; the counters come back."""
    counters = dict(state["param_groups"][0]["selection"])
    places = [place for group in state["param_groups"] for place in group["params"]]
    for place, compact in zip(places, compacts, strict=True):
        values = state["state"].get(place, {})
        if compact is not None:
            compact.is_due = compact.is_dense = compact.chooses and counters["age"] == 0
            if compact.values.numel():
                compact.indices.copy_(compact.from_saved(values["indices"]))
            compact.values.copy_(local(values["master"]).reshape(compact.values.shape))
            if compact.scores is not None and compact.values.numel():
                compact.scores.copy_(compact.from_saved(values["scores"]))
            compact.is_selected = True
            compact.param.grad = None  # it was of other entries
    kept = {p: {n: v for n, v in values.items() if n not in OURS} for p, values in state["state"].items()}
    groups = [{n: v for n, v in group.items() if n != "selection"} for group in state["param_groups"]]
    base.load_state_dict(state | {"state": {p: v for p, v in kept.items() if v}, "param_groups": groups})
    return counters
