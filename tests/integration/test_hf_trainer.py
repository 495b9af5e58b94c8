"""The HF Trainer calls `step()` without a closure: sparse training is a plain loop there, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from trainers import LAZY, SPARSE_TRAINING, TWO_POINTS, Make, data, flat, network

import spidersilk as silk

transformers = pytest.importorskip("transformers", reason="the extra [integrations] is not installed")
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SIZE, COUNT = 4, 12  # of a batch of texts, and batches


def llama() -> nn.Module:
    """Two layers with random weights: no download."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**shape, **heads, max_position_embeddings=16, pad_token_id=0)
    return transformers.LlamaForCausalLM(config)


def texts() -> list[dict[str, Tensor]]:
    tokens = torch.randint(1, 64, (SIZE * COUNT, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        str(folder), num_train_epochs=1, report_to=[], use_cpu=True, save_strategy="no", seed=0, **options
    )


def constant(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda _: 1.0)


class InOrder(transformers.Trainer):
    """Batches as they come, so that a loop can be written out beside it."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # pyright: ignore[reportArgumentType]


def by_the_trainer(make: Make, folder: Path, **options: Any) -> tuple[Tensor, nn.Module]:
    model = llama()
    optimizer = make(model)  # the line that changes
    InOrder(
        model,
        arguments(folder, per_device_train_batch_size=SIZE, lr_scheduler_type="constant", **options),
        train_dataset=texts(),
        optimizers=(optimizer, None),
    ).train()
    return flat(model), model


def by_hand(make: Make, accumulate: int = 1, clip: float = 0.0, bf16: bool = False) -> Tensor:
    model = llama()
    optimizer = make(model)
    rows = [text["input_ids"] for text in texts()]
    for number in range(COUNT):
        batch = torch.stack(rows[number * SIZE : (number + 1) * SIZE])
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(input_ids=batch, labels=batch).loss / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0:
            if clip:
                assert nn.utils.clip_grad_norm_(model.parameters(), clip) > clip
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


@pytest.mark.parametrize("name", SPARSE_TRAINING)
@pytest.mark.parametrize(("accumulate", "clip", "bf16"), [(1, 0.0, False), (2, 0.1, False), (2, 0.1, True)])
def test_sparse_training(name: str, accumulate: int, clip: float, bf16: bool, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": accumulate, "max_grad_norm": clip, "bf16": bf16}
    here, model = by_the_trainer(SPARSE_TRAINING[name], tmp_path, **options)
    torch.testing.assert_close(here, by_hand(SPARSE_TRAINING[name], accumulate, clip, bf16))
    assert not torch.equal(here, flat(llama()))
    assert flat(model).numel() == flat(llama()).numel()


def test_the_trainer_makes_the_optimizer_itself(tmp_path: Path) -> None:
    """`optimizer_cls_and_kwargs`: it gives groups of parameters, with weight decay and without, in place of a model."""
    options: dict[str, Any] = {"lr": 0.01, "k2": 0.2, "inner_steps": 3}
    ends = []
    for own in (True, False):
        model, generator = llama(), torch.Generator().manual_seed(3)
        kinds: dict[str, Any] = {"optimizer_cls_and_kwargs": (silk.SparseAdamW, options | {"generator": generator})}
        if not own:
            trainer = InOrder(model, arguments(tmp_path, weight_decay=0.1))
            decayed = set(trainer.get_decay_parameter_names(model))
            groups = [
                {"params": [p for n, p in model.named_parameters() if n in decayed], "weight_decay": 0.1},
                {"params": [p for n, p in model.named_parameters() if n not in decayed], "weight_decay": 0.0},
            ]
            optimizer = silk.SparseAdamW(groups, **options, generator=generator)
            kinds = {"optimizers": (optimizer, constant(optimizer))}
        more: dict[str, Any] = {"lr_scheduler_type": "constant", "max_grad_norm": 0.1, "weight_decay": 0.1}
        trainer = InOrder(
            model, arguments(tmp_path, per_device_train_batch_size=SIZE, **more), train_dataset=texts(), **kinds
        )
        trainer.train()
        assert isinstance(getattr(trainer.optimizer, "optimizer", trainer.optimizer), silk.SparseAdamW)
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_a_checkpoint_is_an_ordinary_model_and_training_goes_on_from_it(tmp_path: Path) -> None:
    make = SPARSE_TRAINING["SparseAdamW"]
    options: dict[str, Any] = {"per_device_train_batch_size": SIZE, "save_strategy": "steps", "save_steps": 5}
    ends = []
    for resumes in (False, True):
        model = llama()
        optimizer = make(model)
        given = transformers.TrainingArguments(
            str(tmp_path), num_train_epochs=1, report_to=[], use_cpu=True, seed=0, **options
        )
        trainer = InOrder(model, given, train_dataset=texts(), optimizers=(optimizer, constant(optimizer)))
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5") if resumes else None)
        ends.append(flat(model))
    assert torch.equal(*ends)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-12")
    assert torch.equal(flat(loaded), ends[0])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.network(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


@pytest.mark.parametrize("name", TWO_POINTS | LAZY)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_method_with_a_closure_is_refused(name: str, accumulation: int, tmp_path: Path) -> None:
    model = Classifier()
    given = arguments(tmp_path, per_device_train_batch_size=16, gradient_accumulation_steps=accumulation)
    samples = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    optimizers: Any = (TWO_POINTS | LAZY)[name](model.network), constant(torch.optim.SGD([nn.Parameter()]))
    with pytest.raises(ValueError, match=r"step\(\) without a closure.*a trainer that calls step\(\) alone cannot"):
        transformers.Trainer(model, given, train_dataset=samples, optimizers=optimizers).train()
