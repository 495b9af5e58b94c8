"""The demo: logistic regression and a small network on embedded data, five optimizers at equal queries."""

from __future__ import annotations

from typing import Any

from spidersilk.lab.experiments.paper import LABELS, Part
from spidersilk.lab.run.config import RunConfig

METHODS = ("sgd", "spiderboost", "sparse-spiderboost", "sparse-svrg", "sparse-sgd")


def parts() -> list[Part]:
    """Each step size is the best of 0.02, 0.05, 0.1, 0.2, 0.5, 1 and 2 for its method by the last value at this budget;
    for the convex problem, of ten times these."""
    return [
        _part("logistic", "Logistic regression, breast cancer data", {"data": "breast-cancer"}, 30.0, CONVEX),
        _part("network", "Two-layer network on digits", {"model": "fc", "data": "digits"}, 10.0, NETWORK),
    ]


CONVEX: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.5, "batch_size": 10},
    "spiderboost": {"lr": 10.0, "batch_size": 10},
    "sparse-spiderboost": {"lr": 2.0, "batch_size": 10},
    "sparse-svrg": {"lr": 2.0, "batch_size": 10},
    "sparse-sgd": {"lr": 5.0, "batch_size": 10, "inner_steps": 50},
}
NETWORK: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "batch_size": 50},
    "spiderboost": {"lr": 0.05, "batch_size": 50, "anchor_batch_size": 500},
    "sparse-spiderboost": {"lr": 0.02, "batch_size": 50, "anchor_batch_size": 500},
    "sparse-svrg": {"lr": 0.1, "batch_size": 50, "anchor_batch_size": 500},
    "sparse-sgd": {"lr": 0.1, "batch_size": 50, "anchor_batch_size": 500, "inner_steps": 30},
}


def _part(name: str, title: str, options: dict[str, Any], budget: float, settings: dict[str, dict[str, Any]]) -> Part:
    task = "logistic" if name == "logistic" else "image"
    configs = [
        RunConfig(
            task,
            method,
            name=f"{name}-{method}",
            label=LABELS[method],
            options=options,
            budget=budget,
            eval_every=budget / 40,
            **settings[method],
        )
        for method in METHODS
    ]
    return Part(title, configs, lambda section: None)
