"""Columns in models of transformers: Llama's linear layers, GPT-2's Conv1D, embeddings that are tied to the head."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import spidersilk as silk
from spidersilk.layers.dressing import Ruled

transformers = pytest.importorskip("transformers")


def llama(tied: bool) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=50, tie_word_embeddings=tied, **sizes)
    return transformers.LlamaForCausalLM(config)


def gpt2(tied: bool) -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    still = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    config = transformers.GPT2Config(vocab_size=50, eos_token_id=1, tie_word_embeddings=tied, **sizes, **still)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("make", "ruled"), [(llama, 16), (gpt2, 11)])
def test_gradients_are_those_of_the_selected_columns(make: Any, ruled: int, tied: bool) -> None:
    torch.manual_seed(0)
    model, ids = make(tied).double(), torch.randint(50, (3, 20))
    generator = torch.Generator().manual_seed(1)
    optimizer = silk.SparseAdamW(model, 1e-2, k2=0.2, groups="columns", generator=generator)
    assert sum(isinstance(module, Ruled) for module in model.modules()) == ruled
    plain = copy.deepcopy(model)
    plain(ids, labels=ids).loss.backward()
    model(ids, labels=ids).loss.backward()
    names, wanted = {id(p): name for name, p in model.named_parameters()}, dict(plain.named_parameters())
    grouped = [compact for compact in optimizer._weights if compact.dimension is not None]
    assert len(grouped) == ruled - tied
    for compact in grouped:
        gradient = wanted[names[id(compact.weight)]].grad.index_select(compact.dimension, compact.indices)
        torch.testing.assert_close(compact.param.grad, gradient, rtol=1e-10, atol=1e-12)
        assert compact.weight.grad is None
    first = last = 0.0
    for step in range(20):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        first, last = (float(loss) if step == 0 else first), float(loss)
    assert last < first - 0.5
