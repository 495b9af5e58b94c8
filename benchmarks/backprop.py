"""Gradients at 10 % of the coordinates against dense autograd, taken in turns; one thread, medians of the ratios.

python benchmarks/backprop.py --save
python benchmarks/backprop.py --device cuda --save
python benchmarks/backprop.py --device cuda --dtype bfloat16 --save

Two points: a closure at the current and at the reference point, wanted differences in one vector, over two ordinary
evaluations of the same closure. The plan of what is wanted is made anew each time on a CPU, as for a selection drawn at
every step, and once on CUDA, as for one drawn at every anchor. One point: a small step of SparseSGD with one choice of
rows per anchor, over a step of SGD; "auto" on a CPU, always sparse on CUDA. On CUDA float32 means TF32, and beside the
ratio of the times there is that of the time in kernels alone ("device"), for where Python is not what one waits
for.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from record import save
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.backprop import Capture, Wanted
from spidersilk.flat import make_slabs
from spidersilk.kernels import dispatch
from spidersilk.lab import models
from spidersilk.lab.tasks.language import LanguageModel
from spidersilk.lab.tasks.ranking import Factors
from spidersilk.two_point import swapped


@dataclass
class Case:
    model: nn.Module
    loss_of: Callable[[nn.Module], Tensor]

    def loss(self) -> Tensor:
        return self.loss_of(self.model)


DEVICE = torch.device("cpu")
DTYPE = torch.float32


def images(model: nn.Module, batch: int) -> Case:
    x, y = torch.randn(batch, 3, 32, 32, device=DEVICE, dtype=DTYPE), torch.randint(10, (batch,), device=DEVICE)
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


def coordinates(params: list[Tensor], share: float) -> tuple[Tensor, Tensor]:
    """As many top as random coordinates; which ones does not matter here."""
    d = sum(p.numel() for p in params)
    drawn = torch.randperm(d)[: int(d * share)]
    return drawn[::2].sort().values, drawn[1::2].sort().values


def rows(params: list[Tensor], share: float) -> tuple[Tensor, Tensor]:
    """Whole rows of every tensor, at least this share of each; of a vector, entries."""
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    begin = 0
    for p in params:
        width = p[0].numel()
        drawn = torch.randperm(p.shape[0])[: _share_of(p.shape[0], share)]
        for number, chosen in enumerate((drawn[::2], drawn[1::2])):
            found[number].append(begin + (chosen.sort().values[:, None] * width + torch.arange(width)).view(-1))
        begin += p.numel()
    return torch.cat(found[0]), torch.cat(found[1])


def drawn(
    case: Case, draw: Callable[[list[Tensor], float], tuple[Tensor, Tensor]], share: float
) -> tuple[Tensor, Tensor]:
    return draw(list(case.model.parameters()), share)


def two_points(case: Case, selection: tuple[Tensor, Tensor]) -> tuple[Callable[[], None], Callable[[], None]]:
    """The sparse difference, and two dense evaluations."""
    (slab,) = make_slabs([{"params": list(case.model.parameters())}])
    ops = dispatch.find("auto", [(slab.device, slab.dtype)])
    points = [p.detach() + 1e-3 for p in slab.params]
    selection = selection[0].to(DEVICE), selection[1].to(DEVICE)
    plan = [Wanted(slab.params, *selection)]

    def clear() -> None:
        for p in slab.params:
            p.grad = None

    def sparse() -> None:
        capture = Capture(plan if DEVICE.type == "cuda" else [Wanted(slab.params, *selection)], ops)
        clear()
        with capture.evaluation(1.0):
            case.loss().backward()
        clear()
        with swapped(slab.params, points), capture.evaluation(-1.0):
            case.loss().backward()
        capture.values()

    def dense() -> None:
        clear()
        case.loss().backward()
        clear()
        with swapped(slab.params, points):
            case.loss().backward()

    return sparse, dense


def one_point(case: Case, share: float) -> tuple[Callable[[], object], Callable[[], object]]:
    """A small step of SparseSGD, and a step of SGD, on two copies of the model."""
    twin = copy.deepcopy(case)
    base = torch.optim.SGD(case.model.parameters(), 1e-6)
    sparse = "auto" if next(case.model.parameters()).device.type == "cpu" else True
    ours = silk.VarianceReduced(
        base,
        None,
        move="selected",
        choose="anchor",
        sparsity=silk.RTop(share, 0.0, groups="rows"),
        sparse_backward=sparse,
    )
    sgd = torch.optim.SGD(twin.model.parameters(), 1e-6)

    def evaluate(case: Case, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = case.loss()
        loss.backward()
        return loss

    ours.step(lambda: evaluate(case, ours), anchor=True)
    for _ in range(8):  # the optimizer's own trials
        ours.step(lambda: evaluate(case, ours), anchor=False)
    return lambda: ours.step(lambda: evaluate(case, ours), anchor=False), lambda: sgd.step(lambda: evaluate(twin, sgd))


def _share_of(rows: int, share: float) -> int:
    return -(-int(rows * share * 1000) // 1000)


def compare(ours: Callable[[], object], theirs: Callable[[], object], seconds: float) -> tuple[float, float, float]:
    """The median ratio of neighbouring runs, and the least times of both in ms."""
    for work in (ours, theirs, ours, theirs):
        work()
    spent: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(spent) < 7 or (time.perf_counter() - start < seconds and len(spent) < 400):
        spent.append((_clock(ours), _clock(theirs)))
    ratio = statistics.median(a / b for a, b in spent)
    return ratio, *(1e3 * min(column) for column in zip(*spent, strict=True))  # pyright: ignore


def in_kernels(work: Callable[[], object]) -> float:
    """The microseconds that the device spends in kernels for it."""
    repeats = 10
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / repeats


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
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each entry of the table")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    global DEVICE, DTYPE
    DEVICE, DTYPE = torch.device(given.device), getattr(torch, given.dtype)
    torch.set_num_threads(given.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    figures: dict[str, dict[str, float | tuple[int, ...]]] = {}
    for name, make in CASES.items():
        if given.only not in name or (given.device == "cpu" and name == "ResNet-18, b = 100"):
            continue
        entries = {
            "two points, coordinates": lambda case: two_points(case, drawn(case, coordinates, given.share)),
            "two points, rows": lambda case: two_points(case, drawn(case, rows, given.share)),
            "one point, rows": lambda case: one_point(case, given.share),
        }
        for kind, prepare in entries.items():
            torch.manual_seed(0)
            ours, theirs = prepare(make())
            ratio, least, its_least = compare(ours, theirs, given.seconds)
            figures.setdefault(name, {})[kind] = round(ratio, 3)
            line = f"{name:36} {kind:24} {ratio:6.3f}   {least:8.2f} / {its_least:8.2f} ms"
            if given.device == "cuda":
                here, there = in_kernels(ours), in_kernels(theirs)
                figures[name][f"{kind}, device"] = round(here / there, 3)
                figures[name][f"{kind}, microseconds"] = (
                    round(1e3 * least),
                    round(1e3 * its_least),
                    round(here),
                    round(there),
                )
                line += f"   device {here / there:6.3f}   {here / 1e3:8.2f} / {there / 1e3:8.2f} ms"
            print(line, flush=True)
    if given.save:
        name = f"backprop_cpu_{given.threads}" if given.device == "cpu" else f"backprop_cuda_{given.dtype}"
        save(name, [0], {"threads": given.threads, "dtype": given.dtype, "share": given.share, "ratios": figures})


if __name__ == "__main__":
    main()
