"""Peak memory and seconds of whole training steps of a GPT: sparse training beside AdamW and others.

python benchmarks/memory.py --size 2.7b --save           # on a CUDA device
python benchmarks/memory.py --size 20m --threads 1       # on a CPU: times alone
python benchmarks/memory.py --methods adamw,sparse-5,adamw-8bit,galore,apollo-mini,badam --steps 200 --repeats 3

Methods: adamw; sparse-P and sparse-top-P (P % of the entries, at random or by their gradient); columns-P, rows-P, and
with -top- likewise; lora-R (rank R); and the rivals of spidersilk.lab.peers (pip install 'spidersilk[peers]').

Each method runs in a process of its own, one after another; with --turns N all processes are there at the same time and
their timed steps take turns, in N blocks each, so that a slow minute of the machine is everybody's (their memory must
fit on the device together; `first_ms` is then of processes that all begin at once). --repeats starts them anew. An
anchor is a step that makes a new selection or projection (galore, apollo-mini: every 200 steps), or changes blocks
(badam: every 100). Times are of `--steps` steps after a warm-up. For sparse training one of them is an anchor, and the
warm-up had some, which compiled their kernels; for the others as many are as their own periods bring.
`anchors` is how many, `anchor_ms` the slowest of them, and `first_ms` the very first step, at which galore makes its
first projections. Memory is the peak of torch.cuda.max_memory_allocated since the model was made; the last steps are
with new selections, `micro_batches` and clipping (`clipped`), where the method can have them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import gpt
import torch
from torch import nn

import spidersilk as silk
from spidersilk.lab import peers

METHODS = ("adamw", "in-backward", "sparse-5", "sparse-1", "sparse-top-5", "lora-16")
WARM_UP = 5


def sparse(model: nn.Module, method: str, lr: float, inner: int) -> Any:
    share = float(method.split("-")[-1]) / 100
    k1, k2 = (share, 0.0) if "top" in method else (0.0, share)
    groups: Any = {"sparse": None, "columns": "columns", "rows": "rows"}[method.split("-")[0]]
    seed = torch.Generator().manual_seed(0)
    return silk.SparseAdamW(model, lr, k1, k2, groups=groups, inner_steps=inner, generator=seed)


def make(method: str, model: nn.Module, inner: int) -> Any:
    lr = 1e-4
    if method == "adamw":
        return torch.optim.AdamW(model.parameters(), lr, fused=next(model.parameters()).is_cuda)
    if method.startswith("lora"):
        return peers.lora(model, int(method.split("-")[1]), lr)
    if method.startswith(("sparse", "columns", "rows")):
        return sparse(model, method, lr, inner)
    return peers.make(method, model, lr)


def refusal(method: str) -> str | None:
    """Why a method cannot run here, in one line."""
    if method == "adamw" or re.fullmatch(r"lora-[1-9]\d*", method):
        return None
    share = re.fullmatch(r"(?:sparse|columns|rows)-(?:top-)?(\d+(?:\.\d+)?)", method)
    if share:
        return None if 0 < float(share[1]) <= 100 else f"{method}: {share[1]} % must be above 0 and at most 100"
    if method not in peers.PEERS:
        known = ", ".join(["adamw", "sparse-P", "sparse-top-P", "columns-P", "rows-P", "lora-R", *peers.PEERS])
        return f"there is no method {method!r}; there are {known}"
    try:
        peers.check(method)
    except ImportError as error:
        return str(error)
    return None


class Run:
    """One method on one model: steps, their times, and which of them were anchors."""

    def __init__(self, given: argparse.Namespace):
        self.method, self.device = given.one, given.device
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.model = gpt.make(given.size, self.device, dtype, not given.no_checkpointing)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        generator = torch.Generator().manual_seed(1)
        shape = (given.sequences, given.length + 1)
        self.tokens = torch.randint(self.model.vocabulary, shape, generator=generator).to(self.device)
        torch.manual_seed(given.seed)
        self.optimizer = make(self.method, self.model, 2)
        self.called: Any = torch.compile(self.model) if given.compile else self.model
        self.peer = peers.PEERS.get(self.method)
        self.clips = self.peer is None or self.peer.whole_gradients
        self.micro = 4 if self.clips else 1
        self.updates = 0

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self, micro: int = 1, clip: bool = False) -> None:
        for _ in range(micro):
            (self.called(self.tokens) / micro).backward()
        if clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1

    def timed(self) -> tuple[float, bool]:
        """Milliseconds of a step, and whether it was an anchor."""
        start = time.perf_counter()
        self.step()
        self.wait()
        return 1e3 * (time.perf_counter() - start), self.was_anchor()

    def was_anchor(self) -> bool:
        """Whether the last step was one. A selection by the gradient is made when the next gradient arrives."""
        if self.peer is not None:
            return bool(self.peer.every) and (self.updates - 1) % self.peer.every == self.peer.at
        return hasattr(self.optimizer, "age") and self.optimizer.age == (1 if "top" in self.method else 0)

    @property
    def anchor_every(self) -> int | None:
        return getattr(self.optimizer, "inner_steps", None) if self.peer is None else self.peer.every or None

    def renew_every(self, steps: int) -> None:
        if hasattr(self.optimizer, "inner_steps"):
            self.optimizer.inner_steps = steps


def run_one(given: argparse.Namespace, my_turn: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """What a method gave; `my_turn` is called, and waits, before each block of timed steps."""
    if given.threads:
        torch.set_num_threads(given.threads)
    run = Run(given)
    first, _ = run.timed()
    for _ in range(WARM_UP - 1):
        run.timed()
    run.renew_every(given.steps)
    steps: list[tuple[float, bool]] = []
    for turn in range(given.turns):
        my_turn()
        steps += [run.timed() for _ in range(given.steps // given.turns + (turn < given.steps % given.turns))]
    times, anchors = [ms for ms, _ in steps], [ms for ms, anchor in steps if anchor]
    result: dict[str, Any] = {"method": given.one, "parameters": run.parameters, "mean_ms": sum(times) / len(times)}
    result |= {"median_ms": median(times), "slowest_ms": max(times), "first_ms": first}
    result |= {"anchors": len(anchors), "anchor_ms": max(anchors, default=None), "anchor_every": run.anchor_every}
    start = time.perf_counter()
    for _ in range(10):  # as a training loop runs, without a wait at each step
        run.step()
    run.wait()
    result["free_ms"] = 1e2 * (time.perf_counter() - start)
    run.renew_every(2)
    for _ in range(5):
        run.step(run.micro, run.clips)
    result |= {"micro_batches": run.micro, "clipped": run.clips}
    if given.device == "cuda":
        run.wait()
        peak = torch.cuda.max_memory_allocated()
        result |= {"peak_gib": peak / 2**30, "bytes_per_parameter": peak / run.parameters}
    return result


def ratios_of(results: list[dict[str, Any]], name: str) -> dict[str, list[float]]:
    """For each method, its runs over AdamW's of the same repeats, ascending."""
    adamw = {run["repeat"]: run for run in results if run["method"] == "adamw"}
    ratios: dict[str, list[float]] = {run["method"]: [] for run in results}
    for run in results:
        if run["repeat"] in adamw:
            ratios[run["method"]].append(run[name] / adamw[run["repeat"]][name])
    return {method: sorted(values) for method, values in ratios.items()}


