"""The paper's table and figures as sets of runs, at its own size or at a laptop's, with its claims beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spidersilk.lab.report.figures import Curve
from spidersilk.lab.report.html import Claim, Section, common_target, cost_to_target
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.tasks.models import MODELS

LABELS = {
    "sgd": "SGD",
    "spiderboost": "SpiderBoost",
    "sparse-spiderboost": "Algorithm 1 (sparse SpiderBoost)",
    "sparse-svrg": "SparseSVRG",
    "sparse-svrg-refresh": "SparseSVRG, refresh",
    "sparse-svrg-selected": "SparseSVRG, selected",
    "sparse-sgd": "SparseSGD",
    "sparse-spiderboost-adaptive": "Algorithm 1, adaptive anchors",
}
ADAPTIVE = {"sparse-spiderboost-adaptive": "sparse-spiderboost"}  # with inner_steps="auto"
OURS = ("sparse-svrg", "sparse-svrg-refresh", "sparse-svrg-selected", "sparse-sgd")
# Entropy of the memory before and after 150 epochs, as printed in Table 1.
TABLE_1 = {
    ("fc", "cifar10"): (16.41, 8.09), ("cnn", "cifar10"): (13.38, 2.66), ("resnet18", "cifar10"): (22.59, 21.70),
    ("fc", "svhn"): (15.36, 8.05), ("cnn", "svhn"): (13.00, 2.97), ("resnet18", "svhn"): (22.62, 21.31),
    ("fc", "mnist"): (14.29, 9.77), ("cnn", "mnist"): (14.21, 2.77),
}  # fmt: skip


# On a GPU only the time depends on these; 5000 samples of each set are enough to look at a ResNet by.
FAST: dict[str, Any] = {"channels_last": True, "eval_samples": 5000}
SMOKE = "Smoke scale: a check that everything runs; verdicts hold for this size and budget alone."


@dataclass
class Part:
    """Runs that share a section, and what the report says of them."""

    title: str
    configs: list[RunConfig]
    conclude: Callable[[Section], None]
    note: str = ""


def experiments(scale: str) -> dict[str, list[Part]]:
    """All experiments by name; `scale` is "smoke" or "paper"."""
    known = {
        "table1": table1(scale),
        "figure1": figure1(scale),
        "figure2": figure2(scale),
        "figure3": figure3(scale),
        "sparsity": sparsity(scale),
    }
    if scale == "smoke":
        for parts in known.values():
            for part in parts:
                part.note = f"{SMOKE} {part.note}".strip()
    return known


def on_embedded_data(config: RunConfig) -> RunConfig | None:
    """The same run on scikit-learn's digits, for a machine without the data sets; None where nothing can stand in."""
    if config.task != "image" or config.options.get("model") == "resnet18":
        return None
    options = {k: v for k, v in config.options.items() if k not in ("train_samples", "eval_samples")}
    own = str(config.options["data"])
    return replace(
        config,
        options=options | {"data": "digits"},
        name=config.name.replace(f"-{own}", "") + "-on-digits",
        label=config.label.replace(own, "digits"),
        anchor_batch_size=500,
        batch_size=50,
    )


def _methods(scale: str) -> list[str]:
    """What runs in each figure: the paper's three, and ours; at the paper's scale also the other forms of ours."""
    few = ["sgd", "spiderboost", "sparse-spiderboost", "sparse-svrg", "sparse-sgd"]
    more = ["sparse-spiderboost-adaptive", "sparse-svrg-refresh", "sparse-svrg-selected"]
    return few if scale == "smoke" else few + more


def _runs(prefix: str, task: str, methods: list[str], common: dict[str, Any], **own: dict[str, Any]) -> list[RunConfig]:
    """A config for each method; `own` has what a method, its name with _ for -, has of its own."""
    made = []
    for method in methods:
        settings = {**common, **own.get(method.replace("-", "_"), {})}
        if method in ADAPTIVE:
            settings |= {"inner_steps": "auto"}
        optimizer = ADAPTIVE.get(method, method)
        made.append(RunConfig(task, optimizer, name=f"{prefix}-{method}", label=LABELS.get(method, method), **settings))
    return made


