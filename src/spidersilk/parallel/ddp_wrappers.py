"""What is around the parameters of a model that many processes train: DistributedDataParallel; FSDP is refused."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spidersilk.find_modules import modules_around

_SHARDED = (
    "a parameter is sharded by FSDP: coordinates are selected over all parameters together, so each rank needs all of "
    "v, M and the reference point, which FSDP would not let it hold; use DistributedDataParallel, or no wrapper"
)


def refuse_sharded(params: Sequence[Tensor]) -> None:
    """Parameters of which each rank holds a part."""
    for p in params:
        if getattr(p, "_is_flat_param", False) or hasattr(p, "device_mesh"):  # FSDP1, and the DTensor of FSDP2
            raise ValueError(_SHARDED)


def refuse_sharding(params: Sequence[Tensor]) -> list[nn.Module]:
    """FSDP1 with use_orig_params=True, whose parameters look like plain ones; the modules around them come back."""
    around = modules_around(params)
    for module in around:
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):  # without its slow import
            raise ValueError(_SHARDED)
    return around


def _check(wrapper: Any, params: Sequence[Tensor]) -> None:
    """Refuse what cannot be kept silent without harm."""
    ours = {id(p) for p in params}
    if any(p.requires_grad and id(p) not in ours for p in wrapper.parameters()):
        raise ValueError(
            "DistributedDataParallel is around trainable parameters that this optimizer does not have: it is kept "
            "silent at small steps, so theirs would not be averaged; give them to this optimizer, freeze them, or use "
            "no wrapper"
        )
    if wrapper.static_graph:
        raise ValueError(
            "DistributedDataParallel(static_graph=True) expects the same all-reduces at every step, and small steps do "
            "without: leave static_graph out, or use no wrapper"
        )


class Wrappers:
    """The DistributedDataParallel modules around `params`, found among the live objects.

    `reduces`: whether one of them averages the gradients of all `params` over `group`.
    """

    def __init__(self, params: Sequence[Tensor], group: dist.ProcessGroup):
        around = refuse_sharding(params)
        self.wrappers: list[Any] = [module for module in around if isinstance(module, DistributedDataParallel)]
        self.reduces = False
        for wrapper in self.wrappers:
            _check(wrapper, params)
        if gc.get_freeze_count():
            warnings.warn(
                "gc.freeze() was called before the first step of an optimizer with a process_group: a "
                "DistributedDataParallel from before it cannot be found, and would average again; freeze later",
                stacklevel=2,
            )
        if len(self.wrappers) == 1:
            ignored = self.wrappers[0].parameters_to_ignore
            inside = {id(p) for name, p in self.wrappers[0].module.named_parameters() if name not in ignored}
            same = dist.get_process_group_ranks(self.wrappers[0].process_group) == dist.get_process_group_ranks(group)
            self.reduces = same and all(id(p) in inside for p in params)

    def watch(self) -> None:
        """From now on see whether the wrapper is called: it then sets this to True. A hook that counts calls would make
        torch.compile trace the model again at each of them."""
        self.wrappers[0].require_forward_param_sync = 1

    def was_called(self) -> bool:
        called = self.wrappers[0].require_forward_param_sync is True
        self.wrappers[0].require_forward_param_sync = True
        return called

    def __enter__(self) -> None:
        """From here on nothing is sent by a wrapper: gradients stay local, and so do buffers."""
        self._stack = ExitStack()
        for module in self.wrappers:
            self._stack.enter_context(module.no_sync())
            self._stack.callback(setattr, module, "require_forward_param_sync", module.require_forward_param_sync)
            module.require_forward_param_sync = False  # buffers of rank 0 go to all in anchors alone

    def __exit__(self, *_: object) -> None:
        self._stack.close()
