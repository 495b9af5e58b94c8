"""Fair tuning: every method gets the same number of trials, and the best of each runs again over seeds to a target."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from spidersilk.lab.experiments.grid import METHODS, PLAIN, Settings, Trial, at_edge, following, of_run, start
from spidersilk.lab.report import collect
from spidersilk.lab.report import html as report
from spidersilk.lab.report.figures import Curve
from spidersilk.lab.run import batch
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.machine import machine, revision, versions
from spidersilk.lab.run.runner import FINISHED, write_atomically
from spidersilk.lab.tasks import find

LOOKS = 80  # evaluations of a final run; all of them are kept, so that costs to a target are as exact
_PLACES = ("optimizer", "name", "label", "device", "data_dir", "eval_every", "checkpoint_every", "tensorboard")
_TUNED = ("lr", "batch_size", "anchor_batch_size", "inner_steps", "k1", "k2", "lr_milestones", "inner_lr_end")


@dataclass
class Tuning:
    """What is to be tuned, and what is known so far; `save` writes it, `load` goes on with it."""

    base: RunConfig
    methods: list[str]
    trials: int
    budget: float
    final_budget: float
    seeds: int
    path: Path
    tried: dict[str, list[Trial]] = field(default_factory=dict)
    finals: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def known(self) -> list[str]:
        """The methods asked for, and those of earlier pieces."""
        return list(dict.fromkeys([*self.methods, *self.tried]))

    def load(self) -> None:
        """Take over the trials and final runs of an earlier piece, where they were made under the same conditions."""
        if not self.path.is_file():
            return
        held = json.loads(self.path.read_text())
        if held["conditions"] != self.conditions():
            raise ValueError(
                f"{self.path} has trials under other conditions, {held['conditions']} and not {self.conditions()}: "
                "move it away, or give another --to"
            )
        for method, told in held["methods"].items():
            trials = [Trial(t["settings"], _number(t["loss"]), t["status"]) for t in told["trials"]]
            if not trials or trials[0].settings == start(self.base.task, method):
                self.tried[method] = trials
            else:
                self.dropped[method] = told  # its trials are of another grid: kept in the file till it is tuned anew
        self.finals = {run["name"]: run for run in held["runs"]}
        if len(held["seeds"]) > self.seeds and self.finals:
            many = len(held["seeds"])
            raise ValueError(f"{self.path} has final runs of {many} seeds: give --seeds {many} or more")
        if held["final_budget"] != self.final_budget and self.finals:
            raise ValueError(
                f"{self.path} has final runs to {held['final_budget']:g} N and not {self.final_budget:g} N: "
                "give another --name, or move it away"
            )

    def conditions(self) -> dict[str, Any]:
        own = {"task": self.base.task, "options": self.base.options, "budget": self.budget, "seed": self.base.seed}
        usual, given = asdict(RunConfig(self.base.task, "sgd")), asdict(self.base)
        return own | {k: v for k, v in given.items() if v != usual[k] and k not in {*own, *_PLACES}}

    def folder(self, out: Path) -> Path:
        """Of the runs: not one where runs of the same names lie that were made under other conditions."""
        told = json.dumps([self.conditions(), self.final_budget], sort_keys=True)
        return out / f"{self.path.stem}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def save(self, command: str) -> None:
        table = self.results()
        methods = {method: told for method, told in self.dropped.items() if method not in self.tried}
        for method, tried in self.tried.items():
            best = self.best(method)
            methods[method] = {
                "trials": [{"settings": t.settings, "loss": _finite(t.loss), "status": t.status} for t in tried],
                "best": None if best is None else best.settings,
                "loss": None if best is None else _finite(best.loss),
                "edge": at_edge(tried) if tried else "",
                **table.get(method, {}),
            }
        device = torch.device("cuda" if torch.cuda.is_available() and self.base.device != "cpu" else "cpu")
        record = {
            "command": command,
            "conditions": self.conditions(),
            "trials": self.trials,
            "final_budget": self.final_budget,
            "seeds": list(range(1, self.seeds + 1)),
            "target": _finite(self.target()),
            "metric": self.metric(),
            "versions": {**versions(), "revision": revision()},
            "machine": machine(device),
            "methods": methods,
        }
        current = {c.name for c in self.final_runs(self.known)}  # others are of settings that are no longer the best
        current |= {name for name in self.finals if self._method_of(name) in self.dropped.keys() - self.tried.keys()}
        runs = ",\n".join(json.dumps(self.finals[name]) for name in sorted(current & self.finals.keys()))
        text = json.dumps(record, indent=1)[:-2] + f',\n "runs": [\n{runs}\n]\n}}\n'
        if self.path.is_file() and _same_figures(json.loads(self.path.read_text()), json.loads(text)):
            return  # who looks again has not made it
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text.encode())

    def _method_of(self, name: str) -> str:
        """Of a run with this name, which begins with it."""
        named = [m for m in {*self.known, *self.dropped} if name.startswith(f"{m}-")]
        return max(named, key=len, default="")

    # Trials.

    def best(self, method: str) -> Trial | None:
        tried = self.tried.get(method, [])
        best = min(tried, key=lambda t: t.loss, default=None)
        return best if best is not None and math.isfinite(best.loss) else None

    def next_round(self) -> list[tuple[str, Settings, RunConfig]]:
        """The trials of every method's next round."""
        made = []
        for method in self.methods:
            new = following(self.base.task, method, self.tried.get(method, []), self.trials)
            made += [(method, s, self._config(method, s, self.budget, self.base.seed)) for s in new]
        return made

    def _config(self, method: str, settings: Settings, budget: float, seed: int, looks: int = 1) -> RunConfig:
        own = {"optimizer": method, **of_run(settings, self.final_budget)}
        if find(self.base.task).settings.get("inner_lr_end") is not None:
            own["inner_lr_end"] = settings["lr"]  # no line of step sizes inside a loop
        told = "-".join(f"{k}{v:.6g}" if isinstance(v, float) else f"{k}{v}" for k, v in sorted(settings.items()))
        name = re.sub(r"[^\w.+-]", "", f"{method}-{told}-to{budget:g}-seed{seed}")
        label = f"{method}, lr {settings['lr']:.3g}"
        return replace(
            self.base, **own, name=name, budget=budget, seed=seed, eval_every=budget / looks, label=label,
            checkpoint_every=1e9,
        )  # fmt: skip

    # The best of each, over seeds.

    def final_runs(self, methods: Iterable[str]) -> list[RunConfig]:
        """Every method's best settings for each seed; seeds from 1, as the trials had 0."""
        made = []
        for seed in range(1, self.seeds + 1):
            for method in methods:
                best = self.best(method)
                if best is not None:
                    own = best.settings, self.final_budget, self.base.seed + seed
                    made.append(self._config(method, *own, looks=LOOKS))
        return made

    def curves(self, method: str) -> list[Curve]:
        wanted = self.final_runs([method])
        return [collect.unpack(self.finals[c.name]) for c in wanted if collect.is_done(c, self.finals)]

    def metric(self) -> str:
        return report.metric_of([c for method in self.known for c in self.curves(method)])

    def target(self) -> float:
        """The lowest loss that every seed of a plain method reached: of the one where that is lowest."""
        metric = self.metric()
        worst = [
            max(_lowest(curve, metric) for curve in curves)
            for curves in (self.curves(m) for m in self.known if m in PLAIN)
            if len(curves) == self.seeds
        ]
        return min(worst, default=math.inf)

    def results(self) -> dict[str, dict[str, Any]]:
        """Medians over seeds of queries and seconds to the target, and their ratios to the best plain method's."""
        target, metric = self.target(), self.metric()
        told: dict[str, dict[str, Any]] = {}
        for method in self.known:
            curves = self.curves(method)
            if not curves:
                continue
            known = math.isfinite(target)  # not before one plain method has all its seeds
            costs = [report.cost_to_target(c, metric, target) if known else None for c in curves]
            medians = [statistics.median(math.inf if c is None else c[i] for c in costs) for i in (0, 1)]
            told[method] = {
                "queries": medians[0],
                "seconds": medians[1],
                "each": [None if c is None else [round(c[0], 4), round(c[1], 3)] for c in costs],
                "lowest": [_finite(_lowest(c, metric)) for c in curves],
                "diverged": sum(c.status == "diverged" for c in curves),
            }
        for unit in ("queries", "seconds"):
            whole = [m for m in PLAIN if m in told and len(told[m]["each"]) == self.seeds]
            base = min((told[m][unit] for m in whole), default=math.inf)
            for cells in told.values():
                cells[f"{unit}_ratio"] = _finite(cells[unit] / base if 0 < base < math.inf else math.inf)
                cells[unit] = _finite(cells[unit])
        return told

    # What is printed.

    def tables(self) -> Iterable[Table]:
        shown = Table(
            "method", "trials", "best settings", "loss", "edge of what was tried", title=f"at {self.budget:g} N"
        )
        for method in self.known:
            tried, best = self.tried.get(method, []), self.best(method)
            text = (
                ""
                if best is None
                else ", ".join(f"{k} {v:.3g}" if k == "lr" else f"{k} {v}" for k, v in best.settings.items())
            )
            loss = "diverged" if best is None and tried else "" if best is None else f"{best.loss:.4g}"
            shown.add_row(method, str(len(tried)), text, loss, at_edge(tried) if tried else "")
        yield shown
        results = self.results()
        if not results:
            return
        title = f"cost to {report.words(self.metric())} {self.target():.4g}, medians of {self.seeds} seeds"
        if math.isinf(self.target()):
            title = "no target yet: no plain method has all its seeds"
        shown = Table("method", "queries / N", "ratio", "seconds", "ratio", "lowest", title=title)
        for method, told in results.items():
            cells = [f"{told[k]:.3g}" if told[k] is not None else "not reached" if k == "queries" else ""
                     for k in ("queries", "queries_ratio", "seconds", "seconds_ratio")]  # fmt: skip
            lowest = [x for x in told["lowest"] if x is not None]
            shown.add_row(method, *cells, f"{statistics.median(lowest):.4g}" if lowest else "")
        yield shown


