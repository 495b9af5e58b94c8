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

from rich.console import Console

from spidersilk.lab.experiments.grid import PLAIN, Settings, Trial, at_edge, following, of_run, start
from spidersilk.lab.run import batch, collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve, load_run, metric_of
from spidersilk.lab.run.folder import FINISHED, Summary, write_atomically
from spidersilk.lab.run.machine import machine, revision, versions
from spidersilk.lab.run.team import team

EVALUATIONS = 80  # of a final run; all are kept, so costs to a target are exact to 1/80 of the budget
_LOCAL = ("optimizer", "name", "label", "device", "data_dir", "eval_every", "checkpoint_every", "tensorboard")
_TUNED = ("lr", "batch_size", "anchor_batch_size", "inner_steps", "k1", "k2", "lr_milestones", "inner_lr_end")
Record = dict[str, Any]
"""What results/tune/tune_*.json holds of a tuning, or of one of its methods."""


@dataclass
class Tuning:
    """What is tuned, and the trials and final runs so far. `save` writes it, `load` reads it to go on."""

    base: RunConfig
    methods: list[str]
    trials: int
    budget: float
    final_budget: float
    seeds: int
    path: Path
    tried: dict[str, list[Trial]] = field(default_factory=dict)
    finals: dict[str, collect.Packed] = field(default_factory=dict)
    dropped: dict[str, Record] = field(default_factory=dict)

    @property
    def known(self) -> list[str]:
        """The methods that are tuned now, and those that were tuned before."""
        return list(dict.fromkeys([*self.methods, *self.tried]))

    # The file.

    def load(self) -> None:
        """Read the trials and final runs of the file; raise ValueError if its conditions differ."""
        if not self.path.is_file():
            return
        saved = read(self.path)
        if saved["conditions"] != self.conditions():
            differ = f"trials under other conditions, {saved['conditions']} and not {self.conditions()}"
            raise ValueError(f"{self.path} has {differ}: move it away, or give another --to")
        for method, record in saved["methods"].items():
            trials = [Trial(t["settings"], _number(t["loss"]), t["status"]) for t in record["trials"]]
            if not trials or trials[0].settings == start(self.base.task, method):
                self.tried[method] = trials
            else:
                self.dropped[method] = record  # of another grid: kept in the file until the method is tuned again
        self.finals = {run["name"]: run for run in saved["runs"]}
        seeds, length = len(saved["seeds"]), saved["final_budget"]
        if self.finals and seeds > self.seeds:
            raise ValueError(f"{self.path} has final runs of {seeds} seeds: give --seeds {seeds} or more")
        if self.finals and length != self.final_budget:
            differ = f"final runs to {length:g} N and not {self.final_budget:g} N"
            raise ValueError(f"{self.path} has {differ}: give another --name, or move it away")

    def conditions(self) -> Settings:
        """What all trials have in common."""
        main = {"task": self.base.task, "options": self.base.options, "budget": self.budget, "seed": self.base.seed}
        defaults, settings = asdict(RunConfig(self.base.task, "sgd")), asdict(self.base)
        return main | {k: v for k, v in settings.items() if v != defaults[k] and k not in {*main, *_LOCAL}}

    def folder(self, out: Path) -> Path:
        """The folder of the runs; runs under other conditions have another one."""
        conditions = json.dumps([self.conditions(), self.final_budget], sort_keys=True)
        return out / f"{self.path.stem}-{hashlib.sha256(conditions.encode()).hexdigest()[:8]}"

    def save(self, command: str) -> None:
        costs = self.costs()
        unchanged = {method: record for method, record in self.dropped.items() if method not in self.tried}
        methods = unchanged | {m: self._record(m) | costs.get(m, {}) for m in self.tried}
        record = {
            "command": command,
            "conditions": self.conditions(),
            "trials": self.trials,
            "final_budget": self.final_budget,
            "seeds": list(range(1, self.seeds + 1)),
            "target": _rounded(self.target()),
            "metric": self.metric(),
            "versions": {**versions(), "revision": revision()},
            "machine": machine(team().device(self.base.device)),
            "methods": methods,
        }
        current = {c.name for c in self.final_runs(self.known)}  # without runs of settings that are no longer the best
        current |= {name for name in self.finals if self._method_of(name) in unchanged}
        runs = ",\n".join(json.dumps(self.finals[name]) for name in sorted(current & self.finals.keys()))
        text = json.dumps(record, indent=1)[:-2] + f',\n "runs": [\n{runs}\n]\n}}\n'
        new, old = json.loads(text), json.loads(self.path.read_text()) if self.path.is_file() else {}
        if all(new[key] == old.get(key) for key in new if key not in ("command", "versions", "machine")):
            return  # nothing changed: keep the original provenance
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text.encode())

    def _record(self, method: str) -> Record:
        tried, best = self.tried[method], self.best(method)
        return {
            "trials": [{"settings": t.settings, "loss": _rounded(t.loss), "status": t.status} for t in tried],
            "best": None if best is None else best.settings,
            "loss": None if best is None else _rounded(best.loss),
            "edge": at_edge(tried) if tried else "",
        }

    def _method_of(self, run: str) -> str:
        """The method of a run: the longest name with which the run's name begins."""
        return max((m for m in {*self.known, *self.dropped} if run.startswith(f"{m}-")), key=len, default="")

    # The plan.

    def best(self, method: str) -> Trial | None:
        best = min(self.tried.get(method, []), key=lambda t: t.loss, default=None)
        return best if best is not None and math.isfinite(best.loss) else None

    def next_round(self) -> list[tuple[str, Settings, RunConfig]]:
        """The trials of every method's next round."""
        trials = []
        for method in self.methods:
            new = following(self.base.task, method, self.tried.get(method, []), self.trials)
            trials += [(method, s, self._config(method, s, self.budget, self.base.seed)) for s in new]
        return trials

    def final_runs(self, methods: Iterable[str]) -> list[RunConfig]:
        """Each method's best settings, once for each seed; the trials had seed 0, so these start at 1."""
        seeds = range(self.base.seed + 1, self.base.seed + self.seeds + 1)
        bests = [(method, best.settings) for method in methods if (best := self.best(method)) is not None]
        return [self._config(*best, self.final_budget, seed, EVALUATIONS) for seed in seeds for best in bests]

    def _config(self, method: str, settings: Settings, budget: float, seed: int, evaluations: int = 1) -> RunConfig:
        run = {"optimizer": method, **of_run(settings, self.final_budget)}
        words = "-".join(f"{k}{v:.6g}" if isinstance(v, float) else f"{k}{v}" for k, v in sorted(settings.items()))
        run |= {"name": re.sub(r"[^\w.+-]", "", f"{method}-{words}-to{budget:g}-seed{seed}"), "seed": seed}
        run |= {"label": f"{method}, lr {settings['lr']:.3g}", "checkpoint_every": 1e9}
        return replace(self.base, **run, budget=budget, eval_every=budget / evaluations)

    # Costs to the target.

    def curves(self, method: str) -> list[Curve]:
        """The final runs of a method with its best settings."""
        wanted = self.final_runs([method])
        return [collect.unpack(self.finals[c.name]) for c in wanted if collect.is_done(c, self.finals)]

    def metric(self) -> str:
        return metric_of(c for method in self.known for c in self.curves(method))

    def target(self) -> float:
        """The lowest loss that every seed of a plain method reached: of the method where that is lowest."""
        metric = self.metric()
        plain = [self.curves(method) for method in self.known if method in PLAIN]
        worst = [max(_lowest(c, metric) for c in curves) for curves in plain if len(curves) == self.seeds]
        return min(worst, default=math.inf)

    def costs(self) -> dict[str, Record]:
        """Medians over seeds of queries and seconds to the target, and their ratios to the best plain method's."""
        target, metric = self.target(), self.metric()
        records: dict[str, Record] = {}
        for method, curves in ((method, self.curves(method)) for method in self.known):
            if not curves:
                continue
            known = math.isfinite(target)  # not before one plain method has all its seeds
            costs = [c.cost(metric, target) if known else None for c in curves]
            medians = [statistics.median(math.inf if c is None else c[i] for c in costs) for i in (0, 1)]
            records[method] = {
                "queries": medians[0],
                "seconds": medians[1],
                "each": [None if c is None else [round(c[0], 4), round(c[1], 3)] for c in costs],
                "lowest": [_rounded(_lowest(c, metric)) for c in curves],
                "diverged": sum(c.status == "diverged" for c in curves),
            }
        whole = [records[m] for m in PLAIN if m in records and len(records[m]["each"]) == self.seeds]
        for unit in ("queries", "seconds"):
            base = min((record[unit] for record in whole), default=math.inf)
            for record in records.values():
                record[f"{unit}_ratio"] = _rounded(record[unit] / base if 0 < base < math.inf else math.inf)
        return {m: r | {unit: _rounded(r[unit]) for unit in ("queries", "seconds")} for m, r in records.items()}


