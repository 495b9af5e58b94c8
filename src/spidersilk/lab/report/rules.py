"""The rules on comparisons of methods: what the queries that two methods need say about a sentence of the paper."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import replace

from spidersilk.lab.experiments.claims import ALGORITHM_1, FIGURES, Claim
from spidersilk.lab.experiments.grid import PLAIN
from spidersilk.lab.experiments.paper import LABELS
from spidersilk.lab.experiments.tuning import Record
from spidersilk.lab.report.comparison import (
    BOTH,
    CLEARLY,
    FEWER,
    LEVEL,
    LOST,
    MORE,
    NONE,
    SAME,
    WON,
    WORDS,
    Comparison,
    compare,
    cut,
    is_large,
)  # fmt: skip
from spidersilk.lab.report.evidence import LOSS, Chapter, Group, number
from spidersilk.lab.report.judging import (
    ADAPTIVE,
    NO,
    NOT_RUN,
    RESCUE,
    SIZE,
    SVRG,
    YES,
    Material,
    Rule,
    Verdict,
    beside,
    best,
    forms,
    missing,
    own,
    place,
    said,
    verdict_on,
)  # fmt: skip
from spidersilk.lab.report.tuned import finals, title_of
from spidersilk.lab.run.config import RunConfig

FEW = 5.0  # epochs, of "the first few"
Word = Callable[[Comparison], str]


def _over_parts(judge: Callable[[Claim, Chapter], list[Verdict]]) -> Rule:
    """A rule that judges part by part; it gives nothing for a part without the runs that it needs."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        made = []
        for key in claim.parts:
            chapter = material.chapters.get(key)
            made += (judge(claim, chapter) if chapter is not None else []) or [missing(claim, chapter, key)]
        return made

    return rule


def _best_forms(word_of: Word) -> Rule:
    """A rule on the best forms of two methods in each part. Where no form of the paper's Algorithm 1 does what it says,
    ours may: they are told with what dense SVRG does."""

    def judge(claim: Claim, chapter: Chapter) -> list[Verdict]:
        found, printed, length = best(chapter, claim.ours, claim.theirs), chapter.find(claim.ours), chapter.part.length
        if not found:
            return []
        more, saved, runs = _twins(chapter, claim, found[-1]), "", []
        if found[0].ours.name != printed.name:
            alone = compare(printed, found[0].theirs, length)
            more += [f"as printed {alone[0].ratio()}, {alone[0].seeds()}" if alone else "as printed not run"]
        if claim.ours == ALGORITHM_1 and word_of(found[-1]) not in (YES, SIZE):
            saved, told, runs = _rescued(chapter, claim, word_of)
            more += told
        made = []
        for comparison in found:
            word = said(word_of(comparison), comparison)
            if comparison.ours.name != printed.name and word.endswith(YES):
                word += f" with {comparison.ours.label.partition(', ')[2]}"
            names = [comparison.theirs.name, comparison.ours.name, *runs]
            made.append(verdict_on(claim.text, saved or word, comparison, chapter.part.title, names, "; ".join(more)))
        return made

    return _over_parts(judge)


def _twins(chapter: Chapter, claim: Claim, found: Comparison) -> list[str]:
    """What tells how much of a result of Algorithm 1 is its own: SparseSVRG that takes the same steps, and controls."""
    if claim.ours != ALGORITHM_1:
        return []
    pairs = [(p.ours.lowest(LOSS), p.theirs.lowest(LOSS)) for each in compare(found.ours, chapter.find(RESCUE))[-1:]
             for p in each.pairs if p.outcome != BOTH]  # fmt: skip
    same = pairs and all(a and b and math.isclose(a, b, rel_tol=1e-3) for a, b in pairs)
    beside = [f"beside {f.theirs.label} {f.ratio()}, {f.seeds()}" for f in _beside_controls(chapter, found.ours)]
    return (["SparseSVRG ends at the same losses, to three digits"] if same else []) + beside


def _beside_controls(chapter: Chapter, group: Group) -> list[Comparison]:
    """A run beside each plain method that was run for comparison, and is not among the planned runs."""
    planned = [config.name for config in chapter.part.configs]
    controls = [g for g in chapter.present if g.config.optimizer in PLAIN and g.name not in planned]
    return [found for control in controls for found in compare(group, control, chapter.part.length)]