def tune(
    tuning: Tuning, folder: Path, console: Console, *, jobs: int, resume: bool, command: str, time_limit: float | None
) -> bool:
    """All trials, round by round, then the final runs; whether everything was done before the time was over."""
    if resume:
        tuning.load()
        if tuning.dropped:
            console.print(f"trials of another grid, made anew: {', '.join(tuning.dropped)}")
    elif tuning.path.is_file():
        raise ValueError(f"{tuning.path} is there already: give --resume to go on with it, or another --to")
    with batch.Pool() as pool:
        return _tune(tuning, folder, console, jobs, command, time_limit, pool)


def _tune(
    tuning: Tuning, folder: Path, console: Console, jobs: int, command: str, time_limit: float | None, pool: batch.Pool
) -> bool:
    until = math.inf if time_limit is None else time.time() + time_limit

    def do(configs: list[RunConfig], told: str) -> list[dict[str, Any]]:
        console.print(f"{told}: {len(configs)} runs")
        left = None if time_limit is None else max(0.0, until - time.time())
        limits: dict[str, Any] = {"time_limit": left, "pool": pool}
        return batch.run_all(configs, folder, jobs=jobs, resume=True, console=console, **limits)

    number = 1
    while todo := tuning.next_round():
        summaries = do([config for *_, config in todo], f"round {number}")
        failed = [s["reason"] for s in summaries if s["status"] == "failed"]
        if failed:
            raise ValueError(f"a trial could not be run: {failed[0]}")
        if any(s["status"] not in FINISHED for s in summaries):
            return _end(tuning, console, command, whole=False)
        for (method, settings, _), summary in zip(todo, summaries, strict=True):
            last = summary["last"] if summary["status"] == "finished" else {}
            loss = last.get("gap", last.get("train_loss", math.inf))  # near the optimum losses look alike
            trial = Trial(settings, _number(_finite(loss)), summary["status"])  # as it is in the file
            tuning.tried.setdefault(method, []).append(trial)
        tuning.save(command)
        number += 1
    todo = [c for c in tuning.final_runs(tuning.methods) if not collect.is_done(c, tuning.finals)]
    summaries = do(todo, "the best of each") if todo else []
    for config, summary in zip(todo, summaries, strict=True):
        if summary["status"] in FINISHED:
            packed = collect.pack(report.load_run(folder / config.name), 2 * LOOKS)
            tuning.finals[packed["name"]] = packed
    return _end(tuning, console, command, all(s["status"] in FINISHED for s in summaries))


