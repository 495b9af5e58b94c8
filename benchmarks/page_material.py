"""What the page is made of: every run and every figure of results/ that a claim of the paper is judged by."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_tuned

from spidersilk.lab.experiments.ablations import ablations
from spidersilk.lab.experiments.paper import experiments
from spidersilk.lab.report.evidence import Group, chapter_of, groups_of, make_chapter
from spidersilk.lab.report.judging import Material
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import Curve

PAIRS = {"cifar10": "CIFAR-10", "svhn": "SVHN (a part of it)"}


def material(results: Path) -> Material:
    """Every part of every experiment at the paper's scale, the other pairs of model and data, and the splits, with
    their runs in results/paper; and the figures of the benchmarks that claims are judged by."""
    packed: dict[str, collect.Packed] = {}
    for path in sorted([*results.glob("paper/*.json"), *results.glob("paper/shorter/*.json")]):
        packed = collect.merge(packed, collect.load(path).values())
    guesses = guess_losses(results)
    curves = {name: collect.unpack(_with_guess(run, guesses)) for name, run in packed.items()}
    made = [make_chapter(name, part, curves) for name, parts in experiments("paper").items() for part in parts]
    for data, title in PAIRS.items():
        made += [chapter_of(f"image-{data}-{m}", f"{m.upper()} on {title}", curves, 10.0) for m in ("cnn", "fc")]
    sweep = {name: c for name, c in curves.items() if re.match(r"sparsity-\w+-sparse-svrg-1(-seed\d+)?$", name)}
    dense = {n.replace("sparsity", "split").replace("svrg-1", "svrg-dense"): c for n, c in sweep.items()}
    for name, parts in ablations("paper").items():
        made += [make_chapter(name, part, curves) for part in parts if name not in CONTROLS]
    for chapter in (c for c in made if c.experiment == "ablation-split"):
        key = f"{chapter.part.key}-sparse-svrg-dense"
        found = [_renamed(curve, name, "SVRG") for name, curve in sorted(dense.items()) if name.startswith(key)]
        chapter.groups += groups_of(found)
    again = {
        made_name + end: _renamed(curve, made_name + end, label)
        for made_name, (name, label) in ELSEWHERE.items()
        for end in ("", "-seed1", "-seed2")
        if (curve := curves.get(name + end)) is not None
    }
    made.append(chapter_of("image-mnist-fc", "FC on MNIST", again, 2.0))
    for chapter in (c for c in made if c.part.key == "figure1-right"):
        chapter.groups += groups_of(curve for name, curve in again.items() if name.startswith("figure1-right-"))
    chapters = {chapter.part.key: chapter for chapter in made if chapter.groups}
    known = {curve.config["name"] for chapter in made for group in chapter.groups for curve in group.curves}
    for group in groups_of(curve for name, curve in curves.items() if name not in known and curve.rows):
        for chapter in chapters.values():  # controls, and forms that the plan has not
            if chapter.experiment in FIGURES and _same_task(group, chapter.groups[0]):
                chapter.groups.append(group)
    return Material(chapters, _facts(results), page_tuned.load(results))


FIGURES = ("figure1", "figure2", "figure3")
# Runs at the paper's settings in the files of ablations, under the name of the task that they belong to.
ELSEWHERE = {
    "figure1-right-sparse-spiderboost-reset":
        ("reset-cnn-sparse-spiderboost-0.1-reset", "Algorithm 1, memory reset"),
    "figure1-right-sparse-spiderboost-geometric":
        ("lengths-cnn-sparse-spiderboost-0.1-geometric", "Algorithm 1, geometric loops"),
    "image-mnist-fc-spiderboost": ("lengths-fc-spiderboost-0.1-fixed", "SpiderBoost"),
    "image-mnist-fc-spiderboost-geometric": ("lengths-fc-spiderboost-0.1-geometric", "SpiderBoost, geometric loops"),
    "image-mnist-fc-sparse-spiderboost":
        ("reset-fc-sparse-spiderboost-0.1-carried", "Algorithm 1 (sparse SpiderBoost)"),
    "image-mnist-fc-sparse-spiderboost-reset":
        ("reset-fc-sparse-spiderboost-0.1-reset", "Algorithm 1, memory reset"),
    "image-mnist-fc-sparse-spiderboost-geometric":
        ("lengths-fc-sparse-spiderboost-0.1-geometric", "Algorithm 1, geometric loops"),
    "image-mnist-fc-svrg": ("sparsity-fc-sparse-svrg-1", "SVRG"),
    "image-mnist-fc-sparse-svrg": ("reset-fc-sparse-svrg-0.1-carried", "SparseSVRG"),
}  # fmt: skip
FACTS = ("backprop_cpu_1", "backprop_cuda_float32", "entropy", "sparse_forward", "step_cpu_1")
CONTROLS = ("controls-figure2", "controls-figure3")  # their runs stand beside those of the figure


def _renamed(curve: Curve, name: str, label: str) -> Curve:
    return replace(curve, config=curve.config | {"name": name, "label": label}, label=label)


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