def _rescued(chapter: Chapter, claim: Claim, word_of: Word) -> tuple[str, list[str], list[str]]:
    """The word, if a form of ours or SparseSVRG does what Algorithm 1 does not; the numbers of both; and their runs."""
    found = [beside(chapter, g, claim.theirs, free=True) for g in forms(chapter, claim.ours) if own(g)]
    tried = [f[-1] for f in (*found, best(chapter, RESCUE, claim.theirs, free=True)) if f]
    told, dense = [], chapter.find(SVRG)
    for f in tried:
        told += filter(
            None, (f"{f.ours.label} beside {f.theirs.label} {f.ratio()}, {f.seeds()}, {f.target()}", f.notes())
        )
        if own(f.ours) == ADAPTIVE and not any(own(g) for g in forms(chapter, claim.theirs)):
            told.append(f"{f.theirs.label} has no such run")
    fine = sorted((f for f in tried if word_of(f) in (YES, SIZE)), key=place)
    word = f"{fine[0].few}only with {' or '.join(own(f.ours) for f in fine)}, ours" if fine else ""
    runs = [f.ours.name for f in fine]
    for f in (f for f in fine if f.ours.config.optimizer.startswith(RESCUE)):
        pair = [compare(*two, chapter.part.length)[-1:] for two in ((dense, f.theirs), (f.ours, dense))]
        told += [f"dense SVRG beside {f.theirs.label} {x.ratio()}, {x.seeds()}" for x in pair[0]]
        told += [f"{f.ours.label} beside dense SVRG {x.ratio()}, {x.seeds()}" for x in pair[1]]
        told += [] if pair[0] else ["dense SVRG not run"]
        if pair[0] and word_of(pair[0][0]) in (YES, SIZE) and pair[1][0].side != FEWER:
            word += ", or with dense SVRG"
    return word, told, runs


def _better(found: Comparison) -> str:
    return {FEWER: YES, SAME: SAME, MORE: NO}.get(found.side, NONE)


def _slightly_better(found: Comparison) -> str:
    return SIZE if found.side == FEWER and found.middle < 1 / CLEARLY else _better(found)


def _slightly_worse(found: Comparison) -> str:
    if found.side == MORE:
        return YES if found.middle <= CLEARLY else SIZE
    return {FEWER: NO, SAME: SAME}.get(found.side, NONE)


def _no_worse(found: Comparison) -> str:
    """Nearly every seed: where they disagree there is no clear difference."""
    return YES if found.side == FEWER or found.within(0, LEVEL) else _better(found)


def _the_same(found: Comparison) -> str:
    return YES if found.within(1 / LEVEL, LEVEL) else {FEWER: NO, MORE: NO}.get(found.side, SAME)


def _early(claim: Claim, chapter: Chapter) -> list[Verdict]:
    """Whether the gain in the first FEW epochs is larger than over the whole run, seed by seed."""
    ours, theirs = groups = [chapter.find(m) for m in (claim.ours, claim.theirs)]
    if not all(g.curves for g in groups):
        return []
    whole, first = (compare(ours, theirs, length)[0] for length in (chapter.part.length, FEW))
    pairs = []
    for early, late in zip(first.pairs, whole.pairs, strict=False):
        ratio = early.ratio / late.ratio if late.ratio else math.nan
        pairs.append(early._replace(ratio=ratio, outcome=BOTH if math.isnan(ratio) else WON if ratio < 1 else LOST))
    later = replace(whole, pairs=tuple(pairs))
    more = f"queries beside SGD's: {first.ratio()} to {FEW:g} N, {whole.ratio()} to {whole.length:.3g} N"
    names = [g.name for g in groups]
    return [verdict_on(claim.text, later.word(_better(later)), later, chapter.part.title, names, more)]


def _converged(claim: Claim, material: Material) -> list[Verdict]:
    """Whether the lowest loss by the end of what the paper shows is within LEVEL of the lowest of longer runs."""
    chapter = material.chapters.get(claim.parts[0])
    for group in [forms(chapter, m)[0] for m in (claim.ours, claim.theirs)] if chapter is not None else []:
        assert chapter is not None
        end = chapter.part.length
        longer = [c for c in group.curves if c.rows[-1]["queries"] > 2 * end and c.status != "diverged"]
        lows = [[x for c in longer if (x := cut(c, to).lowest(LOSS)) is not None] for to in (end, math.inf)]
        if longer:
            early, late = (statistics.median(low) for low in lows)
            most = max(c.rows[-1]["queries"] for c in longer)
            why = f"{group.label}: loss {number(early)} by {end:g} N, {number(late)} by {most:.3g} N"
            word = WORDS.get(len(longer), "") + (YES if early <= LEVEL * late else NO)
            word = f"{NONE}: one seed" if len(longer) == 1 and not is_large(*longer) else word
            return [Verdict(claim.text, word, why, [group.name], chapter.part.title)]
    return [Verdict(claim.text, NOT_RUN, "runs beyond what the paper shows", [], "")]


