"""Fair tuning: every method gets the same number of trials, and the best of each runs again over seeds to a target.

Runs end at a budget of queries, or all after the same number of steps. The file is written after each run, so a tuning
that was killed goes on with what it has, also on another machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.experiments.costs import costs, rounded, target, target_at_steps
from spidersilk.lab.experiments.grid import Settings, Trial, at_edge, following, of_run, start
from spidersilk.lab.run import collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.machine import machine, revision, versions
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import Task, find

EVALUATIONS = 80  # of a final run; all are kept, so costs to a target are exact to 1/80 of the budget
AT_STEPS = 20  # the same of runs of equally many steps
SAME_START = 0.005  # by how much the losses of pretrained starts may differ that were made by the same recipe
_LOCAL = ("optimizer", "name", "label", "device", "data_dir", "eval_every", "checkpoint_every", "tensorboard")
_TUNED = ("lr", "arguments", "batch_size", "anchor_batch_size", "inner_steps", "k1", "k2", "lr_milestones",
          "inner_lr_end")  # fmt: skip
EARLIER_CONDITIONS: dict[str, Settings] = {"finetune": {"schedule": "linear"}}  # of files that do not say it
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
    steps: int = 0  # of a trial, in place of its budget
    final_steps: int = 0
    trials_of: Path | None = None  # a file whose trials serve here too, if there is none yet
    tried: dict[str, list[Trial]] = field(default_factory=dict)
    finals: dict[str, collect.Packed] = field(default_factory=dict)
    dropped: dict[str, Record] = field(default_factory=dict)
    outcomes: dict[str, Record] = field(default_factory=dict)  # of the trials of rounds that are not at their end
    start_loss: float | None = None  # of the pretrained start, if the task has one

    @property
    def known(self) -> list[str]:
        """The methods that are tuned now, and those that were tuned before."""
        return list(dict.fromkeys([*self.methods, *self.tried]))

    # The file.

    def load(self) -> None:
        """Read the trials and final runs of the file; raise ValueError if its conditions differ."""
        path = self.path if self.path.is_file() else self.trials_of
        if path is None:
            return
        saved: Record = {**read(path), **({} if path is self.path else {"runs": []})}
        if saved["conditions"] != self.conditions():
            differ = f"trials under other conditions, {saved['conditions']} and not {self.conditions()}"
            raise ValueError(f"{path} has {differ}: move it away, or give another --to")
        self.outcomes, self.start_loss = dict(saved.get("outcomes", {})), saved.get("start_loss")
        for method, record in saved["methods"].items():
            trials = [Trial(t["settings"], _number(t["loss"]), t["status"]) for t in record["trials"]]
            if not trials or trials[0].settings == start(self.base.task, method):
                self.tried[method] = trials
            else:
                self.dropped[method] = record  # of another grid: kept in the file until the method is tuned again
        self.finals = {run["name"]: run for run in saved["runs"]}
        seeds, length, steps = len(saved["seeds"]), saved["final_budget"], saved.get("final_steps", 0)
        if self.finals and seeds > self.seeds:
            raise ValueError(f"{self.path} has final runs of {seeds} seeds: give --seeds {seeds} or more")
        if self.finals and steps != self.final_steps:
            differ = f"final runs of {steps:,} steps and not {self.final_steps:,}"
            raise ValueError(f"{self.path} has {differ}: give another --name, or move it away")
        if self.finals and not steps and length != self.final_budget:
            differ = f"final runs to {length:g} N and not {self.final_budget:g} N"
            raise ValueError(f"{self.path} has {differ}: give another --name, or move it away")

    def conditions(self) -> Settings:
        """What all trials have in common."""
        length = {"steps": self.steps} if self.steps else {"budget": self.budget}
        main = {"task": self.base.task, "options": self.base.options, **length, "seed": self.base.seed}
        defaults, settings = asdict(RunConfig(self.base.task, "sgd")), asdict(self.base)
        settings["schedule"] = self.base.schedule or find(self.base.task).settings.get("schedule")
        return main | {k: v for k, v in settings.items() if v != defaults[k] and k not in {*main, *_LOCAL}}

    def folder(self, out: Path) -> Path:
        """The folder of the runs; runs under other conditions have another one."""
        final = self.final_steps or self.final_budget
        conditions = json.dumps([self.conditions(), final], sort_keys=True)
        return out / f"{self.path.stem}-{hashlib.sha256(conditions.encode()).hexdigest()[:8]}"

    def save(self, command: str) -> None:
        curves, metric, goal = {m: self.curves(m) for m in self.known}, self.metric, self.target()
        costly = costs(curves, metric, goal, self.seeds)
        unchanged = {method: record for method, record in self.dropped.items() if method not in self.tried}
        methods = unchanged | {m: self._record(m) | costly.get(m, {}) for m in self.tried}
        record = {
            "command": command,
            "conditions": self.conditions(),
            "trials": self.trials,
            "final_budget": self.final_budget,
            "seeds": list(range(1, self.seeds + 1)),
            "target": rounded(goal),
            "metric": metric,
            **({"final_steps": self.final_steps} if self.steps else {}),
            **({"outcomes": self.outcomes} if self.outcomes else {}),
            **({"start_loss": self.start_loss} if self.start_loss is not None else {}),
            "versions": {**versions(), "revision": revision()},
            "machine": machine(team().device(self.base.device)),
            "methods": methods,
        }
        current = {c.name for c in self.final_runs(self.known)}  # without runs of settings that are no longer the best
        current |= {name for name in self.finals if self._method_of(name) in unchanged}
        runs = ",\n".join(json.dumps(self.finals[name]) for name in sorted(current & self.finals.keys()))
        text = json.dumps(record, indent=1)[:-2] + f',\n "runs": [\n{runs}\n]\n}}\n'
        new, old = json.loads(text), json.loads(self.path.read_text()) if self.path.is_file() else {}
        if all(new.get(key) == old.get(key) for key in {*new, *old} - {"command", "versions", "machine"}):
            return  # nothing changed: keep the original provenance
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text.encode())

    def _record(self, method: str) -> Record:
        tried, best = self.tried[method], self.best(method)
        return {
            "trials": [{"settings": t.settings, "loss": rounded(t.loss), "status": t.status} for t in tried],
            "best": None if best is None else best.settings,
            "loss": None if best is None else rounded(best.loss),
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
            trials += [(method, s, self._config(method, s, False, self.base.seed)) for s in new]
        return trials

    def final_runs(self, methods: Iterable[str]) -> list[RunConfig]:
        """Each method's best settings, once for each seed; the trials had seed 0, so these start at 1."""
        seeds = range(self.base.seed + 1, self.base.seed + self.seeds + 1)
        bests = [(method, best.settings) for method in methods if (best := self.best(method)) is not None]
        return [self._config(*best, True, seed) for seed in seeds for best in bests]

    def _config(self, method: str, settings: Settings, final: bool, seed: int) -> RunConfig:
        budget, steps = (self.final_budget, self.final_steps) if final else (self.budget, self.steps)
        run = {"optimizer": method, **of_run(settings, self.final_budget)}
        words = "-".join(f"{k}{v:.6g}" if isinstance(v, float) else f"{k}{v}" for k, v in sorted(settings.items()))
        length = f"{steps}steps" if steps else f"{budget:g}"
        run |= {"name": re.sub(r"[^\w.+-]", "", f"{method}-{words}-to{length}-seed{seed}"), "seed": seed}
        run |= {"label": f"{method}, lr {settings['lr']:.3g}", "checkpoint_every": 1e9}
        if steps:
            run |= {"steps": steps, "evaluations": AT_STEPS if final else 1, "checkpoint_every": 60.0}
        else:
            run |= {"budget": budget, "eval_every": budget / (EVALUATIONS if final else 1)}
        return replace(self.base, **run)

    # Final runs.

    def curves(self, method: str) -> list[Curve]:
        """The final runs of a method with its best settings."""
        wanted = self.final_runs([method])
        return [collect.unpack(self.finals[c.name]) for c in wanted if collect.is_done(c, self.finals)]

    @property
    def metric(self) -> str:
        return find(self.base.task).judged_by

    def target(self) -> float:
        curves = {method: self.curves(method) for method in self.known}
        return (target_at_steps if self.steps else target)(curves, self.metric, self.seeds)

    # Runs that have ended.

    def add_trial(self, config: RunConfig, summary: Summary, curve: Curve) -> None:
        """Keep what a trial came to."""
        if find(self.base.task).start is not Task.start:
            self._check_start(curve.rows[0].get(self.metric))
        last = summary["last"] if summary["status"] == "finished" else {}
        loss = rounded(last.get(self.metric, math.inf))  # as in the file
        self.outcomes[config.name] = {"loss": loss, "status": summary["status"]}

    def add_final(self, curve: Curve) -> None:
        self.finals[curve.config["name"]] = collect.pack(curve, 2 * EVALUATIONS)

    def _check_start(self, loss: float | None) -> None:
        """Refuse trials from another start: one that was made anew on another machine differs a little."""
        if self.start_loss is None:
            self.start_loss = None if loss is None else rounded(loss)
        elif loss is not None and abs(loss - self.start_loss) > SAME_START:
            differ = f"trials from a start of loss {self.start_loss:.4f}, and here it is {loss:.4f}"
            raise ValueError(f"{self.path} has {differ}: give another --name")

    def end_round(self, trials: list[tuple[str, Settings, RunConfig]]) -> bool:
        """Add a round of trials to those that were tried, if all of them came to an end."""
        if any(config.name not in self.outcomes for *_, config in trials):
            return False
        for method, settings, config in trials:
            ended = self.outcomes.pop(config.name)
            self.tried.setdefault(method, []).append(Trial(settings, _number(ended["loss"]), ended["status"]))
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
            trials = [(t["settings"]["lr"], t["status"]) for t in record["trials"]]
            if not all(isinstance(lr, float) and isinstance(status, str) for lr, status in trials):
                raise TypeError(f"the trials of {method} have no step size or status")
            if _number(record["loss"]) != min(losses, default=math.inf):
                raise ValueError(f"the lowest loss of {method} is not that of its trials")
        for run in saved["runs"]:
            collect.check(run)
        earlier = EARLIER_CONDITIONS.get(saved["conditions"].get("task", ""), {})
        return saved | {"conditions": earlier | saved["conditions"]}


def check_settings(base: RunConfig) -> None:
    """Refuse a fixed value for a setting that is tuned."""
    defaults = RunConfig(base.task, "sgd")
    if base.steps is not None:
        raise ValueError(f"steps = {base.steps} cannot be set here: give --steps {base.steps}")
    for name in _TUNED:
        if getattr(base, name) != getattr(defaults, name):
            raise ValueError(f"{name} is among what is tuned: it cannot be set (`spidersilk run` takes it)")


def default_name(config: RunConfig) -> str:
    """tune_<task>_<options that are words>."""
    return "_".join(["tune", config.task, *(v for v in config.options.values() if isinstance(v, str))])


def _number(value: float | None) -> float:
    return math.inf if value is None else value
