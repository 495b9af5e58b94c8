"""Ranks that train together: which these are, what they must hold alike, and wrappers around the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spidersilk.find_modules import modules_around
from spidersilk.parallel.agreement import Fact, checksum_of, hash_of
from spidersilk.parallel.workers import Alone, Group, as_workers

_IGNORED = "_ddp_params_and_buffers_to_ignore"  # where DistributedDataParallel looks for names
_MANAGED = (
    "DistributedDataParallel averages whole gradients of weights of which this optimizer reads and frees the selected "
    "entries: make the optimizer over the module first and wrap that very module then, which leaves them to the "
    "optimizer, or use no wrapper"
)

NO_CLOSURE = (
    "without a closure the gradient is there before this is known: give step() one that calls backward(), as in "
    "docs/integrations.md"
)


def workers_of(process_group: Group) -> Alone:
    """Those of the group; without one, all ranks there are: they would drift apart if nobody averaged."""
    if process_group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return as_workers("world")
    return as_workers(process_group)


def facts(
    settings: object, progress: object, groups: Sequence[dict[str, Any]], weights: Sequence[Tensor]
) -> list[Fact]:
    """What ranks must hold alike when a selection is made: with these, the next ones are alike too."""
    rates = [[str(group.get(name)) for name in ("lr", "weight_decay")] for group in groups]
    return [
        Fact(
            "their settings", hash_of(settings), "construct the same optimizer over the same parameters on every rank"
        ),
        Fact(
            "the seed and number of selections",
            hash_of(progress),
            "give every rank a generator of the same seed or none, let it take every step, and load the same state",
        ),
        Fact("the step size", hash_of(rates), "step the same schedulers on every rank"),
        Fact(
            "the parameters",
            checksum_of(weights),
            "start from the same ones (a seed before the model is built, or spidersilk.distributed.broadcast)",
        ),
    ]


def hide_from_ddp(model: nn.Module, params: Sequence[Tensor]) -> None:
    """Let a DistributedDataParallel that is put around `model` later leave these parameters alone."""
    ours = {id(p) for p in params}
    names = [name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in ours]
    setattr(model, _IGNORED, [*getattr(model, _IGNORED, []), *names])


def check_ddp(weights: Sequence[Tensor]) -> list[DistributedDataParallel]:
    """The wrappers around these weights; refuse one that averages their gradients."""
    ours = {id(p) for p in weights}
    wrappers = [module for module in modules_around(weights) if isinstance(module, DistributedDataParallel)]
    for wrapper in wrappers:
        ignored = wrapper.parameters_to_ignore
        managed = [name for name, p in wrapper.module.named_parameters() if id(p) in ours and name not in ignored]
        if managed:
            raise RuntimeError(f"{managed[0]}: {_MANAGED}")
    return wrappers
