"""Gradients of 10 % of the rows against dense autograd, taken in turns; one thread, medians of the ratios.

python benchmarks/backprop.py --save
python benchmarks/backprop.py --device cuda --save
python benchmarks/backprop.py --device cuda --dtype bfloat16 --channels-last --save

The closure at the current and at the anchor point with `sparse_backward=True`, and the differences on the selected rows
in one vector, over two ordinary evaluations of the same closure, of which nothing is read. The selection, drawn anew
each time on a CPU and once on CUDA, is not counted; what `Wanted` makes of it is. On CUDA float32 means TF32, and
beside the ratio of the times there is that of the time in kernels alone ("device"), for where the host is not the
bottleneck.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from record import save
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab.tasks import models
from spidersilk.lab.tasks.language import LanguageModel
from spidersilk.lab.tasks.ranking import Factors
from spidersilk.variance.two_point import swapped


@dataclass
class Case:
    model: nn.Module
    loss_of: Callable[[nn.Module], Tensor]

    def loss(self) -> Tensor:
        return self.loss_of(self.model)


class Work(NamedTuple):
    """What is compared, and what goes before it and is not timed."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
    prepare: Callable[[], None] = lambda: None


WARM_UP = 3  # evaluations
DEVICE = torch.device("cpu")
DTYPE = torch.float32
FORMAT = torch.contiguous_format


def images(model: nn.Module, batch: int) -> Case:
    x, y = torch.randn(batch, 3, 32, 32, device=DEVICE, dtype=DTYPE), torch.randint(10, (batch,), device=DEVICE)
    x = x.contiguous(memory_format=FORMAT)
    return Case(model.to(DEVICE, DTYPE), lambda model: F.cross_entropy(model(x), y))


def wide(*widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def language() -> Case:
    model = LanguageModel(1000, 200, 200).to(DEVICE, DTYPE)
    tokens = torch.randint(1000, (20, 36), device=DEVICE)
    state = tuple(torch.zeros(1, 20, 200, device=DEVICE, dtype=DTYPE) for _ in range(2))

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1], state)[0].reshape(-1, 1000), tokens[:, 1:].reshape(-1))

    return Case(model, loss)


def ranking() -> Case:
    model = Factors(6040, 3706, 20).to(DEVICE, DTYPE)
    users, better, worse = (torch.randint(n, (1000,), device=DEVICE) for n in (6040, 3706, 3706))
    return Case(model, lambda model: F.softplus(model(users, worse) - model(users, better)).mean())


def evaluate(case: Case, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = case.loss()
    loss.backward()
    return loss


CASES: dict[str, Callable[[], Case]] = {
    "FC 3072-100-10, b = 100": lambda: images(models.fully_connected(), 100),
    "FC 3072-1000-10, b = 100": lambda: images(wide(3072, 1000, 10), 100),
    "FC 3072-1000-1000-10, b = 100": lambda: images(wide(3072, 1000, 1000, 10), 100),
    "CNN, b = 100": lambda: images(models.convolutional(), 100),
    "ResNet-18, b = 20": lambda: images(models.resnet18(), 20),
    "ResNet-18, b = 100": lambda: images(models.resnet18(), 100),
    "LSTM 200, vocabulary 1000, 20 x 35": language,
    "BPR, rank 20, b = 1000": ranking,
}


def two_points(case: Case, share: float) -> Work:
    """The difference on a selection drawn anew, and two dense evaluations."""
    params = list(case.model.parameters())
    sparsity = silk.RTop(share / 2, share / 2, groups="rows", per_tensor=True)
    ours = silk.VarianceReduced(torch.optim.SGD(params, 1e-3), "anchor", sparsity=sparsity, sparse_backward=True)
    ours.step(lambda: evaluate(case, ours), anchor=True)
    work: Any = ours._engine
    points = work.vectors.points
    selections = work.select()

    def draw() -> None:
        nonlocal selections
        if DEVICE.type == "cpu":
            selections = work.select()

    def ordinary() -> None:
        evaluate(case, ours)
        with swapped(params, points):
            evaluate(case, ours)

    run = lambda: ours._engine.evaluate(lambda: evaluate(case, ours), selections)  # noqa: E731
    return Work(run, ordinary, draw)


def compare(work: Work, seconds: float) -> tuple[float, float, float]:
    """The median ratio of neighbouring runs, and the least times of both in ms."""
    for _ in range(WARM_UP):
        work.prepare()
        work.ours()
    work.theirs()
    spent: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(spent) < 5 or (time.perf_counter() - start < seconds and len(spent) < 400):
        work.prepare()
        spent.append((_clock(work.ours), _clock(work.theirs)))
    ratio = statistics.median(a / b for a, b in spent)
    return ratio, *(1e3 * min(column) for column in zip(*spent, strict=True))  # pyright: ignore


def in_kernels(work: Callable[[], object]) -> tuple[float, float]:
    """The milliseconds that the device spends in kernels for it, and the share of those for weight gradients."""
    repeats = 10
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    times = {event.key: event.self_device_time_total for event in profile.key_averages()}
    total = sum(times.values())
    return total / repeats / 1e3, sum(time for name, time in times.items() if "wgrad" in name) / total


def _clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--channels-last", action="store_true", help="images in that memory format")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each entry of the table")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name contains one of these")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--name", default="", help="of the file that --save writes")
    given = parser.parse_args()
    global DEVICE, DTYPE, FORMAT
    DEVICE, DTYPE = torch.device(given.device), getattr(torch, given.dtype)
    FORMAT = torch.channels_last if given.channels_last else FORMAT
    torch.set_num_threads(given.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    figures: dict[str, dict[str, float | list[float]]] = {}
    kinds = {"two points, rows, True": two_points}
    for name, make in CASES.items():
        if not any(part in name for part in given.only) or (given.device == "cpu" and name == "ResNet-18, b = 100"):
            continue
        for entry, prepare in kinds.items():
            torch.manual_seed(0)
            work = prepare(make(), given.share)
            ratio, least, its_least = compare(work, given.seconds)
            figures.setdefault(name, {})[entry] = round(ratio, 3)
            line = f"{name:36} {entry:32} {ratio:6.3f}   {least:8.2f} / {its_least:8.2f} ms"
            if given.device == "cuda":
                (here, share), (there, its_share) = in_kernels(work.ours), in_kernels(work.theirs)
                figures[name][f"{entry}, device"] = round(here / there, 3)
                figures[name][f"{entry}, ms"] = [round(x, 3) for x in (least, its_least, here, there)]
                figures[name][f"{entry}, share of wgrad"] = [round(share, 3), round(its_share, 3)]
                line += f"   device {here / there:6.3f}   {here:8.2f} / {there:8.2f} ms"
                line += f"   wgrad {share:.3f} / {its_share:.3f}"
            print(line, flush=True)
    if given.save:
        name = f"backprop_cpu_{given.threads}" if given.device == "cpu" else f"backprop_cuda_{given.dtype}"
        setting = {"threads": given.threads, "dtype": given.dtype, "channels last": given.channels_last}
        save(given.name or name, [0], setting | {"share": given.share, "ratios": figures})


if __name__ == "__main__":
    main()
