"""The time of an optimizer step without its gradients: the selection, the whole step, and alternatives; medians.

python benchmarks/step.py --save                  # CPU, one thread
python benchmarks/step.py --threads 2 --save      # how much faster two threads are than one
python benchmarks/step.py --device cuda --save    # a CUDA device

On a CPU, times are in units of one copy of d floats, measured alternately with it. On CUDA they are microseconds; work
that a CUDA graph can hold is timed by replaying a graph, so host time is not included.

"whole step" is everything that a small step of SparseSVRG (k1 = k2 = 5 %, plain SGD as base) does apart from the two
gradients: select, read the selected values twice, update v, M and x, write p.grad.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import RESULTS, save
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.kernels import backends
from spidersilk.kernels.plain import PLAIN
from spidersilk.operator.random_stream import Stream

SIZES = {"cpu": (62_006, 308_310, 11_173_962, 10**8), "cuda": (62_006, 308_310, 11_173_962, 10**8, 10**9)}
BYTES = 28  # least traffic per parameter and step: x, M and v are read and written, M is read once more
Works = Iterator[tuple[str, Callable[[], object], bool]]  # a name, the work, and whether a CUDA graph can hold it


def in_copies(work: Callable[[], object], copy: Callable[[], object], seconds: float) -> float:
    """The median time of `work` over that of `copy`, measured alternately."""
    work()
    ours, theirs = [], []
    start = time.perf_counter()
    while len(ours) < 5 or (time.perf_counter() - start < seconds and len(ours) < 300):
        copy()  # both start with the caches as a copy leaves them
        theirs.append(_clock(copy))
        ours.append(_clock(work))
    return statistics.median(ours) / statistics.median(theirs)


def _clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def scaling(d: int, threads: int, seconds: float) -> dict[str, float]:
    """The median time with one thread over that with several, of a copy, a selection and a step."""
    source, target = torch.randn(d), torch.empty(d)
    memory, k, kernels = source.abs(), -(-d // 20), backends.find("numba", [(source.device, source.dtype)])
    both: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "select, numba": lambda: kernels.select(memory, k, k, 1),
        "whole step, numba": whole_step(d, "numba", "cpu"),
    }
    found = {}
    for name, work in both.items():
        times: dict[int, list[float]] = {1: [], threads: []}
        start = time.perf_counter()
        while len(times[1]) < 10 or time.perf_counter() - start < seconds:
            for number in (1, threads):
                torch.set_num_threads(number)
                work()
                times[number].append(_clock(work))
        found[name] = round(statistics.median(times[1]) / statistics.median(times[threads]), 2)
        print(f"d = {d:>13,}  {name:34} {found[name]:6.2f} times faster with {threads} threads", flush=True)
    return found


def in_microseconds(work: Callable[[], object], in_graph: bool, seconds: float) -> float:
    """The median time on the device between two events around the work."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    if in_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    times, start = [], time.perf_counter()
    while len(times) < 7 or (time.perf_counter() - start < seconds and len(times) < 200):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return statistics.median(times)


