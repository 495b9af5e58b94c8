"""Image classification: FC, CNN or ResNet-18 on MNIST, CIFAR-10, SVHN or the embedded digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from spidersilk.lab.data.files import File
from spidersilk.lab.data.sets import IMAGES, image_files
from spidersilk.lab.tasks import Task, nearest, register
from spidersilk.lab.tasks.models import MODELS
from spidersilk.loop.lengths import InnerLength
from spidersilk.loop.loader import AnchorLoader


@register
class Image(Task):
    name = "image"
    about = "image classification: fc, cnn or resnet18 on mnist, cifar10, svhn or digits"
    options: ClassVar[dict[str, Any]] = {
        "model": "cnn",
        "data": "mnist",
        "train_samples": None,
        "eval_samples": 10_000,
        "channels_last": False,
    }
    settings: ClassVar[dict[str, Any]] = {"lr": 0.1, "anchor_batch_size": 1000, "batch_size": 100, "inner_steps": 10}

    def __init__(self, options: dict[str, Any], data_dir: Path | str | None, device: torch.device):
        super().__init__(options, data_dir, device)
        for key, known in (("model", MODELS), ("data", IMAGES)):
            if self.given[key] not in known:
                raise ValueError(f"{key} = {self.given[key]!r} is not known{nearest(str(self.given[key]), known)}")
        images = IMAGES[self.given["data"]](data_dir, self.given["train_samples"])
        self.data_name = images.name
        count = self.given["train_samples"] or len(images.train_x)
        self.train = images.train_x[:count].to(device), images.train_y[:count].to(device)
        self.test = images.test_x.to(device), images.test_y.to(device)
        self.samples = len(self.train[0])
        if self.given["channels_last"] and device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        make, parameters = MODELS[self.given["model"]]
        self.model = make().to(device)
        assert sum(p.numel() for p in self.model.parameters()) == parameters

    @classmethod
    def files(cls, options: dict[str, Any]) -> list[File]:
        return image_files(options["data"], options["train_samples"])

    def batches(self, anchor: int, small: int, inner: int | InnerLength, generator: torch.Generator) -> AnchorLoader:
        return AnchorLoader(self.train, anchor, small, inner, loops=10**9, generator=generator)

    def loss(self, batch: tuple[Tensor, Tensor], point: str | None) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.model(self._pixels(x)), y)

    def size(self, batch: tuple[Tensor, Tensor]) -> int:
        return len(batch[1])

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss on the first `eval_samples` of the training set, loss and accuracy on as many of the test set."""
        self.model.eval()
        told = {}
        for part, (x, y) in (("train", self.train), ("test", self.test)):
            x, y = x[: self.given["eval_samples"]], y[: self.given["eval_samples"]]
            losses, right = [], []
            for bx, by in zip(x.split(1000), y.split(1000), strict=True):
                out = self.model(self._pixels(bx)).float()
                losses.append(F.cross_entropy(out, by, reduction="sum").double())
                right.append((out.argmax(1) == by).sum())
            told[f"{part}_loss"] = float(torch.stack(losses).sum()) / len(y)
            told[f"{part}_accuracy"] = int(torch.stack(right).sum()) / len(y)
        self.model.train()
        return told

    def _pixels(self, x: Tensor) -> Tensor:
        """Bytes to [0, 1]. With `channels_last` in that layout, and so all that a convolution makes of them; with
        cuDNN's search for the fastest algorithm that is faster on CUDA. The parameters stay as they are."""
        pixels = x.float() / 255
        return pixels.contiguous(memory_format=torch.channels_last) if self.given["channels_last"] else pixels
