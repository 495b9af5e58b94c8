"""A GPT over bytes: RMSNorm, causal attention, an MLP of four times the width, no biases, an untied head."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 256


class Size(NamedTuple):
    width: int
    layers: int
    heads: int
    context: int


SIZES = {"tiny": Size(128, 2, 4, 128), "85m": Size(768, 12, 12, 512)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Logits of the byte that follows each of up to `size.context` bytes. The same seed gives the same weights."""

    def __init__(self, size: Size, seed: int = 0):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.position = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm, self.head = nn.RMSNorm(size.width), nn.Linear(size.width, VOCABULARY, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends_branch = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, 0, 0.02 / math.sqrt(2 * size.layers) if ends_branch else 0.02, generator)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text) + self.position(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, rows: Tensor) -> Tensor:
        """The mean loss in nats per byte of rows of up to `context` + 1 bytes (uint8)."""
        text = rows.long()
        return F.cross_entropy(self(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())
