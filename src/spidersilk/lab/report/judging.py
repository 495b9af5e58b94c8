"""What a rule works with: the material, the forms of a method, and the verdict that comes out.

Every form of a method counts as the method: runs of its optimizer at the same step size, batches, k1 and k2, whatever
the lengths of its loops and the handling of its memory are. Each side enters with its best form, which is named. Forms
of ours are kept apart: what they alone do is no reproduction.
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

RESCUE, SVRG = "sparse-svrg", "svrg"  # ours, named where it does what Algorithm 1 does not; and what it rests on
ADAPTIVE = "adaptive anchors"
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
    """The runs of a method, as printed first, then those that differ in what the paper leaves open, and ours."""
    printed = chapter.find(method)
    others = [g for g in chapter.present if g.name != printed.name and _settings(g) == _settings(printed)]
    if all(g is not printed for g in chapter.groups):
        return [printed]
    return [printed, *(g for g in others if f"{g.config.optimizer}-".startswith(f"{printed.config.optimizer}-"))]


def _settings(group: Group) -> list[Any]:
    config = group.config.completed()
    keys = ("lr", "anchor_batch_size", "batch_size", "inner_lr_end", "lr_milestones", "groups", "max_norm")
    return [*(getattr(config, key) for key in keys), *(0.05 if k is None else k for k in (config.k1, config.k2))]


def own(group: Group) -> str:
    """What of a run is ours and not the paper's: a method, or a form of one."""
    if group.config.optimizer.startswith(RESCUE):
        return group.config.optimizer.replace(RESCUE, "SparseSVRG").replace("G-", "G, ")
    return ADAPTIVE if group.config.inner_steps == "auto" else ""


def said(word: str, found: Comparison) -> str:
    """The word for a sentence of the paper; one that rests on a form of ours is not that the sentence is reproduced."""
    return found.word(f"only with {own(found.ours)}, ours" if own(found.ours) and word in (YES, SIZE) else word)


def best(chapter: Chapter, ours: str, theirs: str, free: bool = False) -> list[Comparison]:
    """Of the best forms of both; at the paper's length, and where more seeds got if there is such a place. Forms of
    ours enter if `free`, or where the method as printed is ours."""
    every = free or bool(own(chapter.find(ours)))
    return _choose([beside(chapter, g, theirs, free) for g in forms(chapter, ours) if every or not own(g)], FEWER)


def beside(chapter: Chapter, form: Group, theirs: str, free: bool = False) -> list[Comparison]:
    """A form beside the best form of a method."""
    every = free or bool(own(chapter.find(theirs)))
    rivals = [g for g in forms(chapter, theirs) if every or not own(g)]
    return _choose([compare(form, rival, chapter.part.length) for rival in rivals], MORE)


def _choose(found: list[list[Comparison]], win: str) -> list[Comparison]:
    """The best for one side; the first, which is as printed, unless another one is clearly better."""
    there = [f for f in found if f]
    first = min(there, key=lambda f: place(f[0], win), default=[])
    if first and found[0] and place(found[0][0], win)[:2] == place(first[0], win)[:2]:
        ratios = sorted((found[0][0].middle, first[0].middle))
        return found[0] if ratios[1] <= LEVEL * ratios[0] or ratios[0] == ratios[1] else first
    return first


def place(found: Comparison, win: str = FEWER) -> tuple[int, int, float]:
    """Clear wins over enough seeds first, then clear wins; then by seeds and queries. MORE: wins of the other side."""
    many, wins = min(len({pair.seed for pair in found.judged}), SEEDS), found.side == win
    middle = math.inf if math.isnan(found.middle) else found.middle if win == FEWER else -found.middle
    return 0 if wins and many == SEEDS else 1 if wins else 2, -many, middle


def verdict_on(claim: str, word: str, found: Comparison, part: str, runs: list[str], more: str = "") -> Verdict:
    who = f"{found.ours.label} beside {found.theirs.label} {found.target()}".strip()
    why = "; ".join(filter(None, (who, found.notes(), more)))
    return Verdict(claim, word, why, runs, part, found.ratio(), found.seeds())


def missing(claim: Claim, chapter: Chapter | None, key: str) -> Verdict:
    if chapter is None:
        return Verdict(claim.text, NOT_RUN, f"no runs of {key}", [], key)
    absent = [g.name for g in map(chapter.find, (claim.theirs, claim.ours)) if not g.curves]
    return Verdict(claim.text, NOT_RUN, f"missing: {', '.join(absent)}", absent, chapter.part.title)
