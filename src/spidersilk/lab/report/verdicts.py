"""The engine of verdicts: each claim of the paper against the runs, by one rule. The report and the page use it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spidersilk.lab.experiments.paper import EPOCHS, TABLE_1, Claim
from spidersilk.lab.report.evidence import LOSS, Chapter, Group, density, number

# The factor of every verdict. A ratio of queries nearer to 1 says nothing: most runs have one seed, and curves are
# evaluated and thinned in steps of this order.
LEVEL = 1.2
CLEARLY = 1.5  # beyond this ratio of queries, "slightly" is the wrong word
BIT = 1.0  # the text of the paper rounds entropies to whole bits ("approximately 3")
# Forms that the paper's settings suit, in the order in which ties are broken.
STABLE = ("sparse-svrg", "sparse-svrg-refresh", "sparse-svrg-selected", "sparse-sgd")
NOT_RUN = "not run yet"
TOO_SHORT = "no verdict: the budget is too small"


@dataclass
class Verdict:
    claim: str
    word: str  # reproduced, reproduced only with ..., not reproduced, no clear difference, not run yet
    why: str
    runs: list[str]


Rule = Callable[[Chapter, Claim], Verdict]


def of(chapter: Chapter) -> list[Verdict]:
    """The verdicts on the claims of a chapter."""
    return [RULES[claim.rule](chapter, claim) for claim in chapter.part.claims]


# Queries to a common loss.


def stable(chapter: Chapter) -> list[Group]:
    """The stable sparse forms that were planned with the dense method's settings and a tenth of the coordinates."""
    keys = ("lr", "anchor_batch_size", "batch_size", "inner_steps", "inner_lr_end", "lr_milestones")
    dense = chapter.dense.config.completed()

    def same_settings(group: Group) -> bool:
        config = group.config.completed()
        return all(getattr(config, k) == getattr(dense, k) for k in keys) and math.isclose(density(config), 0.1)

    forms = [g for g in chapter.groups if g.config.optimizer in STABLE and same_settings(g)]
    return sorted(forms, key=lambda g: STABLE.index(g.config.optimizer))


def compared(share: float) -> str:
    """A ratio of queries in words."""
    return "fewer queries" if share < 1 / LEVEL else "no clear difference" if share < LEVEL else "more queries"


def ratio(ours: Group, theirs: Group) -> tuple[float, float] | None:
    """Queries of ours over theirs to the higher of their two lowest losses, and that loss; None if one never moved."""
    lows = ours.lowest(LOSS), theirs.lowest(LOSS)
    if lows[0] is None or lows[1] is None:
        return None
    target = max(lows[0], lows[1])
    a, b = ours.cost(target, LOSS), theirs.cost(target, LOSS)
    return (a / b, target) if a and b else None


def _compare(ours: Group, theirs: Group) -> tuple[float, str]:
    """The ratio of queries and a sentence: infinite if ours failed, NaN if theirs never got below its first loss."""
    if not ours.curves or ours.broken:
        return math.inf, f"{ours.label} {ours.breakdown() if ours.curves else 'was not run'}"
    low = theirs.lowest(LOSS)
    if low is not None and theirs.cost(low, LOSS) == 0:
        return math.nan, f"{theirs.label} never got below its first loss"
    common = ratio(ours, theirs)
    if common is None:
        return math.inf, f"{ours.label} and {theirs.label} have no common loss"
    each = [f"by {g.label} at {number(g.cost(common[1], LOSS))} N" for g in (ours, theirs)]
    return common[0], f"loss {number(common[1])} is reached {each[0]} and {each[1]}"


def better(claim: str, ours: Group, theirs: Group, rescue: Iterable[Group] = (), slightly: bool = False) -> Verdict:
    """Whether `ours` needs fewer queries than `theirs`; if it does not, whether one of `rescue` does."""
    runs, others = [theirs.name, ours.name], [g for g in rescue if g.curves]
    if not theirs.curves or not (ours.curves or others):
        missing = [g.name for g in (theirs, ours) if not g.curves]
        return Verdict(claim, NOT_RUN, f"{' and '.join(missing)} not there", runs)
    value, why = _compare(ours, theirs)
    if math.isnan(value):
        return Verdict(claim, TOO_SHORT, why, runs)
    if value < 1 / LEVEL:
        too_much = slightly and value < 1 / CLEARLY
        return Verdict(claim, "reproduced in direction, not in size" if too_much else "reproduced", why, runs)
    share, story, best = min(((*_compare(g, theirs), g) for g in others), key=lambda x: x[0], default=(value, "", ours))
    if share < 1 / LEVEL:
        return Verdict(claim, f"reproduced only with {best.label}", f"{why}; {story}", [*runs, best.name])
    word = "no clear difference" if value < LEVEL else "not reproduced" if ours.curves else NOT_RUN
    return Verdict(claim, word, why, runs)


def slightly_worse(claim: str, ours: Group, theirs: Group) -> Verdict:
    """Whether `ours` needs somewhat more queries than `theirs`, but not many times as many."""
    runs = [theirs.name, ours.name]
    if not ours.curves or not theirs.curves:
        return Verdict(claim, NOT_RUN, "a run is missing", runs)
    value, why = _compare(ours, theirs)
    if value <= 1:
        return Verdict(claim, "not reproduced", f"it is better: {why}", runs)
    word = "reproduced" if value <= CLEARLY else "reproduced in direction, not in size"
    return Verdict(claim, TOO_SHORT if math.isnan(value) else word, why, runs)