def table(results: list[dict[str, Any]]) -> str:
    """For each method medians over repeats, and of its ratios to AdamW in the same repeat the median and range."""

    def ratio(method: str, name: str) -> str:
        ratios = ratios_of(results, name)[method]
        return f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})" if ratios else "-"

    def middle(runs: list[dict[str, Any]], name: str) -> str:
        values = [run[name] for run in runs if run.get(name) is not None]
        return "-" if not values else f"{median(values):g}" if name == "anchors" else f"{median(values):.2f}"

    names = ("mean_ms", "median_ms", "anchors", "anchor_ms", "peak_gib", "bytes_per_parameter")
    rows = [["method", "runs", *names[:2], "mean / AdamW's", "median / AdamW's", *names[2:]]]
    for method in dict.fromkeys(run["method"] for run in results):
        runs = [run for run in results if run["method"] == method]
        values = [middle(runs, name) for name in names]
        rows.append(
            [method, str(len(runs)), *values[:2], ratio(method, names[0]), ratio(method, names[1]), *values[2:]]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    missed = {run["method"]: run["anchor_every"] for run in results if run["anchor_every"] and not run["anchors"]}
    lines += [
        f"{method}: its anchors, every {every} steps, are not in mean_ms: --steps {every} has one"
        for method, every in missed.items()
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=gpt.SIZES, default="tiny")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--turns", type=int, default=1, help="blocks of timed steps, in which methods take turns")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--once", default="", help="further methods, which run in the first repeat alone")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--name", default="memory", help="how the saved file's name begins")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)  # the repeat: badam's order of blocks
    given = parser.parse_args()
    if given.steps < 2:
        raise SystemExit(f"error: --steps {given.steps} must be at least 2: one of them is an anchor")
    if not 1 <= given.turns <= given.steps:
        raise SystemExit(f"error: --turns {given.turns} must be from 1 to --steps {given.steps}")
    return given


