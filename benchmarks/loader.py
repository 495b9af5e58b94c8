"""AnchorLoader's tensor path against torch's DataLoader on the same data: small batches of 100 from 60,000 x 784.

Both draw uniform batches without replacement inside a batch. Times are ratios, measured in turns in one run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import record
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import spidersilk as silk


def seconds_per_batch(batches: Iterator, count: int) -> float:
    next(batches)
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--batches", type=int, default=200, help="small batches timed in each turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write results/benchmarks/loader.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.rand(options.samples, 1, 28, 28), torch.randint(10, (options.samples,))
    data = TensorDataset(x, y)
    generator = torch.Generator().manual_seed(0)

    def anchor_loader() -> Iterator:
        inner = options.batches + 3
        return iter(silk.AnchorLoader(data, 1000, options.batch, inner, loops=1, generator=generator))

    def dataloader(workers: int) -> Iterator:
        sampler = RandomSampler(data, generator=generator)
        batches = BatchSampler(sampler, options.batch, drop_last=True)
        return iter(DataLoader(data, batch_sampler=batches, num_workers=workers))

    candidates = {
        "AnchorLoader, tensors": anchor_loader,
        "DataLoader, in process": lambda: dataloader(0),
        "DataLoader, 2 workers": lambda: dataloader(2),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(options.turns):
        for name, make in candidates.items():
            times[name].append(seconds_per_batch(make(), options.batches))
    ours = times["AnchorLoader, tensors"]
    table = Table("loader", "time / ours (median)", "lowest", "highest", title=f"batches of {options.batch}")
    figures = {}
    for name, spent in times.items():
        ratios = [theirs / mine for theirs, mine in zip(spent, ours, strict=True)]
        figures[name] = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        table.add_row(name, *(f"{figures[name][key]:.1f}" for key in ("median", "lowest", "highest")))
    Console().print(table)
    if options.save:
        print(f"written: {record.save('loader', [0], {'time relative to AnchorLoader': figures})}")


if __name__ == "__main__":
    main()
