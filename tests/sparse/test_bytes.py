"""What is held over many selections, counted: the weights, the documented bytes for what is selected, and no more."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import spidersilk as silk
from spidersilk.theory.live_bytes import LiveBytes

WIDTH, LAYERS, SHARE = 256, 6, 0.05
D = LAYERS * WIDTH * WIDTH


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(("groups", "bytes_of_one"), [(None, 20), ("columns", 16)])
def test_bytes_do_not_grow_over_selections(groups: str | None, bytes_of_one: int, backend: str) -> None:
    """With micro-batches, clipping and a new selection every second step; the peak has one dense gradient on top."""
    x = torch.randn(2, WIDTH, dtype=torch.bfloat16)
    gc.collect()
    with LiveBytes([x]) as counter:
        layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
        model = nn.Sequential(*layers)
        seed = torch.Generator().manual_seed(0)
        given: Any = {"groups": groups, "inner_steps": 2, "backend": backend, "generator": seed}
        optimizer = silk.SparseAdamW(model, 1e-3, k2=SHARE, **given)
        held, peaks = [], []
        for _ in range(9):
            for _ in range(4):
                model(x).float().square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            gc.collect()
            held.append(counter.live / D)
            peaks.append(counter.peak / D)
    k = optimizer.k / D
    without_gradients = 2 + (bytes_of_one - 4) * k
    assert held[2] == pytest.approx(without_gradients, rel=0.03)
    assert held[2:] == pytest.approx([held[2]] * 7, rel=0.003)
    if backend == "numba":  # plain torch draws with keys of the size of a weight
        one_dense = 2 / LAYERS if groups is None else 0.0
        of_a_layer = 16 * k / LAYERS  # what carries values over to a new selection
        assert peaks[-1] <= 2 + bytes_of_one * k + one_dense + of_a_layer + 0.1