def tune(
    tuning: Tuning, folder: Path, console: Console, *, jobs: int, resume: bool, command: str, time_limit: float | None
) -> bool:
    """All trials, round by round, then the final runs; returns whether all were done within the time limit."""
    if resume:
        tuning.load()
        if tuning.dropped:
            console.print(f"trials of another grid, to be repeated: {', '.join(tuning.dropped)}")
    elif tuning.path.is_file():
        raise ValueError(f"{tuning.path} is there already: give --resume to go on with it, or another --to")
    until = None if time_limit is None else time.time() + time_limit
    with batch.Pool() as pool:

        def do(configs: list[RunConfig], title: str) -> list[Summary]:
            console.print(f"{title}: {len(configs)} runs")
            left = None if until is None else max(0.0, until - time.time())
            return batch.run_all(configs, folder, jobs=jobs, resume=True, console=console, time_limit=left, pool=pool)

        number = 1
        while trials := tuning.next_round():
            whole = _add_trials(tuning, trials, do([config for *_, config in trials], f"round {number}"))
            tuning.save(command)
            if not whole:
                return False
            number += 1
        todo = [c for c in tuning.final_runs(tuning.methods) if not collect.is_done(c, tuning.finals)]
        summaries = do(todo, "the best of each") if todo else []
    done = [c for c, summary in zip(todo, summaries, strict=True) if summary["status"] in FINISHED]
    tuning.finals |= {c.name: collect.pack(load_run(folder / c.name), 2 * EVALUATIONS) for c in done}
    tuning.save(command)
    return len(done) == len(todo)


