"""Peak memory and seconds of whole training steps of a GPT: sparse training beside AdamW and others.

python benchmarks/memory.py --size 2.7b --save           # on a CUDA device
python benchmarks/memory.py --size 20m --threads 1       # on a CPU: times alone

Each method runs in a process of its own. Memory is the peak of torch.cuda.max_memory_allocated over a run with two
anchors, four micro-batches a step and clipping. Time is the mean over `--steps` steps with one anchor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gpt
import torch
from record import save
from torch import Tensor, nn

import spidersilk as silk

METHODS = ("adamw", "in-backward", "sparse-5", "sparse-1", "sparse-top-5", "lora-16")


def sparse(model: nn.Module, k1: float, k2: float, inner: int, lr: float) -> silk.SparseAdamW:
    seed = torch.Generator().manual_seed(0)
    fused = next(model.parameters()).is_cuda
    return silk.SparseAdamW(model, lr, k1, k2, inner_steps=inner, fused=fused, generator=seed)


class InBackward:
    """AdamW stepped inside backward: one optimizer for each parameter, gradients freed at once."""

    def __init__(self, model: nn.Module, lr: float):
        fused = next(model.parameters()).is_cuda
        for p in model.parameters():
            optimizer = torch.optim.AdamW([p], lr, fused=fused)

            def hook(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                p.grad = None

            p.register_post_accumulate_grad_hook(hook)

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...


class Lora(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear
        kind = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.a = nn.Parameter(torch.randn(rank, linear.in_features, **kind) / rank)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank, **kind))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + x @ self.a.T @ self.b.T


def lora(model: nn.Module, rank: int, lr: float) -> torch.optim.Optimizer:
    model.requires_grad_(False)
    for block in model.blocks:  # pyright: ignore
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, Lora(getattr(block, name), rank))
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr, fused=trained[0].is_cuda)


def make(method: str, model: nn.Module, inner: int) -> Any:
    lr = 1e-4
    if method == "adamw":
        return torch.optim.AdamW(model.parameters(), lr, fused=next(model.parameters()).is_cuda)
    if method == "in-backward":
        return InBackward(model, lr)
    if method.startswith("lora"):
        return lora(model, int(method.split("-")[1]), lr)
    share = float(method.split("-")[-1]) / 100
    return sparse(model, share if "top" in method else 0.0, 0.0 if "top" in method else share, inner, lr)


def run_one(given: argparse.Namespace) -> dict[str, Any]:
    device = given.device
    if given.threads:
        torch.set_num_threads(given.threads)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = gpt.make(given.size, device, dtype, not given.no_checkpointing)
    count = sum(p.numel() for p in model.parameters())
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocabulary, (given.sequences, given.length + 1), generator=generator).to(device)
    optimizer = make(given.one, model, given.steps)

    def step(micro: int, clip: bool) -> None:
        for _ in range(micro):
            (model(tokens) / micro).backward()
        if clip and given.one != "in-backward":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step(1, False)
    wait()
    times = []
    for _ in range(given.steps):  # with one anchor
        start = time.perf_counter()
        step(1, False)
        wait()
        times.append(time.perf_counter() - start)
    result: dict[str, Any] = {"method": given.one, "parameters": count, "mean_ms": 1e3 * sum(times) / len(times)}
    result |= {"median_ms": 1e3 * sorted(times)[len(times) // 2], "slowest_ms": 1e3 * max(times)}
    start = time.perf_counter()
    for _ in range(10):  # as a training loop runs, without a wait at each step
        step(1, False)
    wait()
    result["free_ms"] = 1e2 * (time.perf_counter() - start)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        micro = 1 if given.one == "in-backward" else 4
        if hasattr(optimizer, "inner_steps"):
            optimizer.inner_steps = 2
        for _ in range(5):  # two anchors
            step(micro, True)
        wait()
        peak = torch.cuda.max_memory_allocated()
        result |= {"peak_gib": peak / 2**30, "bytes_per_parameter": peak / count, "micro_batches": micro}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=gpt.SIZES, default="tiny")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print("RESULT " + json.dumps(run_one(given)), flush=True)
        return
    results: list[dict[str, Any]] = []
    for repeat in range(given.repeats):
        for method in given.methods.split(","):
            command = [sys.executable, __file__, *sys.argv[1:], "--one", method]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            print(given.size, given.sequences, repeat, lines[0] if lines else done.stderr[-1500:], flush=True)
            results += [{"repeat": repeat, **json.loads(line)} for line in lines]
    if given.save:
        kept = {name: getattr(given, name) for name in ("size", "sequences", "length", "steps", "device")}
        figures = kept | {"checkpointing": not given.no_checkpointing, "runs": results}
        size = given.size.replace(".", "_")
        save(f"memory_{size}_{given.sequences}_{given.device}", [0], figures)


if __name__ == "__main__":
    main()
