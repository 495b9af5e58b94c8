"""The part of docs/reproduction.md that tells of `spidersilk tune`, from results/tune/tune_*.json alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spidersilk.lab.experiments.grid import METHODS, PLAIN
from spidersilk.lab.report import collect
from spidersilk.lab.report import html as report
from spidersilk.lab.report.evidence import SECOND, SECOND_NAMES, number, second_text, table, tunings
from spidersilk.lab.report.figures import Curve, panels, png

PLANNED = ("image_cnn_mnist", "image_cnn_cifar10", "image_resnet18_cifar10", "language", "ranking_100k",
           "logistic_a9a", "logistic_w8a", "logistic_mnist")  # fmt: skip
INTRO = """## Fair tuning

`spidersilk tune` gives every method the same number of trials, and runs the best of each again over seeds
([lab.md](lab.md#tuning)). Queries and seconds are medians over seeds to the target, the lowest loss that all seeds of
one of SGD, momentum and AdamW reached; ratios are to the best of these three. Seconds of runs made side by side are
those of a shared machine. Step sizes are constant, so the best one depends on how long a run is: where the final runs
are longer than the trials, a method whose step suits the short run may stop early.
"""
NAMES = {"sgd": "SGD", "momentum": "SGD, momentum", "adamw": "AdamW", "svrg": "SVRG", "spiderboost": "SpiderBoost",
         "sparse-spiderboost": "Algorithm 1", "sparse-svrg": "SparseSVRG", "sparse-sgd": "SparseSGD",
         "sparse-adamw": "SparseAdamW"}  # fmt: skip
TITLES = {"cnn": "CNN", "fc": "FC", "resnet18": "ResNet-18", "mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
TASKS = {"image": "", "language": "LSTM on PTB", "logistic": "logistic regression", "ranking": "BPR, MovieLens"}
AXES = {"queries": "gradient queries / N", "seconds": "seconds of training, on a shared machine"}
WIDE = 20.0  # losses that far apart are drawn on a logarithmic axis
CLOSE = 1e-5  # f - f* to be reached on a problem whose optimum is known


def text(results: Path) -> str:
    found = tunings(results)
    parts = [INTRO, *_summary(found)]
    for name, held in found.items():
        parts.append(_section(name, held))
    absent = [name for name in PLANNED if f"tune_{name}" not in found]
    if absent:
        parts.append(f"Not tuned yet: {', '.join(absent)}.\n")
    return "\n".join(parts)


def draw(results: Path, folder: Path) -> None:
    """The final runs of each file as a PNG: the loss over queries and over seconds, a line for each seed."""
    for name, held in tunings(results).items():
        finals = [(m, curve) for m in _methods(held) for curve in _finals(held, m)]
        curves = [Curve(NAMES.get(m, m), c.rows, c.status, c.reason, c.config, c.summary) for m, c in finals]
        values = [row[held["metric"]] for c in curves for row in c.rows if row.get(held["metric"], 0.0) > 0]
        log = bool(values) and max(values) > WIDE * min(values)
        title = f"{_title(held)}: each method at its best of {_trials(held)} trials, {_seeds(held)} seeds"
        labels = list(dict.fromkeys([*NAMES.values(), *(c.label for c in curves)]))
        figure = panels(curves, AXES, held["metric"], report.words(held["metric"]), title, log, labels)
        if figure is not None:
            png(figure, folder / "tune" / f"{name}.png")


def _trials(held: dict[str, Any]) -> str:
    """How many there were, which is not how many there are to be while a file is made in pieces."""
    return _range(len(t["trials"]) for t in held["methods"].values())


def _seeds(held: dict[str, Any]) -> str:
    return _range(len(t.get("each", [])) for t in held["methods"].values() if t["best"] is not None)


def _range(counts: Iterable[int]) -> str:
    found = sorted(set(counts)) or [0]
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _methods(held: dict[str, Any]) -> list[str]:
    """In the order of `METHODS`, whatever order they were tuned in."""
    return sorted(held["methods"], key=lambda m: METHODS.index(m) if m in METHODS else len(METHODS))


def _title(held: dict[str, Any]) -> str:
    conditions = held["conditions"]
    words = [TASKS.get(conditions["task"], conditions["task"])]
    words += [TITLES.get(v, v) for v in conditions["options"].values() if isinstance(v, str)]
    budget, length = conditions["budget"], f"to {held['final_budget']:g} N"
    at = "" if budget == held["final_budget"] else f" (tuned at {budget:g} N)"
    return f"{', '.join(w for w in words if w)}, {length}{at}"


def _summary(found: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each task whose final runs are there."""
    rows = []
    for held in found.values():
        ratios = _ratios(held, "queries")
        plain = min((m for m in PLAIN if m in ratios), key=lambda m: ratios[m], default=None)
        if plain is None:
            continue
        target = f"{report.words(held['metric'])} {number(held['target'], 4)}"
        sparse = min((m for m in ratios if m.startswith("sparse")), key=lambda m: ratios[m], default=None)
        cells = ["none gets there", "-", "-"]
        if sparse is not None:
            cells = [sparse, number(ratios[sparse], 2), number(_ratios(held, "seconds")[sparse], 2)]
        rows.append([_title(held), target, plain, *cells, f"{_seeds(held)}{_so_far(held)}"])
    head = ["task", "target", "best plain method", "best sparse method", "its queries", "its seconds", "seeds"]
    return [table(head, rows)] if rows else []


def _ratios(held: dict[str, Any], unit: str) -> dict[str, float]:
    told = {m: held["methods"][m].get(f"{unit}_ratio") for m in _methods(held)}
    return {m: r for m, r in told.items() if r is not None}


def _so_far(held: dict[str, Any]) -> str:
    finals = [len(t.get("each", [])) for t in held["methods"].values() if t["best"] is not None]
    return "" if all(many == len(held["seeds"]) for many in finals) else " so far"


def _section(name: str, held: dict[str, Any]) -> str:
    conditions = held["conditions"]
    parts = [f"### {_title(held)}\n"]
    seeds = len(held["seeds"])
    budgets = f"{_trials(held)} trials to {conditions['budget']:g} N for each method, the best of each to"
    budgets += f" {held['final_budget']:g} N with {_seeds(held)} seeds"
    if "eval_samples" in conditions["options"]:
        budgets += f", looked at on {conditions['options']['eval_samples']} samples"
    if conditions.get("bf16"):
        budgets += ", with autocast to bfloat16"
    parts.append(f"{budgets} ([results/tune/{name}.json](../results/tune/{name}.json)).\n")
    target = held["target"]
    costs = {m: _to(held, m, target) for m in held["methods"]} if target is not None else {}
    second = SECOND.get(conditions["task"])
    names = ["method", "best settings", "trial's loss", "seeds", "lowest loss"]
    names += ([SECOND_NAMES[second] + " at the end (best)"] if second else []) + [
        "queries / N",
        "ratio",
        "seconds' ratio",
    ]
    head = f"| {' | '.join(names)} |\n" + "|---" * len(names) + "|\n"
    rows = []
    for method in _methods(held):
        told = held["methods"][method]
        each = told.get("each", [])
        lowest = [x for x in told.get("lowest", []) if x is not None]
        cells = [
            method,
            _settings(told["best"]),
            number(told["loss"], 4),
            f"{len(each)} of {seeds}",
            number(statistics.median(lowest), 4) if lowest else "-",
            *([_at_the_end(held, method, second)] if second else []),
            number(costs[method]) if costs.get(method) is not None else "not reached" if each else "-",
            number(told.get("queries_ratio"), 2),
            number(told.get("seconds_ratio"), 2),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    if target is not None:
        parts.append(f"Target: {report.words(held['metric'])} {number(target, 4)}.\n")
    parts.append(head + "\n".join(rows) + "\n")
    parts.append(_conclusion(held))
    if held["metric"] == "gap":
        parts.append(_close(held))
    if any(_finals(held, m) for m in held["methods"]):
        parts.append(
            f"![{_title(held)}: final runs, {report.words(held['metric'])} over queries](../results/tune/{name}.png)\n"
        )
    edges = [f"{m} ({t['edge']})" for m, t in held["methods"].items() if t["edge"]]
    if edges:
        parts.append(
            f"At the edge of the step sizes that were tried, so that more trials might help: {', '.join(edges)}.\n"
        )
    return "\n".join(parts)


def _settings(best: dict[str, Any] | None) -> str:
    if best is None:
        return "all diverged"
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in best.items())


def _to(held: dict[str, Any], method: str, target: float) -> float | None:
    """Median over seeds of the queries to a target, from the curves in the file."""
    curves = _finals(held, method)
    if not curves:
        return None
    costs = [report.cost_to_target(c, held["metric"], target) for c in curves]
    middle = statistics.median(math.inf if c is None else c[0] for c in costs)
    return middle if math.isfinite(middle) else None


def _finals(held: dict[str, Any], method: str) -> list[Curve]:
    best = held["methods"][method]["best"]
    return [collect.unpack(r) for r in held["runs"] if best is not None and _is_of(r, method, best)]


def _at_the_end(held: dict[str, Any], method: str, second: str) -> str:
    """Medians over seeds that did not diverge, of the last value and of the best."""
    values = [c.series("queries", second)[1] for c in _finals(held, method) if c.status == "finished"]
    best = min if second == "valid_loss" else max
    told = [(v[-1], best(v)) for v in values if v]
    if not told:
        return "-"
    last, top = (second_text(statistics.median(column), second) for column in zip(*told, strict=True))
    return f"{last} ({top})"


def _is_of(run: dict[str, Any], method: str, best: dict[str, Any]) -> bool:
    """Whether a final run is one of a method's with these settings."""
    config = {**run["config"]}
    wanted = {"optimizer": method, **best}
    return run["name"].startswith(f"{method}-") and all(config.get(k) == v for k, v in wanted.items() if k in config)


def _conclusion(held: dict[str, Any]) -> str:
    ratios = _ratios(held, "queries")
    sparse = {m: r for m, r in ratios.items() if m.startswith("sparse")}
    plain = [m for m in PLAIN if m in ratios]
    if not plain:
        return "The final runs are not there yet.\n"
    first = min(plain, key=lambda m: ratios[m])
    so_far = _so_far(held)
    if not sparse:
        return f"**No sparse method reached the target{so_far}** of the best plain method, {first}.\n"
    best = min(sparse, key=lambda m: sparse[m])
    word = "fewer queries than" if sparse[best] < 1 else "no fewer queries than"
    told = f"**{best} needs {number(sparse[best], 2)} of the queries** of {first}"
    return f"{told}, the best plain method{so_far}: {word} it.\n"


def _close(held: dict[str, Any]) -> str:
    """Queries to f - f* = 1e-5, which the best plain method need not have reached."""
    costs = {m: _to(held, m, CLOSE) for m in _methods(held) if _finals(held, m)}
    if not costs:
        return ""
    told = ", ".join(f"{m} {number(c)} N" if c is not None else f"{m} not reached" for m, c in costs.items())
    text = f"To f - f* = {CLOSE:g}: {told}."
    sparse = min((c for m, c in costs.items() if c is not None and m.startswith("sparse")), default=None)
    if sparse is not None:
        plain = {m: c for m, c in costs.items() if m in PLAIN}
        dense = {m: c for m, c in costs.items() if m not in PLAIN and not m.startswith("sparse")}
        rivals = [_beside(found, sparse, held["final_budget"]) for found in (plain, dense) if found]
        text += f" Beside the best sparse method {' and '.join(rivals)}."
    return text + "\n"


def _beside(costs: dict[str, float | None], sparse: float, within: float) -> str:
    reached = {m: c for m, c in costs.items() if c is not None}
    if reached:
        first = min(reached, key=lambda m: reached[m])
        return f"{NAMES.get(first, first)} needs {number(reached[first] / sparse, 2)} times the queries"
    names = [NAMES.get(m, m).removeprefix("SGD, ") for m in costs]
    told = names[0] if len(names) == 1 else f"each of {', '.join(names[:-1])} and {names[-1]}"
    return f"{told}, not there after {within:g} N, needs more than {number(within / sparse, 2)} times the queries"
