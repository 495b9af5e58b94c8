"""The demo: logistic regression and a small network on embedded data, five optimizers at equal queries."""

from __future__ import annotations

from typing import Any

from spidersilk.lab.experiments.paper import LABELS, Part
from spidersilk.lab.run.config import RunConfig

METHODS = ("sgd", "spiderboost", "sparse-spiderboost", "sparse-svrg", "sparse-sgd")
# Each step size is the best of 0.02, 0.05, 0.1, 0.2, 0.5, 1 and 2 for its method by the last value at this budget;
# for the convex problem, of ten times these.
CONVEX: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.5}, "spiderboost": {"lr": 10.0}, "sparse-spiderboost": {"lr": 2.0}, "sparse-svrg": {"lr": 2.0},
    "sparse-sgd": {"lr": 5.0, "inner_steps": 50},
}  # fmt: skip
NETWORK: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1},
    "spiderboost": {"lr": 0.05, "anchor_batch_size": 500},
    "sparse-spiderboost": {"lr": 0.02, "anchor_batch_size": 500},
    "sparse-svrg": {"lr": 0.1, "anchor_batch_size": 500},
    "sparse-sgd": {"lr": 0.1, "anchor_batch_size": 500, "inner_steps": 30},
}


def parts() -> list[Part]:
    convex = {"options": {"data": "breast-cancer"}, "budget": 30.0, "eval_every": 30.0 / 40, "batch_size": 10}
    network = {"options": {"model": "fc", "data": "digits"}, "budget": 10.0, "eval_every": 0.25, "batch_size": 50}
    return [
        Part("logistic", "Logistic regression, breast cancer data", _runs("logistic", "logistic", convex, CONVEX), []),
        Part("network", "Two-layer network on digits", _runs("network", "image", network, NETWORK), []),
    ]


def _runs(key: str, task: str, common: dict[str, Any], special: dict[str, dict[str, Any]]) -> list[RunConfig]:
    return [
        RunConfig(task, method, name=f"{key}-{method}", label=LABELS[method], **common, **special[method])
        for method in METHODS
    ]
