"""A GPT-shaped model in bfloat16 with random weights: RMSNorm, attention, a 4d MLP, an untied head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from spidersilk.lab.tasks.gpt import Block

SIZES = {  # width, layers, heads, vocabulary
    "tiny": (64, 2, 2, 256),
    "narrow": (32, 32, 2, 64),  # the layers of "2.7b"
    "20m": (512, 6, 8, 1000),
    "85m": (768, 12, 12, 256),
    "2.7b": (2560, 32, 32, 32_000),
    "6.7b": (4096, 32, 32, 32_000),
}


class GPT(nn.Module):
    def __init__(self, size: str, checkpointing: bool = True):
        super().__init__()
        width, layers, heads, vocabulary = SIZES[size]
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.checkpointing, self.vocabulary = checkpointing, vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


def make(size: str, device: str, dtype: torch.dtype = torch.bfloat16, checkpointing: bool = True) -> GPT:
    """Built on the device, in its dtype, so that nothing larger ever exists."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return GPT(size, checkpointing)
    finally:
        torch.set_default_dtype(default)
