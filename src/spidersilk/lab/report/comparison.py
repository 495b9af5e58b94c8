"""Two methods over seeds: the rules by which one needs fewer queries than another.

1. For each seed that both have, the queries that each needs to the higher of their two lowest losses are divided. It is
   won or lost by more than one interval between evaluations, else it is tied.
2. A run that diverged, collapsed or never got below the loss of guessing by GUESSING has failed: it reached nothing. A
   seed with which one method fails is lost by it; one with which both fail decides nothing.
3. A difference is clear if the median ratio is beyond a factor of LEVEL and all seeds but one in DISSENT were won, or
   lost. Otherwise it is no clear difference, which is also the word for a tie.
4. Both methods are judged at the length that the paper shows, or as far as both got. If fewer than SEEDS seeds got
   there, there is a second verdict at the longest length that SEEDS seeds reached.
5. The word says if it rests on one seed or two. One seed gives a verdict only for a network of LARGE parameters.

The rules are the same for every method: with ours and theirs exchanged, the word is exchanged. The same seed twice, as
on two machines, is two runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from spidersilk.lab.report.evidence import LOSS, SLACK, Group, number, of_seeds
from spidersilk.lab.run.curve import BROKEN, Curve, has_collapsed

LEVEL = 1.2
CLEARLY = 1.5  # beyond this ratio of queries, "slightly" is the wrong word
SEEDS = 3
LARGE = 1e6  # parameters: a run takes a GPU, so that there may be one seed
RISEN = 2.0  # a loss at the end above this many times the lowest is told
DISSENT = 5  # of so many seeds, one may be on the other side
GUESSING = 0.02  # of the loss of guessing: what stays nearer has learned nothing
FEWER, SAME, MORE, NONE = "fewer queries", "no clear difference", "more queries", "no verdict"
WON, TIED, LOST, FAILED, BOTH = "won", "tied", "lost", "failed", "both failed"
WORDS = {1: "one seed: ", 2: "two seeds: "}


class Pair(NamedTuple):
    """A run of each method. `ratio` is of queries to `target`: infinite if ours failed, 0 if theirs did, NaN if both
    did; `outcome` is ours."""

    seed: int
    ours: Curve
    theirs: Curve
    ratio: float
    outcome: str
    target: float


@dataclass(frozen=True)
class Comparison:
    ours: Group
    theirs: Group
    pairs: tuple[Pair, ...]
    length: float
    key: str = LOSS

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(pair.ratio for pair in self.pairs)

    @property
    def judged(self) -> list[Pair]:
        """Without those with which both failed."""
        return [pair for pair in self.pairs if pair.outcome != BOTH]

    @property
    def few(self) -> str:
        """What the word begins with, by the seeds that decide."""
        return WORDS.get(len({pair.seed for pair in self.judged}), "")

    @property
    def middle(self) -> float:
        """The median ratio; of an even number, that of the middle two which is nearer to 1: a failure is no number."""
        ratios = sorted(pair.ratio for pair in self.judged)
        if not ratios:
            return math.nan
        low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
        return high if high < 1 else max(low, 1.0)

    @property
    def too_few(self) -> bool:
        return self.few == WORDS[1] and not is_large(*(c for pair in self.pairs for c in (pair.ours, pair.theirs)))

    @property
    def side(self) -> str:
        """FEWER, SAME or MORE; NONE if both failed, or for one seed of a small network."""
        if not self.judged or self.too_few:
            return NONE
        if self.middle < 1 / LEVEL and self.nearly_all(*(pair.outcome == WON for pair in self.judged)):
            return FEWER
        lost = (pair.outcome in (LOST, FAILED) for pair in self.judged)
        return MORE if self.middle > LEVEL and self.nearly_all(*lost) else SAME

    def within(self, low: float, high: float) -> bool:
        """Whether nearly all ratios are, or tied."""
        fits = [pair.outcome == TIED or low <= pair.ratio <= high for pair in self.judged]
        return bool(fits) and self.nearly_all(*fits)

    @staticmethod
    def nearly_all(*seeds: bool) -> bool:
        return DISSENT * seeds.count(False) <= len(seeds)

    def word(self, word: str) -> str:
        """A word that follows from the side, with the number of seeds if they are few."""
        if not self.judged:
            return f"{NONE}: both fail"
        return f"{NONE}: one seed" if self.too_few else self.few + word

    def ratio(self) -> str:
        """The median in words with the lowest and the highest, if both got there with every seed; else who failed."""
        known, many = sorted(r for r in self.ratios if 0 < r < math.inf), len(self.pairs)
        texts = [number(r, 2) for r in known]
        told = " and ".join(dict.fromkeys(texts))
        if len(set(texts)) > 1 and many > 2:
            told = f"{texts[0]} to {texts[-1]}"
            told = f"{number(median(known), 2)} ({told})" if len(known) == many else told
        fails = {"fails": math.inf, "the other fails": 0.0, "both fail": math.nan}
        for words, value in fails.items():
            count = sum(r == value or (r != r and value != value) for r in self.ratios)
            some = words if count == many else f"{words} in {count} of {many}"
            told = "; ".join(filter(None, (told, some if count else "")))
        return told

    def seeds(self) -> str:
        """How often each outcome was, and where."""
        each = [pair.outcome for pair in self.pairs]
        told = ", ".join(f"{each.count(o)} {o}" for o in (WON, TIED, LOST, FAILED, BOTH) if o in each)
        seeds = len({pair.seed for pair in self.pairs})
        again = f" ({len(each)} pairs of {seeds} seed{'s' if seeds > 1 else ''})" if seeds < len(each) else ""
        return f"{told}{again}, {self.length:.3g} N"

    def target(self) -> str:
        """The loss to which queries are counted, and that before training."""
        known = [pair.target for pair in self.pairs if math.isfinite(pair.target)]
        firsts = [row[self.key] for pair in self.pairs for row in pair.ours.rows[:1] if self.key in row]
        return f"to loss {number(median(known))} (from {number(median(firsts))})" if known and firsts else ""

    def notes(self) -> str:
        """Of each method: which runs failed, rose again, end otherwise with the same seed, or were there at once."""
        told = []
        for group, runs in ((self.ours, [p.ours for p in self.pairs]), (self.theirs, [p.theirs for p in self.pairs])):
            pairs = {id(run): (run, pair.target) for run, pair in zip(runs, self.pairs, strict=True)}
            curves = [curve for curve, _ in pairs.values()]
            texts = troubles(replace(group, curves=curves), self.key)
            early = sum(_at_once(curve, self.key, target) for curve, target in pairs.values())
            texts += [f"is there by its first evaluation ({of_seeds(early, curves)})"] if early else []
            told += [f"{group.label} {text}" for text in texts]
        return "; ".join(told)


def troubles(group: Group, key: str = LOSS) -> list[str]:
    """Which runs of a method failed, rose again, or end otherwise with the same seed."""
    whole = [curve for curve in group.curves if curve.status not in BROKEN]
    seeds = {curve.config.get("seed", 0): set[bool]() for curve in group.curves}
    for curve in group.curves:
        seeds[curve.config.get("seed", 0)].add(has_failed(curve, key))
    counted = {
        f"never gets {100 * GUESSING:g} % below guessing": sum(has_failed(curve, key) for curve in whole),
        f"ends above {RISEN:g} times its lowest loss": sum(rose(curve) for curve in whole),
    }
    unlike = ", ".join(str(seed) for seed, ends in seeds.items() if len(ends) > 1)
    return [
        *filter(None, [group.breakdown()]),
        *(f"{text} ({of_seeds(many, group.curves)})" for text, many in counted.items() if many),
        *([f"is chaotic: seed {unlike} fails on one machine and not on another"] if unlike else []),
    ]


def is_large(*curves: Curve) -> bool:
    return any(curve.summary.get("parameters", 0) >= LARGE for curve in curves)


def cut(curve: Curve, length: float) -> Curve:
    """The run as it was after `length` queries over N. One that recovers after that had not collapsed."""
    rows = [row for row in curve.rows if row["queries"] <= length * (1 + SLACK)]
    if len(rows) == len(curve.rows):
        return curve
    fails = curve.status in BROKEN and has_collapsed(rows, curve.summary.get("guess_loss"))
    return replace(curve, rows=rows, status="collapsed" if fails else "finished")


def compare(
    ours: Group, theirs: Group, length: float = math.inf, key: str = LOSS, target: float | None = None
) -> list[Comparison]:
    """At the longest common length up to `length`; then, if few seeds got there, where SEEDS did. Empty without runs.

    With a `target`, queries to this value are compared.
    """
    pairs = [(seed, _reach(a, b, length), a, b) for seed, a, b in _pairs(ours, theirs)]
    if not pairs:
        return []
    reach = {seed: max(end for other, end, *_ in pairs if other == seed) for seed, *_ in pairs}
    longest = sorted(reach.values(), reverse=True)
    lengths = [longest[0]]
    if sum(x >= longest[0] * (1 - SLACK) for x in longest) < SEEDS <= len(longest):
        lengths.append(longest[SEEDS - 1])
    made = []
    for end in lengths:
        cuts = {id(c): cut(c, end) for *_, a, b in pairs for c in (a, b)}  # each run once
        there = [(s, cuts[id(a)], cuts[id(b)]) for s, far, a, b in pairs if far >= end * (1 - SLACK)]
        judged = tuple(Pair(s, a, b, *_outcome(a, b, key, target)) for s, a, b in there)
        made.append(Comparison(ours, theirs, judged, min(end, length), key))
    return made


def _pairs(ours: Group, theirs: Group) -> Iterator[tuple[int, Curve, Curve]]:
    """The runs of the same seed; of the method with fewer runs of a seed each one serves again."""
    for seed in sorted({c.config.get("seed", 0) for c in ours.curves}):
        a, b = ([c for c in group.curves if c.config.get("seed", 0) == seed] for group in (ours, theirs))
        yield from ((seed, a[i % len(a)], b[i % len(b)]) for i in range(max(len(a), len(b)) if b else 0))


def _reach(a: Curve, b: Curve, length: float) -> float:
    """How far both got; one that diverged gets no further, so it went as far as the other, or as was planned."""
    ends = [c.rows[-1]["queries"] for c in (a, b) if c.status != "diverged"]
    return min([length, *(ends or [c.config.get("budget", c.rows[-1]["queries"]) for c in (a, b)])])


def _outcome(a: Curve, b: Curve, key: str, target: float | None) -> tuple[float, str, float]:
    """The ratio of queries, its word, and the target."""
    lows = [None if has_failed(c, key) else c.lowest(key) for c in (a, b)]
    if target is None:
        target = max((low for low in lows if low is not None), default=math.nan)
    costs = [None if low is None else _cost(c, key, target) for c, low in zip((a, b), lows, strict=True)]
    mine, other = costs
    if mine is None or other is None:
        ratio, word = (math.nan, BOTH) if mine == other else (math.inf, FAILED) if mine is None else (0.0, WON)
        return ratio, word, target
    apart = mine[0] - other[0]
    tied = abs(apart) <= max(mine[1], other[1]) * (1 + SLACK)
    return mine[0] / other[0] if other[0] else 1.0, TIED if tied else WON if apart < 0 else LOST, target


def _cost(curve: Curve, key: str, target: float) -> tuple[float, float] | None:
    """Queries to the target, and since the evaluation before."""
    rows = [row for row in curve.rows if key in row]
    at = next((i for i, row in enumerate(rows) if row[key] <= target), None)
    return None if at is None else (rows[at]["queries"], rows[at]["queries"] - rows[max(at - 1, 0)]["queries"])


def _at_once(curve: Curve, key: str, target: float) -> bool:
    """By the first evaluation after that of the first steps: a ratio to it is a bound."""
    cost = None if has_failed(curve, key) else _cost(curve, key, target)
    return cost is not None and cost[1] > 0.9 * cost[0] > 0


def rose(curve: Curve) -> bool:
    """Whether it lost much of what it had reached; queries are counted to the lowest loss all the same."""
    low, end = curve.lowest(LOSS), curve.rows[-1].get(LOSS)
    return low is not None and end is not None and end > RISEN * low


def has_failed(curve: Curve, key: str = LOSS) -> bool:
    """Without a loss of guessing, that before training takes its place."""
    values = [row[key] for row in curve.rows if key in row]
    guess = curve.summary.get("guess_loss") if key == LOSS else None
    bar = guess if guess is not None else values[0] if values else 0.0
    return curve.status in BROKEN or not values or min(values) >= bar - GUESSING * abs(bar)
