"""Are the bytes that `silk.inspect` predicts those of a real step? By method, on three models.

python benchmarks/footprint.py --save                          # on CUDA: against torch.cuda.max_memory_allocated
python benchmarks/footprint.py --sizes 85m,2.7b,llama --save
python benchmarks/footprint.py --sizes tiny                    # on a CPU: against a count of living tensors

The models: the GPT of benchmarks/gpt.py (bfloat16 on CUDA, with activation checkpointing, 512 tokens), a small Llama of
transformers (left out where that is not installed), ResNet-18. Each method takes three steps; the peak of the last one
counts. Predictions leave out what libraries use inside one operation (cuBLAS's workspace, for instance), and what a new
selection needs.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gpt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab import peers
from spidersilk.lab.tasks.models import resnet18
from spidersilk.theory.footprint import footprints
from spidersilk.theory.live_bytes import LiveBytes

Problem = tuple[nn.Module, Callable[[], Tensor]]
STEPS = 3


def problem(size: str, device: str, sequences: int) -> Problem:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if size == "resnet18":
        model = resnet18().to(device)
        count = 128 if device == "cuda" else 8
        x, y = torch.randn(count, 3, 32, 32, device=device), torch.randint(10, (count,), device=device)
        return model, lambda: F.cross_entropy(model(x), y)
    if size == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        shape = (1024, 2816, 12, 16) if device == "cuda" else (128, 344, 3, 4)
        width, inner, layers, heads = shape
        config = LlamaConfig(vocab_size=32_000 if device == "cuda" else 300, hidden_size=width, intermediate_size=inner,
                             num_hidden_layers=layers, num_attention_heads=heads)  # fmt: skip
        model = LlamaForCausalLM(config).to(device, dtype)
        tokens = torch.randint(config.vocab_size, (sequences, 512 if device == "cuda" else 64), device=device)
        return model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss
    model = gpt.make(size, device, dtype, checkpointing=device == "cuda")
    tokens = torch.randint(model.vocabulary, (sequences, 513 if device == "cuda" else 65), device=device)
    return model, lambda: model(tokens)


BLOCKS = {"llama": "model.layers", "resnet18": ""}


def methods(size: str) -> dict[str, Callable[[nn.Module], Any]]:
    """By the names of the predictions."""
    blocks = BLOCKS.get(size, "blocks")
    dense = lambda m: torch.optim.AdamW(m.parameters(), 1e-4, fused=next(m.parameters()).is_cuda or None)  # noqa: E731
    made: dict[str, Callable[[nn.Module], Any]] = {"AdamW": dense}
    for share in (0.05, 0.1, 0.2):
        for what, groups in (("entries", None), ("columns", "columns")):
            made[f"SparseAdamW, {100 * share:g} % of the {what}"] = lambda m, k=share, g=groups: silk.SparseAdamW(
                m, 1e-4, 0.0, k, groups=g, inner_steps=None
            )
    if blocks:
        made |= {f"LoRA, rank {r}": lambda m, r=r: peers.make("lora", m, 1e-4, blocks, rank=r) for r in (16, 64)}
    return made


def measured(size: str, device: str, sequences: int, make: Callable[[nn.Module], Any]) -> int:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        _train(problem(size, device, sequences), make, torch.cuda.reset_peak_memory_stats)
        return torch.cuda.max_memory_allocated() - before
    with LiveBytes() as counter:

        def reset() -> None:
            counter.peak = counter.live

        _train(problem(size, device, sequences), make, reset)
    return counter.peak


def _train(given: Problem, make: Callable[[nn.Module], Any], last: Callable[[], None]) -> None:
    model, evaluate = given
    optimizer = make(model)
    for step in range(STEPS):
        if step == STEPS - 1:
            last()
        evaluate().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--sizes", default="85m,2.7b,llama,resnet18" if device == "cuda" else "tiny,llama,resnet18")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    rows = []
    for size in given.sizes.split(","):
        if size not in (*gpt.SIZES, "llama", "resnet18"):
            raise SystemExit(f"error: there is no model {size!r}; there are {', '.join(gpt.SIZES)}, llama, resnet18")
        if size == "llama" and find_spec("transformers") is None:
            print("left out: llama needs transformers: pip install transformers", flush=True)
            continue
        model, evaluate = problem(size, device, given.sequences)
        found = footprints(model, evaluate, (0.05, 0.1, 0.2))
        del model, evaluate
        for name, make in methods(size).items():
            peak = measured(size, device, given.sequences, make)
            row = {"model": size, "method": name, "predicted": found[name], "measured": peak}
            rows.append(row | {"ratio": round(found[name] / peak, 4)})
            mib = f"{found[name] / 2**20:10,.1f} MiB {peak / 2**20:10,.1f} MiB"
            print(f"{size:9} {name:34} {mib} {rows[-1]['ratio']:.3f}", flush=True)
    worst = max(rows, key=lambda row: abs(row["ratio"] - 1), default=None)
    print("furthest apart:", worst)
    if given.save:
        from record import save

        save(f"footprint_{device}", [0], {"sequences": given.sequences, "rows": rows})
    raise SystemExit(0 if worst is not None and abs(worst["ratio"] - 1) <= 0.1 else 1)


if __name__ == "__main__":
    main()
