"""What `spidersilk tune` tries: the same number of trials for each method, in rounds.

The centre (the step size in the task's `rates`, which did well in earlier runs), a quarter of it and four times it;
two further out or closer; variants of the method at the best step size; then the best of all with steps that are ever
closer. A trial is a dictionary of a run's settings. It may name an "optimizer", a form of the method, and "decay": a
step size that falls by 1 / (1 + epoch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from spidersilk.lab.run.config import RunConfig

PLAIN = ("sgd", "momentum", "adamw")
METHODS = (*PLAIN, "svrg", "spiderboost", "sparse-spiderboost", "sparse-svrg", "sparse-sgd", "sparse-adamw")
# The centres of published tunings, where the task's rates are others by now.
CENTRES = {("logistic", "sparse-spiderboost"): 1.0, ("logistic", "sparse-svrg"): 8.0}
# The first loop lengths, where they differ from the task's.
LOOPS: dict[str, dict[str, int | str]] = {
    "image": {"sparse-svrg": "auto", "sparse-sgd": 50, "sparse-adamw": 50},
    "language": {"sparse-svrg": "auto", "sparse-sgd": 20, "sparse-adamw": 20},
    "ranking": {"sparse-svrg": "auto", "sparse-sgd": 50, "sparse-adamw": 50},
    "finetune": {"svrg": 10, "spiderboost": 10, "sparse-spiderboost": 10, "sparse-svrg": "auto"},
    "logistic": {"sparse-sgd": 50, "sparse-adamw": 50},
}
RIVALS = ("in-backward", "adamw-8bit", "lora", "galore", "apollo-mini", "badam")  # of fine-tuning
FRESH = ("sparse-sgd", "sparse-adamw", "sparse-adamw-columns")  # an anchor is a new selection: it need not be large
FIRST, SECOND = 3, 2  # trials in each of the first two rounds
Settings = dict[str, Any]


@dataclass
class Trial:
    """Settings that were tried, and the training loss at the budget: infinite if the run diverged."""

    settings: Settings
    loss: float = math.inf
    status: str = ""

    @property
    def lr(self) -> float:
        return self.settings["lr"]


def methods_of(task: str) -> tuple[str, ...]:
    """Those that are tuned for a task unless others are named."""
    return ("adamw", *RIVALS, "sparse-adamw", "sparse-adamw-columns") if task == "finetune" else METHODS


def start(task: str, method: str) -> Settings:
    """The settings at the centre."""
    defaults = RunConfig(task, method).completed()
    settings: Settings = {"lr": CENTRES.get((task, method), defaults.lr)}
    if method in LOOPS.get(task, {}):
        settings["inner_steps"] = LOOPS[task][method]
    if method in FRESH:
        settings["anchor_batch_size"] = defaults.batch_size
        settings["arguments"] = defaults.arguments  # written down: earlier tunings have others
    return settings


def _arguments(*each: Settings) -> list[Settings]:
    return [{"arguments": one} for one in each]


_ADAM = _arguments({"weight_decay": 0.1}, {"weight_decay": 0.0}, {"beta2": 0.95})
_LONGER: list[Settings] = [{"inner_steps": 50}, {"inner_steps": 10**6}, {"k1": 0.05, "k2": 0.05}]
# At equal steps all have the same batch. What else each paper tunes:
FINE_TUNING: dict[str, list[Settings]] = {
    "adamw": _ADAM,
    "in-backward": _ADAM,
    "adamw-8bit": _ADAM,
    "lora": _arguments({"rank": 16}, {"alpha": 128}, {"alpha": 32}),
    "galore": _arguments({"update_proj_gap": 50}, {"scale": 1.0}, {"rank": 256}),
    "apollo-mini": _arguments({"scale": 32}, {"update_proj_gap": 50},
                              {"rank": 64, "scale_type": "channel", "scale": 1}),
    "badam": _arguments({"switch_block_every": 50}, {"switch_block_every": 20}, {"switch_mode": "descending"}),
    "sparse-adamw": _LONGER,
    "sparse-adamw-columns": _LONGER,
}  # fmt: skip


def variants(task: str, method: str) -> list[Settings]:
    """What is tried for a method besides the step size."""
    if task == "finetune" and method in FINE_TUNING:
        return FINE_TUNING[method]
    config = replace(RunConfig(task, method), **start(task, method)).completed()
    b, m = config.batch_size or 1, config.inner_steps
    half, quarter = {"batch_size": max(1, b // 2)}, {"batch_size": max(1, b // 4)}
    if method in PLAIN and task == "logistic":  # a fixed step ends at the noise of the gradient, far above 1e-5
        return [{"decay": True}, {"decay": True, "lr_factor": 4.0}, {"batch_size": 4 * b}]
    if method in PLAIN:
        return [half, quarter, {"batch_size": 2 * b}]
    longer: Settings = half | ({"inner_steps": 2 * m} if isinstance(m, int) else {})
    fresh: list[Settings] = [{"k1": 0.05, "k2": 0.05}, half | {"anchor_batch_size": half["batch_size"]}]
    share = 0.1 if task != "logistic" else 0.2
    selected: Settings = {"optimizer": "sparse-svrg-selected"}
    others: dict[str, list[Settings]] = {
        "svrg": [{"inner_steps": "auto"}, longer, quarter],
        "spiderboost": [{"inner_steps": "auto"}, longer, quarter],
        "sparse-spiderboost": [{"inner_steps": "auto"}, {"k1": share, "k2": share}, longer],
        "sparse-svrg": [selected, {"optimizer": "sparse-svrg-refresh"}, selected | {"lr_factor": 4.0}],
        "sparse-sgd": [*fresh, {"optimizer": "sparse-sgd-momentum", "lr_factor": 0.2}],
        "sparse-adamw": [*fresh, {"inner_steps": 10}],
    }
    return others.get(method, [])


def of_run(settings: Settings, epochs: float) -> Settings:
    """The settings of the run of a trial that lasts so many epochs."""
    run = {k: v for k, v in settings.items() if k != "decay"}
    if settings.get("decay"):
        run["lr_milestones"] = {float(e): settings["lr"] / (1 + e) for e in range(1, math.ceil(epochs))}
    return run


def following(task: str, method: str, tried: list[Trial], allowed: int) -> list[Settings]:
    """The trials of the next round, at most `allowed` in all; none when nothing is left to try."""
    left = allowed - len(tried)
    if left <= 0:
        return []
    if not tried:
        first = start(task, method)
        return [{**first, "lr": first["lr"] * f} for f in (1.0, 0.25, 4.0)][:left]
    best = min(tried, key=lambda t: t.loss)
    if len(tried) == FIRST:
        factors = {"low": (0.5, 0.25), "high": (2.0, 4.0), "": (0.5, 2.0)}[at_edge(tried)]
        return [{**best.settings, "lr": best.lr * f} for f in factors][:left]
    if len(tried) == FIRST + SECOND:
        new = [{**best.settings, **v, "lr": best.lr * v.get("lr_factor", 1.0)} for v in variants(task, method)]
        new = [{k: v for k, v in settings.items() if k != "lr_factor"} for settings in new]
        return new[:left] or _closer(best, tried)[:left]
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
    """ "low" or "high" if the best step size is the smallest or largest of all that were tried, else ""."""
    best = min(tried, key=lambda t: t.loss)
    if not math.isfinite(best.loss):
        return ""
    rates = [t.lr for t in tried]
    return "low" if best.lr <= min(rates) else "high" if best.lr >= max(rates) else ""
