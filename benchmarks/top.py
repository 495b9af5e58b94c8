"""What is the top part for? k1 : k2 of 0 : 1, 1 : 1 and 1 : 0 at equal k, for sparse training and SparseSVRG.

python benchmarks/top.py cnn-sgd cnn-adamw cnn-svrg logistic-svrg finetune --small     # on a CPU
python benchmarks/top.py finetune resnet18-sgd resnet18-adamw lstm-adamw --jobs 4      # on a GPU
python benchmarks/top.py --table                                                       # of all that was saved

Each case has a centre (10 %, entries, scores of one batch). One thing at a time is then another: k, columns, scores, or
how long a selection lasts. Each split gets three step sizes four times apart, and up to two more where the best lies at
the edge; the best one runs again with other seeds. Within a case all runs have the same number of updates (SparseSVRG:
of queries). Scores: "batch" are gradients of one small batch, "anchor" of one ten times as large; columns average
theirs over selections. SparseSVRG: "averaged" is the memory M, and "newest" M without memory (its decay is 1).

Results are kept run by run in results/benchmarks/top_<case>.json (top_<case>_small.json): a command that was killed
goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import record
from rich.console import Console

from spidersilk.lab.run import batch, methods
from spidersilk.lab.run.check import check_runs
from spidersilk.lab.run.collect import plain
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.folder import FINISHED, Summary
from spidersilk.lab.settings import nearest

SPLITS = {"0:1": (0, 1), "1:1": (1, 1), "1:0": (1, 0)}
MOST = 5  # step sizes of a split
FOR_GOOD = 10**6  # updates: longer than any run here
Result = dict[str, Any]


def following(centre: float, losses: dict[float, float]) -> list[float]:
    """The step sizes to try next: three four times apart, then one further out while the best is at the edge. `losses`
    are those of the step sizes so far."""
    missing = [lr for lr in (plain(centre * f, 6) for f in (0.25, 1.0, 4.0)) if lr not in losses]
    if missing or len(losses) >= MOST:
        return missing
    best = min(losses, key=lambda lr: losses[lr])
    if not math.isfinite(losses[best]):
        return [plain(min(losses) / 4, 6)]
    return [plain(best * f, 6) for edge, f in ((min(losses), 0.25), (max(losses), 4.0)) if best == edge]


class Cell(NamedTuple):
    """What is trained: a share k of the entries or columns, by which scores, and for how many updates."""

    k: float = 0.1
    groups: str | None = None
    scores: str = "batch"
    inner: int | None = None

    def words(self) -> str:
        last = {None: "", FOR_GOOD: ", for good"}.get(self.inner, f", new after {self.inner}")
        return f"{100 * self.k:g} % of the {self.groups or 'entries'}, scores: {self.scores}{last}"


@dataclass(frozen=True)
class Case:
    """A task with a sparse optimizer, its dense counterpart, and the cells that are compared."""

    task: str
    optimizer: str
    dense: str
    metric: str
    settings: dict[str, Any]
    cells: tuple[Cell, ...]
    options: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)  # what differs with --small: settings, options, cells

    def scaled(self, small: bool) -> Case:
        if not small:
            return self
        settings, options = self.settings | self.small.get("settings", {}), self.options | self.small.get("options", {})
        return replace(self, settings=settings, options=options, cells=self.small.get("cells", self.cells), small={})


def around(inner: int, others: tuple[int, ...] = (20, FOR_GOOD)) -> tuple[Cell, ...]:
    """The centre and what differs from it in one thing."""
    centre = Cell(inner=inner)
    cells = [centre, *(centre._replace(k=k) for k in (0.01, 0.05, 0.2)), centre._replace(groups="columns")]
    return (*cells, centre._replace(scores="anchor"), *(centre._replace(inner=m) for m in others if m != inner))


def of_memory(*shares: float) -> tuple[Cell, ...]:
    """Of SparseSVRG, whose loops are the task's."""
    return (*(Cell(k, scores="averaged") for k in shares), Cell(0.1, scores="newest"))


