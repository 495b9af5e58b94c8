"""Data parallel training: at small steps the processes send only the selected values.

    torchrun --nproc-per-node 2 examples/ddp.py
    torchrun --nproc-per-node 2 --max-restarts 3 examples/ddp.py --checkpoint runs/ddp.pt    # continues after a failure

Uses NCCL with one GPU per process, or gloo on the CPU. Without torchrun it is a single process with the same result, up
to rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.distributed import join, leave


def rings(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points of the plane in three rings."""
    g = torch.Generator().manual_seed(seed)
    points = 2 * torch.randn(samples, 2, generator=g)
    return points, torch.bucketize(points.norm(dim=1), torch.tensor([1.6, 3.0]))


def train(epochs: int = 20, samples: int = 4000, checkpoint: Path | None = None, wrap: bool = True) -> float:
    parallel = dist.is_torchelastic_launched()  # by torchrun
    device = join() if parallel else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    group = "world" if parallel else None
    first = not parallel or dist.get_rank() == 0

    torch.manual_seed(0)  # the same parameters on every rank: the optimizer checks it
    model: nn.Module = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    model.to(device)
    called = nn.parallel.DistributedDataParallel(model) if parallel and wrap else model

    train = tuple(t.to(device) for t in rings(samples, seed=1))
    test = tuple(t.to(device) for t in rings(1000, seed=2))
    seed = torch.Generator().manual_seed(0)
    options = {"move": "selected", "momentum": 0.5, "generator": seed, "process_group": group}
    optimizer = silk.SparseSVRG(model.parameters(), lr=0.3, **options)
    loader = silk.AnchorLoader(train, 500, 50, inner_steps=10, generator=seed, process_group=group)

    start = 0
    if checkpoint is not None and checkpoint.is_file():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        start = state["epoch"]
        if first:
            print(f"continuing from epoch {start}")

    for epoch in range(start, epochs):
        for (points, label), is_anchor in loader:  # the part of the batch that this rank evaluates

            def closure(points: Tensor = points, label: Tensor = label) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(called(points), label)
                loss.backward()
                return loss

            optimizer.step(closure, anchor=is_anchor, samples=len(label))
        if first:
            with torch.no_grad():
                loss = F.cross_entropy(model(train[0]), train[1]).item()
            sent = optimizer.traffic.ring_bytes / 1e6
            print(
                f"epoch {epoch}: loss {loss:.4f}, {optimizer.gradient_queries / samples:.2f} N queries, ",
                end="",
            )
            print(f"{sent:.2f} MB sent by this rank", flush=True)
            if checkpoint is not None:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                checkpoint.parent.mkdir(parents=True, exist_ok=True)
                torch.save(state | {"epoch": epoch + 1}, checkpoint.with_suffix(".part"))
                checkpoint.with_suffix(".part").replace(checkpoint)  # atomic: never half a file

    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    if first:
        print(f"test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--checkpoint", type=Path, help="file to save after each epoch, and to continue from")
    parser.add_argument("--no-ddp", action="store_true", help="without DistributedDataParallel; the result is the same")
    options = parser.parse_args()
    train(options.epochs, options.samples, options.checkpoint, not options.no_ddp)
    leave()
