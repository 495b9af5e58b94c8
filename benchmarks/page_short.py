"""The page in short: one row for each table and figure of the paper, by the engine of verdicts."""

from __future__ import annotations

import math
import statistics

from page_paper import markdown_table

from spidersilk.lab.experiments.claims import ALGORITHM_1, DENSE, SGD, Claim
from spidersilk.lab.report.comparison import SEEDS, WORDS, Comparison, compare, cut
from spidersilk.lab.report.evidence import LOSS, Group, number
from spidersilk.lab.report.judging import NOT_RUN, YES, Material, Verdict, best
from spidersilk.lab.report.verdicts import summary
from spidersilk.lab.run.curve import Curve

Judged = list[tuple[Claim, list[Verdict]]]
HEAD = ["the paper", "verdict", "what was measured"]
# Each figure: the rule of its main sentence and the part, what the sentence says, and which methods are compared.
FIGURES = {
    "Figure 1, left": ("better", "figure1-left", "works well on large neural networks", ((ALGORITHM_1, DENSE),)),
    "Figure 1, right": (
        "better", "figure1-right", "a significant advantage",
        ((ALGORITHM_1, DENSE), ("sparse-svrg", DENSE)),
    ),
    "Figure 2 (a)": (
        "better", "figure2", "a noticeable improvement over SGD",
        ((ALGORITHM_1, SGD), (DENSE, SGD)),
    ),
    "Figure 2 (b)": (
        "slightly better", "figure3", "a slight improvement over SGD",
        ((ALGORITHM_1, SGD), (DENSE, SGD), (ALGORITHM_1, "sgd-tuned")),
    ),
}  # fmt: skip


def table(judged: Judged, material: Material) -> str:
    return markdown_table(HEAD, [_consistently(judged), *_table1(judged, material), *_figures(judged, material),
                                 _sweep(judged)])  # fmt: skip


def _row(name: str, says: str, number: int, word: str, told: str) -> list[str]:
    return [f"{name}: [{says}](reproduction/claims.md#claim-{number})", f"**{word}**", told]


def _found(judged: Judged, rule: str, part: str) -> tuple[int, Claim, list[Verdict]]:
    return next((i, c, made) for i, (c, made) in enumerate(judged, 1) if c.rule == rule and part in c.parts)


def _firm(made: list[Verdict]) -> Verdict:
    """Of the verdicts on one part, that over the most seeds, which comes last."""
    own = [v for v in made if not v.beyond] or made
    return own[-1]


def _consistently(judged: Judged) -> list[str]:
    number, _, made = _found(judged, "consistently", "figure1-right")
    last = {v.part: v.word for v in made}.values()
    plain = [word.removeprefix(next((w for w in WORDS.values() if word.startswith(w)), "")) for word in last]
    printed, formed = plain.count(YES), sum(word.startswith(f"{YES} with") for word in plain)
    told = f"Of {len(plain)} tasks, Algorithm 1 as printed is clearly ahead of SpiderBoost on {printed}, "
    told += f"another form of it on {formed} ({sum(word not in plain for word in last)} of these on few seeds), "
    told += f"no form on {len(plain) - printed - formed}"
    word = NOT_RUN if set(plain) == {NOT_RUN} else YES if printed == len(plain) else "not consistently"
    return _row("Abstract", "consistently outperforms SpiderBoost", number, word, told)


def _table1(judged: Judged, material: Material) -> list[list[str]]:
    chapter = material.chapters.get("table1")
    printed = [] if chapter is None else chapter.present
    lost = sum(group.broken for group in printed)
    told = {
        "entropy before": "Pairs of model and data within one bit of the printed entropy",
        "entropy after": f"The same after 150 N; SpiderBoost collapsed on {lost} of {len(printed)} pairs",
    }
    rows = []
    for rule, says in {
        "entropy before": "entropy before training",
        "entropy after": "entropy after 150 epochs",
    }.items():
        number, claim, made = _found(judged, rule, "table1")
        rows.append(_row("Table 1", says, number, summary(claim, made), told[rule]))
    return rows


def _figures(judged: Judged, material: Material) -> list[list[str]]:
    rows = []
    for name, (rule, part, says, pairs) in FIGURES.items():
        number, _, made = _found(judged, rule, part)
        told = "<br>".join(filter(None, (_sides(material, part, ours, theirs) for ours, theirs in pairs)))
        rows.append(_row(name, says, number, _firm(made).word, told))
    return rows


def _sides(material: Material, part: str, ours: str, theirs: str) -> str:
    """Queries of a method as printed, and of its best form if that is another one."""
    chapter = material.chapters.get(part)
    if chapter is None:
        return ""
    printed = compare(chapter.find(ours), chapter.find(theirs), chapter.part.length)
    other = [f for f in best(chapter, ours, theirs) if f.ours.name != chapter.find(ours).name]
    return "<br>".join(_needs(_firmest(found)) for found in (printed, other) if found)


def _firmest(found: list[Comparison]) -> Comparison:
    return found[-1] if len(found[-1].ratios) >= SEEDS else found[0]


def _needs(found: Comparison) -> str:
    """In words: "SparseSVRG needs 0.30 times SpiderBoost's queries to loss 0.2 (from 2.3); 5 of 5 seeds, 2 N"."""
    ratio = found.ratio()
    words = ratio.startswith(("fails", "the other", "both"))
    many = (
        f"{ratio}, beside {_name(found.theirs)}"
        if words
        else f"needs {ratio} times {_name(found.theirs)}'s queries to {_target(found)}"
    )
    rose = [told for told in found.failures().split("; ") if told.startswith(found.ours.label) and " ends " in told]
    rest = [told.removeprefix(found.ours.label).strip() for told in rose]
    return "; ".join([f"{_name(found.ours)} {many}", found.seeds(), *rest])


def _target(found: Comparison) -> str:
    """The loss that both reached, and that before training: a method may have learned nothing."""
    lows = [
        max(a.lowest(LOSS) or math.inf, b.lowest(LOSS) or math.inf)
        for a, b in zip(_shown(found.ours, found.length), _shown(found.theirs, found.length), strict=False)
    ]
    first = statistics.median(curve.rows[0][LOSS] for curve in found.ours.curves)
    return f"loss {number(statistics.median(lows))} (from {number(first)})"


def _shown(group: Group, length: float) -> list[Curve]:
    return [cut(curve, length) for curve in group.curves]


def _name(group: Group) -> str:
    name = group.label.partition(" (sparse")[0].replace("1, ", "1 with ")
    return (
        f"{name} as printed" if group.name.endswith(ALGORITHM_1) else "tuned SGD" if "sgd-tuned" in group.name else name
    )


def _sweep(judged: Judged) -> list[str]:
    number, claim, made = _found(judged, "range", "sparsity-cnn")
    told = "<br>".join(f"{v.part.partition(': ')[2]}: {v.word}" for v in made)
    word = summary(claim, made[:1]) if len({v.word for v in made}) == 1 else "reproduced in part"
    return _row("Appendix B", "SpiderBoost with various values of sparsity", number, word, told)
