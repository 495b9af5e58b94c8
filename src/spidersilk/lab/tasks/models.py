"""The networks of the paper's image experiments, for 3 x 32 x 32 pixels and ten classes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def fully_connected() -> nn.Module:
    """3072-100-10 with biases: 308,310 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 100), nn.ReLU(), nn.Linear(100, 10))


def convolutional() -> nn.Module:
    """Two convolutions of 5 x 5, each followed by a pool of 2, then 400-120-84-10: 62,006 parameters."""
    convolutions = nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
    layers = nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    return nn.Sequential(*convolutions, *layers)


class Block(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm, and the input added, through a 1 x 1 convolution where shapes differ."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 in its CIFAR form (3 x 3 stem, no pool after it): 11,173,962 parameters."""
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    blocks, channels_in = [], 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(channels_in, channels, stride), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


# Each model with the number of parameters that the paper's maxima of the entropy, log2 of it, imply.
MODELS = {"fc": (fully_connected, 308_310), "cnn": (convolutional, 62_006), "resnet18": (resnet18, 11_173_962)}
