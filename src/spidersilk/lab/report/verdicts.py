"""The paper's claims, and what the collected runs say of each: a verdict in a sentence, with the runs that show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spidersilk.lab.report.evidence import Chapter, Group, number, same_settings, share

LOSS = "train_loss"
# Stable forms that can be run at the paper's settings, and others, in the order in which ties are broken.
STABLE = ("sparse-svrg", "sparse-svrg-refresh", "sparse-svrg-selected", "sparse-sgd")
QUOTES = {
    "figure1-left": "The results of training Resnet-18 on CIFAR-10 suggests that our sparsity algorithm works well on "
    "large neural networks, and non-trivial datasets. (Section 4.1)",
    "figure1-right": "Our results of fitting the convolutional neural network to MNIST show that sparsity provides a "
    "significant advantage compared to using SpiderBoost alone. (Section 4.1)",
    "figure2": "SpiderBoost is slightly worse than SGD, and sparsity provides a noticeable improvement over SGD. "
    "(Section 4.2)",
    "figure3": "We see SpiderBoost is slightly worse than SGD, and sparsity provides a slight improvement over SGD, "
    "especially in the first few epochs. (Section 4.3)",
    "sparsity": "SpiderBoost with various values of sparsity. (Appendix B, a figure without a sentence of its own)",
}
LEVEL = 1.2  # a ratio of queries nearer to 1 than this is none, most of all with one seed
CLEARLY = 1.5  # a ratio of queries beyond which "slightly" is no word for it


@dataclass
class Verdict:
    claim: str
    word: str  # reproduced, reproduced only with ..., not reproduced, not run yet
    why: str
    runs: list[str]


@dataclass
class Half:
    """Whether a sparse method at the dense one's settings gets to its final loss in so much of its queries."""

    task: str
    dense: Group
    sparse: Group | None
    target: float | None = None
    ratio: float | None = None  # to all of the dense method's queries
    strict: float | None = None  # to those after which the dense method was first at its final loss
    limit: float = 0.5

    @property
    def answer(self) -> str:
        if self.target is None:
            return "not run yet"
        if self.ratio is None or self.ratio > self.limit:
            return "no"
        if self.strict is None or self.strict > self.limit:
            return "of all its queries yes, of those it needed no"
        return "yes" if self.dense.complete else "yes so far"


def half(chapter: Chapter, dense: Group, limit: float) -> Half:
    """By the sparse method that needs least, Algorithm 1 among them where it does not diverge."""
    told = Half(chapter.title, dense, None, limit=limit)
    if not dense.curves or dense.diverged:
        return told
    printed = [g for g in chapter.groups if g.config.optimizer == "sparse-spiderboost" and same_settings(g, dense)]
    tried = [g for g in [*stable(chapter, dense), *printed] if g.curves and not g.diverged]
    told.target = dense.end(LOSS)
    if not tried or told.target is None:
        told.target = None
        return told
    costs = [(g.cost(told.target, LOSS), g) for g in tried]
    reached = [(cost, g) for cost, g in costs if cost is not None]
    if reached:
        cost, told.sparse = min(reached, key=lambda pair: pair[0])
        own = dense.cost(told.target, LOSS)
        told.ratio = cost / dense.reach
        told.strict = cost / own if own else None
    return told


def stable(chapter: Chapter, dense: Group) -> list[Group]:
    """The stable sparse forms that were planned with the dense method's settings."""
    ours = [g for g in chapter.groups if g.config.optimizer in STABLE and same_settings(g, dense)]
    return sorted(ours, key=lambda g: STABLE.index(g.config.optimizer))


def ratio(ours: Group, theirs: Group) -> tuple[float, float] | None:
    """Queries of ours over theirs to the worse of their two lowest losses, and that loss; None if one never moved."""
    lows = ours.lowest(LOSS), theirs.lowest(LOSS)
    if lows[0] is None or lows[1] is None:
        return None
    target = max(lows[0], lows[1])
    a, b = ours.cost(target, LOSS), theirs.cost(target, LOSS)
    return (a / b, target) if a and b else None