def _sweep(chapter: Chapter, claim: Claim) -> Verdict:
    """From which density on Algorithm 1 trains as well as the dense method."""
    printed = [g for g in chapter.groups if g.config.optimizer == "sparse-spiderboost" and density(g.config) < 1]
    runs, low = [g.name for g in (*printed, chapter.dense)], chapter.dense.lowest(LOSS)
    if low is None:
        return Verdict(claim.text, NOT_RUN, "", runs)

    def gets_below(group: Group) -> bool:
        lowest = group.lowest(LOSS)
        return not group.broken and lowest is not None and lowest <= low

    def densities(groups: Iterable[Group]) -> str:
        return ", ".join(f"{density(g.config):g}" for g in groups) or "none of those tried"

    fine = [g for g in printed if gets_below(g)]
    bad = [g for g in printed if g.curves and not gets_below(g)]
    anchored = [g for g in chapter.groups if g.config.optimizer == "sparse-svrg" and gets_below(g)]
    why = f"Algorithm 1 gets below dense SpiderBoost's lowest loss ({number(low)}) at k/d = {densities(fine)}"
    why += f"; at {densities(bad)} it does not, diverges or collapses" if bad else ""
    why += f". SparseSVRG does at k/d = {densities(anchored)}"
    word = "reproduced" if not bad else "reproduced for some densities" if fine else "not reproduced"
    return Verdict(claim.text, word, why, runs)


# Table 1.


def model_and_data(group: Group) -> tuple[str, str]:
    return group.config.options["model"], group.config.options["data"]


def data_title(group: Group) -> str:
    given = group.curves[0].summary.get("data") if group.curves else None
    return given or model_and_data(group)[1]


def entropies(group: Group) -> tuple[float, float]:
    """Of M, at the first anchor and at the end."""
    seen = [row["entropy"] for row in group.curves[0].rows if "entropy" in row]
    return seen[0], seen[-1]


def _table1(judge: Callable[[list[Group]], tuple[bool | None, str]], model: str, whole: bool) -> Rule:
    """A rule over the runs whose entropies the paper prints; `whole`: over those that went on for 150 epochs."""

    def rule(chapter: Chapter, claim: Claim) -> Verdict:
        groups = [g for g in chapter.present if model_and_data(g) in TABLE_1 and model_and_data(g)[0].startswith(model)]
        groups = [g for g in groups if g.reached(EPOCHS) or not whole]
        holds, why = judge(groups) if groups else (False, "")
        word = "reproduced in part" if holds is None else "reproduced" if holds else "not reproduced"
        return Verdict(claim.text, word if why else NOT_RUN, why, [g.name for g in groups])

    return rule


def _named(group: Group) -> str:
    return f"{model_and_data(group)[0]}, {data_title(group)}"


def _before(groups: list[Group]) -> tuple[bool | None, str]:
    off = {_named(g): abs(entropies(g)[0] - TABLE_1[model_and_data(g)][0]) for g in groups}
    near, far = ([f"{n} ({x:.2f})" for n, x in off.items() if (x <= BIT) == is_near] for is_near in (True, False))
    why = f"within {BIT:g} bit: {', '.join(near) or 'none'}; further off: {', '.join(far) or 'none'}"
    return None if near and far else not far, why


def _about_3(groups: list[Group]) -> tuple[bool, str]:
    ends = [f"{_named(g)} {entropies(g)[1]:.2f} (loss {number(g.end(LOSS))})" for g in groups]
    return all(entropies(g)[1] < 3 + BIT for g in groups), ", ".join(ends)


def _steady(groups: list[Group]) -> tuple[bool, str]:
    """Changes no larger than those of the printed values."""
    printed = [after - before for (model, _), (before, after) in TABLE_1.items() if model == "resnet18"]
    changes = {_named(g): entropies(g)[1] - entropies(g)[0] for g in groups}
    why = ", ".join(f"{name} by {x:+.2f} bits" for name, x in changes.items())
    why += f" (printed: {', '.join(f'{x:+.2f}' for x in printed)})"
    return max(map(abs, changes.values())) <= max(map(abs, printed)), why


def _by_model(groups: list[Group]) -> tuple[bool, str]:
    """Differences between data sets no larger than those of the printed values."""
    measured = _spreads({model_and_data(g): entropies(g)[1] for g in groups})
    printed = max(_spreads({place: after for place, (_, after) in TABLE_1.items()}).values())
    why = ", ".join(f"{m} differs by {x:.2f} bits between data sets" for m, x in measured.items())
    return max(measured.values(), default=0.0) <= printed, why and f"{why} (printed: at most {printed:.2f})"


def _spreads(values: dict[tuple[str, str], float]) -> dict[str, float]:
    """By model, the largest difference between data sets; for models with two or more."""
    by_model = {m: [v for (model, _), v in values.items() if model == m] for m in ("fc", "cnn", "resnet18")}
    return {m: max(v) - min(v) for m, v in by_model.items() if len(v) > 1}


RULES: dict[str, Rule] = {
    "better": lambda ch, c: better(c.text, ch.find(c.ours), ch.find(c.theirs), stable(ch)),
    "slightly better": lambda ch, c: better(c.text, ch.find(c.ours), ch.find(c.theirs), stable(ch), slightly=True),
    "slightly worse": lambda ch, c: slightly_worse(c.text, ch.find(c.ours), ch.find(c.theirs)),
    "range": _sweep,
    "entropy before": _table1(_before, "", whole=False),
    "entropy about 3": _table1(_about_3, "cnn", whole=True),
    "entropy steady": _table1(_steady, "resnet18", whole=True),
    "entropy by model": _table1(_by_model, "", whole=True),
}
