"""Seconds of whole training steps with columns of the weights, beside dense training and LoRA; methods take turns.

python benchmarks/backprop.py --model fc --threads 1 --save
python benchmarks/backprop.py --model 20m --sequences 4 --length 256 --no-checkpointing --threads 1 --save
python benchmarks/backprop.py --model 2.7b --sequences 8 --save                      # on a CUDA device
python benchmarks/backprop.py --model 2.7b --sequences 8 --compile blocks --save
python benchmarks/backprop.py --model resnet18 --sequences 256 --methods dense,columns-10,rows-10 --save
python benchmarks/backprop.py --model narrow --length 8 --threads 1 --methods dense,columns-10,entries-10,lora-16 --save

Models: the GPTs of gpt.py (dense is AdamW; `narrow` has the layers of the one of 2.7 B and next to no arithmetic, so
that its times are those of Python and of launches), fc (3072-1000-1000-10) and resnet18 (dense is SGD). Methods: dense,
columns-P, rows-P, entries-P (P %), lora-R (GPTs). All are in one process, in blocks of steps that take turns, so that a
slow minute of the machine is everybody's. `ms` is the mean of all timed steps, `--block` times `--blocks` (100, unless
told otherwise), the last of which makes a new selection; `ratio` is that over the dense one's, and `range` that of
single blocks. Python's garbage collector is told to leave alone what there is after the warm-up (`gc.freeze()`): a pass
over the objects of torch and all models takes a tenth of a second, and would be counted against the method whose turn
it is. On CUDA, `kernel_ms` is the time in kernels of a step, from a profile; what is left of `ms` is Python and
launches that the device waits for.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from statistics import mean
from typing import Any

import gpt
import torch
from record import save
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab import peers
from spidersilk.lab.tasks import models


class Run:
    """One method on a model of its own."""

    def __init__(self, method: str, given: argparse.Namespace):
        self.method, self.device = method, given.device
        self.model, self.loss, baseline = build(given)
        self.optimizer = optimizer_for(method, self.model, baseline)
        if given.compile == "blocks":
            for block in self.model.blocks:
                block.compile()
        self.called: Any = torch.compile(self.model) if given.compile == "model" else self.model
        self.means: list[float] = []

    def warm_up(self, steps: int) -> None:
        """Compile, make new selections, and then one in so many steps, the last."""
        self.block(4)
        if isinstance(self.optimizer, silk.Sparse):
            self.optimizer.inner_steps = steps

    def step(self) -> None:
        self.loss(self.called).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def block(self, steps: int) -> float:
        """Milliseconds of a step."""
        self.wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        return 1e3 * (time.perf_counter() - start) / steps

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def kernels(self, steps: int) -> float:
        """Milliseconds of a step in kernels."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(steps):
                self.step()
            self.wait()
        return sum(event.self_device_time_total for event in seen.key_averages()) / steps / 1e3


Loss = Callable[[nn.Module], Tensor]


def build(given: argparse.Namespace) -> tuple[nn.Module, Loss, type[torch.optim.Optimizer]]:
    """The model, its loss on a batch, and the class of the dense optimizer."""
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    if given.model in gpt.SIZES:
        model = gpt.make(given.model, given.device, dtype, not given.no_checkpointing)
        shape = (given.sequences, given.length + 1)
        tokens = torch.randint(model.vocabulary, shape, generator=generator).to(given.device)
        return model, lambda called: called(tokens), torch.optim.AdamW
    x = torch.randn(given.sequences, 3, 32, 32, generator=generator).to(given.device, dtype)
    y = torch.randint(10, (given.sequences,), generator=generator).to(given.device)
    made: nn.Module = models.resnet18() if given.model == "resnet18" else fc()
    made = made.to(given.device, dtype)
    return made, lambda called: F.cross_entropy(called(x).float(), y), torch.optim.SGD


def fc() -> nn.Module:
    layers = nn.Linear(3072, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def optimizer_for(method: str, model: nn.Module, dense: type[torch.optim.Optimizer]) -> Any:
    lr = 1e-4
    if method == "dense":
        return dense(model.parameters(), lr=lr, fused=next(model.parameters()).is_cuda)  # pyright: ignore
    kind, _, amount = method.partition("-")
    if kind == "lora":
        return peers.lora(model, int(amount), lr)
    groups: Any = None if kind == "entries" else kind
    seed, share = torch.Generator().manual_seed(0), float(amount) / 100
    return silk.Sparse(model, dense, k2=share, groups=groups, inner_steps=2, generator=seed, lr=lr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*gpt.SIZES, "fc", "resnet18"], default="tiny")
    parser.add_argument("--methods", default="dense,columns-10,columns-5,lora-16,lora-64")
    parser.add_argument("--sequences", type=int, default=0, help="sequences, or images (default: 1; fc 128)")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument(
        "--compile", choices=["blocks", "model"], help="by torch.compile: each block of a GPT, or all of it"
    )
    parser.add_argument("--block", type=int, default=10, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    is_gpt = given.model in gpt.SIZES
    given.sequences = given.sequences or (1 if is_gpt else 128)
    methods = [m for m in given.methods.split(",") if is_gpt or not m.startswith("lora")]
    if methods[0] != "dense":
        raise SystemExit("error: --methods must begin with dense, which the others are compared with")
    if given.compile == "blocks" and not is_gpt:
        raise SystemExit(f"error: --compile blocks: {given.model} has none, so take --compile model")
    if given.threads:
        torch.set_num_threads(given.threads)
    runs = [Run(method, given) for method in methods]
    for run in runs:
        run.warm_up(given.block * given.blocks)
    gc.collect()
    gc.freeze()
    for number in range(given.blocks):
        for run in runs:
            run.means.append(run.block(given.block))
            print(f"block {number} {run.method}: {run.means[-1]:.2f} ms", flush=True)
    results = []
    for run in runs:
        ratios = sorted(mine / dense for mine, dense in zip(run.means, runs[0].means, strict=True))
        ratio = mean(run.means) / mean(runs[0].means)
        row = {"method": run.method, "ms": mean(run.means), "ratio": ratio, "range": [ratios[0], ratios[-1]]}
        if given.device == "cuda":
            row["kernel_ms"] = run.kernels(3)
        results.append(row)
        shown = f", kernels {row['kernel_ms']:.2f} ms" if "kernel_ms" in row else ""
        print(f"{run.method}: {row['ms']:.2f} ms, {row['ratio']:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}){shown}")
    if given.save:
        kept = {n: getattr(given, n) for n in ("model", "sequences", "length", "compile", "block", "blocks", "threads")}
        figures = kept | {"checkpointing": not given.no_checkpointing, "methods": results}
        parts = [given.model.replace(".", "_"), str(given.sequences), given.device]
        parts += ["full"] if given.no_checkpointing and is_gpt else []
        parts += [f"compiled_{given.compile}"] if given.compile else []
        save("_".join(["backprop", *parts]), [0], figures)


if __name__ == "__main__":
    main()