def against(claim: str, ours: Group, theirs: Group, rescue: Iterable[Group] = ()) -> Verdict:
    """Whether `ours` needs fewer queries than `theirs`; if it does not, whether one of `rescue` does."""
    runs = [theirs.name, ours.name]
    if not theirs.curves or not (ours.curves or any(g.curves for g in rescue)):
        missing = [g.name for g in (theirs, ours) if not g.curves]
        return Verdict(claim, "not run yet", f"{' and '.join(missing)} not there", runs)
    told = _against(ours, theirs)
    if told[0] < 1 / LEVEL:
        too_much = " slight " in claim and told[0] < 1 / CLEARLY
        return Verdict(claim, "reproduced in direction, not in size" if too_much else "reproduced", told[1], runs)
    better = [(*_against(g, theirs), g) for g in rescue if g.curves]
    best = min(better, key=lambda x: x[0], default=None)
    if best is not None and best[0] < 1 / LEVEL:
        word = f"reproduced only with {best[2].label}"
        return Verdict(claim, word, f"{told[1]}; {best[1]}", [*runs, best[2].name])
    if told[0] < LEVEL:
        return Verdict(claim, "no clear difference", told[1], runs)
    return Verdict(claim, "not reproduced" if ours.curves else "not run yet", told[1], runs)


def _against(ours: Group, theirs: Group) -> tuple[float, str]:
    """The ratio of queries, infinite for what diverged, and a sentence."""
    if not ours.curves:
        return float("inf"), f"{ours.label} was not run"
    if ours.diverged:
        return float("inf"), f"{ours.label} {ours.state()}"
    found = ratio(ours, theirs)
    if found is None:
        return float("inf"), f"{ours.label} and {theirs.label} have no common loss"
    a, b = ours.cost(found[1], LOSS), theirs.cost(found[1], LOSS)
    told = f"loss {number(found[1])} is reached by {ours.label} at {number(a)} N and by {theirs.label} at {number(b)} N"
    return found[0], told


def slightly_worse(claim: str, ours: Group, theirs: Group) -> Verdict:
    """Whether `ours` needs somewhat more queries than `theirs`, but not many times as many."""
    runs = [theirs.name, ours.name]
    if not ours.curves or not theirs.curves:
        return Verdict(claim, "not run yet", "a run is missing", runs)
    value, why = _against(ours, theirs)
    if value <= 1:
        return Verdict(claim, "not reproduced", f"it is better: {why}", runs)
    word = "reproduced" if value <= CLEARLY else "reproduced in direction, not in size"
    return Verdict(claim, word, why, runs)


def of(chapter: Chapter) -> list[Verdict]:
    """The verdicts of a figure."""
    if chapter.experiment == "sparsity":
        return [_sweep(chapter)]
    sgd, dense, printed = (chapter.find(m) for m in ("sgd", "spiderboost", "sparse-spiderboost"))
    forms = stable(chapter, dense)
    told = [against("10 % sparsity does better than SpiderBoost at equal queries", printed, dense, forms)]
    if chapter.experiment in ("figure2", "figure3"):
        size = "a noticeable" if chapter.experiment == "figure2" else "a slight"
        told.append(slightly_worse("SpiderBoost is slightly worse than SGD", dense, sgd))
        told.append(against(f"sparsity gives {size} improvement over SGD", printed, sgd, forms))
    return told


def _sweep(chapter: Chapter) -> Verdict:
    """What the sweep can show: from which density on Algorithm 1 trains, and whether it beats the dense method then."""
    claim = "SpiderBoost works over a range of sparsities"
    printed = [g for g in chapter.groups if g.config.optimizer == "sparse-spiderboost"]
    dense = printed[-1]
    runs = [g.name for g in printed]
    if not dense.curves:
        return Verdict(claim, "not run yet", "", runs)
    low = dense.lowest(LOSS)
    assert low is not None
    fine = [g for g in printed[:-1] if _gets_below(g, low)]
    bad = [g for g in printed[:-1] if g.curves and not _gets_below(g, low)]
    ours = [g for g in chapter.groups if g.config.optimizer == "sparse-svrg" and _gets_below(g, low)]
    why = f"Algorithm 1 gets below dense SpiderBoost's lowest loss ({number(low)}) at k/d = {_shares(fine)}"
    why += f"; at {_shares(bad)} it does not or diverges" if bad else ""
    why += f". SparseSVRG does at k/d = {_shares(ours)}"
    word = "reproduced" if not bad else "reproduced for some densities" if fine else "not reproduced"
    return Verdict(claim, word, why, runs)


def _gets_below(group: Group, loss: float) -> bool:
    lowest = group.lowest(LOSS)
    return not group.diverged and lowest is not None and lowest <= loss


def _shares(groups: list[Group]) -> str:
    return ", ".join(f"{share(g.config):g}" for g in groups) or "none of those tried"
