"""The engine of verdicts: each claim of the paper, and each comparison of methods, against the runs.

The HTML report, the page and `spidersilk compare` take their verdicts from here. `comparison.py` has the rules by which
one method needs fewer queries than another, `rules.py` and `entropy_rules.py` what follows for a sentence of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spidersilk.lab.experiments.claims import LARGER, Claim
from spidersilk.lab.report import entropy_rules, facts, rules
from spidersilk.lab.report.comparison import NONE, SAME, WORDS, compare
from spidersilk.lab.report.evidence import Chapter, groups_of
from spidersilk.lab.report.judging import NO, NOT_RUN, SIZE, YES, Material, Rule, Verdict, verdict_on
from spidersilk.lab.run.curve import Curve, metric_of

RULES: dict[str, Rule] = {**rules.RULES, **entropy_rules.RULES, **facts.RULES}


def of(chapter: Chapter) -> list[Verdict]:
    """The verdicts on the claims about one part that its own runs can judge."""
    alone = Material({chapter.part.key: chapter})
    judged = [judge(replace(c, parts=(chapter.part.key,)), alone) for c in chapter.part.claims]
    return [verdict for verdicts in judged for verdict in verdicts]


def judge(claim: Claim, material: Material) -> list[Verdict]:
    """The verdicts on a claim: one or two for each of its parts."""
    made = RULES[claim.rule](claim, material)
    beyond = [chapter.part.title for key, chapter in material.chapters.items() if key in LARGER]
    return [replace(verdict, beyond=verdict.part in beyond) for verdict in made]


def summary(claim: Claim, verdicts: list[Verdict]) -> str:
    """The word for a claim by the paper's own tasks; with several, how many have which."""
    verdicts = [v for v in verdicts if not v.beyond] or verdicts
    parts = list(dict.fromkeys(verdict.part for verdict in verdicts))
    if len(parts) == 1:
        return "; ".join(dict.fromkeys(v.word for v in verdicts))
    words = [next(v.word for v in verdicts if v.part == part) for part in parts]
    if set(words) == {NOT_RUN}:
        return NOT_RUN
    made: dict[str, list[str]] = {}  # notes by the word without them, an empty one for each part
    for word in words:
        few = next((prefix for prefix in WORDS.values() if word.startswith(prefix)), "")
        plain, _, form = word.removeprefix(few).partition(f"{YES} with ")
        notes = [f"with {form}" if form else "", "on few seeds" if few else ""]
        made.setdefault(YES if form else plain, []).append(", ".join(filter(None, notes)))
    told = []
    for word, notes in sorted(made.items(), key=lambda item: _place(item[0])):
        some = [f"{notes.count(note)} {note}" for note in dict.fromkeys(notes) if note]
        told.append(f"{word} ({'; '.join([f'{len(notes)} of {len(parts)}', *some])})")
    not_all = "consistently" in claim.rule and list(made) != [YES]
    return ("not consistently: " if not_all else "") + "; ".join(told)


def _place(word: str) -> int:
    starts = (SIZE, YES, "only with", SAME, NO, NONE, NOT_RUN)
    return next((i for i, start in enumerate(starts) if word.startswith(start)), len(starts))


def rivals(curves: Iterable[Curve]) -> list[Verdict]:
    """Each method beside the first one, over the seeds that both have."""
    curves = list(curves)
    base, *others = groups_of(curves)
    made = []
    for group in others:
        for found in compare(group, base, key=metric_of(curves)):
            word = found.word(found.side)
            made.append(
                verdict_on(f"{group.label} beside {base.label}", word, found, "", [g.name for g in (base, group)])
            )
    return made
