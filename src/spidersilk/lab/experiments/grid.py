"""What `spidersilk tune` tries: step sizes around a centre, then a few other settings, the same number for each method.

The centres are step sizes that did well in earlier runs of the task. The rounds, for any method:

1. the centre, a quarter of it and four times it;
2. where the best so far is the largest or the smallest step tried, two and four times further out, else half and twice;
3. the method's own variants at the best step size: batch size for torch's optimizers (for logistic regression a
   step size that falls by 1 / (1 + epoch) too), loop length, density or form for the others;
4. the best of all with its step size halved and doubled, then by 1.4, then by 1.2, where that was not tried.

A trial is a dictionary of a run's settings (`RunConfig`); "optimizer" may be among them, for a form of a method, and
"decay" for the falling step size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from spidersilk.lab.run.config import RunConfig

PLAIN = ("sgd", "momentum", "adamw")
METHODS = (*PLAIN, "svrg", "spiderboost", "sparse-spiderboost", "sparse-svrg", "sparse-sgd", "sparse-adamw")
CENTRES: dict[str, dict[str, float]] = {
    "image": {"sgd": 0.1, "momentum": 0.02, "adamw": 0.001, "svrg": 0.1, "spiderboost": 0.1,
              "sparse-spiderboost": 0.02, "sparse-svrg": 0.1, "sparse-sgd": 0.1, "sparse-adamw": 0.001},
    "language": {"sgd": 1.0, "momentum": 0.2, "adamw": 0.001, "svrg": 0.5, "spiderboost": 0.5,
                 "sparse-spiderboost": 0.5, "sparse-svrg": 0.5, "sparse-sgd": 1.0, "sparse-adamw": 0.001},
    "ranking": {"sgd": 10.0, "momentum": 1.0, "adamw": 0.01, "svrg": 10.0, "spiderboost": 5.0,
                "sparse-spiderboost": 5.0, "sparse-svrg": 5.0, "sparse-sgd": 10.0, "sparse-adamw": 0.01},
    "logistic": {"sgd": 4.0, "momentum": 0.5, "adamw": 0.01, "svrg": 4.0, "spiderboost": 4.0,
                 "sparse-spiderboost": 1.0, "sparse-svrg": 8.0, "sparse-sgd": 4.0, "sparse-adamw": 0.01},
}  # fmt: skip
# Loop lengths to begin with, where they are not the task's own.
LOOPS: dict[str, dict[str, int | str]] = {
    "image": {"sparse-svrg": "auto", "sparse-sgd": 50, "sparse-adamw": 50},
    "language": {"sparse-svrg": "auto", "sparse-sgd": 20, "sparse-adamw": 20},
    "ranking": {"sparse-svrg": "auto", "sparse-sgd": 50, "sparse-adamw": 50},
    "logistic": {"sparse-sgd": 50, "sparse-adamw": 50},
}
FRESH = ("sparse-sgd", "sparse-adamw")  # v is no difference, so that a large anchor buys nothing but a better choice
FIRST, SECOND, VARIANTS = 3, 2, 3  # trials in each of the first three rounds
Settings = dict[str, Any]


@dataclass
class Trial:
    """A setting that was tried, and what came of it: training loss at the budget, infinite if it diverged."""

    settings: Settings
    loss: float = math.inf
    status: str = ""

    @property
    def lr(self) -> float:
        return self.settings["lr"]


def start(task: str, method: str) -> Settings:
    """The settings at the centre; a task or method that is not known starts from the task's own step size."""
    own = RunConfig(task, method).completed().lr
    centre = CENTRES.get(task, {}).get(method, own if own is not None else 0.1)
    loops = LOOPS.get(task, {}).get(method)
    made: Settings = {"lr": centre} if loops is None else {"lr": centre, "inner_steps": loops}
    if method in FRESH:
        made["anchor_batch_size"] = RunConfig(task, method).completed().batch_size
    return made


