"""Table 1 on the page: the entropies beside the printed ones, and what other readings of the set-up give."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_paper import markdown_table, state

from spidersilk.lab.report import html
from spidersilk.lab.report.entropy_rules import data_title, hardly_trained
from spidersilk.lab.report.evidence import LOSS, Chapter, Group, number

NEAR = 0.5  # bits: half of the whole bit to which the text of the paper rounds


@dataclass(frozen=True)
class Entropy:
    """Tables in Markdown: the runs, and what benchmarks/entropy.py measured before and after training."""

    table: str
    before: str
    after: str
    recropped: bool


def load(chapter: Chapter, results: Path) -> Entropy:
    path = results / "benchmarks" / "entropy.json"
    figures: dict[str, Any] = json.loads(path.read_text())["figures"] if path.is_file() else {}
    guess, groups = figures.get("guess", {}), chapter.groups
    ends = [[number(g.end(LOSS)), number(guess.get(data_title(g))), _accuracy(g), _ended(chapter, g)] for g in groups]
    cells = [[*row, *end] for row, end in zip(html.entropy_rows(chapter), ends, strict=True)]
    table = markdown_table([*html.ENTROPY_HEAD, "final loss", "guessing", "test accuracy, %", "how it ended"], cells)
    recropped = any("re-cropped" in data_title(g) for g in groups)
    return Entropy(table, _before(figures) if figures else "", _after(figures) if figures else "", recropped)


def _accuracy(group: Group) -> str:
    last = group.end("test_accuracy")
    return "-" if last is None else f"{100 * last:.1f}"


def _ended(chapter: Chapter, group: Group) -> str:
    """How far it got, and whether it hardly trained."""
    return state(chapter, group) + (", hardly trained" if hardly_trained(group) else "")


def _before(figures: dict[str, Any]) -> str:
    cells = {(r["model"], r["data"], r["variant"]): r for r in figures["before"]}
    places = list(dict.fromkeys((model, data) for model, data, _ in cells))
    variants = []
    for variant in dict.fromkeys(variant for *_, variant in cells):
        means = [(f"{r['mean']:.2f}", abs(r["off"]) <= NEAR) for r in (cells[*place, variant] for place in places)]
        variants.append([variant, *(f"**{mean}**" if near else mean for mean, near in means)])
    variants.append(["printed", *(f"{cells[*place, 'ours']['printed']:.2f}" for place in places)])
    return markdown_table(["variant", *(f"{model}, {data}" for model, data in places)], variants)


def _after(figures: dict[str, Any]) -> str:
    made = []
    for dead in figures["dead"]:
        alive = [r["values"] for r in figures["one alive"] if (r["model"], r["data"]) == (dead["model"], dead["data"])]
        spans = [f"{min(v):.2f} to {max(v):.2f}" for v in alive] or ["", ""]
        made.append([f"{dead['model']}, {dead['data']}", f"{dead['mean']:.2f}", *spans, f"{dead['printed']:.2f}"])
    return markdown_table(["model, data", "dead", "one live unit", "one live unit, one channel", "printed"], made)
