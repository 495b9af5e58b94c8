"""The weights of an optimizer: what is stepped in their place, who hears of their gradients, and how to let go."""

from __future__ import annotations

import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spidersilk.checks import check_choice, check_number
from spidersilk.kernels import backends
from spidersilk.kernels.interface import Entries, Kernels
from spidersilk.layers.dressing import Ruled
from spidersilk.operator.counts import Count, check_count, check_meant, check_shares
from spidersilk.operator.dimensions import group_dimension
from spidersilk.operator.groups import Groups
from spidersilk.sparse.compact import HALVES, Compact, is_trained_whole
from spidersilk.sparse.owners import Owners
from spidersilk.sparse.sharded import check_placement, is_sharded, local
from spidersilk.variance.flat import is_dense

Owned = list[tuple[nn.Module, str]]
Collect = Callable[[Compact], None]
CLOSED = "this optimizer is closed, it no longer sees gradients: make a new one"
_TRAINED = WeakTensorKeyDictionary()  # of weights: the `Weights` that they belong to, weakly


class Weights:
    """Makes compact parameters, puts them on their modules, and calls `collect` when a weight's gradient has arrived.

    `arrived`, if there is one, is called when a gradient has come to a parameter that is stepped: by a layer rule, or
    because it is trained whole.

    It ends with the optimizer whose method `collect` is: then, or with `close`, the model is as it was.
    """

    def __init__(self, model: nn.Module | None, backend: str, collect: Collect):
        self.d, self.k = 0, 0  # entries of all weights (sharded: of this rank's parts), and of those, the trained ones
        self.by_param: dict[Tensor, Compact] = {}  # by the parameter that is stepped
        self._backend = backend
        self._kernels: dict[tuple[torch.device, torch.dtype], Kernels] = {}
        self._collect = weakref.WeakMethod(collect)
        self.arrived: Callable[[Tensor], None] | None = None
        self._handles: list[Any] = []
        self._owners = Owners(model)
        self._left_out = WeakTensorKeyDictionary()  # of weights that are frozen: their hook, which warns
        for p in [] if model is None else model.parameters():
            if p.is_floating_point() and not p.requires_grad and not p.is_inference():
                self._left_out[p] = self._listen(p, _warn_of_left_out)
        optimizer = collect.__self__  # pyright: ignore[reportFunctionMemberAccess]
        self.close = weakref.finalize(optimizer, _let_go, self._handles, self._owners)

    def __iter__(self) -> Iterator[Compact]:
        return iter(self.by_param.values())

    def stand_ins(self, weights: Sequence[Tensor], k1: Count, k2: Count, groups: Groups | None) -> list[Tensor]:
        """What is stepped for these weights: compact parameters; weights that are trained whole as they are."""
        if not self.close.alive:
            raise RuntimeError(CLOSED)
        places = self._owners.find(weights)
        return [self._stand_in(weight, k1, k2, groups, places[id(weight)]) for weight in weights]

    def _stand_in(self, weight: Tensor, k1: Count, k2: Count, groups: Groups | None, places: Owned) -> Tensor:
        _check(weight)
        self._check_free(weight)
        if weight in self._left_out:
            self._left_out.pop(weight).remove()
        check_meant(k1, k2, weight.numel(), "entries of a weight")
        part = local(weight)
        self.d += part.numel()
        dimension = _dimension(weight, groups, places)
        whole = is_trained_whole(weight, k1, k2, dimension)
        if not is_dense(part) or (whole and part.dtype not in HALVES):
            self.k += part.numel()
            self._listen(weight, self.arrived)
            return weight
        compact = Compact(len(self.by_param), weight, k1, k2, self._kernels_for(part), dimension)
        if any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module, _ in places):
            compact.step_scale = 1.0  # its output is one row, and no sum over a share of the inputs
        self.k += compact.values.numel()
        self.by_param[compact.param] = compact
        self._owners.place(compact, places)
        self._listen(weight, self._collect_at(compact))
        if not any(isinstance(module, Ruled) for module, _ in places):
            self._handles.append(compact.param.register_hook(_refuse_penalty))
        self._listen(compact.param, self.arrived)
        _TRAINED[weight] = _TRAINED[compact.param] = weakref.ref(self)
        return compact.param

    def _check_free(self, weight: Tensor) -> None:
        reference = _TRAINED.get(weight)
        other = None if reference is None else reference()
        if other is self:
            raise ValueError("a parameter is given twice: once is enough, also for tied weights")
        if other is not None and other.close.alive:
            raise ValueError(
                "a parameter has a sparse optimizer already: call close() on that one (in a notebook: before the line "
                "that makes another)"
            )

    def _collect_at(self, compact: Compact) -> Callable[[Tensor], None]:
        heard = self._collect

        def collect(_: Tensor) -> None:
            called = heard()
            if called is not None:
                called(compact)

        return collect

    def _listen(self, tensor: Tensor, called: Callable[[Tensor], None] | None) -> Any:
        """Call it when a gradient has arrived at a tensor."""
        if called is None:
            return None
        needs = tensor.requires_grad
        tensor.requires_grad_(True)  # torch wants it for a hook; a frozen one may be unfrozen later
        handle = tensor.register_post_accumulate_grad_hook(called)
        tensor.requires_grad_(needs)
        self._handles.append(handle)
        return handle

    def collect_rest(self) -> None:
        """Collect what lies on weights without a backward pass: somebody has put it there, as torch allows."""
        collect = self._collect()
        assert collect is not None
        for compact in self:
            weight = compact.weight
            if weight.requires_grad and not compact.param.requires_grad:
                warnings.warn(
                    f"a weight of shape {tuple(weight.shape)} requires a gradient and its compact parameter does not, "
                    "so it is not trained: freeze and unfreeze both, by module.requires_grad_()",
                    stacklevel=2,
                )
            if weight.grad is not None:
                collect(compact)

    def _kernels_for(self, part: Tensor) -> Kernels:
        kind = part.device, part.dtype
        if kind not in self._kernels:
            self._kernels[kind] = backends.find(self._backend, [kind])
        return self._kernels[kind]

    def check_shares(self, groups: Sequence[dict[str, Any]]) -> None:
        """Refuse k1 and k2 that were changed in a group: the compact parameters have the sizes that they had."""
        for number, group in enumerate(groups):
            for compact in filter(None, map(self.by_param.get, group["params"])):
                for name, made in zip(("k1", "k2"), compact.shares, strict=True):
                    if group[name] != made:
                        raise ValueError(
                            f"{name} of group {number} was changed from {made} to {group[name]}, which has no effect: "
                            "close() this optimizer and make a new one"
                        )

    def by_step_size(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """The group, or copies of it with the parameters and the step size that go together."""
        given, params = group["step_scale"], defaultdict[float, list[Tensor]](list)
        if given is not None:
            check_scale(given)
        for p in group["params"]:
            compact = self.by_param.get(p)
            if compact is None or compact.is_whole:
                params[1.0].append(p)
            else:
                params[compact.step_scale if given is None else given].append(p)
        if list(params) == [1.0]:
            return [group]
        return [{**group, "lr": scale * group["lr"], "params": alike} for scale, alike in params.items()]

    @property
    def first_kernels(self) -> Kernels | None:
        return next(iter(self._kernels.values()), None)

    def entries_of(self, param: Tensor) -> Entries | None:
        """What a parameter that is stepped stands for; None: for itself."""
        compact = self.by_param.get(param)
        return None if compact is None else compact.entries

    def count_change(self, stepped: Sequence[Tensor]) -> None:
        """Kernels write to addresses: a backward pass through what the weights were is to be refused all the same."""
        changed = [p if (compact := self.by_param.get(p)) is None else compact.weight for p in stepped]
        torch.autograd.graph.increment_version(changed)

    def parts(self, stepped: Sequence[Tensor]) -> list[tuple[Kernels, list[Entries]]]:
        """The entries that these parameters stand for, by the kernels that work on them."""
        parts: dict[tuple[torch.device, torch.dtype], list[Entries]] = defaultdict(list)
        for p in stepped:
            compact = self.by_param.get(p)
            if compact is not None:
                parts[compact.kind].append(compact.entries)
        return [(self._kernels[kind], entries) for kind, entries in parts.items()]


def trainable(model: nn.Module) -> list[Tensor]:
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    if not params:
        raise ValueError("no parameter of the model requires a gradient: unfreeze at least one")
    return params


def check_scale(scale: float) -> None:
    check_number("step_scale", scale, "None is one over the share in training, 1 leaves lr as it is", above_zero=True)


def check_group(group: dict[str, Any]) -> None:
    """What a parameter group says of selections."""
    k1, k2, groups = group["k1"], group["k2"], group["groups"]
    if group["step_scale"] is not None:
        check_scale(group["step_scale"])
    check_count("k1", k1)
    check_count("k2", k2)
    check_choice("groups", groups, ("rows", "columns", None))
    if k1 + k2 == 0:
        raise ValueError("k1 + k2 = 0 selects nothing: raise k1 or k2 to at least 1 (or a fraction above 0)")
    if groups is not None:
        check_shares(k1, k2, groups)
    elif isinstance(k1, float) and isinstance(k2, float) and k1 + k2 > 1 + 1e-9:
        raise ValueError(f"k1 + k2 = {k1 + k2:g} exceeds 1, all entries: lower k2 to at most {1 - k1:g}")


def _refuse_penalty(gradient: Tensor) -> Tensor:
    """Without a layer rule no gradient comes to a compact parameter by back-propagation."""
    raise RuntimeError(
        f"a loss uses a compact parameter of {gradient.numel()} values (a penalty over model.parameters()?), which "
        "counts them twice: leave out the parameters whose names end in '_compact'"
    )


def _warn_of_left_out(weight: Tensor) -> None:
    """A gradient has come to a weight that was frozen when the optimizer was made."""
    warnings.warn(
        f"a weight of shape {tuple(weight.shape)} was frozen when the sparse optimizer was made, which does not train "
        "it: give it to add_param_group(), or make the optimizer anew (all is well if another optimizer trains it)",
        stacklevel=2,
    )


def _dimension(weight: Tensor, groups: Groups | None, places: Owned) -> int | None:
    """Along which the groups of a weight are; None: its entries are selected one by one."""
    if groups is None or weight.dim() < 2:
        return None
    owners = [module for module, _ in places] or [None]
    dimension = 0 if groups == "rows" else min(group_dimension(module, weight) for module in owners)
    if is_sharded(weight):
        return 1  # each rank has some rows, and selects columns of these
    strides, shape = weight.stride(), weight.shape
    inner = [stride for stride, size in zip(strides, shape, strict=True) if size > 1][dimension:]
    if dimension == 0 and inner != sorted(inner, reverse=True):
        raise ValueError(
            f"groups = {groups!r}: the rows of a weight of shape {tuple(shape)} with strides {strides} do not lie in "
            "one piece: make the model contiguous (model.to(memory_format=torch.contiguous_format)), or use columns"
        )
    return dimension


def _check(weight: Tensor) -> None:
    if not weight.is_floating_point():
        raise ValueError(f"a parameter of {weight.dtype}: only real floating-point parameters can be selected from")
    if weight.is_meta:
        raise ValueError("parameters on the meta device have no values: give them some first (model.to_empty(...))")
    check_placement(weight)


def _let_go(handles: list[Any], owners: Owners) -> None:
    """Take hooks and compact parameters from the model; also when an optimizer is no longer there."""
    for handle in handles:
        handle.remove()
    owners.close()
