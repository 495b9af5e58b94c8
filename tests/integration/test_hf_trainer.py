"""The HF Trainer calls `step()` without a closure: a method that evaluates batches itself says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainers import EVERY, LAZY, Make, data, network

transformers = pytest.importorskip("transformers", reason="the extra [integrations] is not installed")
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.network(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


def train(make: Make, folder: Path, **options: Any) -> None:
    model = Classifier()
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=16, num_train_epochs=1, report_to=[], use_cpu=True, **options
    )
    samples = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    optimizers: Any = (make(model.network), torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([nn.Parameter()]), abs))
    transformers.Trainer(model, arguments, train_dataset=samples, optimizers=optimizers).train()


@pytest.mark.parametrize("name", EVERY | LAZY)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_method_with_a_closure_is_refused(name: str, accumulation: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"step\(\) without a closure.*a trainer that calls step\(\) alone cannot"):
        train((EVERY | LAZY)[name], tmp_path, gradient_accumulation_steps=accumulation)
