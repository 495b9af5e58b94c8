"""accelerate is a plain loop: with a closure for two points, without one for sparse training; else it is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainers import LAZY, SIZE, SPARSE_TRAINING, TWO_POINTS, Make, closure_loop, data, flat, network, plain_loop

accelerate = pytest.importorskip("accelerate", reason="the extra [integrations] is not installed")
pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """accelerate keeps its settings for the whole process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def train(
    make: Make, micro_batches: int = 1, precision: str = "no", with_closure: bool = False, clip: float | None = None
) -> Tensor:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=micro_batches, mixed_precision=precision)
    model = network()
    loader = DataLoader(TensorDataset(*data()), batch_size=SIZE)
    model, optimizer, loader = accelerator.prepare(model, make(model), loader)
    for x, y in loader:
        with accelerator.accumulate(model):

            def closure() -> Tensor:
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                return loss

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
            optimizer.zero_grad()
    return flat(accelerator.unwrap_model(model))


@pytest.mark.parametrize("name", SPARSE_TRAINING)
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_sparse_training(name: str, precision: str, micro_batches: int, clip: float | None) -> None:
    here = train(SPARSE_TRAINING[name], micro_batches, precision, clip=clip)
    plain = plain_loop(SPARSE_TRAINING[name], micro_batches, clip, precision == "bf16")
    torch.testing.assert_close(here, plain)


@pytest.mark.parametrize("name", TWO_POINTS)
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_closure_at_two_points(name: str, precision: str) -> None:
    here = train(TWO_POINTS[name], precision=precision, with_closure=True)
    torch.testing.assert_close(here, closure_loop(TWO_POINTS[name], precision == "bf16"))


@pytest.mark.parametrize("name", TWO_POINTS)
def test_accumulation_that_would_skip_batches_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"gradient_accumulation_steps = 2 skips step\(closure\).*set it to 1"):
        train(TWO_POINTS[name], micro_batches=2, with_closure=True)


@pytest.mark.parametrize("name", TWO_POINTS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_without_a_closure_is_refused(name: str, micro_batches: int) -> None:
    with pytest.raises(ValueError, match=r"step\(\) without a closure"):
        train(TWO_POINTS[name], micro_batches)


def test_lazy_svrg_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"anchor = None must be True, False, or what an AnchorLoader"):
        train(LAZY["LazySVRG"], with_closure=True)
