"""The page in short: one row for each table and figure of the paper, by the engine of verdicts."""

from __future__ import annotations

from collections import Counter

from page_paper import markdown_table

from spidersilk.lab.experiments.claims import ALGORITHM_1, DENSE, SGD, Claim
from spidersilk.lab.report.comparison import FEWER, Comparison, compare
from spidersilk.lab.report.evidence import Group
from spidersilk.lab.report.judging import NO, NOT_RUN, RESCUE, SVRG, YES, Material, Verdict, best
from spidersilk.lab.report.verdicts import firm, summary

Judged = list[tuple[Claim, list[Verdict]]]
HEAD = ["the paper", "verdict", "what was measured"]
# Each figure: the rule of its main sentence and the part, what the sentence says, and which methods are compared.
FIGURES = {
    "Figure 1, left": (
        "better", "figure1-left", "works well on large neural networks",
        ((ALGORITHM_1, DENSE), (RESCUE, DENSE)),
    ),
    "Figure 1, right": (
        "better", "figure1-right", "a significant advantage",
        ((ALGORITHM_1, DENSE), (RESCUE, DENSE), (SVRG, DENSE), (SGD, DENSE)),
    ),
    "Figure 2 (a)": (
        "better", "figure2", "a noticeable improvement over SGD",
        ((ALGORITHM_1, SGD), (DENSE, SGD)),
    ),
    "Figure 2 (b)": (
        "slightly better", "figure3", "a slight improvement over SGD",
        ((ALGORITHM_1, SGD), (DENSE, SGD), (ALGORITHM_1, "sgd-tuned"), (ALGORITHM_1, "controls-figure3-sgd-summed")),
    ),
}  # fmt: skip


def table(judged: Judged, material: Material) -> str:
    rows = [_consistently(judged, material), *_table1(judged, material), *_figures(judged, material), _sweep(judged)]
    return markdown_table(HEAD, rows)


def _row(name: str, says: str, number: int, word: str, told: str) -> list[str]:
    return [f"{name}: [{says}](reproduction/claims.md#claim-{number})", f"**{word}**", told]


def _found(judged: Judged, rule: str, part: str) -> tuple[int, Claim, list[Verdict]]:
    """The claim with this rule that is about the fewest parts, one of which is this."""
    fitting = [(i, c, made) for i, (c, made) in enumerate(judged, 1) if c.rule == rule and part in c.parts]
    return min(fitting, key=lambda found: len(found[1].parts))


def _consistently(judged: Judged, material: Material) -> list[str]:
    number, claim, made = _found(judged, "consistently", "figure1-right")
    words = [v.word for v in firm(made)]
    told = f"{len(words)} tasks, four of them of the paper's figures:<br>{_counted(words)}<br>"
    told += f"SGD needs fewer queries than SpiderBoost on {_sgd(claim, material, DENSE)} tasks, "
    told += f"than SparseSVRG on {_sgd(claim, material, RESCUE)}"
    word = NOT_RUN if set(words) == {NOT_RUN} else YES if set(words) == {YES} else "not consistently"
    return _row("Abstract", "consistently outperforms SpiderBoost", number, word, told)


def _counted(words: list[str]) -> str:
    return "<br>".join(f"{many} of {len(words)}: {word}" for word, many in Counter(words).most_common())


def _sgd(claim: Claim, material: Material, rival: str) -> str:
    """On how many of the tasks where both were run."""
    chapters = [material.chapters[key] for key in claim.parts if key in material.chapters]
    found = [f for c in chapters for f in compare(c.find(SGD), c.find(rival), c.part.length)[-1:]]
    return f"{sum(f.side == FEWER for f in found)} of {len(found)}"


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
        rows.append(_row(name, says, number, firm(made)[-1].word, told))
    return rows


def _sides(material: Material, part: str, ours: str, theirs: str) -> str:
    """Queries of a method as printed, and of its best form if that is another one."""
    chapter = material.chapters.get(part)
    if chapter is None:
        return ""
    printed = compare(chapter.find(ours), chapter.find(theirs), chapter.part.length)[-1:]
    other = [f for f in best(chapter, ours, theirs, free=True)[-1:] if f.ours.name != chapter.find(ours).name]
    return "<br>".join(_needs(found) for found in (*printed, *other))


def _needs(found: Comparison) -> str:
    """In words: "SparseSVRG needs 0.30 times SpiderBoost's queries to loss 0.2 (from 2.3): 5 won, 2 N"."""
    ratio, theirs = found.ratio(), _name(found.theirs)
    some = (
        f"{ratio}, beside {theirs}" if "fail" in ratio else f"needs {ratio} times {theirs}'s queries {found.target()}"
    )
    rose = [told for told in found.notes().split("; ") if told.startswith(f"{found.ours.label} ends ")]
    rest = [told.removeprefix(found.ours.label).strip() for told in rose]
    return "; ".join([f"{_name(found.ours)} {some}: {found.seeds()}", *rest])


def _name(group: Group) -> str:
    name = group.label.partition(" (sparse")[0].replace("1, ", "1 with ")
    if group.name.startswith("controls"):
        return "SGD with a loop's summed step"
    return (
        f"{name} as printed" if group.name.endswith(ALGORITHM_1) else "tuned SGD" if "sgd-tuned" in group.name else name
    )


def _sweep(judged: Judged) -> list[str]:
    number, claim, made = _found(judged, "named, no worse", "sparsity-cnn")
    models: dict[str, list[str]] = {}
    for v in made:
        models.setdefault(v.part.removeprefix("Sparsity sweep: ").partition(":")[0], []).append(v.word)
    told = "<br>".join(f"{model}, at each density:<br>{_counted(words)}" for model, words in models.items())
    words = {v.word for v in made}
    word = summary(claim, made) if len(words) == 1 else "reproduced in part" if any(YES in w for w in words) else NO
    return _row("Appendix B", "SpiderBoost with various values of sparsity", number, word, told)
