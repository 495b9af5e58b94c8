"""Memory of gradients and optimizer state at small steps of ResNet-18: SparseSGD with rows over AdamW, against AdamW.

python benchmarks/memory.py --save
python benchmarks/memory.py --device cuda --batch 100 --save

Counts the bytes of live tensors: the gradients after the backward pass (in p.grad, or captured), and the state of the
base optimizer after the step. M, the anchor's gradient and p.grad at an anchor are listed separately. On CUDA also the
allocator's peak over a whole step, activations included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch
from record import save
from torch import Tensor
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab.tasks import models


def size(tensors: Iterable[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    x, y = torch.randn(given.batch, 3, 32, 32).to(given.device), torch.randint(10, (given.batch,)).to(given.device)
    model = models.resnet18().to(given.device)
    params = list(model.parameters())
    d = sum(p.numel() for p in params)
    seen: dict[str, int] = {}

    def evaluate(optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch._C.DisableTorchFunction():  # else a capture would see a use of the gradients
            seen["in p.grad"] = size(p.grad for p in params)
        return loss

    peaks: dict[str, int] = {}

    def run(name: str, work: Callable[[], object], repeats: int = 1) -> None:
        for _ in range(repeats):
            if given.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            work()
            if given.device == "cuda":
                peaks[name] = torch.cuda.max_memory_allocated()

    adamw = torch.optim.AdamW(params, 1e-4)
    run("AdamW", lambda: adamw.step(lambda: evaluate(adamw)), 3)
    dense = {"gradients": seen["in p.grad"], "AdamW": size(v for s in adamw.state.values() for v in s.values())}
    ours = silk.VarianceReduced(
        torch.optim.AdamW(params, 1e-4),
        None,
        move="selected",
        choose="anchor",
        anchor_move="selected",
        sparsity=silk.RTop(given.share, 0.0, groups="rows"),
        sparse_backward=True,
    )
    adamw.state.clear()
    run("anchor", lambda: ours.step(lambda: evaluate(ours), anchor=True))
    anchor = seen["in p.grad"]
    run("small step", lambda: ours.step(lambda: evaluate(ours), anchor=False), 3)
    work: Any = ours._engine
    selection: Any = ours.selection
    sparse = {
        "gradients": seen["in p.grad"] + 4 * selection.k,
        "AdamW": size(v for s in work.compact.twin.state.values() for v in s.values()),
    }
    beside = {"M": size(work.vectors.memory), "indices": size([selection.indices]), "anchor's gradient": 2 * anchor}
    saved = 1 - sum(sparse.values()) / sum(dense.values())
    for name, figures in (("AdamW", dense), ("SparseSGD over AdamW", sparse), ("beside", beside)):
        print(f"{name:22} " + ", ".join(f"{key} {value / (4 * d):.3f} d floats" for key, value in figures.items()))
    print(f"saved {saved:.1%}, selected {selection.k / d:.1%} of {d:,}")
    if peaks:
        print("peak: " + ", ".join(f"{name} {value / (4 * d):.2f} d floats" for name, value in peaks.items()))
    if given.save:
        units = {
            name: {key: round(value / (4 * d), 4) for key, value in figures.items()}
            for name, figures in (("AdamW", dense), ("SparseSGD over AdamW", sparse), ("beside", beside))
        }
        if peaks:
            units["peak"] = {key: round(value / (4 * d), 3) for key, value in peaks.items()}
        name = "memory_resnet18" if given.device == "cpu" else "memory_resnet18_cuda"
        save(name, [0], {"unit": "d floats", "d": d, "batch": given.batch, "saved": round(saved, 4), **units})


if __name__ == "__main__":
    main()
