"""docs/reproduction.md and its figures, from the files in results/ alone: the paper's claims with a verdict each.

python benchmarks/page.py
"""

from __future__ import annotations

from pathlib import Path

import jinja2
import page_entropy
import page_paper
import page_tuned
from page_paper import chapters, markdown_table

from spidersilk.lab.report import verdicts
from spidersilk.lab.report.evidence import Chapter
from spidersilk.lab.run.folder import write_atomically

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = Path(__file__).with_name("page_template.md")
COMMAND = "python benchmarks/page.py"


def write(results: Path, to: Path, figures: Path) -> Path:
    """The page at `to`, and a PNG in the folder `figures` for each figure that has runs."""
    for chapter in chapters(results):
        page_paper.draw(chapter, figures)
    page_tuned.draw(results, figures)
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, text(results).encode())
    return to


def text(results: Path) -> str:
    """The page: a function of the files in `results`."""
    every = chapters(results)
    table1 = next(chapter for chapter in every if chapter.experiment == "table1")
    template = jinja2.Template(
        TEMPLATE.read_text(), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )  # fmt: skip
    return template.render(
        command=COMMAND,
        level=f"{verdicts.LEVEL:g}",
        claims=_claims(every),
        chapters=every,
        paper=page_paper,
        verdicts_of=verdicts.of,
        entropy=page_entropy.load(table1, results),
        tuned=page_tuned.text(results),
        missing=_missing(every),
    )


def _claims(every: list[Chapter]) -> str:
    judged = [(chapter, verdict) for chapter in every for verdict in verdicts.of(chapter)]
    rows = [[c.part.title, v.claim, f"**{v.word}**", page_paper.seeds_of(c)] for c, v in judged]
    return markdown_table(["where", "the paper", "here", "seeds"], rows)


def _missing(every: list[Chapter]) -> list[str]:
    lines = []
    for chapter in every:
        short = [f"`{g.name}` ({page_paper.state(g)})" for g in chapter.groups if not page_paper.complete(g)]
        runs = ", ".join(short) if chapter.present else f"all {len(short)} runs (not run yet)"
        lines += [f"{chapter.part.title}: {runs}"] if short else []
    return lines


if __name__ == "__main__":
    print(write(ROOT / "results", ROOT / "docs" / "reproduction.md", ROOT / "results"))