class Process:
    """One method in a process of its own. It prints READY and waits for a line before each block, RESULT at the end."""

    def __init__(self, method: str, repeat: int):
        self.method = method
        command = [sys.executable, __file__, *sys.argv[1:], "--one", method, "--seed", str(repeat)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "text": True}
        self._process = subprocess.Popen(command, **pipes)
        self.result: str | None = None

    def take_turn(self) -> None:
        if self.result is None and self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            self.wait()

    def wait(self) -> None:
        """Until the next block can begin, or until the end."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                self.result = line[7:].rstrip()
            elif line == "READY\n":
                return
        self._process.wait()

    @property
    def error(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-1500:]


def take_turns(methods: list[str], given: argparse.Namespace, repeat: int) -> Iterator[Process]:
    """Run these at the same time, or one after another if there is but one turn."""
    for together in [methods] if given.turns > 1 else [[method] for method in methods]:
        processes = [Process(method, repeat) for method in together]
        for process in processes:
            process.wait()
        for _ in range(given.turns):
            for process in processes:
                process.take_turn()
        yield from processes


def wait_for_a_line() -> None:
    print("READY", flush=True)
    sys.stdin.readline()


def main() -> None:
    given = arguments()
    if given.one:
        try:
            print("RESULT " + json.dumps(run_one(given, wait_for_a_line)), flush=True)
        except ImportError as error:
            raise SystemExit(str(error)) from error
        return
    methods, once = given.methods.split(","), [method for method in given.once.split(",") if method]
    refused = {method: line for method in methods + once if (line := refusal(method))}
    for line in refused.values():
        print("error:", line, flush=True)
    results: list[dict[str, Any]] = []
    failed = False
    for repeat in range(given.repeats):
        chosen = [m for m in methods + (once if repeat == 0 else []) if m not in refused]
        for process in take_turns(chosen, given, repeat):
            failed |= process.result is None
            shown = process.result or f"error: {process.method}: {process.error}"
            print(given.size, given.sequences, repeat, shown, flush=True)
            results += [{"repeat": repeat, **json.loads(process.result)}] if process.result else []
    print(table(results), flush=True)
    if given.save and results:
        from record import save

        kept = {name: getattr(given, name) for name in ("size", "sequences", "length", "steps", "turns", "device")}
        figures = kept | {"checkpointing": not given.no_checkpointing, "compiled": given.compile, "runs": results}
        ratios = ratios_of(results, "mean_ms")
        figures["mean_over_adamw"] = {m: [median(r), r[0], r[-1]] for m, r in ratios.items() if r}
        size = given.size.replace(".", "_")
        save(f"{given.name}_{size}_{given.sequences}_{given.device}", [0], figures)
    raise SystemExit(1 if refused or failed else 0)


if __name__ == "__main__":
    main()
