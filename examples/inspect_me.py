"""Inspect your own model: spidersilk inspect examples/inspect_me.py --lr 0.2 --budget 20

The file defines `model`, `loss(model, batch)` and `data`, and optionally `anchor_batch_size` and `batch_size`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
digits = load_digits()
data = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
anchor_batch_size, batch_size = 500, 20


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)