def _end(tuning: Tuning, console: Console, command: str, whole: bool) -> bool:
    tuning.save(command)
    for table in tuning.tables():
        console.print(table)
    edges = [f"{m} ({at_edge(t)})" for m, t in tuning.tried.items() if t and at_edge(t)]
    if edges:
        console.print(
            f"the best step size is at the edge of what was tried: {', '.join(edges)}; more --trials would tell"
        )
    console.print(f"{'all' if whole else 'not all'} runs were done; {tuning.path}")
    return whole


def check_settings(base: RunConfig) -> None:
    """Refuse to fix what is to be tuned."""
    usual = RunConfig(base.task, "sgd")
    for name in _TUNED:
        if getattr(base, name) != getattr(usual, name):
            raise ValueError(f"{name} is among what is tuned: it cannot be set (`spidersilk run` takes it)")


def default_name(config: RunConfig) -> str:
    """tune_<task>_<options that are words>."""
    words = [str(v) for v in config.options.values() if isinstance(v, str)]
    return "_".join(["tune", config.task, *words]) + ".json"


def methods_of(text: str) -> list[str]:
    return list(METHODS) if not text else [name.strip() for name in text.split(",")]


def _lowest(curve: Curve, metric: str) -> float:
    values = [row[metric] for row in curve.rows if metric in row]
    return min(values, default=math.inf) if curve.status == "finished" else math.inf


def _same_figures(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two files differ in nothing but who made them."""
    own = ("command", "versions", "machine")
    return {k: v for k, v in a.items() if k not in own} == {k: v for k, v in b.items() if k not in own}


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else value
