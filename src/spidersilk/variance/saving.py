"""Saving and loading: torch's hooks are called, and a state is known to fit before anything of it is loaded."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch.optim import Optimizer

from spidersilk.checks import Form, check_entry, check_same_settings, check_saved
from spidersilk.loop.counter import LoopCounter
from spidersilk.operator.random_stream import Stream
from spidersilk.operator.selection import Selection
from spidersilk.variance.engine import Engine
from spidersilk.variance.showing import shown


class Saves(Optimizer):
    """`state_dict` and `load_state_dict` around what a subclass makes, checks and loads; and how it shows itself."""

    def __repr__(self) -> str:
        return shown(self)

    @abstractmethod
    def _save(self) -> dict[str, Any]: ...

    @abstractmethod
    def _check(self, state: dict[str, Any]) -> None:
        """Raise ValueError unless all of `state` can be loaded."""

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> None: ...

    def state_dict(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """All that the next step needs; tensors are the optimizer's own, as with torch's optimizers."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state = self._save()
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the `state_dict` of an optimizer with the same settings, over parameters of the same sizes.

        A state that does not fit changes nothing.
        """
        check_saved("the state", state_dict, {})
        state = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        self._check(state)
        self._load(state)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            f"a {type(self).__name__} holds views and hooks of its parameters: save its state_dict() instead"
        )


def check_settings(state: dict[str, Any], settings: dict[str, Any], name: str) -> None:
    """Refuse the state of another optimizer."""
    if "settings" not in state:
        raise ValueError(f"not a state of {name}: it has {', '.join(state)} and no settings")
    check_same_settings(settings, state["settings"], "construct the same one")


def check_counted(state: dict[str, Any]) -> None:
    """Refuse counters that are not, and vectors that are missing after a step."""
    meter: Form = {"gathered": float, "changes": list, "smoothness": (float, type(None)), "longest": int}
    check_saved("state", state, {"stream": Stream.FORM, "counters": LoopCounter.FORM, "meter": meter, "base": dict})
    counters = state["counters"]
    if "vectors" not in state and (counters["steps"] or counters["anchors"] or counters["anchor_share"]):
        raise ValueError(f"state has no 'vectors' after {counters['anchors']} anchors: it is damaged")


def check_base_state(state: object, base: Optimizer) -> None:
    """Refuse a state that torch would take and stumble over later."""
    groups: list[Form] = [{"params": [int] * len(group["params"])} for group in base.param_groups]
    check_saved("state['base']", state, {"state": dict, "param_groups": groups})
    assert isinstance(state, dict)
    params = [p for group in base.param_groups for p in group["params"]]
    places = [place for group in state["param_groups"] for place in group["params"]]
    for here, saved in zip(base.param_groups, state["param_groups"], strict=True):
        missing = [name for name in here if name not in saved and name != "initial_lr"]
        if missing:
            raise ValueError(f"state['base'] has a parameter group without {missing[0]!r}: the state is damaged")
    for place, values in state["state"].items():
        if place not in places:
            raise ValueError(f"state['base'] is for parameter {place!r}, which no group has: the state is damaged")
        shape = params[places.index(place)].shape
        check_saved(f"state['base']['state'][{place}]", values, {})
        for name, value in values.items():
            check_entry(f"state['base']['state'][{place}][{name!r}]", value, shape)


def check_engine_state(state: dict[str, Any], engine: Engine) -> None:
    """Refuse vectors and selections that do not fit."""
    check_saved("state", state, {"selections": (list, type(None))})
    engine.vectors.check_state(state["vectors"])
    if engine.dimensions is not None:
        _check_dimensions(state, engine.dimensions)
    selections = []
    if state["selections"] is not None:
        check_saved("state['selections']", state["selections"], [dict] * len(engine.slabs))
        pairs = zip(state["selections"], engine.slabs, strict=True)
        selections = [Selection.checked(saved, slab.d, slab.device) for saved, slab in pairs]
    if engine.compact is not None:
        check_saved("state", state, {"compact": dict})
        engine.compact.check_state(state["compact"], selections)


def _check_dimensions(state: dict[str, Any], dimensions: list[int]) -> None:
    """Refuse a state that counts columns along other dimensions."""
    check_saved("state", state, {"dimensions": [int] * len(dimensions)})
    for number, (saved, here) in enumerate(zip(state["dimensions"], dimensions, strict=True)):
        if saved != here:
            raise ValueError(
                f"the state counts columns of parameter {number} along dimension {saved}, here it is dimension {here}: "
                "give model= as where it was saved"
            )
