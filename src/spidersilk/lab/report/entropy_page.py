"""Table 1 on the pages: the entropies beside the printed ones, and what other readings of the set-up give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from spidersilk.lab.experiments.paper import TABLE_1
from spidersilk.lab.report.evidence import LOSS, Chapter, markdown_table, number, seeds_of
from spidersilk.lab.report.verdicts import data_title, entropies, model_and_data
from spidersilk.lab.tasks.models import MODELS

NEAR = 0.5  # bits: what would round to the printed value if that were a whole number
HEAD = ["model, data", "max", "before", "paper", "after", "paper"]
SVHN = """SVHN here is not the published set: it was re-cropped from the full images, and 18,000 of its
73,257 training images are used. "Guessing" is the loss of guessing by class frequency.
"""
READINGS = """### Other readings of the set-up

Before training ([results/benchmarks/entropy.json](../results/benchmarks/entropy.json), by
`python benchmarks/entropy.py --save`; means of five seeds; bold: within half a bit of what is printed):

"""
DEAD = """After training, in the same file. In a **dead** network all units of the last hidden layer are dead: only the
ten output biases have a gradient, and the entropy is at most log2 10 = 3.32. With **one live unit** of the FC: the
lowest to the highest of five seeds, in which that unit may die too; for our input, and for one channel.

"""


def rows(chapter: Chapter) -> list[list[str]]:
    """Cells of HEAD for each run; nothing is printed for data that stands in."""
    made = []
    for group in chapter.groups:
        model, data = model_and_data(group)
        measured = [f"{x:.2f}" for x in entropies(group)] if group.curves else ["-", "-"]
        printed = [f"{x:.2f}" for x in TABLE_1.get((model, data), ())] or ["", ""]
        bits = f"{math.log2(MODELS[model][1]):.3f}"
        made.append([f"{model}, {data_title(group)}", bits, measured[0], printed[0], measured[1], printed[1]])
    return made


def text(chapter: Chapter, results: Path, picture: str) -> str:
    path = results / "benchmarks" / "entropy.json"
    figures = json.loads(path.read_text())["figures"] if path.is_file() else {}
    last = [
        [number(g.end(LOSS)), number(figures.get("guess", {}).get(data_title(g))), g.state()] for g in chapter.groups
    ]
    cells = [[*row, *end] for row, end in zip(rows(chapter), last, strict=True)]
    intro = f"\n{seeds_of(chapter.groups).capitalize()}; dense SpiderBoost, entropy of M in bits. {SVHN}"
    drawn = [f"![Entropy of M over queries](../results/{picture})\n"] if chapter.present else []
    main = markdown_table([*HEAD, "final loss", "guessing", "how far"], cells)
    return "\n".join([intro, main, *drawn, *(_readings(figures) if figures else [])])


def _readings(figures: dict[str, Any]) -> list[str]:
    """What benchmarks/entropy.py measured before training, and after it in networks that are nearly dead."""
    cells = {(r["model"], r["data"], r["variant"]): r for r in figures["before"]}
    places = list(dict.fromkeys((model, data) for model, data, _ in cells))
    printed = ["printed", *(f"{cells[*place, 'ours']['printed']:.2f}" for place in places)]
    variants = []
    for variant in dict.fromkeys(variant for *_, variant in cells):
        row = [cells[*place, variant] for place in places]
        variants.append(
            [variant, *(f"**{r['mean']:.2f}**" if abs(r["off"]) <= NEAR else f"{r['mean']:.2f}" for r in row)]
        )
    after = []
    for dead in figures["dead"]:
        alive = [r["values"] for r in figures["one alive"] if (r["model"], r["data"]) == (dead["model"], dead["data"])]
        spans = [f"{min(v):.2f} to {max(v):.2f}" for v in alive] or ["", ""]
        after.append([f"{dead['model']}, {dead['data']}", f"{dead['mean']:.2f}", *spans, f"{dead['printed']:.2f}"])
    head = ["model, data", "dead", "one live unit", "one live unit, one channel", "printed"]
    return [
        READINGS + markdown_table(["variant", *(f"{m}, {d}" for m, d in places)], [*variants, printed]),
        DEAD + markdown_table(head, after),
    ]
