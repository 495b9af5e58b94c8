"""accelerate: `optimizer.step(closure)` through its wrapper is a plain loop; accumulation is refused or right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainers import EVERY, LAZY, ONE_EVALUATION, SIZE, Make, data, flat, network, plain_loop

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


def train(make: Make, micro_batches: int = 1, precision: str = "no", with_closure: bool = True) -> Tensor:
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
                optimizer.step()
            optimizer.zero_grad()
    return flat(accelerator.unwrap_model(model))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_plain_loop(name: str, precision: str) -> None:
    here, plain = train(EVERY[name], precision=precision), plain_loop(EVERY[name], bf16=precision == "bf16")[0]
    torch.testing.assert_close(here, plain)


@pytest.mark.parametrize("name", EVERY)
def test_accumulation_that_would_skip_batches_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"gradient_accumulation_steps = 2 skips step\(closure\).*set it to 1"):
        train(EVERY[name], micro_batches=2)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_without_a_closure_is_refused(name: str, micro_batches: int) -> None:
    with pytest.raises(ValueError, match=r"step\(\) without a closure"):
        train(EVERY[name], micro_batches, with_closure=False)


@pytest.mark.parametrize("name", ONE_EVALUATION)
def test_a_gradient_from_before_a_closure_counts(name: str) -> None:
    """The last micro-batch in the closure, the others before it."""
    make = ONE_EVALUATION[name]
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    model, optimizer, loader = accelerator.prepare(
        model, make(model), DataLoader(TensorDataset(*data()), batch_size=SIZE)
    )
    for x, y in loader:
        with accelerator.accumulate(model):

            def closure() -> Tensor:
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                return loss

            optimizer.step(closure) if accelerator.sync_gradients else closure()
            optimizer.zero_grad()
    torch.testing.assert_close(flat(model), plain_loop(make, accumulate=2)[0])


def test_lazy_svrg_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"anchor = None must be True, False, or what an AnchorLoader"):
        train(LAZY["LazySVRG"])
