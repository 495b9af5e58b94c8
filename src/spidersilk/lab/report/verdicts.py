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
    return [replace(verdict, beyond=verdict.beyond or verdict.part in beyond) for verdict in made]


def firm(verdicts: list[Verdict]) -> list[Verdict]:
    """One for each part, of the paper's own tasks if there are any: that over the most seeds, which comes last."""
    return list({v.part: v for v in [v for v in verdicts if not v.beyond] or verdicts}.values())


def summary(claim: Claim, verdicts: list[Verdict], between: str = "; ") -> str:
    """The word for a claim; with several tasks, how many have which."""
    words = [v.word for v in firm(verdicts)]
    if len(set(words)) == 1 and (len(words) == 1 or words[0] == NOT_RUN):
        return words[0]
    told = [f"{words.count(word)} of {len(words)}: {word}" for word in sorted(set(words), key=_place)]
    return between.join(
        [*(["not consistently"] if "consistently" in claim.rule and set(words) != {YES} else []), *told]
    )


def _place(word: str) -> tuple[int, str]:
    plain = word.removeprefix(next((few for few in WORDS.values() if word.startswith(few)), ""))
    starts = (SIZE, YES, "only with", SAME, NO, NONE, NOT_RUN)
    return next((i for i, start in enumerate(starts) if plain.startswith(start)), len(starts)), word


def rivals(curves: Iterable[Curve]) -> list[Verdict]:
    """Each method beside the first one, over the seeds that both have."""
    curves = list(curves)
    base, *others = groups_of(curves)
    made = []
    for group in others:
        for found in compare(group, base, key=metric_of(curves)):
            verdict = verdict_on(f"{group.label} beside {base.label}", found.word(found.side), found, "", [])
            made.append(replace(verdict, why=found.notes(), runs=[base.name, group.name]))
    return made
