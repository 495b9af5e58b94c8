"""Would it fit? Bytes that a training step needs, by method, from shapes and one traced step of the user's model.

A step holds weights, buffers, what the method keeps for each weight, gradients, and what the forward pass saves for
backward. The first three follow from shapes. For the others one forward and backward pass is traced: when each piece of
memory comes and goes, when the gradient of each weight arrives, and which layer saved what. A peak is read from that
time line: AdamW keeps gradients until the step; sparse training keeps the selected part and frees the rest at once; a
layer with a rule for columns saves the selected part of its input, and makes no dense gradient. LoRA has a pass of its
own, with its factors.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from spidersilk.layers.registry import rule_for
from spidersilk.operator.dimensions import group_dimension
from spidersilk.sparse.compact import counts_among, is_trained_whole, master_dtype
from spidersilk.theory.live_bytes import LiveBytes
from spidersilk.theory.trials import undisturbed

SHARES = (0.01, 0.05, 0.1, 0.2)
RANKS = (16, 64)
INDEX = 4  # bytes


class Arrival(NamedTuple):
    """The gradient of a weight has come: after so many events, in this piece of memory."""

    at: int
    weight: Tensor
    piece: int


@dataclass
class Trace:
    """What one forward and backward pass held. Numbers are those of `LiveBytes`."""

    events: list[int]
    sizes: list[int]
    arrivals: list[Arrival]
    owners: dict[int, nn.Module]  # the module of each weight, by its id
    saved_by: dict[int, list[nn.Module]] = field(default_factory=dict)  # as an input, by layers that have a rule
    saved_by_others: set[int] = field(default_factory=set)
    used_until: dict[int, int] = field(default_factory=dict)  # events until the last of these layers is through

    def peak(self, kept: Callable[[Tensor], float], factors: dict[int, float]) -> float:
        """The most bytes at a time: a gradient that has arrived leaves `kept(weight)`, and pieces have `factors`, those
        that layers save from the end of these layers on."""
        changes: dict[int, float] = defaultdict(float)  # after so many events
        beside: set[int] = set()  # when a part is kept before the whole gradient is freed
        for arrival in self.arrivals:
            changes[arrival.at] += kept(arrival.weight)
            if kept(arrival.weight) < self.sizes[arrival.piece]:
                beside.add(arrival.at)
        for piece, at in self.used_until.items():
            changes[at] -= self.sizes[piece] * (1 - factors.get(piece, 1.0))
        live = highest = 0.0
        for number, event in enumerate(self.events):
            live += changes.get(number, 0.0)
            highest = max(highest, live) if number in beside else highest
            piece = abs(event)
            whole = event > 0 and piece in self.used_until
            live += math.copysign(self.sizes[piece] * (1.0 if whole else factors.get(piece, 1.0)), event)
            highest = max(highest, live)
        return max(highest, live + changes.get(len(self.events), 0.0))

    @property
    def ended(self) -> float:
        """What is alive after it: weights and buffers."""
        return sum(math.copysign(self.sizes[abs(event)], event) for event in self.events)


def trace(model: nn.Module, evaluate: Callable[[], Tensor], rank: int = 0) -> Trace:
    """One forward and backward pass of the model; with a rank, with LoRA's factors on its linear layers alone.

    On a device whose memory it exceeds, it is traced on fake tensors. The model is as before afterwards.
    """
    try:
        return _trace(model, evaluate, rank)
    except torch.OutOfMemoryError:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            return _trace(model, evaluate, rank, fake.from_tensor)


def _trace(
    model: nn.Module, evaluate: Callable[[], Tensor], rank: int, seen_as: Callable[[Tensor], Tensor] = lambda t: t
) -> Trace:
    with undisturbed(model), ExitStack() as stack:
        made = stack.enter_context(_factors(model, rank)) if rank else []
        held = [*model.parameters(), *model.buffers(), *(t for pair in made for t in pair)]
        seen = [seen_as(tensor) for tensor in held]
        counter, arrivals = LiveBytes(seen), []
        inside: list[tuple[nn.Module, list[int]]] = []  # layers, and what each has saved
        owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
        saved_by: dict[int, list[nn.Module]] = defaultdict(list)
        others: set[int] = set()
        until: dict[int, int] = {}

        own = len(counter.sizes) - 1  # up to this number pieces are the model's

        def arrived(weight: Tensor) -> None:
            assert weight.grad is not None
            arrivals.append(Arrival(len(counter.events), weight, counter.number(weight.grad)))
            weight.grad = None

        def pack(tensor: Tensor) -> Tensor:
            number = counter.find(tensor)
            if inside and number > own and tensor.is_floating_point():
                saved_by[number].append(inside[-1][0])
                inside[-1][1].append(number)
            else:
                others.add(number)
            return tensor

        def through(*_: Any) -> None:
            until.update(dict.fromkeys(inside.pop()[1], len(counter.events)))

        for weight in held:
            if weight.requires_grad:
                stack.callback(weight.register_post_accumulate_grad_hook(arrived).remove)
        for module in model.modules():
            if rule_for(module) is not None:
                stack.callback(module.register_forward_pre_hook(lambda module, _: inside.append((module, []))).remove)
                stack.callback(module.register_forward_hook(through).remove)
        with counter, saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = evaluate()
            if loss.requires_grad:  # with LoRA's factors, not where no linear layer is called
                loss.backward()
            del loss
        return Trace(list(counter.events), counter.sizes, arrivals, owners, saved_by, others, until)


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Those that LoRA adapts: of the lists of blocks of a model, or all of one that has none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    among = [m for each in lists for m in each.modules()] or list(model.modules())
    return list(dict.fromkeys(m for m in among if isinstance(m, nn.Linear)))


@contextmanager
def _factors(model: nn.Module, rank: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Frozen weights, and for each linear layer two trained factors of low rank in single precision."""
    trained = [p for p in model.parameters() if p.requires_grad]
    made, handles = [], []
    for layer in linear_layers(model):
        kind = {"dtype": torch.float32, "device": layer.weight.device, "requires_grad": True}
        a, b = torch.zeros(rank, layer.in_features, **kind), torch.zeros(layer.out_features, rank, **kind)

        def adapted(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor, a: Tensor = a, b: Tensor = b) -> Tensor:
            return out + (inputs[0].to(a.dtype) @ a.T @ b.T * 1.0).to(out.dtype)

        made.append((a, b))
        handles.append(layer.register_forward_hook(adapted))
    try:
        for p in trained:
            p.requires_grad_(False)
        yield made
    finally:
        for handle in handles:
            handle.remove()
        for p in trained:
            p.requires_grad_(True)


