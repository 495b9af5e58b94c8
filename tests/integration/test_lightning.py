"""Lightning's automatic optimization: as in a plain loop, or refused with what to do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainers import LAZY, SIZE, SPARSE_TRAINING, TWO_POINTS, Make, closure_loop, data, flat, network, plain_loop

lightning = pytest.importorskip("lightning", reason="the extra [integrations] is not installed")
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def train(make: Make, **options: Any) -> Tensor:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.model(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make(self.model)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Module()
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, **quiet, **options)
        trainer.fit(module, DataLoader(TensorDataset(*data()), batch_size=SIZE))
    return flat(module.model)


@pytest.mark.parametrize("name", SPARSE_TRAINING)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_sparse_training(name: str, precision: Any, accumulate: int, clip: float | None) -> None:
    options = {"precision": precision, "accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    plain = plain_loop(SPARSE_TRAINING[name], accumulate, clip, precision == "bf16-mixed")
    torch.testing.assert_close(train(SPARSE_TRAINING[name], **options), plain)


@pytest.mark.parametrize("name", TWO_POINTS)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_automatic_optimization_at_two_points(name: str, precision: Any) -> None:
    plain = closure_loop(TWO_POINTS[name], precision == "bf16-mixed")
    torch.testing.assert_close(train(TWO_POINTS[name], precision=precision), plain)


@pytest.mark.parametrize("name", TWO_POINTS)
def test_accumulation_at_two_points_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"turn off the trainer's gradient accumulation"):
        train(TWO_POINTS[name], accumulate_grad_batches=2)


@pytest.mark.parametrize("name", TWO_POINTS)
def test_clipping_at_two_points_is_refused(name: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"turn off the trainer's gradient clipping and give the optimizer max_norm="
    ):
        train(TWO_POINTS[name], gradient_clip_val=0.1)


def test_lazy_svrg_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"anchor = None must be True, False, or what an AnchorLoader"):
        train(LAZY["LazySVRG"])
