"""What the processes of test_together.py run: sparse training, each rank on its part of every batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import spidersilk as silk
from spidersilk.sparse import averaging

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randint(3, (64,), generator=torch.Generator().manual_seed(2))


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 3)).to(dtype)


def make(model: nn.Module, group: Any, **options: Any) -> silk.Sparse:
    defaults: dict[str, Any] = {"k1": 0.0, "k2": 0.2, "inner_steps": 5, "lr": 0.01}
    defaults |= {"generator": torch.Generator().manual_seed(3)}
    return silk.SparseAdamW(model, process_group=group, **(defaults | options))


def train(model: nn.Module, optimizer: silk.Sparse, group: Any, steps: int) -> None:
    rank, world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        batch = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:16].chunk(world)[rank]
        F.cross_entropy(model(X[batch].to(dtype)), Y[batch]).backward()
        optimizer.step(samples=len(batch))
        optimizer.zero_grad()


def flat(model: nn.Module) -> Tensor:
    weights = [p for name, p in model.named_parameters() if not name.endswith("_compact")]
    return torch.cat([p.detach().reshape(-1) for p in weights])


def trajectory(group: Any, steps: int = 30, ddp: bool = False, **options: Any) -> tuple[Tensor, float]:
    model = network()
    optimizer = make(model, group, **options)
    called = DistributedDataParallel(model, process_group=group) if ddp else model
    train(called, optimizer, group, steps)
    queries = optimizer.gradient_queries
    optimizer.close()
    return flat(model), queries


def accumulated(group: Any, how: str, steps: int = 12) -> tuple[Tensor, list[int], int]:
    """Two micro-batches a step and clipping over the model's parameters; the bytes of each step's messages, and k."""
    model = network(torch.float32)
    optimizer = make(model, group, groups="columns", k2=0.2)
    called = DistributedDataParallel(model, process_group=group) if how == "wrapper" and group is not None else model
    rank, world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    bytes_of_steps = []
    for step in range(steps):
        before = optimizer.traffic.small_steps
        for micro in range(2):
            batch = torch.randperm(64, generator=torch.Generator().manual_seed(2 * step + micro))[:16]
            part = batch.chunk(world)[rank]
            quiet: Any = {"no_sync": optimizer.no_sync, "wrapper": getattr(called, "no_sync", nullcontext)}
            with quiet.get(how, nullcontext)() if micro == 0 else nullcontext():
                (F.cross_entropy(called(X[part].float()), Y[part]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
        bytes_of_steps.append(optimizer.traffic.small_steps - before)
    k = optimizer.k
    optimizer.close()
    return flat(model), bytes_of_steps, k


@contextmanager
def messages_of() -> Iterator[list[Tensor]]:
    """All tensors that are all-reduced meanwhile."""
    messages: list[Tensor] = []
    original = dist.all_reduce

    def noting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        messages.append(tensor)
        return original(tensor, *args, **kwargs)

    dist.all_reduce = noting
    try:
        yield messages
    finally:
        dist.all_reduce = original


def in_buckets(group: Any) -> list[int]:
    """The sizes of messages of one backward pass where a bucket is small; the last layer's come first."""
    averaging.BUCKET = 16
    model = network(torch.float32)
    optimizer = make(model, group, groups="columns", k2=0.2)
    with messages_of() as messages:
        F.cross_entropy(model(X.float()), Y).backward()
    averaging.BUCKET = 25 << 20
    optimizer.close()
    return [tensor.numel() for tensor in messages]


def put_there(group: Any) -> Tensor:
    """Gradients that no backward pass brought are averaged too."""
    model = network(torch.float32)
    optimizer = make(model, group)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.full_like(p, float(dist.get_rank(group)))
    optimizer.step()
    optimizer.close()
    return flat(model)


def sent(group: Any, steps: int) -> tuple[int, int, int, list[int]]:
    """k, and what was handed over: values, at anchors, and the size of every message."""
    model = network(torch.float32)
    optimizer = make(model, group)
    with messages_of() as messages:
        train(model, optimizer, group, steps)
    traffic, k = optimizer.traffic, optimizer.k
    optimizer.close()
    return k, traffic.small_steps, traffic.anchors, [t.numel() * t.element_size() for t in messages]