def _add_trials(tuning: Tuning, trials: list[tuple[str, Settings, RunConfig]], summaries: list[Summary]) -> bool:
    """Add a round of trials, if all of its runs came to an end."""
    failed = [s["reason"] for s in summaries if s["status"] == "failed"]
    if failed:
        raise ValueError(f"a trial could not be run: {failed[0]}")
    if any(s["status"] not in FINISHED for s in summaries):
        return False
    for (method, settings, _), summary in zip(trials, summaries, strict=True):
        last = summary["last"] if summary["status"] == "finished" else {}
        loss = last.get("gap", last.get("train_loss", math.inf))  # near the optimum, losses differ too little
        trial = Trial(settings, _number(_rounded(loss)), summary["status"])  # rounded as in the file
        tuning.tried.setdefault(method, []).append(trial)
    return True


def read(path: Path) -> Record:
    """The record in a file that `Tuning.save` wrote; ValueError if it is not as it was written."""
    with collect.reading(path, "a tuning"):
        saved = json.loads(path.read_bytes())
        for name, kind in {"conditions": dict, "final_budget": (int, float), "seeds": list, "methods": dict}.items():
            if not isinstance(saved[name], kind):
                raise TypeError(f"{name} = {saved[name]!r}")
        for method, record in saved["methods"].items():
            losses = [_number(trial["loss"]) for trial in record["trials"]]
            if not all(
                isinstance(t["settings"]["lr"], float) and isinstance(t["status"], str) for t in record["trials"]
            ):
                raise TypeError(f"the trials of {method} have no step size or status")
            if _number(record["loss"]) != min(losses, default=math.inf):
                raise ValueError(f"the lowest loss of {method} is not that of its trials")
        for run in saved["runs"]:
            collect.check(run)
        return saved


def check_settings(base: RunConfig) -> None:
    """Refuse a fixed value for a setting that is tuned."""
    defaults = RunConfig(base.task, "sgd")
    if base.steps is not None:
        raise ValueError(f"steps = {base.steps} has no effect here: --budget and --final-budget end the runs")
    for name in _TUNED:
        if getattr(base, name) != getattr(defaults, name):
            raise ValueError(f"{name} is among what is tuned: it cannot be set (`spidersilk run` takes it)")


def default_name(config: RunConfig) -> str:
    """tune_<task>_<options that are words>."""
    return "_".join(["tune", config.task, *(v for v in config.options.values() if isinstance(v, str))])


def _lowest(curve: Curve, metric: str) -> float:
    return _number(curve.lowest(metric)) if curve.status == "finished" else math.inf


def _rounded(value: float) -> float | None:
    return collect.plain(value, 6)


def _number(value: float | None) -> float:
    return math.inf if value is None else value