@dataclass(frozen=True)
class Kept:
    """Bytes that a method keeps for one weight: for good, of its gradient, and of a dense one while it arrives."""

    held: float
    gradient: float
    stepped: int  # bytes of what the base optimizer steps
    share: float = 1.0  # of the dense gradient that is made, and of the inputs that its layer saves


def _dense(weight: Tensor) -> Kept:
    size = weight.numel() * weight.element_size()
    return Kept(2 * size, size, size)


def _sparse(weight: Tensor, share: float, module: nn.Module | None, columns: bool) -> Kept:
    """For SparseAdamW: the selected values, their gradient, two of AdamW's states, and indices."""
    dimension = group_dimension(module, weight) if columns and weight.dim() > 1 else None
    master = torch.empty((), dtype=master_dtype(weight)).element_size()
    if is_trained_whole(weight, 0.0, share, dimension):
        if master == weight.element_size():
            return _dense(weight)
        size = weight.numel() * master
        return Kept(3 * size + INDEX * weight.numel(), size, size)
    groups = weight.numel() if dimension is None else weight.shape[dimension]
    k = counts_among(weight.shape, 0.0, share, dimension).k
    size = weight.numel() // groups * k * master
    ruled = dimension is not None and module is not None and rule_for(module) is not None
    return Kept(3 * size + INDEX * k, size, size, k / groups if ruled else 1.0)


def predict(traced: Trace, kept: Callable[[Tensor], Kept], on_cuda: bool) -> int:
    """The peak of a whole step; AdamW is fused on CUDA, and on a CPU it goes weight by weight."""
    found = {id(a.weight): kept(a.weight) for a in traced.arrivals}
    factors: dict[int, float] = {}
    for arrival in traced.arrivals:
        ruled = found[id(arrival.weight)].share
        if ruled < 1:  # the gradient is made of the selected columns alone
            factors[arrival.piece] = ruled
    by_module = {id(traced.owners.get(key)): one.share for key, one in found.items() if one.share < 1}
    for piece, modules in traced.saved_by.items():
        shares = [by_module.get(id(module), 1.0) for module in modules]
        whole = piece in traced.saved_by_others or 1.0 in shares
        factors[piece] = whole + sum(share for share in shares if share < 1)  # parts are copies
    passes = traced.peak(lambda weight: found[id(weight)].gradient, factors)
    at_step = traced.ended + sum(one.gradient for one in found.values())
    at_step += 0 if on_cuda else 2 * max(one.stepped for one in found.values())  # the denominator, in two steps
    return round(max(passes, at_step) + sum(one.held for one in found.values()))


def name_of(share: float, columns: bool) -> str:
    return f"SparseAdamW, {100 * share:g} % of the {'columns' if columns else 'entries'}"


def capacity(device: torch.device) -> int:
    """The bytes of the memory where a model is trained."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def footprints(
    model: nn.Module, evaluate: Callable[[], Tensor], shares: Sequence[float] = SHARES, ranks: Sequence[int] = RANKS
) -> dict[str, int]:
    """Bytes at the peak of a step by method, for AdamW, SparseAdamW and LoRA; `evaluate` gives the loss of a batch."""
    traced = trace(model, evaluate)
    on_cuda = next(model.parameters()).is_cuda
    found = {"AdamW": predict(traced, _dense, on_cuda)}
    for columns in (False, True):
        for share in shares:
            name = name_of(share, columns)
            found[name] = predict(
                traced, lambda w, k=share, c=columns: _sparse(w, k, traced.owners.get(id(w)), c), on_cuda
            )
    for rank in ranks if linear_layers(model) else ():
        if (adapted := trace(model, evaluate, rank)).arrivals:
            found[f"LoRA, rank {rank}"] = predict(adapted, _dense, on_cuda)
    return found
