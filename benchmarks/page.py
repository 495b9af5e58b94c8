"""docs/reproduction.md, the pages behind it and their figures, from the files in results/ alone.

python benchmarks/page.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import jinja2
import page_entropy
import page_material
import page_paper
import page_short
import page_splits
import page_tuned
from page_paper import markdown_table

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.experiments.ablations import ablations
from spidersilk.lab.experiments.claims import CLAIMS, Claim
from spidersilk.lab.experiments.paper import PRINTED
from spidersilk.lab.report import comparison, verdicts
from spidersilk.lab.report.evidence import Chapter
from spidersilk.lab.report.judging import NOT_RUN, Material, Verdict

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = Path(__file__).parent / "page_templates"
COMMAND = "python benchmarks/page.py"
TOLD = ("counted", "proved", "proved in part", "disproved", "not run")  # rules that no run decides
PAGES = ("reproduction.md", *(f"reproduction/{n}.md" for n in ("claims", "runs", "table1", "splits", "tuning")))
SHOWN = ("table1", "figure1-left", "figure1-right", "figure2", "figure3", "sparsity-cnn", "sparsity-fc")


def write(results: Path, docs: Path, figures: Path) -> list[Path]:
    """The pages in the folder `docs`, and a PNG in the folder `figures` for each figure that has runs."""
    material = page_material.material(results)
    for chapter in _planned(material):
        page_paper.draw(chapter, figures)
    page_tuned.draw(results, figures)
    written = []
    for name, text in texts(results).items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(docs / name, text.encode())
        written.append(docs / name)
    return written


def texts(results: Path) -> dict[str, str]:
    """Each page by its path in docs/: functions of the files in `results`."""
    material = page_material.material(results)
    judged = [(claim, verdicts.judge(claim, material)) for claim in CLAIMS]
    table1 = material.chapters["table1"]
    values = {
        "command": COMMAND,
        "rules": comparison,
        "short": page_short.table(judged, material),
        "claims": _claims(judged),
        "told": {rule: [claim for claim, _ in judged if claim.rule == rule] for rule in TOLD},
        "not_run": [c for c, made in judged if c.rule not in TOLD and all(v.word == NOT_RUN for v in made)],
        "shown": [material.chapters[key] for key in SHOWN if material.chapters[key].present],
        "planned": [c for c in material.chapters.values() if not c.experiment.startswith("ablation")],
        "drawn": [chapter.part.key for chapter in _planned(material) if chapter.present],
        "paper": page_paper,
        "rows": [(number, claim, made) for number, (claim, made) in enumerate(judged, 1)],
        "entropy": page_entropy.load(table1, results),
        "table1": table1,
        "splits": {
            m: page_splits.table(c) for m in ("CNN", "FC") if (c := material.chapters.get(f"split-{m.lower()}"))
        },
        "tuned": page_tuned.text(results),
        "missing": _missing(material),
        "summary": verdicts.summary,
    }
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    names = (
        "reproduction.md",
        *(f"reproduction/{name}.md" for name in ("claims", "runs", "table1", "splits", "tuning")),
    )
    return {name: environment.get_template(name).render(values) for name in names}


def _planned(material: Material) -> list[Chapter]:
    """The parts that `spidersilk reproduce` makes."""
    return [c for c in material.chapters.values() if c.experiment in PRINTED]


def _missing(material: Material) -> list[str]:
    """Of these, of the ablations, and of the controls, whose runs stand beside those of a figure."""
    chapters = list(material.chapters.values())
    lines = page_paper.missing(c for c in chapters if c.experiment in PRINTED or c.experiment.startswith("ablation"))
    there = {group.name for chapter in chapters for group in chapter.present}
    for part in (part for name in page_material.CONTROLS for part in ablations("paper")[name]):
        absent = [f"`{config.name}`" for config in part.configs if config.name not in there and config.seed == 0]
        lines += [f"{part.title}: {', '.join(absent)} (not run)"] if absent else []
    return lines


def _claims(judged: Iterable[tuple[Claim, list[Verdict]]]) -> str:
    """The claims that runs decide."""
    rows = []
    for number, (claim, made) in enumerate(judged, 1):
        if claim.rule in TOLD or all(v.word == NOT_RUN for v in made):
            continue
        (first, *more) = verdicts.firm(made)
        cells = ["", ""] if more else [first.ratio, first.seeds]
        quote = f"[{number}](#claim-{number}) “{claim.text}” ({claim.where})"
        rows.append([quote, f"**{verdicts.summary(claim, made, '<br>')}**", *cells])
    return markdown_table(["the paper", "here", "queries", "outcomes, length"], rows)


if __name__ == "__main__":
    for page in write(ROOT / "results", ROOT / "docs", ROOT / "results"):
        print(page)
