"""The runs of the paper's table and figures, at the paper's size or a laptop's, and its claims."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from spidersilk.lab.experiments.claims import Claim, of_part
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.tasks import find

PRINTED = ("table1", "figure1", "figure2", "figure3", "sparsity")  # what of the paper is run, by name
METHODS = ("sgd", "spiderboost", "sparse-spiderboost", "sparse-svrg", "sparse-sgd")
LABELS = {
    "sgd": "SGD", "spiderboost": "SpiderBoost", "sparse-spiderboost": "Algorithm 1 (sparse SpiderBoost)",
    "sparse-svrg": "SparseSVRG", "sparse-svrg-refresh": "SparseSVRG, refresh",
    "sparse-svrg-selected": "SparseSVRG, selected", "svrg": "SVRG", "sparse-sgd": "SparseSGD",
    "sparse-spiderboost-adaptive": "Algorithm 1, adaptive anchors",
}  # fmt: skip
ADAPTIVE = {"sparse-spiderboost-adaptive": "sparse-spiderboost"}  # with inner_steps="auto"
Values = dict[str, Any]
# Entropy of the memory before and after 150 epochs, as printed in Table 1.
TABLE_1 = {
    ("fc", "cifar10"): (16.41, 8.09), ("cnn", "cifar10"): (13.38, 2.66), ("resnet18", "cifar10"): (22.59, 21.70),
    ("fc", "svhn"): (15.36, 8.05), ("cnn", "svhn"): (13.00, 2.97), ("resnet18", "svhn"): (22.62, 21.31),
    ("fc", "mnist"): (14.29, 9.77), ("cnn", "mnist"): (14.21, 2.77),
}  # fmt: skip
EPOCHS = 150.0
# On a GPU these change the time only; 5000 samples of each set are enough to evaluate a ResNet.
FAST: Values = {"channels_last": True, "eval_samples": 5000}
# A ResNet on a laptop: options, and batch sizes.
TINY: Values = {"train_samples": 200, "eval_samples": 40}
TINY_BATCHES: Values = {"anchor_batch_size": 40, "batch_size": 4}
SMOKE = "Smoke scale: a check that everything runs; verdicts hold for this size and budget alone."


@dataclass(frozen=True)
class Part:
    """Runs that share a section of a report; the name of each begins with `key`. The paper shows them to `length`."""

    key: str
    title: str
    configs: list[RunConfig]
    claims: list[Claim]
    note: str = ""
    length: float = math.inf


Experiments = dict[str, list[Part]]


def experiments(scale: str) -> Experiments:
    """All experiments by name; `scale` is "smoke" or "paper"."""
    smoke = scale == "smoke"
    every = {f.__name__: f(smoke) for f in (table1, figure1, figure2, figure3, sparsity)}
    if not smoke:
        return every
    return {name: [replace(p, note=f"{SMOKE} {p.note}".strip()) for p in parts] for name, parts in every.items()}


def on_embedded_data(config: RunConfig) -> RunConfig | None:
    """The same run on scikit-learn's digits, for a machine without the data sets; None if digits do not fit."""
    if config.task != "image" or config.options.get("model") == "resnet18":
        return None
    options = {k: v for k, v in config.options.items() if k not in ("train_samples", "eval_samples")}
    data = str(config.options["data"])
    name, label = config.name.replace(f"-{data}", "") + "-on-digits", config.label.replace(data, "digits")
    options |= {"data": "digits"}
    return replace(config, options=options, name=name, label=label, anchor_batch_size=500, batch_size=50)


def printed_steps(task: str) -> Values:
    """The paper's step size for a task, for every method; `RunConfig` has one for each."""
    return {name: value for name, value in find(task).settings.items() if name in ("lr", "inner_lr_end")}


def at_paper_step(method: str) -> Values:
    """SparseSGD too steps by the lr that it is given, in the figures."""
    return {"arguments": {"step_scale": 1.0}} if method == "sparse-sgd" else {}


def _runs(
    key: str, task: str, smoke: bool, common: Values, special: dict[str, Values] | None = None
) -> list[RunConfig]:
    """A run of each method: the paper's three and ours, at the paper's scale also the other forms of ours.

    `special` has the settings of single methods.
    """
    runs = []
    for name in METHODS if smoke else (*METHODS, *ADAPTIVE, "sparse-svrg-refresh", "sparse-svrg-selected"):
        settings: Values = printed_steps(task) | common | (special or {}).get(name, {})
        settings |= {"inner_steps": "auto"} if name in ADAPTIVE else {}
        settings |= at_paper_step(name)
        runs.append(RunConfig(task, ADAPTIVE.get(name, name), name=f"{key}-{name}", label=LABELS[name], **settings))
    return runs


def table1(smoke: bool) -> list[Part]:
    configs = []
    for model, data in TABLE_1:
        big = model == "resnet18"
        settings: Values = {"budget": EPOCHS, "eval_every": 5.0}
        size: Values = FAST if big else {}
        if smoke:
            size = TINY if big else {"train_samples": 5000, "eval_samples": 1000}
            settings = {"budget": 0.5, "eval_every": 0.5, **TINY_BATCHES} if big else {"budget": 2.0, "eval_every": 0.5}
        settings |= {"name": f"table1-{model}-{data}", "label": f"{model}, {data}"}
        settings |= printed_steps("image") | {"options": {"model": model, "data": data} | size}
        configs.append(RunConfig("image", "spiderboost", track_memory=True, **settings))
    note = "Entropy of M = average of |v| over dense SpiderBoost, at the first anchor and at the end of the budget."
    return [Part("table1", "Table 1: entropy of memory vectors", configs, of_part("table1"), note)]