def _smaller_gain(claim: Claim, material: Material) -> list[Verdict]:
    """Of the paper's forms; with ours in what is told."""
    chapters = [c for key in claim.parts if (c := material.chapters.get(key))]
    found = [best(c, claim.ours, claim.theirs)[-1:] for c in chapters]
    if len(found) < 2 or not all(found):
        return [Verdict(claim.text, NOT_RUN, f"runs of both {' and '.join(claim.parts)}")]
    here, there = (each[0] for each in found)
    word = YES if here.middle > LEVEL * there.middle else NO if here.middle * LEVEL < there.middle else SAME
    if math.isinf(here.middle) and math.isinf(there.middle):
        word = f"{NONE}: Algorithm 1 fails on both"
    told = []
    for free, chapter in itertools.product((False, True), chapters):
        where, each = chapter.part.title.partition(": ")[2], best(chapter, claim.ours, claim.theirs, free=free)[-1:]
        told += [f"{f.ours.label} {f.ratio()}, {f.seeds()} on {where}" for f in each]
    why = f"queries beside SpiderBoost's: {'; '.join(dict.fromkeys(told))}"
    few = "" if word.startswith(NONE) else min((here.few, there.few), key=lambda w: [*WORDS.values(), ""].index(w))
    return [Verdict(claim.text, few + word, why, [here.ours.name, there.ours.name])]


def _named(word_of: Word) -> Rule:
    """Runs of the same part by name: `ours` and `theirs` of the claim are lists with commas."""

    def judge(claim: Claim, chapter: Chapter) -> list[Verdict]:
        made, key = [], chapter.part.key
        for ours, theirs in zip(claim.ours.split(","), claim.theirs.split(","), strict=True):
            found = compare(chapter.find(ours), chapter.find(theirs))
            made += [] if found else [missing(replace(claim, ours=ours, theirs=theirs), chapter, key)]
            for f in found[:1]:
                title = f"{chapter.part.title}: {f.ours.label}"
                made.append(verdict_on(claim.text, said(word_of(f), f), f, title, [f"{key}-{ours}", f"{key}-{theirs}"]))
        return made

    return _over_parts(judge)


def _controls(claim: Claim, material: Material) -> list[Verdict]:
    """Algorithm 1 beside the controls."""
    made = []
    for chapter in (material.chapters[key] for key in claim.parts if key in material.chapters):
        for found in _beside_controls(chapter, chapter.find(claim.ours)):
            runs, title = [found.theirs.name, found.ours.name], f"{chapter.part.title}: {found.theirs.label}"
            made.append(verdict_on(claim.text, said(_better(found), found), found, title, runs))
    return made or [Verdict(claim.text, NOT_RUN, f"missing: {claim.note}")]


def _tuned(word_of: Word) -> Rule:
    """A rule on the final runs of `spidersilk tune`, wherever both methods have them."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        made = []
        for name, record in material.tunings.items():
            ours, theirs = (tuned_group(record, method) for method in (claim.ours, claim.theirs))
            for found in compare(ours, theirs, key=record["metric"]) if ours.curves and theirs.curves else []:
                words, file = said(word_of(found), found), f"results/tune/{name}.json"
                verdict = verdict_on(claim.text, words, found, title_of(record), [file])
                made.append(replace(verdict, beyond=record["conditions"]["task"] == "logistic"))
        return made or [Verdict(claim.text, NOT_RUN, "missing: tunings of both")]

    return rule


def tuned_group(record: Record, method: str) -> Group:
    """The final runs of a tuned method."""
    curves = finals(record, method) if method in record["methods"] else []
    loops = (record["methods"].get(method, {}).get("best") or {}).get("inner_steps")
    title, task = f"{LABELS.get(method, method)}, tuned", record["conditions"]["task"]
    return Group(RunConfig(task, method, label=title, inner_steps=loops), curves)


def _m_above_b(claim: Claim, material: Material) -> list[Verdict]:
    """By the paper's own settings."""
    configs = [c.find("spiderboost").config.completed() for k in FIGURES if (c := material.chapters.get(k))]
    pairs = list(dict.fromkeys((int(c.inner_steps or 0), int(c.batch_size or 0)) for c in configs))
    why = "; ".join(f"m = {m}, b = {b}" for m, b in pairs)
    word = "so in its experiments" if all(m > b for m, b in pairs) else "not so in its own experiments"
    return [Verdict(claim.text, word, why)]


RULES: dict[str, Rule] = {
    "better": _best_forms(_better),
    "consistently": _best_forms(_better),
    "slightly better": _best_forms(_slightly_better),
    "slightly worse": _best_forms(_slightly_worse),
    "no worse": _best_forms(_no_worse),
    "early": _over_parts(_early),
    "converged": _converged,
    "smaller gain": _smaller_gain,
    "controls": _controls,
    "tuned, consistently": _tuned(_better),
    "tuned, no worse": _tuned(_no_worse),
    "named, better": _named(_better),
    "named, no worse": _named(_no_worse),
    "named, the same": _named(_the_same),
    "m above b": _m_above_b,
}