def table1(scale: str) -> list[Part]:
    configs = []
    for model, data in TABLE_1:
        options: dict[str, Any] = {"model": model, "data": data}
        settings: dict[str, Any] = {"budget": 150.0, "eval_every": 5.0}
        if model == "resnet18":
            options |= FAST
        if scale == "smoke":
            big = model == "resnet18"
            options = {"model": model, "data": data, "train_samples": 200 if big else 5000}
            options |= {"eval_samples": 40 if big else 1000}
            settings = {"budget": 0.5 if big else 2.0, "eval_every": 0.5}
            if big:
                settings |= {"anchor_batch_size": 40, "batch_size": 4}
        label = f"{model}, {data}"
        configs.append(
            RunConfig(
                "image",
                "spiderboost",
                name=f"table1-{model}-{data}",
                label=label,
                options=options,
                track_memory=True,
                **settings,
            )
        )

    def conclude(section: Section) -> None:
        section.rivals = False
        rows = []
        for curve in section.curves:
            model, data = curve.config["options"]["model"], curve.config["options"]["data"]
            seen = [row["entropy"] for row in curve.rows if "entropy" in row]
            before, after = TABLE_1.get((model, data), ("", ""))  # nothing is printed for data that stands in
            measured = (f"{seen[0]:.2f}", f"{seen[-1]:.2f}") if seen else ("", "")
            cells = [f"{math.log2(MODELS[model][1]):.3f}", measured[0], f"{before}", measured[1], f"{after}"]
            rows.append([f"{model}, {curve.summary.get('data', data)}", *cells])
        head = ["model, data", "max", "before", "paper", "after", "paper"]
        section.tables.append(("Entropy of the memory, bits", head, rows))

    note = "Entropy of M = average of |v| over dense SpiderBoost, at the first anchor and at the end of the budget."
    return [Part("Table 1: entropy of memory vectors", configs, conclude, note)]


def figure1(scale: str) -> list[Part]:
    left: dict[str, Any] = {"options": {"model": "resnet18", "data": "cifar10"}, "budget": 50.0, "eval_every": 0.5}
    right: dict[str, Any] = {"options": {"model": "cnn", "data": "mnist"}, "budget": 20.0, "eval_every": 0.1}
    own: dict[str, Any] = {}
    if scale == "smoke":
        left["options"] |= {"train_samples": 200, "eval_samples": 40}
        left |= {"budget": 0.6, "eval_every": 0.2, "anchor_batch_size": 40, "batch_size": 4}
        right["options"] |= {"train_samples": 10_000, "eval_samples": 2000}
        right |= {"budget": 2.0, "eval_every": 0.2}
    else:
        left["options"] |= FAST
        own = {"sparse_sgd": {"inner_steps": 50}}
    note = "" if scale == "smoke" else "The paper shows 2 epochs; these runs go on to 20."
    return [
        Part(
            "Figure 1, left: ResNet-18 on CIFAR-10",
            _runs("figure1-left", "image", _methods(scale), left, **own),
            sparse_beats_dense,
        ),
        Part(
            "Figure 1, right: CNN on MNIST",
            _runs("figure1-right", "image", _methods(scale), right, **own),
            sparse_beats_dense,
            note,
        ),
    ]


def figure2(scale: str) -> list[Part]:
    """The vocabulary of 1000 as printed; at the paper's scale the whole one too, and the step size that suits SGD."""

    def conclude(section: Section) -> None:
        sparse_beats_dense(section)
        claim(section, "SpiderBoost is slightly worse than SGD", "spiderboost", "sgd", worse=True)
        claim(section, "sparsity gives a noticeable improvement over SGD", "sparse-spiderboost", "sgd")

    title = "Figure 2: LSTM language model, PTB"
    if scale == "smoke":
        options = {"vocabulary": 1000, "hidden": 64, "embedding": 32, "train_tokens": 100_000}
        common: dict[str, Any] = {"options": options, "budget": 1.0, "eval_every": 0.1}
        return [Part(title, _runs("figure2", "language", _methods(scale), common), conclude)]
    parts = []
    for vocabulary, prefix in ((1000, "figure2"), (10_000, "figure2-10k")):
        options = {"vocabulary": vocabulary, "eval_pieces": 100}
        common = {"options": options, "budget": 40.0, "eval_every": 0.5}
        # A small step of SparseSGD costs a tenth of its queries in the count, and all of them in time.
        runs = _runs(prefix, "language", _methods(scale), common, sparse_sgd={"inner_steps": 20, "budget": 8.0})
        for run in [r for r in runs if r.optimizer in ("sgd", "sparse-sgd")]:
            runs.append(replace(run, name=f"{run.name}-tuned", label=f"{run.label}, lr 1", lr=1.0))
        parts.append(Part(title + (f", vocabulary {vocabulary:,}" if vocabulary > 1000 else ""), runs, conclude))
    return parts