def outcome(group: Any, wrong: str) -> str:
    odd = dist.get_rank(group) == 1
    model = network(seed=int(odd and wrong == "parameters"))
    others = {"settings": {"k2": 0.3}, "scale of steps": {"step_scale": 2.0}}
    options: dict[str, Any] = dict(others.get(wrong, {})) if odd else {}
    if odd and wrong == "seed":
        options["generator"] = torch.Generator().manual_seed(99)
    if odd and wrong == "step size":
        options["lr"] = 0.5
    optimizer = make(model, group, **options)
    try:
        train(model, optimizer, group, 1)
    except silk.distributed.DisagreementError as error:
        return error.what
    finally:
        optimizer.close()
    return ""


def drifted(group: Any) -> str:
    """A weight that changes on one rank alone comes out at the next selection."""
    model = network()
    optimizer = make(model, group)
    try:
        train(model, optimizer, group, 3)
        if dist.get_rank(group) == 1:
            model[0].weight.data[0, 0] += 1e-9
        train(model, optimizer, group, 3)
    except silk.distributed.DisagreementError as error:
        return error.what
    finally:
        optimizer.close()
    return ""


def wrapped_before(group: Any) -> str:
    model = network()
    called = DistributedDataParallel(model, process_group=group)
    optimizer = make(model, group)
    try:
        train(called, optimizer, group, 1)
    except RuntimeError as error:
        return str(error)
    finally:
        optimizer.close()
    return ""


def nobody_said_so(group: Any) -> Tensor:
    """Without a process_group all ranks average."""
    model = network()
    optimizer = make(model, None)
    train(model, optimizer, group, 12)
    optimizer.close()
    return flat(model)


def one_is_killed(group: Any) -> str:
    model = network()
    optimizer = make(model, group)
    train(model, optimizer, group, 2)
    if dist.get_rank(group) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(model, optimizer, group, 5)
    except silk.distributed.WorkerLostError as error:
        return str(error)
    return ""


def sharded(group: Any, groups: str | None = None) -> tuple[nn.Sequential, silk.Sparse]:
    model = network(torch.float32)
    mesh = DeviceMesh.from_group(group, "cpu")
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    return model, make(model, None, k1=0.1, k2=0.1, groups=groups)


def whole(model: nn.Module) -> Tensor:
    weights = [p for name, p in model.named_parameters() if not name.endswith("_compact")]
    return torch.cat([p.detach().full_tensor().reshape(-1) for p in weights])


def train_sharded(model: nn.Module, optimizer: silk.Sparse, group: Any, steps: int, start: int = 0) -> list[float]:
    norms = []
    for step in range(start, start + steps):
        batch = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:16]
        part = batch.chunk(dist.get_world_size(group))[dist.get_rank(group)]
        F.cross_entropy(model(X[part].float()), Y[part]).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor()))
        optimizer.step()
        optimizer.zero_grad()
    return norms


def fsdp(group: Any, folder: str, groups: str | None = None) -> tuple[Tensor, Tensor, list[float], int, float, float]:
    """Train 14 steps; and 7, save through torch.distributed.checkpoint, load into new ones, and train the other 7."""
    model, optimizer = sharded(group, groups)
    before = whole(model)
    loss_before = float(F.cross_entropy(model(X.float()), Y))
    norms = train_sharded(model, optimizer, group, 14)
    moved = int((whole(model) != before).sum())
    loss_after = float(F.cross_entropy(model(X.float()), Y))
    optimizer.close()
    straight = whole(model)
    model, optimizer = sharded(group, groups)
    train_sharded(model, optimizer, group, 7)
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=folder, process_group=group)
    optimizer.close()
    model, optimizer = sharded(group, groups)
    load_sharded(model, optimizer, group, folder)
    assert optimizer.steps == 7
    train_sharded(model, optimizer, group, 7, start=7)
    optimizer.close()
    return straight, whole(model), norms, moved, loss_before, loss_after


def load_sharded(model: nn.Module, optimizer: silk.Sparse, group: Any, folder: str) -> None:
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder, process_group=group)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def fsdp_elsewhere(group: Any, folder: str, groups: str | None) -> str:
    """Load what other ranks saved, on another number of them."""
    model, optimizer = sharded(group, groups)
    try:
        load_sharded(model, optimizer, group, folder)
    except ValueError as error:
        return str(error)
    finally:
        optimizer.close()
    return ""
