"""Table 1's entropies under other readings of how they were measured: pixels, channels, first weights, batch, time.

python benchmarks/entropy.py --save        # results/entropy.json; needs MNIST, CIFAR-10 and SVHN (SPIDERSILK_DATA)

Entropy of M = |v| at the first anchor, so before training, for FC and CNN; each variant changes one or two things of
ours (three equal channels for MNIST, pixels in [0, 1], torch's first weights, a batch of 1000). Then the entropy of M
after SpiderBoost has trained only what is left of a network whose hidden units are all dead, and the loss of guessing
by class frequency.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab.data import IMAGES, Images
from spidersilk.lab.models import MODELS
from spidersilk.lab.reproduce import TABLE_1

SEEDS = 5
SAMPLES = 10_000  # the batches are drawn from the first of each set


def one_channel(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1], torch.zeros_like(x[:, 1:])], dim=1)


def standard(x: Tensor) -> Tensor:
    return (x - x.mean()) / x.std().clamp(min=1e-6)


def normal(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight)
            nn.init.zeros_(module.bias)  # pyright: ignore[reportArgumentType]


def he(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)  # pyright: ignore[reportArgumentType]


def as_is(model: nn.Module) -> None:
    pass


Change = Callable[[Tensor], Tensor]
# what it is called: (what becomes of pixels in [0, 1], first weights, batch, steps taken before M is looked at)
VARIANTS: dict[str, tuple[Change, Callable[[nn.Module], None], int, int]] = {
    "ours": (lambda x: x, as_is, 1000, 0),
    "pixels 0 to 255": (lambda x: 255 * x, as_is, 1000, 0),
    "pixels of mean 0 and deviation 1": (standard, as_is, 1000, 0),
    "one channel, the others 0": (one_channel, as_is, 1000, 0),
    "one channel of mean 0 and deviation 1": (lambda x: one_channel(standard(x)), as_is, 1000, 0),
    "one channel, weights from N(0, 1)": (one_channel, normal, 1000, 0),
    "weights by He's rule": (lambda x: x, he, 1000, 0),
    "weights from N(0, 1)": (lambda x: x, normal, 1000, 0),
    "a batch of 100": (lambda x: x, as_is, 100, 0),
    "one sample": (lambda x: x, as_is, 1, 0),
    "after the first loop": (lambda x: x, as_is, 1000, 9),
    "after three loops": (lambda x: x, as_is, 1000, 29),
}


def kill(model: nn.Module) -> None:
    """No hidden unit of the last hidden layer is ever positive, so only the ten output biases have a gradient."""
    hidden = [m for m in model.modules() if isinstance(m, nn.Linear)][-2]
    nn.init.zeros_(hidden.weight)
    nn.init.constant_(hidden.bias, -1.0)


def memory_after(
    model: nn.Module, data: tuple[Tensor, Tensor], change: Change, batch: int, steps: int, seed: int
) -> Tensor:
    """M after an anchor and `steps` more steps of dense SpiderBoost at the paper's settings."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = silk.SpiderBoost(model.parameters(), 0.1)
    memory = torch.empty(0)
    for step in range(steps + 1):
        anchor = step % 10 == 0
        rows = torch.randint(0, len(data[1]), (batch if anchor else 100,), generator=generator)
        x, y = change(data[0][rows].float() / 255), data[1][rows]

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure, anchor=anchor, samples=len(rows))
        v = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).abs()
        memory = v if step == 0 else 0.5 * v + 0.5 * memory
    return memory


def measure(model: str, images: Images, seed: int, variant: str) -> float:
    change, weights, batch, steps = VARIANTS[variant]
    torch.manual_seed(seed)
    made = MODELS[model][0]()
    weights(made)
    data = images.train_x[:SAMPLES], images.train_y[:SAMPLES]
    return silk.entropy(memory_after(made, data, change, batch, steps, seed))


def measure_dead(model: str, images: Images, seed: int, steps: int = 199) -> float:
    torch.manual_seed(seed)
    made = MODELS[model][0]()
    kill(made)
    data = images.train_x[:SAMPLES], images.train_y[:SAMPLES]
    return silk.entropy(memory_after(made, data, lambda x: x, 1000, steps, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--save", action="store_true", help="write results/entropy.json")
    parser.add_argument("--to", type=Path, default=record.RESULTS, help="folder to write to")
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"before": [], "dead": [], "guess": {}}
    for (model, name), (before, after) in TABLE_1.items():
        if model == "resnet18":
            continue
        images = IMAGES[name](None)
        shares = torch.bincount(images.train_y).double() / len(images.train_y)
        figures["guess"][images.name] = round(float(-torch.special.xlogy(shares, shares).sum()), 4)
        for variant in VARIANTS:
            values = [round(measure(model, images, seed, variant), 3) for seed in range(given.seeds)]
            mean = sum(values) / len(values)
            row = {"model": model, "data": images.name, "variant": variant, "printed": before}
            figures["before"].append({**row, "mean": round(mean, 2), "off": round(mean - before, 2), "values": values})
            print(f"{model}, {images.name}, {variant}: {mean:.2f}, printed {before}", flush=True)
        values = [round(measure_dead(model, images, seed), 3) for seed in range(given.seeds)]
        mean = sum(values) / len(values)
        row = {"model": model, "data": images.name, "printed": after, "mean": round(mean, 2), "values": values}
        figures["dead"].append(row)
        print(f"{model}, {images.name}, dead: {mean:.2f}, printed after 150 epochs {after}", flush=True)
    if given.save:
        print(record.save("entropy", list(range(given.seeds)), figures, given.to))


if __name__ == "__main__":
    main()