def variants(task: str, method: str) -> list[Settings]:
    """What else than the step size is tried for a method."""
    made = replace(RunConfig(task, method), **start(task, method)).completed()
    b = made.batch_size or 1
    m = made.inner_steps if isinstance(made.inner_steps, int) else None
    if method in PLAIN and task == "logistic":  # a fixed step ends at the noise of the gradient, far above 1e-5
        return [{"decay": True}, {"decay": True, "lr_factor": 4.0}, {"batch_size": 4 * b}]
    if method in PLAIN:
        return [{"batch_size": max(1, b // 2)}, {"batch_size": max(1, b // 4)}, {"batch_size": 2 * b}]
    halved: Settings = {"batch_size": max(1, b // 2), **({} if m is None else {"inner_steps": 2 * m})}
    if method in ("svrg", "spiderboost"):
        return [{"inner_steps": "auto"}, halved, {"batch_size": max(1, b // 4)}]
    if method == "sparse-spiderboost":
        return [
            {"inner_steps": "auto"},
            {"k1": 0.1, "k2": 0.1} if task != "logistic" else {"k1": 0.2, "k2": 0.2},
            halved,
        ]
    if method == "sparse-svrg":
        forms: list[Settings] = [{"optimizer": "sparse-svrg-selected"}, {"optimizer": "sparse-svrg-refresh"}]
        return [*forms, {"optimizer": "sparse-svrg-selected", "lr_factor": 4.0}]
    if method in FRESH:
        smaller: Settings = {"batch_size": max(1, b // 2), "anchor_batch_size": max(1, b // 2)}
        with_momentum: Settings = {"optimizer": "sparse-sgd-momentum", "lr_factor": 0.2}
        each_step: Settings = {"optimizer": "sparse-adamw-step"}
        return [{"k1": 0.05}, smaller, with_momentum if method == "sparse-sgd" else each_step]
    return []


def of_run(settings: Settings, epochs: float) -> Settings:
    """A trial's settings as those of a run that lasts so many epochs."""
    own = {k: v for k, v in settings.items() if k != "decay"}
    if settings.get("decay"):
        own["lr_milestones"] = {float(e): settings["lr"] / (1 + e) for e in range(1, math.ceil(epochs))}
    return own


def following(task: str, method: str, tried: list[Trial], allowed: int) -> list[Settings]:
    """The next round's trials, at most `allowed` in all; none when there is nothing left to try."""
    left = allowed - len(tried)
    if left <= 0:
        return []
    first = start(task, method)
    centre = first["lr"]
    if not tried:
        return [{**first, "lr": centre * f} for f in (1.0, 0.25, 4.0)][:left]
    best = min(tried, key=lambda t: t.loss)
    if len(tried) == FIRST:
        lowest, highest = (f(t.lr for t in tried) for f in (min, max))
        factors = (0.5, 0.25) if best.lr == lowest else (2.0, 4.0) if best.lr == highest else (0.5, 2.0)
        return [{**best.settings, "lr": best.lr * f} for f in factors][:left]
    if len(tried) == FIRST + SECOND:
        made = []
        for own in variants(task, method):
            changed = {k: v for k, v in own.items() if k != "lr_factor"}
            made.append({**best.settings, **changed, "lr": best.lr * own.get("lr_factor", 1.0)})
        return made[:left] or _closer(best, tried)[:left]
    return _closer(best, tried)[:left]


def _closer(best: Trial, tried: list[Trial]) -> list[Settings]:
    for factor in (2.0, math.sqrt(2), 2**0.25):
        new = [{**best.settings, "lr": best.lr * f} for f in (1 / factor, factor)]
        new = [s for s in new if not any(_same(s, t.settings) for t in tried)]
        if new:
            return new
    return []


def _same(a: Settings, b: Settings) -> bool:
    rest = [{k: v for k, v in s.items() if k != "lr"} for s in (a, b)]
    return rest[0] == rest[1] and math.isclose(a["lr"], b["lr"], rel_tol=1e-6)


def at_edge(tried: list[Trial]) -> str:
    """ "low" or "high" if the best step size is the smallest or largest that was tried with its settings, else "".

    A trial of a variant has one step size of its own; for it those of the settings it was derived from count."""
    best = min(tried, key=lambda t: t.loss)
    if not math.isfinite(best.loss):
        return ""
    rates = [t.lr for t in tried]
    return "low" if best.lr <= min(rates) else "high" if best.lr >= max(rates) else ""
