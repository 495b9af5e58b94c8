"""Image classification: FC, CNN or ResNet-18 on MNIST, CIFAR-10, SVHN or the embedded digits."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from spidersilk.lab.data.files import File
from spidersilk.lab.data.sets import IMAGES, image_files
from spidersilk.lab.settings import Flag, Setting, Text, Whole
from spidersilk.lab.tasks import Options, Task, entropy_of_shares, register
from spidersilk.lab.tasks.models import MODELS


@register
class Image(Task):
    name = "image"
    about = "image classification: fc, cnn or resnet18 on mnist, cifar10, svhn or digits"
    options: ClassVar[Options] = {"model": "cnn", "data": "mnist", "train_samples": None, "eval_samples": 10_000,
                                  "channels_last": False}  # fmt: skip
    allowed: ClassVar[dict[str, Setting]] = {
        "model": Text(choices=tuple(MODELS)),
        "data": Text(choices=tuple(IMAGES)),
        "train_samples": Whole(low=1, optional=True, about="how many images to train on; all without it"),
        "eval_samples": Whole(low=1, about="how many images of each part to evaluate on"),
        "channels_last": Flag(about="another layout of the pixels, faster on CUDA"),
    }
    settings: ClassVar[Options] = {"lr": 0.1, "anchor_batch_size": 1000, "batch_size": 100, "inner_steps": 10}
    rates: ClassVar[dict[str, float]] = {"sgd": 0.1, "momentum": 0.02, "adamw": 0.001, "svrg": 0.1, "spiderboost": 0.1,
                                         "sparse-spiderboost": 0.02, "sparse-svrg": 0.1, "sparse-sgd": 0.1,
                                         "sparse-adamw": 0.001, "top-k": 0.02}  # fmt: skip

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        super().__init__(options, data_dir, device)
        make, parameters = MODELS[self.given["model"]]
        images = IMAGES[self.given["data"]](data_dir, self.given["train_samples"])
        self.data_name = images.name
        count = self.given["train_samples"] or len(images.train_x)
        if count > len(images.train_x):
            raise ValueError(f"train_samples = {count} exceeds the {len(images.train_x)} of {images.name}: lower it")
        self.train = images.train_x[:count].to(device), images.train_y[:count].to(device)
        self.test = images.test_x.to(device), images.test_y.to(device)
        self.samples = len(self.train[0])
        self.guess_loss = entropy_of_shares(self.train[1][: self.given["eval_samples"]])
        if self.given["channels_last"] and device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        self.model = make().to(device)
        assert sum(p.numel() for p in self.model.parameters()) == parameters

    @classmethod
    def files(cls, options: Options) -> list[File]:
        return image_files(options["data"], options["train_samples"])

    def loss(self, batch: tuple[Tensor, Tensor], point: str | None) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.model(self._pixels(x)), y)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the first `eval_samples` of the training set and of the test set."""
        self.model.eval()
        metrics = {}
        for part, (x, y) in (("train", self.train), ("test", self.test)):
            x, y = x[: self.given["eval_samples"]], y[: self.given["eval_samples"]]
            out = torch.cat([self.model(self._pixels(pixels)) for pixels in x.split(1000)]).double()
            metrics[f"{part}_loss"] = float(F.cross_entropy(out, y))
            metrics[f"{part}_accuracy"] = float((out.argmax(1) == y).double().mean())
        self.model.train()
        return metrics

    def _pixels(self, x: Tensor) -> Tensor:
        """Bytes to [0, 1]. With `channels_last`, convolutions keep that layout, which is faster on CUDA with cuDNN's
        benchmark mode. The parameters do not change."""
        pixels = x.float() / 255
        return pixels.contiguous(memory_format=torch.channels_last) if self.given["channels_last"] else pixels
