"""Rivals of the sparse optimizers: other ways to train with little memory, set up as their authors describe.

`make("galore", model, lr, rank=64)` gives an optimizer of the whole model; what is not given is the rival's default.
Most of them are packages of others (the extra `[peers]`), which are imported when one of them is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from spidersilk.lab.settings import Number, Setting, Text, Whole, check_all, nearest

State = dict[str, Any]


class InBackward:
    """AdamW stepped inside backward: one optimizer for each parameter, and each gradient is freed at once."""

    def __init__(self, model: nn.Module, lr: float, weight_decay: float = 0.01, beta2: float = 0.999):
        self.optimizers: list[torch.optim.Optimizer] = []
        for p in _trainable(model):
            optimizer = torch.optim.AdamW([p], lr, (0.9, beta2), weight_decay=weight_decay, fused=p.is_cuda)
            self.optimizers.append(optimizer)

            def arrived(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                p.grad = None

            p.register_post_accumulate_grad_hook(arrived)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        return {p: state for optimizer in self.optimizers for p, state in optimizer.state.items()}

    def step(self) -> None:
        """Nothing: backward has made the step."""

    def zero_grad(self) -> None:
        """Nothing: there is no gradient left."""

    def state_dict(self) -> State:
        return {"each": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: State) -> None:
        for optimizer, saved in zip(self.optimizers, state["each"], strict=True):
            optimizer.load_state_dict(saved)


class Adapted(nn.Module):
    """A linear layer with a trained product of low rank beside it: as peft does it, where peft is not installed."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dtype: torch.dtype | None):
        super().__init__()
        self.layer, self.scale = layer, alpha / rank
        kind: Any = {"dtype": dtype or layer.weight.dtype, "device": layer.weight.device}
        self.a = nn.Parameter(torch.empty(rank, layer.in_features, **kind))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank, **kind))
        nn.init.kaiming_uniform_(self.a, math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out + (x.to(self.a.dtype) @ self.a.T * self.scale @ self.b.T).to(out.dtype)


@dataclass(frozen=True)
class Peer:
    """How to make a rival of a model, a step size, the name of its list of transformer blocks, and `settings` by name.

    needs: packages, as pip calls them. whole_gradients: they exist between backward and step, so that micro-batches can
    be added up and all of them clipped together. every, at: of each `every` updates the one of number `at` (from 0)
    renews what is trained, or the space it is trained in; 0: none does. resumes: its state can be saved and loaded.
    blocks: it wants the list of transformer blocks.
    """

    about: str
    make: Callable[..., Any]
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    whole_gradients: bool = True
    every: int = 0
    at: int = 0
    resumes: bool = True
    blocks: bool = True


def _in_backward(model: nn.Module, lr: float, blocks: str, **given: float) -> InBackward:
    return InBackward(model, lr, **given)


def _adamw_8bit(model: nn.Module, lr: float, blocks: str, weight_decay: float = 0.01, beta2: float = 0.999) -> Any:
    kind = import_module("bitsandbytes.optim").AdamW8bit
    return kind(_trainable(model), lr, (0.9, beta2), weight_decay=weight_decay)


def _lora(
    model: nn.Module, lr: float, blocks: str, weight_decay: float = 0.01, rank: int = 64, alpha: float | None = None
) -> torch.optim.Optimizer:
    """peft's adapters on all linear layers of the blocks, or the same in plain torch without peft."""
    alpha = alpha or rank
    names = _linear_layers(model, blocks)
    model.requires_grad_(False)
    if find_spec("peft") is not None:
        peft = import_module("peft")
        config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names)
        peft.inject_adapter_in_model(config, model)
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.data = p.data.float()
    else:
        _adapt(model, names, rank, alpha, torch.float32)  # as peft's factors are
    return _adamw(model, lr, weight_decay)


def _galore(model: nn.Module, lr: float, blocks: str, weight_decay: float = 0.01, **given: Any) -> Any:
    matrices, others = _matrices(model, blocks)
    projected = {"params": matrices, "rank": 128, "update_proj_gap": 200, "scale": 0.25, **given, "proj_type": "std"}
    kind = import_module("galore_torch").GaLoreAdamW
    return kind([{"params": others}, projected], lr, weight_decay=weight_decay, no_deprecation_warning=True)


def _apollo(model: nn.Module, lr: float, blocks: str, weight_decay: float = 0.01, **given: Any) -> Any:
    matrices, others = _matrices(model, blocks)
    mini = {"rank": 1, "update_proj_gap": 200, "scale": 128, "scale_type": "tensor"}
    projected = {"params": matrices, **mini, **given, "proj": "random", "proj_type": "std"}
    kind = import_module("apollo_torch").APOLLOAdamW
    return kind([{"params": others}, projected], lr, weight_decay=weight_decay)


