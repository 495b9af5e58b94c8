"""Lets any torch.optim optimizer step k selected values instead of d parameters (`move="selected"`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from spidersilk.checks import Form, check_entry, check_saved
from spidersilk.kernels.interface import Kernels
from spidersilk.kernels.plain import PLAIN
from spidersilk.operator.selection import Selection
from spidersilk.variance.flat import Slab
from spidersilk.variance.graph import capturing


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

    def __init__(self, base: Optimizer, slabs: Sequence[Slab], full_state: bool, kernels: Kernels):
        self.base = base
        self.slabs = list(slabs)
        self.kernels = kernels
        self.full_state = full_state
        self.twin: Optimizer = object.__new__(type(base))
        self.twin.__dict__.update(base.__dict__)
        self.twin.__dict__.pop("step", None)  # a scheduler on the base has bound it to the base
        self._parts: list[_Part] = []
        self._flat: dict[tuple[int, int, str], tuple[Tensor, list[Tensor]]] = {}
        self._show()

    @property
    def entered(self) -> bool:
        """Whether there are coordinates to step; not after a `flush` with a full state."""
        return bool(self._parts)

    def enter(self, selections: Sequence[Selection], memories: Sequence[Tensor]) -> None:
        """Let the twin step the coordinates of `selections` from now on (one selection and one M for each slab)."""
        old = {part.key: (part, self.twin.state.get(part.param, {})) for part in self._parts}
        if capturing() and any(state for _, state in old.values()):
            raise RuntimeError(
                "move = 'selected' over a base with state in the capture of a CUDA graph: each replay would start from "
                "the state before it; use plain SGD there, or capture the closure alone"
            )
        self._scatter()
        self._show(selections)
        for part in self._parts:
            if part.key not in old:
                state = self._gather(part, *self._base_state(part))
            elif self.full_state:
                before, state_before = old[part.key]
                state = self._gather(part, state_before, before.param)
            else:
                state = self._carry(*old[part.key], part, memories[part.slab])
            if state:
                self.twin.state[part.param] = state

    def flush(self) -> None:
        """Give all state back to the base, if it keeps a full one: needed before it steps by itself or is saved."""
        if not self.full_state:
            return
        self._scatter()
        for part in self._parts:
            scalars = _scalars(self.twin.state.get(part.param, {}), part.param)
            for p in self._params_of(part):
                self.base.state[p].update(_copies(scalars))
        self._show()

    def _scatter(self) -> None:
        """Write the selected part of momentum and the like back to the base's full-size vectors."""
        if self.full_state:
            for part in self._parts:
                state = self.twin.state.get(part.param, {})
                for name in state.keys() - _scalars(state, part.param).keys():
                    self._full(part, name)[part.indices - part.start] = state[name]

    def step(self, values: list[Tensor], max_norm: float | None = None, frozen: Tensor | None = None) -> None:
        """One step of the twin with `values` as gradient (k of them for each slab), written through to the parameters.

        They are clipped to `max_norm`. Where `frozen` (a boolean on the device) is true, the parameters stay as they
        are.
        """
        if max_norm is not None:
            share = (max_norm / (get_total_norm(values) + 1e-6)).clamp(max=1.0)
            values = [x * share.to(x.device, x.dtype) for x in values]
        for part in self._parts:
            slab = self.slabs[part.slab]
            values_of_x = [p.detach() for p in slab.params]
            part.param.data = self.kernels.gather(values_of_x, slab.sizes, part.indices, slab.dtype)
            gradient = values[part.slab] if part.places is None else values[part.slab][part.places]
            part.param.grad = gradient if frozen is None else torch.where(frozen.to(gradient.device), 0, gradient)
        for group, of_base in zip(self.twin.param_groups, self.base.param_groups, strict=True):
            group.update((name, value) for name, value in of_base.items() if name != "params")
        before = None if frozen is None else [part.param.detach().clone() for part in self._parts]
        self.twin.step()
        for number, part in enumerate(self._parts):
            moved = part.param.detach()
            if before is not None and frozen is not None:
                moved = torch.where(frozen.to(moved.device), before[number], moved)
            slab = self.slabs[part.slab]
            self.kernels.scatter([p.detach() for p in slab.params], slab.sizes, part.indices, moved)
            part.param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What `full_state=False` keeps; with a full state the base holds everything after `flush`."""
        if self.full_state:
            return {}
        parts = [
            {"slab": p.slab, "group": p.group, "indices": p.indices, "state": dict(self.twin.state.get(p.param, {}))}
            for p in self._parts
        ]
        return {"parts": parts}

    def check_state(self, state: dict[str, Any], selections: Sequence[Selection]) -> None:
        """Raise ValueError unless all of it fits those selections."""
        if self.full_state:
            return
        check_saved("state['compact']", state, {"parts": list})
        parts = [part for number, selection in enumerate(selections) for part in self._split(number, selection)]
        form: Form = {"slab": int, "group": int, "indices": Tensor, "state": dict}
        if state["parts"]:
            check_saved("state['compact']['parts']", state["parts"], [form] * len(parts))
        for part, saved in zip(parts, state["parts"], strict=bool(state["parts"])):
            if not torch.equal(part.indices.cpu(), saved["indices"].cpu()):
                raise ValueError("the saved state's coordinates are not those of its selection: the state is damaged")
            for name, value in saved["state"].items():
                check_entry(f"state['compact'][{name!r}]", value, part.param.shape)

    def load_state_dict(self, state: dict[str, Any], selections: Sequence[Selection]) -> None:
        self._flat.clear()
        self._show()
        if self.full_state or not state["parts"]:
            return
        self._show(selections)
        for part, saved in zip(self._parts, state["parts"], strict=True):
            group = self.base.param_groups[part.group]
            on_device = group.get("capturable") or group.get("fused")  # where torch itself keeps step counts
            values = _copies(saved["state"])
            for name, value in values.items():
                if isinstance(value, Tensor) and (on_device or name not in _scalars(values, part.param)):
                    values[name] = value.to(part.param.device)
            if values:
                self.twin.state[part.param] = values

    def _show(self, selections: Sequence[Selection] = ()) -> None:
        """Let the coordinates of `selections`, one for each slab, be the twin's parameters, without any state."""
        parts = [part for number, selection in enumerate(selections) for part in self._split(number, selection)]
        self._parts = parts
        self.twin.state = defaultdict(dict)
        self.twin.param_groups = [
            {**group, "params": [part.param for part in parts if part.group == number]}
            for number, group in enumerate(self.base.param_groups)
        ]

    def _split(self, number: int, selection: Selection) -> list[_Part]:
        """The selection of a slab by parameter group; a group without selected coordinates has an empty part."""
        slab, indices = self.slabs[number], selection.indices
        parts = []
        for group, start, stop in slab.spans:
            places = None if len(slab.spans) == 1 else torch.nonzero((indices >= start) & (indices < stop)).squeeze(1)
            of_group = indices if places is None else indices[places]
            param = nn.Parameter(torch.empty(of_group.numel(), dtype=slab.dtype, device=slab.device))
            parts.append(_Part(number, group, start, of_group, places, param))
        return parts

    def _params_of(self, part: _Part) -> list[Tensor]:
        in_group = {id(p) for p in self.base.param_groups[part.group]["params"]}
        return [p for p in self.slabs[part.slab].params if id(p) in in_group]

    def _base_state(self, part: _Part) -> tuple[dict[str, Any], Tensor]:
        """The base's state of one parameter of the group, and that parameter; all must have the same step count."""
        params = self._params_of(part)
        states = [self.base.state.get(p, {}) for p in params]
        counts = {float(state["step"]) for state in states if "step" in state} if not self._flat else set()
        if len(counts) > 1:
            raise ValueError(
                f"the base has stepped parameters of one group {', '.join(f'{c:g}' for c in sorted(counts))} times: a "
                "vector of them has one step count, so start with a new base, or give them groups of their own"
            )
        return states[0], params[0]

    def _gather(self, part: _Part, state: dict[str, Any], param: Tensor) -> dict[str, Any]:
        """For the coordinates of `part`: what `state`, that of `param`, has per coordinate, from the base's vectors."""
        scalars = _scalars(state, param)
        vectors = {n: self._full(part, n)[part.indices - part.start] for n in state.keys() - scalars.keys()}
        return vectors | _copies(scalars)

    def _full(self, part: _Part, name: str) -> Tensor:
        """The base's state `name` of a whole group as one vector, the base holding views of it."""
        params = self._params_of(part)
        flat, views = self._flat.get((*part.key, name), (None, []))
        if flat is None or any(self.base.state[p].get(name) is not v for p, v in zip(params, views, strict=True)):
            states = [self.base.state[p].get(name, torch.zeros_like(p)) for p in params]
            flat = torch.cat([tensor.reshape(-1) for tensor in states])
            pieces = flat.split([p.numel() for p in params])
            views = [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
            for p, view in zip(params, views, strict=True):
                self.base.state[p][name] = view
            self._flat[(*part.key, name)] = flat, views
        return flat

    def _carry(self, old: _Part, old_state: dict[str, Any], new: _Part, memory: Tensor) -> dict[str, Any]:
        """State for the coordinates of `new`: that of `old` where they were selected before, else as they enter."""
        state = _scalars(old_state, old.param)
        indices, order = old.indices.sort()
        for name in old_state.keys() - state.keys():
            value = old_state[name]
            entering = torch.zeros(new.indices.numel(), dtype=value.dtype, device=value.device)
            if is_second_moment(name):
                betas = self.base.param_groups[new.group].get("betas")
                known = 1.0
                if betas and "step" in state:  # in double precision, and without a wait for the device
                    known = 1 - betas[1] ** torch.as_tensor(state["step"], dtype=torch.float64)
                entering = (memory[new.indices].square() * known).to(value.dtype)
            carried = PLAIN.carry(indices, new.indices, [value[order]], [entering]) if len(indices) else [entering]
            state[name] = carried[0]
        return state


def is_second_moment(name: str) -> bool:
    """Whether a state entry of a torch optimizer averages squares: exp_avg_sq, max_exp_avg_sq, square_avg, sum."""
    return "sq" in name or name == "sum"


def _scalars(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    """The entries that are not one value for each coordinate: step counts and such. A parameter may be one number."""
    names = ("step", "mu_product", "mu", "eta")
    return {n: v for n, v in state.items() if n in names or not isinstance(v, Tensor) or v.shape != param.shape}


def _copies(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
