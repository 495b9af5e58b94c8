"""What `spidersilk tune` prints of its file: the best settings of each method, and its cost to the target."""

from __future__ import annotations

import statistics

from spidersilk.lab.experiments.grid import METHODS, Settings
from spidersilk.lab.experiments.tuning import Record
from spidersilk.lab.report.evidence import number
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import Curve, words

SECOND = {"image": "test_accuracy", "language": "valid_loss", "ranking": "auc"}  # shown beside the training loss
SECOND_NAMES = {
    "test_accuracy": "test accuracy, %", "valid_loss": "validation loss", "auc": "AUC of held-out items"
}  # fmt: skip


def title(record: Record) -> str:
    target = "no target yet: no plain method has all its seeds"
    if record["target"] is not None:
        target = f"cost to {words(record['metric'])} {record['target']:.4g}, medians of {len(record['seeds'])} seeds"
    return f"trials to {record['conditions']['budget']:g} N; {target}"


def table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Head and rows, one for each method."""
    second = SECOND.get(record["conditions"]["task"])
    head = ["method", "best settings", "trial's loss", "seeds", "lowest loss"]
    head += [f"{SECOND_NAMES[second]} at the end (best)"] if second else []
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
    """In the order of `METHODS`."""
    return sorted(record["methods"], key=lambda m: METHODS.index(m) if m in METHODS else len(METHODS))


def finals(record: Record, method: str) -> list[Curve]:
    """The final runs of a method with its best settings."""
    best = record["methods"][method]["best"]

    def matches(run: collect.Packed) -> bool:
        wanted = {"optimizer": method, **best}
        same = all(run["config"].get(k) == v for k, v in wanted.items() if k in run["config"])
        return run["name"].startswith(f"{method}-") and same

    return [] if best is None else [collect.unpack(run) for run in record["runs"] if matches(run)]


def second_text(value: float, key: str) -> str:
    """A value of a metric in SECOND."""
    return f"{100 * value:.1f}" if key == "test_accuracy" else f"{value:.3f}"


def _settings(best: Settings | None) -> str:
    if best is None:
        return "all diverged or collapsed"
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in best.items())


def _at_the_end(curves: list[Curve], metric: str) -> str:
    """Medians over the seeds that neither diverged nor collapsed, of the last value and of the best."""
    values = [c.series("queries", metric)[1] for c in curves if c.status == "finished"]
    best = min if metric == "valid_loss" else max
    pairs = [(v[-1], best(v)) for v in values if v]
    if not pairs:
        return "-"
    last, top = (second_text(statistics.median(column), metric) for column in zip(*pairs, strict=True))
    return f"{last} ({top})"