class Still(nn.Module):
    """d parameters in 62 tensors, as many as ResNet-18 has; their gradients exist already, so the closure is free."""

    def __init__(self, d: int, device: str):
        super().__init__()
        sizes = [d // 62] * 61 + [d - 61 * (d // 62)]
        self.pieces = nn.ParameterList(nn.Parameter(x.clone()) for x in torch.randn(d, device=device).split(sizes))
        self.given = [torch.randn_like(p) for p in self.pieces]


def whole_step(d: int, backend: str, device: str, fresh: bool = False) -> Callable[[], object]:
    """`fresh`: the closure allocates its gradients, as back-propagation does, so that they can be freed."""
    model = Still(d, device)
    optimizer = silk.SparseSVRG(model.parameters(), lr=1e-6, backend=backend)
    loss = torch.zeros((), device=device)

    def closure() -> Tensor:
        for p, g in zip(model.pieces, model.given, strict=True):
            p.grad = g.clone() if fresh else g
        return loss

    optimizer.step(closure, anchor=True)
    optimizer.step(closure, anchor=False)
    return lambda: optimizer.step(closure, anchor=False)


def works(d: int, device: str) -> Works:
    memory, k = torch.randn(d, device=device).abs(), -(-d // 20)
    ours = "numba" if device == "cpu" else "triton"
    kernels = backends.find(ours, [(memory.device, memory.dtype)])
    seed = Stream(1).counter(memory.device) if device == "cuda" else 1

    def random_keys() -> Any:
        top = torch.topk(memory, k, sorted=False).indices
        keys = torch.rand(d, device=device).index_fill_(0, top, 2.0)
        return top, torch.topk(keys, k, largest=False, sorted=False).indices

    yield f"select, {ours}", lambda: kernels.select(memory, k, k, seed), True
    yield "silk.select", lambda: silk.select(memory, k, k), False
    yield "select, torch backend", lambda: PLAIN.select(memory, k, k, 1), False
    yield "torch.topk and random keys", random_keys, False
    yield "torch.topk", lambda: torch.topk(memory, k, sorted=False), False
    if d < 10**9:
        yield "torch.kthvalue", lambda: torch.kthvalue(memory, d - k), False
    if device == "cpu":
        array = memory.numpy()
        yield "np.argpartition", lambda: np.argpartition(array, d - k), False
    x = nn.Parameter(torch.randn(d, device=device))
    x.grad = torch.randn(d, device=device)
    yield "SGD, fused", torch.optim.SGD([x], 1e-6, fused=True).step, False
    yield "Adam, fused", torch.optim.Adam([x], 1e-6, fused=True).step, False
    del x
    yield f"whole step, {ours}", whole_step(d, ours, device), True
    if device == "cuda":
        yield f"whole step, {ours}, not in a graph", whole_step(d, ours, device), False
    yield "whole step, torch backend", whole_step(d, "torch", device), False


def extra_floats(d: int, backend: str) -> float:
    """CUDA memory at a step's peak beyond x, a gradient, v, v at the anchor, M and the reference, over 4 d bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = whole_step(d, backend, "cuda", fresh=True)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    held = 7  # the six, and the closure's store of gradients
    return (torch.cuda.max_memory_allocated() - before) / (4 * d) - held


def extra_floats_on_host(d: int, backend: str) -> float | None:
    """Memory at a step's peak beyond what the process holds between steps, over 4 d bytes; Linux can tell."""
    step = whole_step(d, backend, "cpu")
    step()
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    except OSError:
        return None
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / (4 * d)


def _status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def plot(figures: dict[str, dict[str, float]], unit: str, floor: dict[str, float], name: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 4.8))
    for label, line in figures.items():
        mine = "numba" in label or "triton" in label
        sizes = [int(d) for d in line]
        axes.loglog(sizes, list(line.values()), "o-" if mine else "s--", lw=2 if mine else 1, label=label)
    label = f"{BYTES} bytes per parameter at a copy's speed"
    axes.loglog([int(d) for d in floor], list(floor.values()), "k:", label=label)
    axes.set(xlabel="parameters d", ylabel=unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--sizes", type=int, nargs="*")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each entry of the table")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--redraw", metavar="NAME", help="only redraw the plot of results/benchmarks/NAME.json")
    given = parser.parse_args()
    if given.redraw:
        kept = json.loads((RESULTS / f"{given.redraw}.json").read_text())["figures"]
        plot(kept["times"], kept["unit"], kept[f"floor of {BYTES} bytes"], given.redraw)
        return
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    on_cpu = given.device == "cpu"
    if on_cpu and given.threads > 1:
        sizes = given.sizes or SIZES["cpu"][2:]
        ratios = {str(d): scaling(d, given.threads, 5 * given.seconds) for d in sizes}
        if given.save:
            save(f"step_cpu_{given.threads}", [0], {"threads": given.threads, "times faster than one thread": ratios})
        return
    figures: dict[str, dict[str, float]] = {}
    floor: dict[str, float] = {}
    memory: dict[str, dict[str, float]] = {}
    for d in given.sizes or SIZES[given.device]:
        source, target = torch.randn(d, device=given.device), torch.empty(d, device=given.device)

        def copy(s: Tensor = source, t: Tensor = target) -> Tensor:
            return t.copy_(s)

        one = 1.0 if on_cpu else in_microseconds(copy, False, given.seconds)  # a graph would use another copy engine
        floor[str(d)] = one * BYTES / 8
        for name, work, in_graph in works(d, given.device):
            value = in_copies(work, copy, given.seconds) if on_cpu else in_microseconds(work, in_graph, given.seconds)
            figures.setdefault(name, {})[str(d)] = round(value, 2)
            print(f"d = {d:>13,}  {name:34} {value:12.2f} {'copies' if on_cpu else 'us'}", flush=True)
            del work
            gc.collect()
        if not on_cpu:
            figures.setdefault("copy", {})[str(d)] = round(one, 2)
        for backend in ("numba" if on_cpu else "triton", "torch"):
            extra = extra_floats_on_host(d, backend) if on_cpu else extra_floats(d, backend)
            if extra is not None and (not on_cpu or d > 10**7):  # memory is counted in pages: too coarse for smaller d
                memory.setdefault(backend, {})[str(d)] = round(extra, 3)
        print(f"d = {d:>13,}  extra floats per parameter at the peak: {memory}", flush=True)
        del source, target
        gc.collect()
    if not given.save:
        return
    unit = "copies of d floats" if on_cpu else "microseconds"
    name = "step_cpu_1" if on_cpu else "step_cuda"
    about = {"unit": unit, "extra floats per parameter": memory, f"floor of {BYTES} bytes": floor}
    save(name, [0], {**about, "times": figures})
    plot(figures, unit, floor, name)


if __name__ == "__main__":
    main()