def figure3(scale: str) -> list[Part]:
    """MovieLens 100K; at the paper's scale 1M too."""

    def conclude(section: Section) -> None:
        sparse_beats_dense(section)
        claim(section, "SpiderBoost is slightly worse than SGD", "spiderboost", "sgd", worse=True)
        claim(section, "sparsity gives a slight improvement over SGD", "sparse-spiderboost", "sgd")
        head = ["run", "AUC", "precision@10"]
        rows = [
            [c.label, *(f"{c.rows[-1].get(k, math.nan):.3f}" for k in ("auc", "precision_at_10"))]
            for c in section.curves
            if c.rows
        ]
        section.tables.append(("Held-out items", head, rows))

    sizes = [
        ("100k", "figure3", {"budget": 40.0, "eval_every": 0.5}),
        ("1m", "figure3-1m", {"budget": 40.0, "eval_every": 0.5}),
    ]
    if scale == "smoke":
        sizes = [("100k", "figure3", {"budget": 2.0, "eval_every": 0.25})]
    parts = []
    for data, prefix, common in sizes:
        paper = {"lr": 0.1, "lr_milestones": {10.0: 0.01, 20.0: 0.001}}
        runs = _runs(prefix, "ranking", _methods(scale), {**common, "options": {"data": data}}, sgd=paper)
        tuned = replace(runs[0], name=f"{prefix}-sgd-tuned", label="SGD, tuned (lr 10)", lr=10.0, lr_milestones={})
        runs.append(tuned)
        parts.append(Part(f"Figure 3: BPR matrix factorisation, MovieLens {data.upper()}", runs, conclude))
    return parts


def sparsity(scale: str) -> list[Part]:
    """The appendix sweep: SpiderBoost at several densities on MNIST."""
    shares = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if scale == "paper" else (0.02, 0.1, 0.5, 1.0)
    parts = []
    for model in ("cnn", "fc"):
        common: dict[str, Any] = {"options": {"model": model, "data": "mnist"}, "budget": 2.0, "eval_every": 0.05}
        if scale == "smoke":
            common["options"] |= {"train_samples": 5000, "eval_samples": 1000}
            common |= {"eval_every": 0.25}
        configs = []
        for method in ("sparse-spiderboost", "sparse-svrg"):
            for share in shares:
                label = f"{'Algorithm 1' if method == 'sparse-spiderboost' else 'SparseSVRG'}, k/d = {share:g}"
                configs.append(
                    RunConfig(
                        "image",
                        method,
                        name=f"sparsity-{model}-{method}-{share:g}",
                        label=label,
                        k1=share / 2,
                        k2=share / 2,
                        **common,
                    )
                )
        parts.append(Part(f"Sparsity sweep: {model.upper()} on MNIST", configs, lambda section: None))
    return parts


def sparse_beats_dense(section: Section) -> None:
    claim(section, "10 % sparsity does better than SpiderBoost at equal queries", "sparse-spiderboost", "spiderboost")
    best = _best_stable(section)
    if best is not None:
        claim(section, "(ours) a stable sparse form does so", best, "spiderboost")


def _best_stable(section: Section) -> str | None:
    """Of our forms, the one with the lowest last loss."""
    ours = [c for c in section.curves if c.config["optimizer"] in OURS and c.rows]
    return min(ours, key=lambda c: c.rows[-1][section.metric]).config["optimizer"] if ours else None


def claim(section: Section, text: str, method: str, rival: str, worse: bool = False) -> None:
    """Compare queries to the worse of the two best losses."""
    ours, theirs = (_curve_of(section, name) for name in (method, rival))
    if ours is None or theirs is None or not ours.rows or not theirs.rows:
        return
    if ours.status == "diverged":
        verdict = "not reproduced: it diverged"
        section.claims.append(Claim(text, f"{ours.label} diverged at {ours.rows[-1]['queries']:.2f} N", verdict))
        return
    measured, better = compare(ours, theirs, section.metric)
    verdict = (
        "no verdict: the budget is too small"
        if better is None
        else "reproduced"
        if better != worse
        else "not reproduced"
    )
    section.claims.append(Claim(text, measured, verdict))


def _curve_of(section: Section, method: str) -> Curve | None:
    """The method's run as the paper has it; other forms of it (tuned, adaptive) have longer names."""
    runs = [c for c in section.curves if c.config["optimizer"] == method]
    return min(runs, key=lambda c: not c.config.get("name", "").endswith(f"-{method}"), default=None)


def compare(ours: Curve, theirs: Curve, metric: str) -> tuple[str, bool | None]:
    """What each needed to a common target, and whether ours needed less; None if one of them never got anywhere."""
    target = common_target([ours, theirs], metric)
    a, b = cost_to_target(ours, metric, target), cost_to_target(theirs, metric, target)
    if a is None or b is None:
        return f"no common target for {ours.label} and {theirs.label}", None
    each = [f"{c.label} at {cost[0]:.2f} N ({cost[1]:.1f} s)" for c, cost in ((ours, a), (theirs, b))]
    told = f"{target:.3g} is reached by {each[0]} and by {each[1]}"
    return told, a[0] < b[0] if min(a[0], b[0]) > 0 else None
