"""What a rule works with: the material, the forms of a method, and the verdict that comes out.

Every form of a method counts as the method: runs of its optimizer at the same step size, batches, k1 and k2, whatever
the lengths of its loops and the handling of its memory are. Each side enters with its best form, which is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spidersilk.lab.experiments.claims import Claim
from spidersilk.lab.experiments.tuning import Record
from spidersilk.lab.report.comparison import FEWER, LEVEL, MORE, SEEDS, Comparison, compare
from spidersilk.lab.report.evidence import Chapter, Group

YES, NO, SIZE, NOT_RUN = "reproduced", "not reproduced", "reproduced in direction, by more than slightly", "not run"


@dataclass
class Verdict:
    """`claim` is the sentence, `part` the runs' title. `ratio` and `seeds` are what a comparison rests on. `beyond`:
    about runs that the paper does not have."""

    claim: str
    word: str
    why: str = ""
    runs: list[str] = field(default_factory=list)
    part: str = ""
    ratio: str = ""
    seeds: str = ""
    beyond: bool = False

    def text(self) -> str:
        """In three lines, for a terminal."""
        numbers = "; ".join(filter(None, (self.why, self.ratio and f"queries {self.ratio}", self.seeds)))
        return f"{self.claim}\n  {numbers}\n  [bold]{self.word}[/bold]"


@dataclass
class Material:
    """What claims are judged by: parts with their runs, figures of benchmarks, and tunings, each by name."""

    chapters: Mapping[str, Chapter]
    facts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    tunings: Mapping[str, Record] = field(default_factory=dict)


Rule = Callable[[Claim, Material], list[Verdict]]


# Forms of a method.


def forms(chapter: Chapter, method: str) -> list[Group]:
    """The runs of a method, as printed first, then those that differ in what the paper leaves open."""
    printed = chapter.find(method)
    others = [g for g in chapter.present if g.name != printed.name and _settings(g) == _settings(printed)]
    if all(g is not printed for g in chapter.groups):
        return [printed]
    return [printed, *(g for g in others if f"{g.config.optimizer}-".startswith(f"{printed.config.optimizer}-"))]


def _settings(group: Group) -> list[Any]:
    config = group.config.completed()
    keys = ("lr", "anchor_batch_size", "batch_size", "inner_lr_end", "lr_milestones", "groups", "max_norm")
    return [*(getattr(config, key) for key in keys), *(0.05 if k is None else k for k in (config.k1, config.k2))]


def best(chapter: Chapter, ours: str, theirs: str, length: float = math.inf) -> list[Comparison]:
    """Of the best forms of both; at the paper's length, and where more seeds got if there is such a place."""
    found = []
    for mine in forms(chapter, ours):
        beside = [compare(mine, other, min(length, chapter.part.length)) for other in forms(chapter, theirs)]
        found += [min((c for c in beside if c), key=lambda c: place(c[0], MORE))] if any(beside) else []
    first = min(found, key=lambda c: place(c[0]), default=[])
    printed = found[0] if found and found[0][0].ours.name == chapter.find(ours).name else first
    if first and place(printed[0])[:2] == place(first[0])[:2] and printed[0].median <= LEVEL * first[0].median:
        return printed  # no form is clearly better than it
    return first


def place(found: Comparison, win: str = FEWER) -> tuple[int, int, float]:
    """Clear wins over enough seeds first, then clear wins; then by seeds and queries. MORE: wins of the other side."""
    many, wins = min(len(found.ratios), SEEDS), found.side == win
    middle = math.inf if math.isnan(found.median) else found.median if win == FEWER else -found.median
    return 0 if wins and many == SEEDS else 1 if wins else 2, -many, middle


def verdict_on(claim: str, word: str, found: Comparison, part: str, runs: list[str], more: str = "") -> Verdict:
    who = f"{found.ours.label} beside {found.theirs.label}"
    why = "; ".join(filter(None, (who, found.failures(), more)))
    return Verdict(claim, word, why, runs, part, found.ratio(), found.seeds())


def missing(claim: Claim, chapter: Chapter | None, key: str) -> Verdict:
    if chapter is None:
        return Verdict(claim.text, NOT_RUN, f"no runs of {key}", [], key)
    absent = [g.name for g in map(chapter.find, (claim.theirs, claim.ours)) if not g.curves]
    return Verdict(claim.text, NOT_RUN, f"missing: {', '.join(absent)}", absent, chapter.part.title)