CNN = {"model": "cnn", "data": "mnist", "eval_samples": 10_000}
RESNET = {"model": "resnet18", "data": "cifar10", "eval_samples": 10_000, "channels_last": True}
SHORT = {"settings": {"steps": 200}, "options": {"eval_samples": 2000}, "cells": around(50)}
CASES = {
    "finetune": Case("finetune", "sparse-adamw", "adamw", "valid_loss", {"steps": 600, "batch_size": 32}, around(200),
                     {"size": "85m"},
                     {"settings": {"steps": 200, "batch_size": 32},
                      "options": {"size": "tiny", "text": "ptb", "pretrain_steps": 1000, "train_bytes": 1_000_000,
                                  "eval_samples": 200},
                      "cells": (Cell(inner=50), Cell(0.05, inner=50), Cell(0.1, "columns", inner=50),
                                Cell(inner=FOR_GOOD))}),
    "resnet18-sgd": Case("image", "sparse-sgd", "sgd", "train_loss", {"steps": 1500}, around(50, (200, FOR_GOOD)),
                         RESNET),
    "resnet18-adamw": Case("image", "sparse-adamw", "adamw", "train_loss", {"steps": 1500},
                           around(50, (200, FOR_GOOD)), RESNET),
    "cnn-sgd": Case("image", "sparse-sgd", "sgd", "train_loss", {"steps": 1200}, around(50, (200, FOR_GOOD)), CNN,
                    SHORT),
    "cnn-adamw": Case("image", "sparse-adamw", "adamw", "train_loss", {"steps": 1200}, around(50, (200, FOR_GOOD)),
                      CNN, SHORT | {"cells": around(50)[:5]}),
    "cnn-svrg": Case("image", "sparse-svrg", "svrg", "train_loss", {"budget": 2.0}, of_memory(0.01, 0.05, 0.1, 0.2),
                     CNN, {"settings": {"budget": 0.3}, "options": {"eval_samples": 2000},
                           "cells": of_memory(0.1, 0.2)}),
    "lstm-sgd": Case("language", "sparse-sgd", "sgd", "valid_loss", {"steps": 1000}, around(50, (200, FOR_GOOD))),
    "lstm-adamw": Case("language", "sparse-adamw", "adamw", "valid_loss", {"steps": 1000},
                       around(50, (200, FOR_GOOD))),
    "logistic-svrg": Case("logistic", "sparse-svrg", "svrg", "gap", {"budget": 10.0}, of_memory(0.05, 0.1, 0.2),
                          {"data": "a9a"}, {"settings": {"budget": 2.0}, "cells": of_memory(0.1, 0.2)[:2]}),
}  # fmt: skip


class Series:
    """All runs of one split of a cell (None: the dense method), of which the step size is chosen."""

    def __init__(self, name: str, case: Case, cell: Cell | None, split: str):
        self.name, self.case, self.cell, self.split = name, case, cell, split
        method = case.optimizer if cell else case.dense
        self.centre: float = RunConfig(case.task, method).completed().lr or 1.0
        self.key = {"cell": list(cell) if cell else None, "split": split}

    def config(self, lr: float, seed: int) -> RunConfig:
        case = self.case
        settings: dict[str, Any] = {**case.settings, "lr": lr, "seed": seed, "eval_every": 1e6, "checkpoint_every": 1e9}
        if self.cell is None:
            made = RunConfig(case.task, case.dense, options=case.options, **settings)
        else:
            made = RunConfig(case.task, case.optimizer, options=case.options, **settings, **self._sparse())
        words = f"{self.name}-{self._words()}-lr{lr:.6g}-seed{seed}"
        return replace(made, name=words.replace(" ", "").replace(":", "to").replace("%", "pct").replace(",", "-"))

    def _words(self) -> str:
        return f"{self.cell.words()}-{self.split}" if self.cell else "dense"

    def _sparse(self) -> dict[str, Any]:
        assert self.cell is not None
        k, groups, scores, inner = self.cell
        top, random = SPLITS[self.split]
        k1, k2 = k * top / (top + random), k * random / (top + random)
        given: dict[str, Any] = {"k1": k1, "k2": k2}
        if groups is not None:
            given["groups"] = groups
        if inner is None:
            return given | ({"memory_decay": 1.0} if scores == "newest" else {})
        size = self.case.settings.get("batch_size") or RunConfig(self.case.task, "sgd").completed().batch_size
        return given | {"inner_steps": inner, "anchor_batch_size": size * (10 if scores == "anchor" else 1)}


