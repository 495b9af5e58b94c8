"""The entropies of Table 1 under other assumptions: pixel scale, channels, initial weights, batch size, time.

python benchmarks/entropy.py --save        # needs MNIST, CIFAR-10 and SVHN (SPIDERSILK_DATA)

Before training: the entropy of M = |v| at the first anchor, for FC and CNN. The baseline has three equal channels for
MNIST, pixels in [0, 1], torch's initial weights and a batch of 1000; each variant changes one or two of these.

After training: for FC and CNN, the entropy of a network in which all hidden units but at most one are dead, after
SpiderBoost has trained the rest; for ResNet-18, the entropy of the sparse methods' M, whose random coordinates are
scaled, at the end of the first loops (`--only resnet18 --data svhn`; minutes per loop on one core).

Also the loss of guessing by class frequency.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab.data.sets import IMAGES, Images
from spidersilk.lab.experiments.paper import TABLE_1
from spidersilk.lab.tasks.models import MODELS
from spidersilk.variance.variance_reduced import VarianceReduced

SEEDS = 5
SAMPLES = 10_000  # batches are drawn from the first samples of each set


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
# Name: (transform of pixels in [0, 1], initial weights, batch size, steps before M is measured)
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


# The sparse methods at the paper's 10 %, and the dense one.
FORMS: dict[str, Callable[[nn.Module], VarianceReduced]] = {
    "SpiderBoost": lambda model: silk.SpiderBoost(model.parameters(), 0.1),
    "Algorithm 1": lambda model: silk.SparseSpiderBoost(model.parameters(), 0.1, k1=0.05, k2=0.05),
    "SparseSVRG": lambda model: silk.SparseSVRG(model.parameters(), 0.1, k1=0.05, k2=0.05),
}


def kill(model: nn.Module, alive: int = 0) -> None:
    """Kill all units of the last hidden layer but the first `alive`: with 0 alive, only the ten output biases have a
    gradient."""
    hidden = [m for m in model.modules() if isinstance(m, nn.Linear)][-2]
    with torch.no_grad():
        hidden.weight[alive:] = 0.0
        hidden.bias[alive:] = -1.0


def memories(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    change: Change,
    batch: int,
    steps: int,
    seed: int,
    form: str = "SpiderBoost",
) -> Iterator[Tensor]:
    """M after an anchor and after each of `steps` small steps of a SpiderBoost variant, at the paper's settings."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = FORMS[form](model)
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
        if form == "SpiderBoost":  # it keeps no memory
            v = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).abs()
            memory = v if step == 0 else 0.5 * v + 0.5 * memory
        else:
            memory = torch.cat([optimizer.state[p]["memory"].reshape(-1) for p in model.parameters()])
        yield memory


def memory_after(*given: Any) -> Tensor:
    """The last of `memories`."""
    return deque(memories(*given), maxlen=1).pop()


def measure(model: str, images: Images, seed: int, variant: str) -> float:
    change, weights, batch, steps = VARIANTS[variant]
    torch.manual_seed(seed)
    made = MODELS[model][0]()
    weights(made)
    data = images.train_x[:SAMPLES], images.train_y[:SAMPLES]
    return silk.entropy(memory_after(made, data, change, batch, steps, seed))


def measure_dead(
    model: str, images: Images, seed: int, steps: int = 199, alive: int = 0, change: Change = lambda x: x
) -> float:
    torch.manual_seed(seed)
    made = MODELS[model][0]()
    kill(made, alive)
    data = images.train_x[:SAMPLES], images.train_y[:SAMPLES]
    return silk.entropy(memory_after(made, data, change, 1000, steps, seed))


def measure_form(form: str, images: Images, seed: int, loops: int) -> list[float]:
    """Of ResNet-18, at the first anchor and at the end of each loop."""
    torch.manual_seed(seed)
    made = MODELS["resnet18"][0]()
    data = images.train_x[:SAMPLES], images.train_y[:SAMPLES]
    steps = enumerate(memories(made, data, lambda x: x, 1000, 10 * loops - 1, seed, form))
    return [silk.entropy(memory) for step, memory in steps if step == 0 or step % 10 == 9]


def networks(seeds: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"before": [], "dead": [], "one alive": [], "guess": {}}
    for (model, name), (before, after) in TABLE_1.items():
        if model == "resnet18":
            continue
        images = IMAGES[name](None)
        shares = torch.bincount(images.train_y).double() / len(images.train_y)
        figures["guess"][images.name] = round(float(-torch.special.xlogy(shares, shares).sum()), 4)
        place = {"model": model, "data": images.name}
        for variant in VARIANTS:
            values = [measure(model, images, seed, variant) for seed in range(seeds)]
            row = _row({**place, "variant": variant}, before, values)
            figures["before"].append({**row, "off": round(sum(row["values"]) / seeds - before, 2)})
        figures["dead"].append(_row(place, after, [measure_dead(model, images, seed) for seed in range(seeds)]))
        if model == "fc":  # the paper's values for the CNN are those of a dead network
            for variant in ("ours", "one channel, the others 0"):
                change = VARIANTS[variant][0]
                values = [measure_dead(model, images, seed, alive=1, change=change) for seed in range(seeds)]
                figures["one alive"].append(_row({**place, "variant": variant}, after, values))
    return figures


def forms(name: str, loops: int) -> dict[str, Any]:
    images, (_, after) = IMAGES[name](None), TABLE_1["resnet18", name]
    told: dict[str, Any] = {"model": "resnet18", "data": images.name, "printed": after, "loops": loops, "forms": {}}
    for form in FORMS:
        told["forms"][form] = [round(x, 3) for x in measure_form(form, images, 0, loops)]
        print(f"resnet18, {images.name}, {form}: {told['forms'][form]}, printed {after}", flush=True)
    return told


def _row(place: dict[str, Any], printed: float, values: list[float]) -> dict[str, Any]:
    mean = sum(values) / len(values)
    print(f"{', '.join(str(x) for x in place.values())}: {mean:.2f}, printed {printed}", flush=True)
    return {**place, "printed": printed, "mean": round(mean, 2), "values": [round(x, 3) for x in values]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds for FC and CNN; ResNet-18 has one")
    parser.add_argument("--only", choices=["networks", "resnet18"], help="FC and CNN, or ResNet-18; default: both")
    parser.add_argument("--data", default="cifar10,svhn", help="data sets for ResNet-18, separated by commas")
    parser.add_argument("--loops", type=int, default=2, help="outer loops of ResNet-18")
    parser.add_argument("--save", action="store_true", help="write entropy.json and entropy_resnet18_DATA.json")
    parser.add_argument("--to", type=Path, default=record.RESULTS, help="folder to write to")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.only != "resnet18":
        figures = networks(given.seeds)
        if given.save:
            print(record.save("entropy", list(range(given.seeds)), figures, given.to))
    for name in given.data.split(",") if given.only != "networks" else []:
        told = forms(name, given.loops)
        if given.save:
            print(record.save(f"entropy_resnet18_{name}", [0], told, given.to))


if __name__ == "__main__":
    main()
