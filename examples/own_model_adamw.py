"""Your own module with AdamW and a learning-rate schedule: three changes to an ordinary training loop.

Wrap the optimizer, use a loader that alternates large and small batches, and pass a closure to the step.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

import spidersilk as silk


class SetClassifier(nn.Module):
    """Classifies a set of points by attention, with dropout and normalisation; any module works."""

    def __init__(self, width: int = 32, classes: int = 3):
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.mix = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, points: Tensor) -> Tensor:
        h = self.embed(points)
        h = h + self.mix(h, h, h, need_weights=False)[0]
        return self.head(self.norm(h.mean(1)))


def shapes(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sets of 16 points on an ellipse, a spiral or a line, turned and jittered."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(3, (samples,), generator=g)
    t = torch.rand(samples, 16, generator=g) * 2 * math.pi
    radius = torch.where(label[:, None] == 1, t / (2 * math.pi), torch.ones(()))
    points = torch.stack([radius * t.cos(), radius * t.sin() * (label[:, None] != 2)], dim=2)
    turn = torch.rand(samples, generator=g) * 2 * math.pi
    rotation = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], dim=1).view(-1, 2, 2)
    return points @ rotation + 0.1 * torch.randn(samples, 16, 2, generator=g), label


def main(epochs: int = 10, samples: int = 2000) -> float:
    torch.manual_seed(0)
    train, test = shapes(samples, seed=1), shapes(500, seed=2)
    model = SetClassifier()

    base = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    optimizer = silk.VarianceReduced(base, "anchor", sparsity=silk.RTop(k1=0.1, k2=0.1), max_norm=1.0)
    loader = silk.AnchorLoader(train, anchor_batch_size=400, batch_size=50, inner_steps=10)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))

    for epoch in range(epochs):
        model.train()
        for (points, label), is_anchor in loader:

            def closure(points: Tensor = points, label: Tensor = label) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(points), label)
                loss.backward()
                return loss

            loss = optimizer.step(closure, anchor=is_anchor, samples=len(label))
            scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {optimizer.gradient_queries / samples:.1f} N queries")

    model.eval()
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=2000)
    options = parser.parse_args()
    main(options.epochs, options.samples)
