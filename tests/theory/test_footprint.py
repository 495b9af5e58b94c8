"""Predicted bytes of a training step against those counted in real ones, and the counter itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab import peers
from spidersilk.lab.tasks import gpt
from spidersilk.lab.tasks.models import resnet18
from spidersilk.theory import footprint
from spidersilk.theory.live_bytes import LiveBytes

Problem = tuple[nn.Module, Callable[[], Tensor]]
RESULTS = Path(__file__).parents[2] / "results"


def test_the_counter_sees_what_comes_and_goes() -> None:
    with LiveBytes() as counter:
        a = torch.zeros(1000)
        b = a * 2
        part = b[:3]
        del b
        assert counter.live == 8000
        del part
        assert (counter.live, counter.peak) == (4000, 8000)
        a.mul_(2)
        assert counter.live == 4000
    assert counter.events == [1, 2, -2]


def test_the_counter_sees_backward() -> None:
    weight = torch.zeros(100, 100, requires_grad=True)
    with LiveBytes([weight]) as counter:
        loss = (torch.ones(50, 100) @ weight).relu().sum()
        loss.backward()
        del loss
    assert counter.live == 2 * 40_000  # and its gradient
    assert counter.peak >= counter.live + 20_000  # and the gradient of the product


def network() -> Problem:
    """Convolutions with BatchNorm, and an MLP."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip
    x, y = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    return model, lambda: F.cross_entropy(model(x), y)


def convolutions() -> Problem:
    """Each input of a convolution is kept by the ReLU before it too, and activations are most of the memory."""
    model = nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 40, 3, padding=1), nn.ReLU(),
        nn.Conv2d(40, 40, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10),
    )  # fmt: skip
    x, y = torch.randn(16, 3, 24, 24), torch.randint(10, (16,))
    return model, lambda: F.cross_entropy(model(x), y)


def small_gpt() -> Problem:
    model = gpt.GPT(gpt.SIZES["tiny"])
    rows = torch.randint(256, (4, 97), dtype=torch.uint8)
    return model, lambda: model.loss(rows)


def llama() -> Problem:
    transformers = pytest.importorskip("transformers", reason="needs the extra [integrations]")
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=128, intermediate_size=344, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(300, (4, 64))
    return model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss


def counted(problem: Callable[[], Problem], make: Callable[[nn.Module], Any]) -> int:
    """The peak of the third step of training; all memory since before the model was made counts."""
    torch.manual_seed(0)
    with LiveBytes() as counter:
        model, evaluate = problem()
        optimizer = make(model)
        for _ in range(3):
            counter.peak = counter.live
            evaluate().backward()
            optimizer.step()
            optimizer.zero_grad()
    return counter.peak


def sparse(share: float, groups: Any) -> Callable[[nn.Module], Any]:
    return lambda model: silk.SparseAdamW(model, 1e-3, 0.0, share, groups=groups, inner_steps=None, backend="torch")


METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), 1e-3),
    "SparseAdamW, 10 % of the entries": sparse(0.1, None),
    "SparseAdamW, 20 % of the entries": sparse(0.2, None),
    "SparseAdamW, 10 % of the columns": sparse(0.1, "columns"),
    "SparseAdamW, 20 % of the columns": sparse(0.2, "columns"),
}


def lora(rank: int, blocks: str) -> Callable[[nn.Module], Any]:
    return lambda model: peers.make("lora", model, 1e-3, blocks, rank=rank)


@pytest.mark.parametrize("problem", [network, convolutions, small_gpt, llama])
def test_predicted_bytes_are_those_that_are_counted(problem: Callable[[], Problem]) -> None:
    torch.manual_seed(0)
    model, evaluate = problem()
    found = footprint.footprints(model, evaluate)
    blocks = {small_gpt: "blocks", llama: "model.layers"}.get(problem)
    methods = METHODS | ({} if blocks is None else {f"LoRA, rank {r}": lora(r, blocks) for r in (16, 64)})
    apart = {}
    for name, make in methods.items():
        apart[name] = found[name] / counted(problem, make) - 1
    print({name: f"{100 * x:.1f} %" for name, x in apart.items()})
    assert all(abs(x) < 0.1 for x in apart.values()), apart


def test_a_resnet_on_a_gpu() -> None:
    """Traced here, against the peaks that torch's allocator had on a GPU, with the same batch of 128 images."""
    rows = json.loads((RESULTS / "benchmarks" / "footprint_cuda.json").read_text())["figures"]["rows"]
    measured = {row["method"]: row["measured"] for row in rows if row["model"] == "resnet18"}
    model, x, y = resnet18(), torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
    traced = footprint.trace(model, lambda: F.cross_entropy(model(x), y))
    found = {"AdamW": footprint.predict(traced, footprint._dense, True)}
    for share, columns in itertools.product((0.05, 0.1, 0.2), (False, True)):
        found[footprint.name_of(share, columns)] = footprint.predict(
            traced, lambda w, k=share, c=columns: footprint._sparse(w, k, traced.owners.get(id(w)), c), True
        )
    assert found.keys() == measured.keys()
    apart = {name: found[name] / measured[name] for name in found}
    assert all(0.95 < ratio <= 1.0 for ratio in apart.values()), apart