class Study:
    """The runs of a case so far, in its file."""

    def __init__(self, name: str, case: Case, seeds: int, small: bool, to: Path):
        self.name, self.case, self.seeds, self.to = name, case, seeds, to
        self.file = f"top_{name.replace('-', '_')}{'_small' if small else ''}"
        self.conditions = {"task": case.task, "options": case.options, "settings": case.settings,
                           "optimizer": case.optimizer, "dense": case.dense, "metric": case.metric}  # fmt: skip
        if written := methods.find(case.optimizer).written:
            self.conditions["arguments"] = dict(written)
        cells = [(cell, split) for cell in case.cells for split in SPLITS]
        seen = {(cell._replace(scores="batch"), split) for cell, split in cells}
        self.series = [Series(name, case, None, "")]
        for cell, split in cells:  # at random, scores do not count
            same = split == "0:1" and cell.scores in ("anchor", "newest")
            if not (same and (cell._replace(scores="batch"), split) in seen):
                self.series.append(Series(name, case, cell, split))
        self.results: list[Result] = self._read()

    def _read(self) -> list[Result]:
        path = self.to / f"{self.file}.json"
        if not path.is_file():
            return []
        try:
            figures = json.loads(path.read_text())["figures"]
            conditions, results = figures["conditions"], list(figures["runs"])
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"error: {path}: not as this benchmark writes it ({error}): remove it") from error
        if conditions != self.conditions:
            differ = ", ".join(k for k in self.conditions if conditions.get(k) != self.conditions[k])
            raise SystemExit(f"error: {path} has runs with other {differ}: move it away, or give another --to")
        return results

    def of(self, series: Series) -> list[Result]:
        return [r for r in self.results if {"cell": r["cell"], "split": r["split"]} == series.key]

    def best(self, series: Series) -> float | None:
        tried = {r["lr"]: r["loss"] for r in self.of(series) if r["seed"] == 0 and r["loss"] is not None}
        return min(tried, key=lambda lr: tried[lr]) if tried else None

    def due(self) -> list[tuple[Series, RunConfig]]:
        """What is to be run next, series by series."""
        runs = []
        for series in self.series:
            done = self.of(series)
            losses = {r["lr"]: math.inf if r["loss"] is None else r["loss"] for r in done if r["seed"] == 0}
            rates = following(series.centre, losses)
            todo = [(lr, 0) for lr in rates]
            if not rates and (lr := self.best(series)) is not None:
                seeds = {r["seed"] for r in done if r["lr"] == lr}
                todo = [(lr, seed) for seed in range(self.seeds) if seed not in seeds]
            runs += [(series, series.config(lr, seed)) for lr, seed in todo]
        return runs

    def add(self, series: Series, config: RunConfig, summary: Summary) -> None:
        if summary["status"] not in FINISHED:
            return
        last = summary["last"] if summary["status"] == "finished" else {}
        loss = last.get(self.case.metric)
        result = series.key | {"lr": config.lr, "seed": config.seed, "status": summary["status"], "loss": loss}
        result |= {"updates": summary["last"].get("updates"), "seconds": summary["last"].get("seconds")}
        self.results.append(result)
        figures = {"conditions": self.conditions, "means": means(self.results), "runs": self.results}
        record.save(self.file, list(range(self.seeds)), figures, self.to)

    def folder(self, out: Path) -> Path:
        """Of the runs; runs under other conditions have another one."""
        conditions = json.dumps(self.conditions, sort_keys=True).encode()
        return out / f"{self.file}-{hashlib.sha256(conditions).hexdigest()[:8]}"

    def run(self, out: Path, jobs: int, until: float) -> bool:
        """All runs, or as many as the time allows; returns whether all are done."""
        with batch.Pool() as pool:
            while todo := self.due():
                by_name = {config.name: (series, config) for series, config in todo}
                left = None if math.isinf(until) else max(0.0, until - time.time())
                how = {"jobs": jobs, "resume": True, "time_limit": left, "pool": pool, "console": Console()}
                summaries = batch.run_all(
                    [config for _, config in todo],
                    self.folder(out),
                    ended=lambda c, s, by=by_name: self.add(*by[c.name], s),
                    **how,
                )
                failed = [s["reason"] for s in summaries if s["status"] == "failed"]
                if failed:
                    raise SystemExit(f"error: a run could not be done: {failed[0]}")
                if any(s["status"] not in FINISHED for s in summaries):
                    return False
        return True


def table(figures: dict[str, Any]) -> list[str]:
    """Markdown: the mean loss of each split, with its step size; the lowest in bold."""
    lines = [
        "| | " + " | ".join(f"k1 : k2 = {split.replace(':', ' : ')}" for split in SPLITS) + " | |",
        "|---|---|---|---|---|",
    ]
    chosen = best_runs(figures["runs"])
    cells = list(dict.fromkeys(cell for cell, _ in chosen if cell is not None))
    for cell in cells:
        found = {split: chosen.get((cell, split)) for split in SPLITS}
        if found["0:1"] is None:  # at random, scores do not count
            found["0:1"] = next((runs for (c, s), runs in chosen.items() if s == "0:1" and c is not None
                                 and c._replace(scores="") == cell._replace(scores="")), None)  # fmt: skip
        means = {split: mean_of(runs) for split, runs in found.items()}
        lowest = min(means.values())
        texts = [number(means[s], found[s], means[s] == lowest) for s in SPLITS]
        lines.append(f"| {cell.words()} | " + " | ".join(texts) + f" | {judged(found)} |")
    dense = chosen.get((None, ""))
    if dense:
        lines.append(f"| {figures['conditions']['dense']}, for scale | {number(mean_of(dense), dense, False)} | | | |")
    return lines


