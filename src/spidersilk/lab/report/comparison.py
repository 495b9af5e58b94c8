"""Two methods over seeds: the rules by which one needs fewer queries than another.

1. For each seed that both have, the queries that each needs to the higher of their two lowest losses are divided. A
   verdict rests on the median of these ratios, and says how many seeds are on its side.
2. A difference is clear if the median is beyond a factor of LEVEL and all seeds but one in five agree. Otherwise it is
   no clear difference, which is also the word for a tie.
3. Both methods are judged at the length that the paper shows, or as far as both got. If fewer than SEEDS seeds got
   there, there is a second verdict at the longest length that SEEDS seeds reached.
4. A run that diverged, collapsed or never got below its first loss has failed: it reached nothing.
5. The word says if it rests on one seed or two. One seed gives no verdict where a run takes less than SHORT seconds.

The rules are the same for every method: with ours and theirs exchanged, the word is exchanged.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from spidersilk.lab.report.evidence import LOSS, SLACK, Group, number
from spidersilk.lab.run.curve import BROKEN, Curve, has_collapsed

LEVEL = 1.2
CLEARLY = 1.5  # beyond this ratio of queries, "slightly" is the wrong word
SEEDS = 3
SHORT = 300.0
RISEN = 2.0  # a loss at the end above this many times the lowest is told
DISSENT = 5  # of so many seeds, one may be on the other side
FEWER, SAME, MORE, NONE = "fewer queries", "no clear difference", "more queries", "no verdict"
WORDS = {1: "one seed: ", 2: "two seeds: "}


@dataclass(frozen=True)
class Comparison:
    """Queries of ours over theirs, seed by seed: infinite if ours failed, 0 if theirs did, NaN if both did."""

    ours: Group
    theirs: Group
    ratios: tuple[float, ...]
    length: float
    seconds: float  # of the longest run, if it goes on to the length that the paper shows

    @property
    def median(self) -> float:
        known = [r for r in self.ratios if not math.isnan(r)]
        return statistics.median(known) if known else math.nan

    @property
    def agree(self) -> int:
        """Seeds on the median's side."""
        middle = self.median
        return sum(ratio < 1 if middle < 1 else ratio > 1 for ratio in self.ratios)

    @property
    def too_few(self) -> bool:
        return len(self.ratios) == 1 and self.seconds < SHORT

    @property
    def side(self) -> str:
        """FEWER, SAME or MORE; NONE if both failed, or for one seed of a short run."""
        if math.isnan(self.median) or self.too_few:
            return NONE
        if 1 / LEVEL <= self.median <= LEVEL or DISSENT * (len(self.ratios) - self.agree) > len(self.ratios):
            return SAME
        return FEWER if self.median < 1 else MORE

    def word(self, word: str) -> str:
        """A word that follows from the side, with the number of seeds if they are few."""
        if math.isnan(self.median):
            return f"{NONE}: both fail"
        if self.too_few:
            return f"{NONE}: one seed"
        return WORDS.get(len(self.ratios), "") + word

    def ratio(self) -> str:
        """The median in words, with the lowest and the highest."""
        known = [r for r in self.ratios if not math.isnan(r)]
        if not known:
            return "both fail"
        ends = [_ratio(min(known)), _ratio(max(known))]
        both = len(self.ratios) - len(known)
        text = ends[0] if ends[0] == ends[1] else f"{_ratio(self.median)} ({ends[0]} to {ends[1]})"
        return text + (f", both fail in {both}" if both else "")

    def seeds(self) -> str:
        """How many agree, and where."""
        many = len(self.ratios)
        seeds = "1 seed" if many == 1 else f"{many} seeds"
        agree = f"{self.agree} of {seeds}" if many > 1 and self.side in (FEWER, MORE) else seeds
        return f"{agree}, {self.length:.3g} N"

    def failures(self) -> str:
        told = []
        for group in (self.ours, self.theirs):
            shown = replace(group, curves=[cut(c, self.length) for c in group.curves])
            if shown.broken:
                told.append(f"{group.label} {shown.breakdown()}")
            elif high := sum(_rose(curve) for curve in shown.curves):
                told.append(
                    f"{group.label} ends above {RISEN:g} times its lowest loss ({high} of {len(shown.curves)} seeds)"
                )
        return "; ".join(told)


def _ratio(value: float) -> str:
    return "fails" if math.isinf(value) else "the other fails" if value == 0 else number(value, 2)


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
    mine, other = ({c.config.get("seed", 0): c for c in g.curves} for g in (ours, theirs))
    reach = {seed: _reach(mine[seed], other[seed], length) for seed in sorted(mine.keys() & other.keys())}
    if not reach:
        return []
    longest = sorted(reach.values(), reverse=True)
    lengths = [longest[0]]
    if sum(x >= longest[0] * (1 - SLACK) for x in longest) < SEEDS <= len(longest):
        lengths.append(longest[SEEDS - 1])
    made = []
    for end in lengths:
        seeds = [s for s, x in reach.items() if x >= end * (1 - SLACK)]
        pairs = [(cut(mine[s], end), cut(other[s], end)) for s in seeds]
        whole = min(length, max(c.config.get("budget", end) for pair in pairs for c in pair))
        seconds = max((c.rows[-1]["seconds"] / c.rows[-1]["queries"] for p in pairs for c in p
                       if c.status != "diverged" and c.rows[-1]["queries"] > 0), default=0.0)  # fmt: skip
        ratios = tuple(_queries_ratio(a, b, key, target) for a, b in pairs)
        shown = [replace(g, curves=[by[s] for s in seeds]) for g, by in ((ours, mine), (theirs, other))]
        made.append(Comparison(shown[0], shown[1], ratios, min(end, length), seconds * max(whole, end)))
    return made


def _reach(a: Curve, b: Curve, length: float) -> float:
    """How far both got; one that diverged went as far as the other, since it gets no further."""
    ends = [c.rows[-1]["queries"] for c in (a, b) if c.status != "diverged"]
    return min([length, *(ends or [max(c.rows[-1]["queries"] for c in (a, b))])])


def _queries_ratio(a: Curve, b: Curve, key: str, target: float | None) -> float:
    lows = [None if _has_failed(c, key) else c.lowest(key) for c in (a, b)]
    if target is None:
        target = max((low for low in lows if low is not None), default=math.nan)
    costs = [None if low is None else c.cost(key, target) for c, low in zip((a, b), lows, strict=True)]
    mine, other = (math.inf if cost is None else cost[0] for cost in costs)
    if math.isinf(mine) and math.isinf(other):
        return math.nan
    return mine / other if other > 0 else math.inf


def _rose(curve: Curve) -> bool:
    """Whether it lost much of what it had reached; queries are counted to the lowest loss all the same."""
    low, end = curve.lowest(LOSS), curve.rows[-1].get(LOSS)
    return low is not None and end is not None and end > RISEN * low


def _has_failed(curve: Curve, key: str) -> bool:
    values = [row[key] for row in curve.rows if key in row]
    return curve.status in BROKEN or not values or min(values) >= values[0]
