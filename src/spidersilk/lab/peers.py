"""Rivals of the sparse optimizers: other ways to train with little memory, set up as their authors describe.

`make("galore", model, lr)` gives an optimizer of the whole model. All but AdamW stepped inside backward are packages of
others (the extra `[peers]`), which are imported when one of them is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.lab.settings import nearest


class InBackward:
    """AdamW stepped inside backward: one optimizer for each parameter, and each gradient is freed at once."""

    def __init__(self, model: nn.Module, lr: float, weight_decay: float = 0.01):
        for p in _trainable(model):
            optimizer = torch.optim.AdamW([p], lr, weight_decay=weight_decay, fused=p.is_cuda)

            def arrived(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                p.grad = None

            p.register_post_accumulate_grad_hook(arrived)

    def step(self) -> None:
        """Nothing: backward has made the step."""

    def zero_grad(self) -> None:
        """Nothing: there is no gradient left."""


@dataclass(frozen=True)
class Peer:
    """How to make a rival of a model, a step size, a weight decay and the name of its list of transformer blocks.

    needs: packages, as pip calls them. whole_gradients: they exist between backward and step, so that micro-batches can
    be added up and all of them clipped together. every, at: of each `every` updates the one of number `at` (from 0)
    renews what is trained, or the space it is trained in; 0: none does.
    """

    about: str
    make: Callable[[nn.Module, float, float, str], Any]
    needs: tuple[str, ...] = ()
    whole_gradients: bool = True
    every: int = 0
    at: int = 0


def _in_backward(model: nn.Module, lr: float, weight_decay: float, blocks: str) -> InBackward:
    return InBackward(model, lr, weight_decay)


def _adamw_8bit(model: nn.Module, lr: float, weight_decay: float, blocks: str) -> Any:
    return import_module("bitsandbytes.optim").AdamW8bit(_trainable(model), lr, weight_decay=weight_decay)


def _galore(model: nn.Module, lr: float, weight_decay: float, blocks: str) -> Any:
    matrices, others = _matrices(model, blocks)
    projected = {"params": matrices, "rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    kind = import_module("galore_torch").GaLoreAdamW
    return kind([{"params": others}, projected], lr, weight_decay=weight_decay, no_deprecation_warning=True)


def _apollo_mini(model: nn.Module, lr: float, weight_decay: float, blocks: str) -> Any:
    matrices, others = _matrices(model, blocks)
    projected = {"params": matrices, "rank": 1, "proj": "random", "scale_type": "tensor", "scale": 128,
                 "update_proj_gap": 200, "proj_type": "std"}  # fmt: skip
    return import_module("apollo_torch").APOLLOAdamW([{"params": others}, projected], lr, weight_decay=weight_decay)


def _badam(model: nn.Module, lr: float, weight_decay: float, blocks: str) -> Any:
    params = _trainable(model)
    base = torch.optim.AdamW(params, lr, weight_decay=weight_decay, fused=params[0].is_cuda)
    return import_module("badam").BlockOptimizer(
        base_optimizer=base,
        named_parameters_list=list(model.named_parameters()),
        block_prefix_list=[[f"{blocks}.{number}."] for number in range(len(_blocks(model, blocks)))],
        switch_block_every=100,
        switch_mode="random",
    )


PEERS: dict[str, Peer] = {
    "in-backward": Peer("AdamW stepped inside backward", _in_backward, whole_gradients=False),
    "adamw-8bit": Peer("bitsandbytes' AdamW with 8-bit states", _adamw_8bit, ("bitsandbytes",)),
    "galore": Peer(
        "GaLore: AdamW in a space of rank 128 for each matrix of the blocks, found by an SVD every 200 updates",
        _galore,
        ("galore-torch", "transformers", "bitsandbytes"),
        every=200,
    ),
    "apollo-mini": Peer(
        "APOLLO-Mini: matrices of the blocks by their gradient, scaled as AdamW in a random space of rank 1 would",
        _apollo_mini,
        ("apollo-torch", "transformers", "bitsandbytes"),
        every=200,
    ),
    "badam": Peer(
        "BAdam: AdamW on one transformer block for 100 updates, then another; nothing outside the blocks is trained",
        _badam,
        ("badam", "transformers"),  # which badam imports without asking pip for it
        every=100,
        at=98,  # it counts from 1, and changes blocks one update early
    ),
}


def find(name: str) -> Peer:
    if name not in PEERS:
        raise ValueError(f"there is no rival {name!r}{nearest(name, PEERS)}")
    return PEERS[name]


def check(name: str) -> None:
    """Refuse a rival whose packages are not installed; nothing is imported."""
    absent = [package for package in find(name).needs if find_spec(package.replace("-", "_")) is None]
    if absent:
        raise ModuleNotFoundError(
            f"{name} needs {' and '.join(absent)}, not installed here: pip install {' '.join(absent)}"
        )


def make(name: str, model: nn.Module, lr: float, weight_decay: float = 0.01, blocks: str = "blocks") -> Any:
    """The rival as an optimizer of the model's trainable parameters; it changes what a step may do as `Peer` says.

    blocks: the name of the model's list of transformer blocks. BAdam freezes what it does not train.
    """
    check(name)
    try:
        return find(name).make(model, lr, weight_decay, blocks)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"{name}: {find(name).needs[0]} cannot be imported ({reason}): pip install --upgrade "
            f"{' '.join(find(name).needs)}"
        ) from error


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _blocks(model: nn.Module, blocks: str) -> nn.ModuleList:
    found = dict(model.named_modules()).get(blocks)
    if isinstance(found, nn.ModuleList) and len(found):
        return found
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module)]
    raise ValueError(
        f"blocks = {blocks!r} must name the list of transformer blocks of the model; it has "
        f"{', '.join(map(repr, lists)) or 'no nn.ModuleList'}"
    )


def _matrices(model: nn.Module, blocks: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable matrices of the blocks, and what else is trainable."""
    inside = {id(p) for p in _blocks(model, blocks).parameters() if p.dim() == 2}
    params = _trainable(model)
    return [p for p in params if id(p) in inside], [p for p in params if id(p) not in inside]


class Lora(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices, which is zero at first."""

    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear
        kind = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.a = nn.Parameter(torch.randn(rank, linear.in_features, **kind) / rank)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank, **kind))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + x @ self.a.T @ self.b.T


def lora(model: nn.Module, rank: int, lr: float, blocks: str = "blocks") -> torch.optim.Optimizer:
    """AdamW on adapters of this rank in all linear layers of the blocks; everything else is frozen."""
    model.requires_grad_(False)
    for module in list(_blocks(model, blocks).modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Lora(child, rank))
    trained = _trainable(model)
    return torch.optim.AdamW(trained, lr, fused=trained[0].is_cuda)
