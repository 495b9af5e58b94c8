"""The results of `spidersilk tune` on the page and as figures, from its JSON files alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from page_paper import markdown_table

from spidersilk.lab.experiments.grid import PLAIN
from spidersilk.lab.experiments.tuning import Record
from spidersilk.lab.report import tuned
from spidersilk.lab.report.comparison import compare
from spidersilk.lab.report.evidence import number
from spidersilk.lab.report.figures import QUERIES, panels, png
from spidersilk.lab.report.rules import tuned_group
from spidersilk.lab.run.curve import median_cost, words

PLANNED = ("image_cnn_mnist", "image_cnn_cifar10", "image_resnet18_cifar10", "language", "ranking_100k",
           "logistic_a9a", "logistic_w8a", "logistic_mnist")  # fmt: skip
INTRO = """`spidersilk tune` gives every method the same number of trials, and runs the best of each again over seeds
([lab.md](../lab.md#tuning)). Queries and seconds are medians over seeds to the target, the lowest loss that all seeds
of one of SGD, momentum and AdamW reached; ratios are to the best of these three. Seconds of runs made side by side are
those of a shared machine. Step sizes are constant, so the best one depends on how long a run is: where the final runs
are longer than the trials, a method whose step suits the short run may stop early. SparseSGD and SparseAdamW are
those of version 0.1.0 ([lab.md](../lab.md#tuning)), unless the title says 0.2.0. SVRG is dense: where it needs fewer
queries than the sparse method, the anchor wins, not sparsity.
"""
NAMES = {"sgd": "SGD", "momentum": "SGD, momentum", "adamw": "AdamW", "svrg": "SVRG", "spiderboost": "SpiderBoost",
         "sparse-spiderboost": "Algorithm 1", "sparse-svrg": "SparseSVRG", "sparse-sgd": "SparseSGD",
         "sparse-adamw": "SparseAdamW"}  # fmt: skip
AXES = QUERIES | {"seconds": "seconds of training, on a shared machine"}
WIDE = 20.0  # losses that differ by more than this factor are drawn on a logarithmic axis
CLOSE = 1e-5  # a second target where f* is known: methods whose noise does not vanish stay above it


def text(results: Path) -> str:
    tunings = load(results)
    absent = [name for name in PLANNED if f"tune_{name}" not in tunings]
    parts = [INTRO, *_overview(tunings.values()), *(_section(name, record) for name, record in tunings.items())]
    return "\n".join([*parts, *([f"Not tuned yet: {', '.join(absent)}.\n"] if absent else [])])


def load(results: Path) -> dict[str, Record]:
    """The files that `spidersilk tune` wrote, by name; those of equally many steps are not the paper's."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("tune/tune_*.json"))}
    return {name: record for name, record in found.items() if "budget" in record["conditions"]}


def draw(results: Path, folder: Path) -> None:
    """The final runs of each file as a PNG: the loss over queries and over seconds, a line for each seed."""
    for name, record in load(results).items():
        metric = record["metric"]
        curves = [replace(c, label=NAMES.get(m, m)) for m in tuned.methods(record) for c in tuned.finals(record, m)]
        values = [row[metric] for c in curves for row in c.rows if row.get(metric, 0.0) > 0]
        log = bool(values) and max(values) > WIDE * min(values)
        title = f"{_title(record)}: each method at its best of {_trials(record)} trials, {_seeds(record)} seeds"
        labels = list(dict.fromkeys([*NAMES.values(), *(c.label for c in curves)]))
        figure = panels(curves, AXES, metric, words(metric), title, log, labels)
        if figure is not None:
            png(figure, folder / "tune" / f"{name}.png")


def _title(record: Record) -> str:
    """Most files are of version 0.1.0, in which SparseSGD and SparseAdamW were other forms."""
    version = record["versions"]["spidersilk"]
    return tuned.title_of(record) + ("" if version.startswith("0.1.") else f", version {version.removesuffix('.dev0')}")


def _trials(record: Record) -> str:
    """The number of trials so far: fewer than planned while the tuning is not complete."""
    return _range(len(r["trials"]) for r in record["methods"].values())


def _seeds(record: Record) -> str:
    return _range(_final_counts(record))


def _final_counts(record: Record) -> list[int]:
    return [len(r.get("each", [])) for r in record["methods"].values() if r["best"] is not None]


def _so_far(record: Record) -> str:
    return "" if all(many == len(record["seeds"]) for many in _final_counts(record)) else " so far"


def _range(counts: Iterable[int]) -> str:
    ends = sorted(set(counts)) or [0]
    return str(ends[0]) if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def _ratios(record: Record, unit: str) -> dict[str, float]:
    ratios = {m: record["methods"][m].get(f"{unit}_ratio") for m in tuned.methods(record)}
    return {m: r for m, r in ratios.items() if r is not None}


def _best(record: Record) -> tuple[str | None, str | None]:
    """The plain method and the sparse method with the fewest queries to the target."""
    ratios = _ratios(record, "queries")
    plain, sparse = [m for m in PLAIN if m in ratios], [m for m in ratios if m.startswith("sparse")]
    first, second = (min(names, key=lambda m: ratios[m], default=None) for names in (plain, sparse))
    return first, second


def _overview(tunings: Iterable[Record]) -> list[str]:
    """A row for each task whose final runs are there."""
    rows = []
    for record in tunings:
        plain, sparse = _best(record)
        if plain is None:
            continue
        target = f"{words(record['metric'])} {number(record['target'], 4)}"
        cells = ["none gets there", "-", "-"]
        if sparse is not None:
            cells = [sparse, *(number(_ratios(record, unit)[sparse], 2) for unit in ("queries", "seconds"))]
        dense = _ratios(record, "queries").get("svrg")
        svrg = "not tuned" if "svrg" not in record["methods"] else "-" if dense is None else number(dense, 2)
        rows.append(
            [
                _title(record),
                target,
                plain,
                *cells,
                svrg,
                _seeds(record) + (f" of {len(record['seeds'])}, so far" if _so_far(record) else ""),
            ]
        )
    head = ["task", "target", "best plain method", "best sparse method", "its queries", "its seconds"]
    head += ["SVRG's queries", "seeds"]
    return [markdown_table(head, rows)] if rows else []


def _section(name: str, record: Record) -> str:
    conditions, metric = record["conditions"], words(record["metric"])
    budgets = f"{_trials(record)} trials to {conditions['budget']:g} N for each method, the best of each to"
    budgets += f" {record['final_budget']:g} N with {_seeds(record)} seeds"
    if "eval_samples" in conditions["options"]:
        budgets += f", evaluated on {conditions['options']['eval_samples']} samples"
    budgets += ", with autocast to bfloat16" if conditions.get("bf16") else ""
    parts = [
        f"## {_title(record)}\n",
        f"{budgets} ([results/tune/{name}.json](../../results/tune/{name}.json)).\n",
    ]
    if record["target"] is not None:
        parts.append(f"Target: {metric} {number(record['target'], 4)}.\n")
    parts += [markdown_table(*tuned.table(record)), _conclusion(record)]
    parts += [_close(record)] if record["metric"] == "gap" else []
    if any(tuned.finals(record, m) for m in record["methods"]):
        parts.append(f"![{_title(record)}: final runs, {metric} over queries](../../results/tune/{name}.png)\n")
    if edge := tuned.edges(record):
        parts.append(f"At the edge of the step sizes that were tried, so that more trials might help: {edge}.\n")
    return "\n".join(parts)


def _conclusion(record: Record) -> str:
    plain, sparse = _best(record)
    if plain is None:
        return "The final runs are not there yet.\n"
    if sparse is None:
        return f"**No sparse method reached the target{_so_far(record)}** of the best plain method, {plain}.\n"
    share = _ratios(record, "queries")[sparse]
    needs = f"**{sparse} needs {number(share, 2)} of the queries** of {plain}"
    ours, theirs = (tuned_group(record, method) for method in (sparse, plain))
    (found, *_) = compare(ours, theirs, key=record["metric"], target=record["target"])
    return f"{needs}, the best plain method{_so_far(record)}: {found.word(found.side)} ({found.seeds()}).\n"


def _close(record: Record) -> str:
    """Queries to f - f* = 1e-5, which the best plain method need not have reached."""
    curves = {m: tuned.finals(record, m) for m in tuned.methods(record)}
    costs = {m: median_cost(c, "gap", CLOSE) for m, c in curves.items() if c}
    each = ", ".join(f"{m} not reached" if c is None else f"{m} {number(c)} N" for m, c in costs.items())
    sparse = min((c for m, c in costs.items() if c is not None and m.startswith("sparse")), default=None)
    text = f"To f - f* = {CLOSE:g}: {each}." if costs else ""
    if sparse is not None:
        plain = {m: c for m, c in costs.items() if m in PLAIN}
        dense = {m: c for m, c in costs.items() if m not in PLAIN and not m.startswith("sparse")}
        rivals = [_beside(group, sparse, record["final_budget"]) for group in (plain, dense) if group]
        text += f" Beside the best sparse method {' and '.join(rivals)}."
    return f"{text}\n" if text else ""


def _beside(costs: dict[str, float | None], sparse: float, budget: float) -> str:
    reached = {m: c for m, c in costs.items() if c is not None}
    if reached:
        first = min(reached, key=lambda m: reached[m])
        return f"{NAMES.get(first, first)} needs {number(reached[first] / sparse, 2)} times the queries"
    names = [NAMES.get(m, m).removeprefix("SGD, ") for m in costs]
    who = names[0] if len(names) == 1 else f"each of {', '.join(names[:-1])} and {names[-1]}"
    return f"{who}, not there after {budget:g} N, needs more than {number(budget / sparse, 2)} times the queries"
