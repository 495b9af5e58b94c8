"""The time of a small step on BPR matrix factorisation as users and items grow: LazySVRG, and SparseSVRG over rows.

The sizes take turns, so a busy machine slows all of them alike. Both wall-clock seconds and CPU seconds of this thread
are recorded. `others` is the part of a step outside the closure.

python benchmarks/lazy.py --save
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from record import RESULTS, save
from torch import Tensor
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.lab.tasks.ranking import Factors

USERS, ITEMS = 943, 1682  # MovieLens 100K


class Case:
    """A model of one size, its optimizer, and the times of its steps."""

    def __init__(self, lazy: bool, factor: int, rank: int, batch: int, choose: str, seed: int):
        torch.manual_seed(seed)
        self.users, self.items, self.batch = USERS * factor, ITEMS * factor, batch
        self.model = Factors(self.users, self.items, rank)
        generator = torch.Generator().manual_seed(seed)
        if lazy:
            for table in self.model.children():
                table.sparse = True  # type: ignore[assignment]
            self.optimizer = silk.LazySVRG(self.model, 0.1, choose=choose, generator=generator)
        else:
            params = self.model.parameters()
            self.optimizer = silk.SparseSVRG(params, 0.1, choose=choose, groups="rows", generator=generator)
        self.forget()

    def forget(self) -> None:
        self.times: dict[str, list[float]] = {"cpu": [], "clock": [], "others": [], "anchor": []}

    def step(self, anchor: bool) -> None:
        n = 10 * self.batch if anchor else self.batch
        users, items, negatives = (torch.randint(m, (n,)) for m in (self.users, self.items, self.items))

        inside = 0.0

        def closure() -> Tensor:
            nonlocal inside
            begun = time.thread_time()
            self.optimizer.zero_grad()
            loss = F.softplus(self.model(users, negatives) - self.model(users, items)).mean()
            loss.backward()
            inside += time.thread_time() - begun
            return loss.detach()

        cpu, clock = time.thread_time(), time.perf_counter()
        self.optimizer.step(closure, anchor=anchor, samples=n)
        cpu, clock = time.thread_time() - cpu, time.perf_counter() - clock
        if anchor:
            self.times["anchor"].append(cpu)
        else:
            for name, value in (("cpu", cpu), ("clock", clock), ("others", cpu - inside)):
                self.times[name].append(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--batch", type=int, default=103)
    parser.add_argument("--loops", type=int, default=8)
    parser.add_argument("--inner", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    first = given.factors[0]
    figures: dict[str, dict] = {}
    for choose in ("step", "anchor"):
        names = {"LazySVRG": True, "SparseSVRG": False}
        cases = {
            (name, factor): Case(lazy, factor, given.rank, given.batch, choose, given.seed)
            for name, lazy in names.items()
            for factor in given.factors
        }
        for loop in range(given.loops):
            for case in cases.values():
                if loop == 1:  # the first loop is a warm-up
                    case.forget()
                for t in range(given.inner):
                    case.step(anchor=t == 0)
        told: dict[str, dict] = {}
        for (name, factor), case in cases.items():
            at, before = ({n: statistics.median(t) for n, t in c.times.items()} for c in (case, cases[name, first]))
            told.setdefault(name, {})[str(factor)] = {
                "rows": sum(t.num_embeddings for t in case.model.children()),  # type: ignore[misc]
                "d": sum(p.numel() for p in case.model.parameters()),
                "ms": {n: round(1e3 * value, 3) for n, value in at.items()},
                "growth": {n: round(value / before[n], 2) for n, value in at.items()},
            }
            print(choose, name, factor, told[name][str(factor)])
        figures[f"choose={choose}"] = told
    if given.save:
        settings = {"rank": given.rank, "batch": given.batch, "k1": 0.05, "k2": 0.05, "users": USERS, "items": ITEMS}
        save("lazy_bpr", [given.seed], {"settings": settings, **figures}, given.to)


if __name__ == "__main__":
    main()
