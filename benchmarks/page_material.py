"""What the page is made of: every run and every figure of results/ that a claim of the paper is judged by."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_tuned

from spidersilk.lab.experiments.ablations import ablations
from spidersilk.lab.experiments.claims import of_part
from spidersilk.lab.experiments.paper import ADAPTIVE, FAST, LABELS, Part, at_paper_step, experiments
from spidersilk.lab.report.comparison import cut
from spidersilk.lab.report.evidence import Chapter, Group, groups_of, make_chapter
from spidersilk.lab.report.judging import Material
from spidersilk.lab.run import collect
from spidersilk.lab.run.config import RunConfig, from_dict
from spidersilk.lab.run.curve import Curve
from spidersilk.lab.run.folder import LOCAL

DATA = {"cifar10": "CIFAR-10", "svhn": "SVHN (a part of it)", "mnist": "MNIST"}
PAIRS = {(m, data): 10.0 for data in ("cifar10", "svhn") for m in ("cnn", "fc")} | {
    ("fc", "mnist"): 2.0
}  # to so many N
FIGURES = ("figure1", "figure2", "figure3")
FACTS = ("backprop_cpu_1", "backprop_cuda_float32", "entropy", "sparse_forward", "step_cpu_1")
CONTROLS = ("controls-figure2", "controls-figure3")  # their runs stand beside those of the figure
FREE = {"name", "label", "seed", "budget", "eval_every", "evaluations", *LOCAL}  # the rest are settings
Runs = dict[str, list[Curve]]  # by their settings


def material(results: Path) -> Material:
    """Every part of every experiment at the paper's scale, the other pairs of model and data, and the ablations, with
    their runs in results/paper, whatever file of it they are in; and the figures of the benchmarks that claims are
    judged by."""
    packed: dict[str, collect.Packed] = {}
    for path in sorted([*results.glob("paper/*.json"), *results.glob("paper/shorter/*.json")]):
        packed = collect.merge(packed, collect.load(path).values())
    guesses = guess_losses(results)
    curves = {name: collect.unpack(_with_guess(run, guesses)) for name, run in packed.items()}
    runs: Runs = {}
    for curve in (c for c in curves.values() if c.rows):
        runs.setdefault(_settings(curve.config), []).append(curve)
    made = [make_chapter(name, part, curves) for name, parts in experiments("paper").items() for part in parts]
    for name, parts in ablations("paper").items():
        made += [make_chapter(name, part, curves) for part in parts if name not in CONTROLS]
    for group in (group for chapter in made for group in chapter.groups):
        same = runs.get(_settings(vars(group.config)), [])
        others = [cut(c, group.config.budget) for c in same if all(c is not curve for curve in group.curves)]
        group.curves = distinct([*group.curves, *others])
    for (model, data), length in PAIRS.items():
        key, title = f"image-{data}-{model}", f"{model.upper()} on {DATA[data]}"
        groups = _forms(key, model, data, runs)
        made.append(Chapter(key, Part(key, title, [g.config for g in groups], of_part(key), length=length), groups))
    chapters = {chapter.part.key: chapter for chapter in made if chapter.groups}
    right = chapters["figure1-right"]
    names = {group.name for group in right.groups}
    right.groups += [g for g in _forms("figure1-right", "cnn", "mnist", runs) if g.name not in names]
    for split, beside in (("split-cnn", "figure1-right"), ("split-fc", "image-mnist-fc")):
        dense = chapters[beside].find("svrg") if beside in chapters else None
        if split in chapters and dense is not None and dense.curves:
            chapters[split].groups.append(replace(dense, config=replace(dense.config, name=f"{split}-svrg")))
    known = {curve.config["name"] for chapter in made for group in chapter.groups for curve in group.curves}
    for group in groups_of(curve for name, curve in curves.items() if name not in known and curve.rows):
        for chapter in chapters.values():  # controls, and forms that the plan has not
            if chapter.experiment in FIGURES and _same_task(group, chapter.groups[0]):
                chapter.groups.append(group)
    return Material(chapters, _facts(results), page_tuned.load(results))


def _settings(config: Mapping[str, Any]) -> str:
    """What two runs of the same method share; an older file has no newer settings."""
    made = from_dict({k: v for k, v in config.items() if k not in FREE}).completed()
    options = {k: v for k, v in sorted(made.options.items()) if k not in FAST}
    k1, k2 = (0.05 if k is None else k for k in (made.k1, made.k2))
    return repr(replace(made, options=options, k1=k1, k2=k2))


def _forms(key: str, model: str, data: str, runs: Runs) -> list[Group]:
    """The runs on a task at the paper's settings, by method and form: of loops, and of the memory."""
    groups = []
    base = RunConfig("image", options={"model": model, "data": data}, lr=0.1)
    forms = {
        "": base,
        "reset": replace(base, memory_reset=True, label="memory reset"),
        "geometric": replace(base, lengths="geometric", label="geometric loops"),
        "adaptive": replace(base, inner_steps="auto", label="adaptive anchors"),
    }
    for method in (m for m in LABELS if m not in ADAPTIVE):
        for form, config in forms.items():
            config = replace(config, optimizer=method, **at_paper_step(method))
            found = distinct(runs.get(_settings(vars(config)), []))
            label = f"{LABELS[method].partition(' (')[0]}, {config.label}" if form else LABELS[method]
            name = "-".join(filter(None, (key, method, form)))
            groups += [Group(replace(config, name=name, label=label), found)] if found else []
    return groups


def distinct(curves: list[Curve]) -> list[Curve]:
    """Without runs that another file has too: the same seed and the same losses. On another machine the same seed may
    give other losses, which is a run of its own."""
    kept: list[Curve] = []
    for curve in sorted(curves, key=lambda c: c.config.get("seed", 0)):
        same = (c for c in kept if c.config.get("seed", 0) == curve.config.get("seed", 0))
        if not any(_agree(c, curve) for c in same):
            kept.append(curve)
    return kept


def _agree(a: Curve, b: Curve) -> bool:
    losses = [{round(r["queries"], 3): r["train_loss"] for r in c.rows if "train_loss" in r} for c in (a, b)]
    common = losses[0].keys() & losses[1].keys()
    return all(math.isclose(losses[0][q], losses[1][q], rel_tol=1e-4) for q in common) and len(common) > 1


def _same_task(group: Group, other: Group) -> bool:
    names = ("model", "data", "vocabulary")
    tasks = [(g.config.task, *(g.config.options.get(name) for name in names)) for g in (group, other)]
    return tasks[0] == tasks[1]


def _facts(results: Path) -> dict[str, dict[str, Any]]:
    """The figures of JSON files by their path in results/, without its ending."""
    names = [f"benchmarks/{name}.json" for name in FACTS] + ["inspect/*.json"]
    paths = sorted(path for name in names for path in results.glob(name))
    return {str(p.relative_to(results).with_suffix("")): json.loads(p.read_text())["figures"] for p in paths}


def guess_losses(results: Path) -> dict[str, float]:
    """The loss of guessing by class frequency, by the name of the data."""
    path = results / "benchmarks" / "entropy.json"
    return json.loads(path.read_text())["figures"]["guess"] if path.is_file() else {}


def _with_guess(run: collect.Packed, guesses: dict[str, float]) -> collect.Packed:
    """A run with the loss of guessing in its summary, where its file, as an older one, has none."""
    return run | {"summary": {"guess_loss": guesses.get(run["summary"].get("data"))} | run["summary"]}
