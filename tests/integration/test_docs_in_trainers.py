"""The lines of docs/integrations.md, each inside its trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainers import SIZE, data, flat, network

import spidersilk as silk

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
(BLOCK,) = re.findall(r"^```py\n(.*?)^```", PAGE, flags=re.S | re.M)
LINES = [line for line in BLOCK.splitlines() if line]


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), batch_size=SIZE)


def test_each_line_has_a_test() -> None:
    assert [line.split("(")[0] for line in LINES] == [
        "return silk.SparseAdamW",
        "model, optimizer, loader = accelerator.prepare",
        "Trainer",
        "Trainer",
    ]


def test_lightning() -> None:
    lightning = pytest.importorskip("lightning", reason="the extra [integrations] is not installed")
    held: dict[str, Any] = {"silk": silk}
    exec(f"def configure_optimizers(self):\n    {LINES[0]}", held)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, index: int) -> Any:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        configure_optimizers = held["configure_optimizers"]

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    module = Module()
    lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, **quiet).fit(module, loader())
    assert not torch.equal(flat(module.model), flat(network()))


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate", reason="the extra [integrations] is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    held: dict[str, Any] = {"silk": silk, "accelerator": accelerator, "model": network(), "loader": loader()}
    exec(LINES[1], held)
    for x, y in held["loader"]:
        accelerator.backward(F.cross_entropy(held["model"](x), y))
        held["optimizer"].step()
        held["optimizer"].zero_grad()
    assert not torch.equal(flat(held["model"]), flat(network()))


@pytest.mark.parametrize("line", LINES[2:], ids=("an optimizer", "a class"))
def test_the_hf_trainer(line: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra [integrations] is not installed")
    import test_hf_trainer as hf

    model = hf.llama()
    held = {"silk": silk, "model": model, "arguments": hf.arguments(tmp_path), "data": hf.texts()}
    exec(f"trainer = {line}", held | {"Trainer": hf.transformers.Trainer}, held)
    held["trainer"].train()
    assert not torch.equal(flat(model), flat(hf.llama()))
