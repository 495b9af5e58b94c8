"""Weights that FSDP2 shards (DTensors): each rank selects within its own part, and nothing of ours is sent.

A compact parameter is then sharded too: torch's clipping and its distributed checkpoints see one tensor of all parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spidersilk.operator.counts import Count, counts_within


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor; asked so, because importing these takes a while."""
    return hasattr(tensor, "device_mesh")


def local(tensor: Any) -> Tensor:
    """This rank's part, in the same memory; all of a tensor that is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def check_placement(weight: Any) -> None:
    """Refuse weights that are cut otherwise than FSDP does it."""
    if is_sharded(weight):
        shards = [p for p in weight.placements if not p.is_replicate()]
        if len(shards) != 1 or not shards[0].is_shard(0):
            raise ValueError(f"a weight has the placements {weight.placements}: it must be cut along dimension 0 alone")


def ranks_of(weights: Sequence[Tensor]) -> int:
    """Over how many ranks the weights are cut; all must be, or none."""
    cut = [w for w in weights if is_sharded(w)]
    if cut and len(cut) < len(weights):
        raise ValueError(
            f"{len(cut)} of {len(weights)} parameters are sharded: nobody would average the others' gradients, so "
            "shard all of them (fully_shard of the whole model), or none"
        )
    return max((_parts(w) for w in cut), default=1)


def rank_of(weights: Sequence[Tensor]) -> int:
    """This rank's number among those that the weights are cut over."""
    weight: Any = weights[0]
    return weight.device_mesh.get_local_rank(_cut_dimension(weight)) if is_sharded(weight) else 0


def counts_of(weight: Any, k1: Count, k2: Count) -> tuple[int, int]:
    """k1 and k2 as counts; of a sharded weight, those of this rank's part: so many for each of its rows."""
    part = local(weight)
    if not is_sharded(weight):
        return counts_within(k1, k2, part.numel())
    if any(isinstance(k, int) and k for k in (k1, k2)):
        raise ValueError(f"k1 = {k1} and k2 = {k2} must be fractions where weights are sharded: no rank has all of one")
    top, random = counts_within(k1, k2, math.prod(part.shape[1:]))
    return part.shape[0] * top, part.shape[0] * random


def as_parameter(values: Tensor, weight: Any, width: int) -> Tensor:
    """`values`, one for each selected entry, as what is stepped: for a sharded weight, this rank's part of one tensor.

    That has the weight's rows, each of `width` values, so that it is cut as the weight is, evenly or not.
    """
    if not is_sharded(weight):
        return values
    from torch.distributed.tensor import DTensor

    shape, placed = torch.Size([weight.shape[0], width]), (weight.device_mesh, weight.placements)
    return DTensor.from_local(values.view(-1, width), *placed, run_check=False, shape=shape, stride=(width, 1))


def as_listed(numbers: Tensor, weight: Any) -> Tensor:
    """Numbers that each rank has for its own part; for a sharded weight as a table with the weight's rows.

    All rows of a part are alike. So the table has the same shape on any number of ranks, as checkpoints want it.
    """
    if not is_sharded(weight):
        return numbers
    from torch.distributed.tensor import DTensor

    rows, shape = local(weight).shape[0], torch.Size([weight.shape[0], len(numbers)])
    placed = weight.device_mesh, weight.placements
    table = numbers.expand(rows, -1).contiguous()
    return DTensor.from_local(table, *placed, run_check=False, shape=shape, stride=(len(numbers), 1))


def from_list(listed: Tensor, weight: Any) -> Tensor:
    """This rank's numbers again."""
    return listed if not is_sharded(weight) else local(listed)[0]


def _parts(weight: Any) -> int:
    return weight.device_mesh.size(_cut_dimension(weight))


def _cut_dimension(weight: Any) -> int:
    """Of the mesh."""
    return next(i for i, p in enumerate(weight.placements) if p.is_shard())