def figure1(smoke: bool) -> list[Part]:
    left: Values = {"options": {"model": "resnet18", "data": "cifar10"} | (TINY if smoke else FAST)}
    left |= {"budget": 0.6, "eval_every": 0.2, **TINY_BATCHES} if smoke else {"budget": 50.0, "eval_every": 0.5}
    size: Values = {"train_samples": 10_000, "eval_samples": 2000} if smoke else {}
    right: Values = {"options": {"model": "cnn", "data": "mnist"} | size}
    right |= {"budget": 2.0, "eval_every": 0.2} if smoke else {"budget": 20.0, "eval_every": 0.1}
    special: dict[str, Values] = {} if smoke else {"sparse-sgd": {"inner_steps": 50}}
    note = "" if smoke else "The paper shows 2 epochs; these runs go on to 20."
    runs = {
        key: _runs(f"figure1-{key}", "image", smoke, x, special) for key, x in {"left": left, "right": right}.items()
    }
    return [
        Part("figure1-left", "Figure 1, left: ResNet-18 on CIFAR-10", runs["left"], of_part("figure1-left")),
        Part(
            "figure1-right", "Figure 1, right: CNN on MNIST", runs["right"], of_part("figure1-right"), note, length=2.0
        ),
    ]


def figure2(smoke: bool) -> list[Part]:
    """The vocabulary of 1000 as printed; at the paper's scale the whole one too, and the step size that suits SGD."""
    title = "Figure 2 (a): LSTM language model, PTB"
    if smoke:
        options = {"vocabulary": 1000, "hidden": 64, "embedding": 32, "train_tokens": 100_000}
        common: Values = {"options": options, "budget": 1.0, "eval_every": 0.1}
        return [Part("figure2", title, _runs("figure2", "language", smoke, common), of_part("figure2"))]
    parts = []
    # A small step of SparseSGD counts a tenth of its queries, but takes the time of all of them.
    special: dict[str, Values] = {"sparse-sgd": {"inner_steps": 20, "budget": 8.0}}
    for vocabulary, key, suffix in ((1000, "figure2", ""), (10_000, "figure2-10k", ", vocabulary 10,000")):
        common = {"options": {"vocabulary": vocabulary, "eval_pieces": 100}, "budget": 40.0, "eval_every": 0.5}
        runs = _runs(key, "language", smoke, common, special)
        for run in [r for r in runs if r.optimizer in ("sgd", "sparse-sgd")]:
            runs.append(replace(run, name=f"{run.name}-tuned", label=f"{run.label}, lr 1", lr=1.0))
        parts.append(Part(key, title + suffix, runs, of_part(key)))
    return parts


def figure3(smoke: bool) -> list[Part]:
    """MovieLens 100K; at the paper's scale 1M too."""
    parts = []
    length = {"budget": 2.0, "eval_every": 0.25} if smoke else {"budget": 40.0, "eval_every": 0.5}
    special: dict[str, Values] = {"sgd": {"lr": 0.1, "lr_milestones": {10.0: 0.01, 20.0: 0.001}}}
    for data, key in [("100k", "figure3")] if smoke else [("100k", "figure3"), ("1m", "figure3-1m")]:
        runs = _runs(key, "ranking", smoke, {"options": {"data": data}, **length}, special)
        tuned = {"name": f"{key}-sgd-tuned", "label": "SGD, tuned (lr 10)", "lr": 10.0, "lr_milestones": {}}
        title = f"Figure 2 (b): BPR matrix factorisation, MovieLens {data.upper()}"
        parts.append(Part(key, title, [*runs, replace(runs[0], **tuned)], of_part(key)))
    return parts


def sparsity(smoke: bool) -> list[Part]:
    """The sweep of the appendix: several densities on MNIST."""
    densities = (0.02, 0.1, 0.5, 1.0) if smoke else (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    size: Values = {"train_samples": 5000, "eval_samples": 1000} if smoke else {}
    parts = []
    for model in ("cnn", "fc"):
        common: Values = printed_steps("image") | {"options": {"model": model, "data": "mnist"} | size, "budget": 2.0}
        configs = []
        for method, title in (("sparse-spiderboost", "Algorithm 1"), ("sparse-svrg", "SparseSVRG")):
            for share in densities:
                text = {"name": f"sparsity-{model}-{method}-{share:g}", "label": f"{title}, k/d = {share:g}"}
                rest = {"k1": share / 2, "k2": share / 2, "eval_every": 0.25 if smoke else 0.05}
                configs.append(RunConfig("image", method, **text, **rest, **common))
        parts.append(
            Part(
                f"sparsity-{model}", f"Sparsity sweep: {model.upper()} on MNIST", configs, of_part(f"sparsity-{model}")
            )
        )
    return parts