def best_runs(runs: list[Result]) -> dict[tuple[Cell | None, str], list[Result]]:
    """For each split of each cell, the runs with the step size whose seed 0 was best."""
    series: dict[tuple[Cell | None, str], list[Result]] = {}
    for run in runs:
        series.setdefault((Cell(*run["cell"]) if run["cell"] else None, run["split"]), []).append(run)
    best = {}
    for key, mine in series.items():
        tried = {run["lr"]: run["loss"] for run in mine if run["seed"] == 0 and run["loss"] is not None}
        if tried:
            lr = min(tried, key=lambda lr: tried[lr])
            rates = sorted({run["lr"] for run in mine})
            edge = "low" if lr == rates[0] else "high" if lr == rates[-1] else ""
            best[key] = [{**run, "edge": edge} for run in mine if run["lr"] == lr]
    return best


def means(runs: list[Result]) -> dict[str, dict[str, list[float | None]]]:
    """The mean loss of each split of each cell, and half of its range over seeds, as the tables have them."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for (cell, split), best in best_runs(runs).items():
        shown = [plain(mean_of(best), 4), plain(spread_of(best), 2)]
        found.setdefault(cell.words() if cell else "dense", {})[split] = shown
    return found


def spread_of(runs: list[Result]) -> float:
    losses = [math.inf if run["loss"] is None else run["loss"] for run in runs]
    return (max(losses) - min(losses)) / 2


def mean_of(runs: list[Result] | None) -> float:
    return fmean(math.inf if run["loss"] is None else run["loss"] for run in runs) if runs else math.inf


def number(mean: float, runs: list[Result] | None, lowest: bool) -> str:
    if not runs or math.isinf(mean):
        return "diverged"
    spread = f" ± {spread_of(runs):.2g}" if len(runs) > 1 else ""
    edge = f", {runs[0]['edge']} edge" if runs[0]["edge"] else ""
    text = f"{mean:.4g}"
    return f"{f'**{text}**' if lowest else text}{spread} (lr {runs[0]['lr']:g}{edge})"


def judged(found: dict[str, list[Result] | None]) -> str:
    """Which split is best in every seed; none is said where seeds overlap."""
    losses = {s: [math.inf if r["loss"] is None else r["loss"] for r in runs or []] for s, runs in found.items()}
    if any(len(values) < 2 for values in losses.values()):
        return "one seed"
    for split, values in losses.items():
        if all(max(values) < min(others) for s, others in losses.items() if s != split):
            return {"0:1": "random", "1:1": "half and half", "1:0": "top"}[split]
    worst = max(losses, key=lambda s: min(losses[s]))
    if all(min(losses[worst]) > max(values) for s, values in losses.items() if s != worst):
        return {"0:1": "with top", "1:1": "not half", "1:0": "with random"}[worst]
    return "no difference between seeds"


def print_tables(to: Path) -> None:
    for path in sorted(to.glob("top_*.json")):
        figures = json.loads(path.read_text())["figures"]
        c = figures["conditions"]
        given = ", ".join(f"{k} {v}" for k, v in {**c["options"], **c["settings"]}.items())
        print(f"\n{c['task']}, {c['optimizer']}: {c['metric']} ({given}; [{path.name}])\n", *table(figures), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--small", action="store_true", help="short runs and fewer cells, for a CPU")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--time-limit", type=float, help="seconds after which no run is started")
    parser.add_argument("--table", action="store_true", help="print the tables of the files that are there")
    parser.add_argument("--out", type=Path, default=Path("runs/top"), help="folder of the runs")
    parser.add_argument("--to", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    for name in given.cases:
        if name not in CASES:
            raise SystemExit(f"error: there is no case {name!r}{nearest(name, CASES)}")
        if given.small and not CASES[name].small:
            raise SystemExit(f"error: {name} has no small form: leave out --small, or {name}")
    if not given.cases and not given.table:
        raise SystemExit(f"error: name a case ({', '.join(CASES)}), or give --table")
    until = math.inf if given.time_limit is None else time.time() + given.time_limit
    whole = True
    for name in given.cases:
        study = Study(name, CASES[name].scaled(given.small), given.seeds, given.small, given.to)
        check_runs([config for _, config in study.due()][:1])
        whole &= study.run(given.out, given.jobs, until)
        print(f"{name}: {len(study.results)} runs, {'all' if whole else 'not all'}", flush=True)
    if given.table:
        print_tables(given.to)
    raise SystemExit(0 if whole else 1)


if __name__ == "__main__":
    main()
