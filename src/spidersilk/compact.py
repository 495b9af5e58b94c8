"""Lets any torch.optim optimizer step k selected values instead of d parameters (`move="selected"`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spidersilk.flat import Slab
from spidersilk.selection import Selection


@dataclass
class _Part:
    """The selected coordinates of one parameter group in one slab, and the parameter that stands for them."""

    slab: int
    group: int
    start: int  # of the group in the slab's vector
    indices: Tensor  # into the slab's vector
    places: Tensor | None  # of these coordinates among the slab's selected values; None if they are all of them
    param: nn.Parameter

    @property
    def key(self) -> tuple[int, int]:
        return self.slab, self.group


class CompactBase:
    """A twin of the base optimizer: same class and hyperparameters, but its parameters are the selected coordinates.

    `full_state=True`: the base keeps its state for all d coordinates (an anchor moves them all); the selected part is
    gathered when a selection comes in and scattered when it goes out. Momentum and the like lie in flat vectors, of
    which the base's own state holds views.
    `full_state=False`: there is state for the k selected coordinates and nothing else. A coordinate that stays selected
    keeps it. For one that enters, a first moment starts at 0, and a second moment such that, its bias corrected, it is
    M^2.
    """

    def __init__(self, base: Optimizer, slabs: Sequence[Slab], full_state: bool):
        self.base = base
        self.slabs = list(slabs)
        self.full_state = full_state
        self.twin: Optimizer = object.__new__(type(base))
        self.twin.__dict__.update(base.__dict__)
        self.twin.__dict__.pop("step", None)  # a scheduler on the base has bound it to the base
        self._parts: list[_Part] = []
        self._scalars: dict[tuple[int, int], dict[str, Any]] = {}  # step counts and such, ahead of the base's own
        self._flat: dict[tuple[int, int, str], tuple[Tensor, list[Tensor]]] = {}
        self._show([])

    @property
    def entered(self) -> bool:
        """Whether there are coordinates to step; not after a `flush` with a full state."""
        return bool(self._parts)

    def enter(self, selections: Sequence[Selection], memories: Sequence[Tensor]) -> None:
        """Let the twin step the coordinates of `selections` from now on (one selection and one M for each slab)."""
        self.leave()
        old, old_state = self._parts, self.twin.state
        parts = [part for number, selection in enumerate(selections) for part in self._split(number, selection)]
        self._show(parts)
        for part in parts:
            before = next((p for p in old if p.key == part.key), None)
            if before is not None:
                state = self._carry(before, old_state.get(before.param, {}), part, memories[part.slab])
            else:
                state = self._gather_base_state(part)
            if state:
                self.twin.state[part.param] = {**state, **_copies(self._scalars.get(part.key, {}))}

    def leave(self) -> None:
        """Give the state of the selected coordinates back to the base, if it keeps a full one."""
        for part in self._parts:
            state = self.twin.state.get(part.param, {})
            scalars = {n: value for n, value in state.items() if not _per_coordinate(n, value, part.param)}
            self._scalars[part.key] = scalars
            if self.full_state:
                for name in state.keys() - scalars.keys():
                    self._full(part, name)[part.indices - part.start] = state[name]
        if self.full_state:
            self._show([])

    def flush(self) -> None:
        """`leave`, and bring the base's step counts up to date: needed before it steps by itself or is saved."""
        self.leave()
        if self.full_state:
            for (slab, group), scalars in self._scalars.items():
                for p in self._params_of(slab, group):
                    self.base.state[p].update(_copies(scalars))
            self._scalars.clear()

    def step(self, values: Sequence[Tensor], frozen: Tensor | None = None) -> None:
        """One step of the twin with `values` as gradient (k of them for each slab), written through to the parameters.

        Where `frozen` (a boolean on the device) is true, the parameters stay as they are.
        """
        flats = [slab.flatten(slab.params) for slab in self.slabs]
        for part in self._parts:
            part.param.data = flats[part.slab][part.indices]
            gradient = values[part.slab] if part.places is None else values[part.slab][part.places]
            part.param.grad = gradient if frozen is None else torch.where(frozen.to(gradient.device), 0, gradient)
        for group, own in zip(self.twin.param_groups, self.base.param_groups, strict=True):
            group.update((name, value) for name, value in own.items() if name != "params")
        before = None if frozen is None else [part.param.detach().clone() for part in self._parts]
        self.twin.step()
        for number, part in enumerate(self._parts):
            moved = part.param.detach()
            if before is not None and frozen is not None:
                moved = torch.where(frozen.to(moved.device), before[number], moved)
            flats[part.slab][part.indices] = moved
            part.param.grad = None
        for slab, flat in zip(self.slabs, flats, strict=True):
            slab.spread(flat, [p.detach() for p in slab.params])

    def state_dict(self) -> dict[str, Any]:
        """What `full_state=False` keeps; with a full state the base holds everything after `flush`."""
        if self.full_state:
            return {}
        parts = [
            {"slab": p.slab, "group": p.group, "indices": p.indices, "state": dict(self.twin.state.get(p.param, {}))}
            for p in self._parts
        ]
        return {"parts": parts}

    def load_state_dict(self, state: dict[str, Any], selections: Sequence[Selection]) -> None:
        self._scalars.clear()
        self._flat.clear()
        self._show([])
        if self.full_state or not state["parts"]:
            return
        parts = [part for number, selection in enumerate(selections) for part in self._split(number, selection)]
        self._show(parts)
        for part, saved in zip(parts, state["parts"], strict=True):
            if not torch.equal(part.indices.cpu(), saved["indices"].cpu()):
                raise ValueError("the saved state's coordinates are not those of its selection: the file is damaged")
            if saved["state"]:
                self.twin.state[part.param] = {
                    name: value.to(part.param.device) if _per_coordinate(name, value, part.param) else value
                    for name, value in _copies(saved["state"]).items()
                }

    def _show(self, parts: list[_Part]) -> None:
        self._parts = parts
        self.twin.state = defaultdict(dict)
        self.twin.param_groups = [
            {**group, "params": [part.param for part in parts if part.group == number]}
            for number, group in enumerate(self.base.param_groups)
        ]

    def _split(self, number: int, selection: Selection) -> list[_Part]:
        """The selection of a slab by parameter group; a group without selected coordinates has no part."""
        slab, indices = self.slabs[number], selection.indices
        parts = []
        for group, start, stop in slab.spans:
            places = None if len(slab.spans) == 1 else torch.nonzero((indices >= start) & (indices < stop)).squeeze(1)
            own = indices if places is None else indices[places]
            if own.numel():
                param = nn.Parameter(torch.empty(own.numel(), dtype=slab.dtype, device=slab.device))
                parts.append(_Part(number, group, start, own, places, param))
        return parts

    def _params_of(self, slab: int, group: int) -> list[Tensor]:
        own = {id(p) for p in self.base.param_groups[group]["params"]}
        return [p for p in self.slabs[slab].params if id(p) in own]

    def _gather_base_state(self, part: _Part) -> dict[str, Any]:
        first = self._params_of(part.slab, part.group)[0]
        state = {}
        for name, value in self.base.state.get(first, {}).items():
            if _per_coordinate(name, value, first):
                value = self._full(part, name)[part.indices - part.start]
            state[name] = value
        return _copies(state)

    def _full(self, part: _Part, name: str) -> Tensor:
        """The base's state `name` of a whole group as one vector, the base holding views of it."""
        params = self._params_of(part.slab, part.group)
        flat, views = self._flat.get((*part.key, name), (None, []))
        if flat is None or any(self.base.state[p].get(name) is not v for p, v in zip(params, views, strict=True)):
            held = [self.base.state[p].get(name, torch.zeros_like(p)) for p in params]
            flat = torch.cat([tensor.reshape(-1) for tensor in held])
            pieces = flat.split([p.numel() for p in params])
            views = [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
            for p, view in zip(params, views, strict=True):
                self.base.state[p][name] = view
            self._flat[(*part.key, name)] = flat, views
        return flat

    def _carry(self, old: _Part, old_state: dict[str, Any], new: _Part, memory: Tensor) -> dict[str, Any]:
        """State for the coordinates of `new`: that of `old` where they were selected before, else as they enter."""
        order = old.indices.argsort()
        where = torch.searchsorted(old.indices[order], new.indices).clamp_(max=old.indices.numel() - 1)
        source = order[where]
        stayed = old.indices[source] == new.indices
        state = {}
        for name, value in old_state.items():
            if not _per_coordinate(name, value, old.param):
                state[name] = value
                continue
            entering = torch.zeros(new.indices.numel(), dtype=value.dtype, device=value.device)
            if is_second_moment(name):
                betas = self.base.param_groups[new.group].get("betas")
                known = 1.0
                if betas and "step" in old_state:  # in double precision, and without a wait for the device
                    known = 1 - betas[1] ** torch.as_tensor(old_state["step"], dtype=torch.float64)
                entering = (memory[new.indices].square() * known).to(value.dtype)
            state[name] = torch.where(stayed, value[source], entering)
        return state


def is_second_moment(name: str) -> bool:
    """Whether a state entry of a torch optimizer averages squares: exp_avg_sq, max_exp_avg_sq, square_avg, sum."""
    return "sq" in name or name == "sum"


def _per_coordinate(name: str, value: Any, param: Tensor) -> bool:
    """Whether a state entry has one value for each coordinate; a parameter may itself be a single number."""
    return isinstance(value, Tensor) and value.shape == param.shape and name not in ("step", "mu_product", "mu", "eta")


def _copies(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
