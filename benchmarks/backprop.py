"""Gradients at 10 % of the coordinates against dense autograd, taken in turns; one thread, medians of the ratios.

python benchmarks/backprop.py --save
python benchmarks/backprop.py --device cuda --save
python benchmarks/backprop.py --device cuda --dtype bfloat16 --channels-last --save

Two points: the closure at the current and at the anchor point, and the differences at the selected coordinates in one
vector, over two ordinary evaluations of the same closure, of which nothing is read. The selection, drawn anew each time
on a CPU and once on CUDA, is not counted; the plan made from it is. One point: a small step of SparseSGD with one
choice of rows per anchor, over a step of SGD. Each with `sparse_backward` "always", True and, on a CPU, "auto". On CUDA
float32 means TF32, and beside the ratio of the times there is that of the time in kernels alone ("device"), for where
Python is not what one waits for.
"""

from __future__ import annotations

import argparse
import copy
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
from spidersilk.variance.backprop import timing
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
    settled: Callable[[], bool]
    prepare: Callable[[], None] = lambda: None


WARM_UP = 3, 80  # evaluations at least, and until the library has found the ways it will go, at most
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


def two_points(case: Case, share: float, groups: str | None, sparse: bool | str) -> Work:
    """The difference on a selection drawn anew, and two dense evaluations."""
    params = list(case.model.parameters())
    sparsity = silk.RTop(share / 2, share / 2, groups=groups, per_tensor=True)
    ours = silk.VarianceReduced(torch.optim.SGD(params, 1e-3), "anchor", sparsity=sparsity, sparse_backward=sparse)
    ours.step(lambda: evaluate(case, ours), anchor=True)
    work: Any = ours._work
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

    run = lambda: ours._evaluator.evaluate(lambda: evaluate(case, ours), selections)  # noqa: E731
    return Work(run, ordinary, lambda: settled(ours), draw)


def settled(optimizer: silk.VarianceReduced) -> bool:
    """Whether it goes on as it does now: layers know their ways, and captures were compared with plain evaluations."""
    race = optimizer._evaluator._race
    return timing.settled() if race is None else race.winner is not None


def one_point(case: Case, share: float, sparse: bool | str) -> Work:
    """A small step of SparseSGD, and a step of SGD, on two copies of the model."""
    twin = copy.deepcopy(case)
    base = torch.optim.SGD(case.model.parameters(), 1e-6)
    ours = silk.VarianceReduced(
        base,
        None,
        move="selected",
        choose="anchor",
        sparsity=silk.RTop(share, 0.0, groups="rows"),
        sparse_backward=sparse,
    )
    sgd = torch.optim.SGD(twin.model.parameters(), 1e-6)
    ours.step(lambda: evaluate(case, ours), anchor=True)
    small = lambda: ours.step(lambda: evaluate(case, ours), anchor=False)  # noqa: E731
    return Work(small, lambda: sgd.step(lambda: evaluate(twin, sgd)), lambda: settled(ours))


def compare(work: Work, seconds: float) -> tuple[float, float, float]:
    """The median ratio of neighbouring runs, and the least times of both in ms."""
    for number in range(WARM_UP[1]):
        if number >= WARM_UP[0] and work.settled():
            break
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
    settings: list[bool | str] = ["always", True] if given.device == "cuda" else ["auto", "always", True]
    for name, make in CASES.items():
        if not any(part in name for part in given.only) or (given.device == "cpu" and name == "ResNet-18, b = 100"):
            continue
        for kind in ("two points, coordinates", "two points, rows", "one point, rows"):
            for sparse in settings:
                torch.manual_seed(0)
                case, groups = make(), "rows" if "rows" in kind else None
                one = "one" in kind
                work = one_point(case, given.share, sparse) if one else two_points(case, given.share, groups, sparse)
                ratio, least, its_least = compare(work, given.seconds)
                entry = f"{kind}, {sparse}"
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
