"""Starting and ending a group of processes, and giving all of them the same model."""

from __future__ import annotations

import gc
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from spidersilk.parallel.all_reduce import answering
from spidersilk.parallel.workers import Group, Workers, as_workers


def join(timeout: timedelta | None = None) -> torch.device:
    """Join the processes that torchrun started: by NCCL with a GPU for each, else by gloo. Returns this one's device.

    It is `init_process_group`, but works after a restart too: torchrun's workers share the store of its agent, where
    they would find the addresses of those that were there before (pytorch issue 135712).
    """
    numbers = [int(os.environ.get(n, 0)) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    rank, world, local_rank, local_world = numbers
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if attempt and shared and local_world == world:  # on one machine, all know the same attempt
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agents = dist.TCPStore(address, port, is_master=False)  # pyright: ignore[reportPrivateImportUsage]
        store = dist.PrefixStore(f"attempt {attempt}", agents)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, timeout=timeout, rank=rank, world_size=world)
    else:
        dist.init_process_group(backend, timeout=timeout)
    return device


def leave() -> None:
    """Leave the group: the counterpart of `join`, at the end of a program, after the function that used the group.

    gloo's threads live as long as anything refers to the group, such as an optimizer or a wrapped model, whatever
    `destroy_process_group` does; and one that waits for Python while Python shuts down aborts the process. So what is
    held by reference cycles alone is collected here. Threads that other things keep alive get a moment to finish, which
    is a guess.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
        time.sleep(0.05)


def broadcast(model: nn.Module, process_group: Group = "world") -> None:
    """Make the parameters and buffers of `model` on every rank those of rank 0."""
    workers = as_workers(process_group)
    if isinstance(workers, Workers):
        with torch.no_grad(), answering(workers.group, "the broadcast of a model"):
            for tensor in [*model.parameters(), *model.buffers()]:
                dense = tensor.contiguous()
                dist.broadcast(dense, group=workers.group, group_src=0)
                if dense is not tensor:
                    tensor.copy_(dense)
