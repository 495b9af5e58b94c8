"""Validation loss of a pretrained GPT after fine-tuning: sparse training beside AdamW and LoRA, at equal steps.

python benchmarks/finetune.py --size 85m --steps 200,600 --partial runs/finetune.json --save     # on a CUDA device
python benchmarks/finetune.py --steps 20 --methods adamw,entries-10                              # tiny, on a CPU

Methods: adamw; entries-P and columns-P (SparseAdamW on P % of the entries or columns, at random, --inner-steps);
lora-R (rank R on all linear layers of the blocks). The model and its start are those of the lab's task `finetune`, the
step size falls to 0 on a line. Each method runs with each step size of its grid (seed 0), then its best with --seeds
further seeds: other batches and other selections, the same pretrained start. --rates METHOD=A,B,C is another grid.

Losses are of the validation text, in nats per byte, at 85m of all of it. --partial FILE keeps each result as it comes;
results that are there are not run again, so a command that was killed goes on where it was. A start that was made anew
on another machine differs a little: `loss_before` has its loss.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.lab import peers
from spidersilk.lab.run.folder import write_atomically
from spidersilk.lab.run.start import Progress, prepare
from spidersilk.lab.tasks.finetune import SIZES, Finetune

METHODS = ("adamw", "entries-10", "columns-10", "lora-64", "lora-16")
CENTRES = {"adamw": 8e-4, "entries": 4e-3, "columns": 4e-3, "lora": 5e-3}  # of the five step sizes, twice apart
SAME_START = 0.005  # by how much the losses of starts may differ that were made by the same recipe
Result = dict[str, Any]


def grid(method: str) -> list[float]:
    centre = CENTRES[method.partition("-")[0]]
    return [float(f"{centre * factor:.6g}") for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]


def refusal(method: str) -> str | None:
    """Why a method cannot run here, in one line."""
    if method == "adamw" or re.fullmatch(r"lora-[1-9]\d*", method):
        return None
    share = re.fullmatch(r"(entries|columns)-(\d+(?:\.\d+)?)", method)
    if share is None:
        return f"there is no method {method!r}; there are adamw, entries-P, columns-P, lora-R"
    if not 0 < float(share[2]) <= 100:
        return f"{method}: {share[2]} % must be above 0 and at most 100"
    return None


def make(method: str, model: nn.Module, lr: float, inner: int, seed: int) -> Any:
    kind, _, number = method.partition("-")
    torch.manual_seed(seed)  # of LoRA's first factors
    if kind == "lora":
        return peers.lora(model, int(number), lr)
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr, fused=next(model.parameters()).is_cuda)
    given: dict[str, Any] = {"groups": "columns"} if kind == "columns" else {}
    given |= {"inner_steps": inner, "generator": torch.Generator().manual_seed(seed)}
    return silk.SparseAdamW(model, lr, 0.0, float(number) / 100, **given)


def batches(rows: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Rows in a random order, again and again; the last few of an order that make no batch are left out."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        yield from (rows[part] for part in order.split(size) if len(part) == size)


class Comparison:
    """The task with its pretrained start, and the results so far."""

    def __init__(self, given: argparse.Namespace):
        self.given, self.device = given, torch.device(given.device)
        options = {"size": given.size, "text": given.text, "dtype": given.dtype, "pretrain_steps": given.pretrain_steps}
        self.task = Finetune(options, None, self.device)
        prepare(self.task, report)
        self.start = self.task.gpt
        self.results: list[Result] = []
        names = ("batch", "inner_steps", "autocast")
        self.conditions = self.task.facts({}) | {name: getattr(given, name) for name in names}
        self.conditions["dtype"] = self.task.given["dtype"]
        self.before = self.task.evaluate()["valid_loss"]
        print(f"validation loss before fine-tuning {self.before:.4f}", flush=True)
        if given.partial is not None and given.partial.is_file():
            self.results = self._read(given.partial)

    def _read(self, path: Path) -> list[Result]:
        try:
            saved = json.loads(path.read_text())
            results, conditions = list(saved["results"]), dict(saved["conditions"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"error: {path}: not as this benchmark writes it ({error}): remove it") from error
        if conditions != self.conditions:
            differ = [name for name in self.conditions if conditions.get(name) != self.conditions[name]]
            raise SystemExit(f"error: {path} has results of another {', '.join(differ)}: give another --partial")
        others = [result["loss_before"] for result in results if abs(result["loss_before"] - self.before) > SAME_START]
        if others:
            differ = f"from a start of loss {others[0]:.4f}, and here it is {self.before:.4f}"
            raise SystemExit(f"error: {path} has results {differ}: give another --partial")
        return results

    def result(self, method: str, lr: float, seed: int, steps: int) -> Result:
        """What this run gave: that in the file, or a new one."""
        wanted = {"method": method, "lr": lr, "seed": seed, "steps": steps}
        for result in self.results:
            if all(result[name] == value for name, value in wanted.items()):
                return result
        result = wanted | self._run(method, lr, seed, steps)
        print(json.dumps(result), flush=True)
        self.results.append(result)
        if self.given.partial is not None:
            content = json.dumps({"conditions": self.conditions, "results": self.results}, indent=1) + "\n"
            write_atomically(self.given.partial, content.encode())
        return result

    def _run(self, method: str, lr: float, seed: int, steps: int) -> Result:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = self.task.model = self.task.gpt = copy.deepcopy(self.start)
        optimizer = make(method, model, lr, self.given.inner_steps, seed)
        stream, times = batches(self.task.train, self.given.batch, seed), []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - step / steps)
            began = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.given.autocast):
                loss = model.loss(next(stream))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
        ended = {name: value if math.isfinite(value) else None for name, value in self.task.evaluate().items()}
        result: Result = {"loss": ended["valid_loss"], "train_loss": ended["train_loss"]}
        result |= {"loss_before": self.before, "median_ms": median(times), "mean_ms": fmean(times[1:] or times)}
        result["tokens_per_second"] = self.given.batch * self.task.size_of_model.context / result["mean_ms"] * 1e3
        if self.device.type == "cuda":
            result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        return result

    def best(self, method: str, steps: int) -> tuple[float | None, str]:
        """The best step size, and what to say if it is at the edge of those that were tried."""
        rates = sorted(self.given.grids[method])
        losses = {lr: self.result(method, lr, 0, steps)["loss"] for lr in rates}
        good = {lr: loss for lr, loss in losses.items() if loss is not None}
        if not good:
            return None, f"{method}, {steps} steps: no step size ended with a finite loss"
        best = min(good, key=lambda lr: good[lr])
        edge = {rates[0]: "smallest", rates[-1]: "largest"}.get(best)
        said = f"{method}, {steps} steps: the best step size, {best:g}, is the {edge} that was tried"
        return best, said if edge else ""


def report(at: Progress) -> None:
    if at.at % 50 == 1 or at.share == 1:
        print(f"{at.what}, step {at.at:.0f}, loss {at.loss:.4f}", flush=True)


def table(finals: dict[str, tuple[float, list[Result]]]) -> str:
    """For each method the mean and range of the loss over seeds, and its step beside AdamW's."""
    head = ["method", "lr", "loss", "lowest", "highest", "ms a step", "/ AdamW's", "peak GiB"]
    rows, adamw = [head], finals.get("adamw")
    for method, (lr, results) in finals.items():
        losses = [math.inf if r["loss"] is None else r["loss"] for r in results]
        step = median(r["median_ms"] for r in results)
        ratio = "-" if adamw is None else f"{step / median(r['median_ms'] for r in adamw[1]):.2f}"
        peak = f"{max(r['peak_gib'] for r in results):.2f}" if "peak_gib" in results[0] else "-"
        numbers = [f"{x:.4f}" for x in (fmean(losses), min(losses), max(losses))]
        rows.append([method, f"{lr:g}", *numbers, f"{step:.1f}", ratio, peak])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--steps", default="200", help="of a run; several with commas")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rates", action="append", default=[], metavar="METHOD=A,B,C")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inner-steps", type=int, default=200, help="updates between two selections")
    parser.add_argument("--text", choices=("ptb", "library"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--autocast", action="store_true", help="products in bfloat16, for --dtype float32")
    parser.add_argument("--pretrain-steps", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--partial", type=Path, help="file of the results so far")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    try:
        given.lengths = [int(steps) for steps in given.steps.split(",")]
        pairs = [pair.split("=") for pair in given.rates]
        given.grids = {m: grid(m) for m in given.methods.split(",") if refusal(m) is None}
        given.grids |= {method: [float(lr) for lr in rates.split(",")] for method, rates in pairs}
    except ValueError as error:
        raise SystemExit(f"error: --steps and --rates take numbers with commas ({error})") from error
    if min(given.lengths) < 1 or min((lr for rates in given.grids.values() for lr in rates), default=1) <= 0:
        raise SystemExit("error: steps must be at least 1, and step sizes above 0")
    return given


def main() -> None:
    given = arguments()
    methods = given.methods.split(",")
    refused = {method: line for method in methods if (line := refusal(method))}
    for line in refused.values():
        print("left out:", line, flush=True)
    comparison = Comparison(given)
    for steps in given.lengths:
        finals: dict[str, tuple[float, list[Result]]] = {}
        said = []
        for method in (m for m in methods if m not in refused):
            lr, edge = comparison.best(method, steps)
            said += [edge] if edge else []
            if lr is not None:
                finals[method] = lr, [comparison.result(method, lr, 1 + s, steps) for s in range(given.seeds)]
        print(f"{given.size}, {steps} steps, {given.seeds} seeds", table(finals), *said, sep="\n", flush=True)
    if given.save:
        from record import save

        figures = {"size": given.size, "device": given.device, "conditions": comparison.conditions}
        save(f"finetune_{given.size}_{given.device}", list(range(given.seeds + 1)),
             figures | {"runs": comparison.results})  # fmt: skip
    raise SystemExit(1 if any("there is no method" in line for line in refused.values()) else 0)


if __name__ == "__main__":
    main()