def _badam(
    model: nn.Module, lr: float, blocks: str, weight_decay: float = 0.01, switch_block_every: int = 100,
    switch_mode: str = "random",
) -> Any:  # fmt: skip
    params = _trainable(model)
    base = torch.optim.AdamW(params, lr, weight_decay=weight_decay, fused=params[0].is_cuda)
    return import_module("badam").BlockOptimizer(
        base_optimizer=base,
        named_parameters_list=list(model.named_parameters()),
        block_prefix_list=[[f"{blocks}.{number}."] for number in range(len(_blocks(model, blocks)))],
        switch_block_every=switch_block_every,
        switch_mode=switch_mode,
    )


DECAY = {"weight_decay": Number(low=0, about="0.01 unless given")}
BETA2 = "0.999 unless given, for sparse-adamw 0.95"
ADAM: Mapping[str, Setting] = DECAY | {"beta2": Number(low=0, high=1, about=BETA2)}
RANK, GAP = Whole(low=1, about="of the space"), Whole(low=1, about="updates between two spaces")
SCALE = Number(above=0, about="of its updates")
PROJECTED = DECAY | {"rank": RANK, "update_proj_gap": GAP, "scale": SCALE}
PEERS: dict[str, Peer] = {
    "in-backward": Peer(
        "AdamW stepped inside backward", _in_backward, settings=ADAM, whole_gradients=False, blocks=False
    ),
    "adamw-8bit": Peer(
        "bitsandbytes' AdamW with 8-bit states", _adamw_8bit, ("bitsandbytes",), ADAM, blocks=False
    ),
    "lora": Peer(
        "LoRA: AdamW on factors of rank 64 beside each linear layer of the blocks", _lora,
        settings=DECAY | {"rank": RANK, "alpha": Number(above=0, optional=True, about="the rank unless given")},
    ),
    "galore": Peer(
        "GaLore: AdamW in a space of rank 128 for each matrix of the blocks, found by an SVD every 200 updates",
        _galore, ("galore-torch", "transformers", "bitsandbytes"), PROJECTED, every=200, resumes=False,
    ),
    "apollo-mini": Peer(
        "APOLLO-Mini: matrices of the blocks by their gradient, scaled as AdamW in a random space of rank 1 would",
        _apollo, ("apollo-torch", "transformers", "bitsandbytes"),
        PROJECTED | {"scale_type": Text(choices=("tensor", "channel"), about="channel with a larger rank is APOLLO")},
        every=200, resumes=False,
    ),
    "badam": Peer(
        "BAdam: AdamW on one transformer block for 100 updates, then another; nothing outside the blocks is trained",
        _badam, ("badam", "transformers"),  # which badam imports without asking pip for it
        DECAY | {
            "switch_block_every": Whole(low=1, about="updates of a block"),
            "switch_mode": Text(choices=("random", "descending", "ascending"), about="the order of blocks"),
        },
        every=100, at=98, resumes=False,  # it counts from 1, and changes blocks one update early
    ),
}  # fmt: skip


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


def make(name: str, model: nn.Module, lr: float, blocks: str = "blocks", **given: Any) -> Any:
    """The rival as an optimizer of the model's trainable parameters; it changes what a step may do as `Peer` says.

    blocks: the name of the model's list of transformer blocks. BAdam and LoRA freeze what they do not train.
    """
    check(name)
    peer = find(name)
    checked = check_all(given, peer.settings, f"is no argument of {name}")
    try:
        return peer.make(model, lr, blocks, **checked)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"{name}: {peer.needs[0]} cannot be imported ({reason}): pip install --upgrade {' '.join(peer.needs)}"
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


def lora(model: nn.Module, rank: int, lr: float) -> torch.optim.Optimizer:
    """LoRA at its fastest, for timings: in plain torch, with factors in the dtype of the weights."""
    names = _linear_layers(model, "blocks")
    model.requires_grad_(False)
    _adapt(model, names, rank, rank, None)
    return _adamw(model, lr)


def _linear_layers(model: nn.Module, blocks: str) -> list[str]:
    inside = _blocks(model, blocks).named_modules()
    return [f"{blocks}.{name}" for name, module in inside if isinstance(module, nn.Linear)]


def _adapt(model: nn.Module, names: list[str], rank: int, alpha: float, dtype: torch.dtype | None) -> None:
    for name in names:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Adapted(model.get_submodule(name), rank, alpha, dtype))  # pyright: ignore[reportArgumentType]


def _adamw(model: nn.Module, lr: float, weight_decay: float = 0.01) -> torch.optim.Optimizer:
    trained = _trainable(model)
    return torch.optim.AdamW(trained, lr, weight_decay=weight_decay, fused=trained[0].is_cuda)
