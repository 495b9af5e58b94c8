"""What `spidersilk tune` prints of its file: the best settings of each method, and its cost to the target."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from spidersilk.lab.experiments.costs import at_end
from spidersilk.lab.experiments.grid import METHODS, RIVALS, Settings
from spidersilk.lab.experiments.tuning import Record
from spidersilk.lab.report.cells import head_of, value_of
from spidersilk.lab.report.evidence import number
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import Curve, words

SECOND = {"image": "test_accuracy", "language": "valid_loss", "ranking": "auc"}  # shown beside the training loss

TITLES = {"cnn": "CNN", "fc": "FC", "resnet18": "ResNet-18", "mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
TASKS = {"image": "", "language": "LSTM on PTB", "logistic": "logistic regression", "ranking": "BPR, MovieLens"}


class Ended(NamedTuple):
    """What the final runs of a method, of equally many steps, came to; loss and its range are over seeds."""

    loss: float
    low: float
    high: float
    seconds: float | None  # to the target: medians, None if half of the seeds do not reach it
    ms: float  # of a step: the median between evaluations
    peak_gib: float | None  # on CUDA
    gradient_mb: float | None  # what each of several workers would send
    seeds: int


def ended(record: Record, method: str) -> Ended | None:
    """None without a final run."""
    curves = finals(record, method)
    if not curves:
        return None
    losses = [at_end(c, record["metric"]) for c in curves]
    reached = [c.cost(record["metric"], record["target"]) if record["target"] is not None else None for c in curves]
    seconds = statistics.median(math.inf if cost is None else cost[1] for cost in reached)
    peaks = [c.summary["peak_gib"] for c in curves if "peak_gib" in c.summary]
    sent = [c.summary["gradient_bytes"] for c in curves if "gradient_bytes" in c.summary]
    times = [1e3 * _seconds_a_step(c) for c in curves]
    return Ended(
        statistics.fmean(losses), min(losses), max(losses), seconds if math.isfinite(seconds) else None,
        statistics.median(times), max(peaks, default=None), max(sent) / 1e6 if sent else None, len(curves),
    )  # fmt: skip


def _seconds_a_step(curve: Curve) -> float:
    """The first steps, which compile, are one interval of many."""
    pairs = zip(curve.rows, curve.rows[1:], strict=False)
    times = [
        (b["seconds"] - a["seconds"]) / (b["updates"] - a["updates"]) for a, b in pairs if b["updates"] > a["updates"]
    ]
    return statistics.median(times) if times else math.nan


def _table_at_steps(record: Record) -> tuple[list[str], list[list[str]]]:
    loss = words(record["metric"])
    head = ["method", "best settings", f"{loss}, mean", "of the seeds", "seeds", "seconds to the target", "ms a step"]
    rows = []
    for method in methods(record):
        found, best = ended(record, method), _settings(record["methods"][method]["best"])
        if found is None:
            rows.append([method, best, *["-"] * 7])
            continue
        cells = [method, best, number(found.loss, 4), f"{number(found.low, 4)} to {number(found.high, 4)}"]
        cells += [f"{found.seeds} of {len(record['seeds'])}"]
        cells += ["not reached" if found.seconds is None else number(found.seconds), number(found.ms)]
        rows.append([*cells, *("-" if x is None else number(x) for x in (found.peak_gib, found.gradient_mb))])
    return [*head, "peak GiB", "MB of gradients"], rows


def title(record: Record) -> str:
    if "final_steps" in record:
        trial, final = record["conditions"]["steps"], record["final_steps"]
        goal = "AdamW's loss is not known yet"
        if record["target"] is not None:
            goal = f"target: AdamW's {words(record['metric'])} plus 1 %, {record['target']:.4g}"
        return f"trials of {trial:,} steps, final runs of {final:,}; {goal}"
    target = "no target yet: no plain method has all its seeds"
    if record["target"] is not None:
        target = f"cost to {words(record['metric'])} {record['target']:.4g}, medians of {len(record['seeds'])} seeds"
    return f"trials to {record['conditions']['budget']:g} N; {target}"


def title_of(record: Record) -> str:
    """The task, its model and data, and how long the final runs are."""
    conditions = record["conditions"]
    title = [TASKS.get(conditions["task"], conditions["task"])]
    title += [TITLES.get(v, v) for v in conditions["options"].values() if isinstance(v, str)]
    budget, length = conditions["budget"], f"to {record['final_budget']:g} N"
    at = "" if budget == record["final_budget"] else f" (tuned at {budget:g} N)"
    return f"{', '.join(word for word in title if word)}, {length}{at}"


def table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Head and rows, one for each method."""
    if "final_steps" in record:
        return _table_at_steps(record)
    second = SECOND.get(record["conditions"]["task"])
    head = ["method", "best settings", "trial's loss", "seeds", "lowest loss"]
    head += [f"{head_of(second)} at the end (best)"] if second else []
    rows = []
    for method in methods(record):
        costs = record["methods"][method]
        each, lowest = costs.get("each", []), [x for x in costs.get("lowest", []) if x is not None]
        cells = [method, _settings(costs["best"]), number(costs["loss"], 4), f"{len(each)} of {len(record['seeds'])}"]
        cells.append(number(statistics.median(lowest), 4) if lowest else "-")
        cells += [_at_the_end(finals(record, method), second)] if second else []
        cells.append("-" if not each else "not reached" if costs["queries"] is None else number(costs["queries"]))
        rows.append([*cells, *(number(costs.get(f"{unit}_ratio"), 2) for unit in ("queries", "seconds"))])
    return [*head, "queries / N", "ratio", "seconds' ratio"], rows


def edges(record: Record) -> str:
    """The methods whose best step size is the smallest or largest that was tried."""
    return ", ".join(f"{m} ({r['edge']})" for m, r in record["methods"].items() if r["edge"])


def methods(record: Record) -> list[str]:
    """In the order of `METHODS` and `RIVALS`."""
    order = (*METHODS, "sparse-adamw-columns", *RIVALS)
    return sorted(record["methods"], key=lambda m: order.index(m) if m in order else len(order))


def finals(record: Record, method: str) -> list[Curve]:
    """The final runs of a method with its best settings."""
    best = record["methods"][method]["best"]

    def matches(run: collect.Packed) -> bool:
        wanted = {"optimizer": method, **best}
        same = all(run["config"].get(k) == v for k, v in wanted.items() if k in run["config"])
        return run["name"].startswith(f"{method}-") and same

    return [] if best is None else [collect.unpack(run) for run in record["runs"] if matches(run)]


def _settings(best: Settings | None) -> str:
    if best is None:
        return "all diverged or collapsed"
    flat = {k: v for k, v in best.items() if k != "arguments"} | best.get("arguments", {})
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in flat.items() if v is not None)


def _at_the_end(curves: list[Curve], metric: str) -> str:
    """Medians over the seeds that neither diverged nor collapsed, of the last value and of the best."""
    values = [c.series("queries", metric)[1] for c in curves if c.status == "finished"]
    best = min if metric == "valid_loss" else max
    pairs = [(v[-1], best(v)) for v in values if v]
    if not pairs:
        return "-"
    last, top = (value_of(metric, statistics.median(column)) for column in zip(*pairs, strict=True))
    return f"{last} ({top})"
