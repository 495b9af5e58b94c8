"""The rules on comparisons of methods: what the queries that two methods need say about a sentence of the paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from spidersilk.lab.experiments.claims import FIGURES, Claim
from spidersilk.lab.experiments.grid import PLAIN
from spidersilk.lab.experiments.paper import LABELS
from spidersilk.lab.experiments.tuning import Record
from spidersilk.lab.report.comparison import CLEARLY, FEWER, LEVEL, MORE, NONE, SAME, WORDS, Comparison, compare
from spidersilk.lab.report.evidence import Group, number
from spidersilk.lab.report.judging import (
    NO,
    NOT_RUN,
    SIZE,
    YES,
    Material,
    Rule,
    Verdict,
    best,
    forms,
    missing,
    place,
    verdict_on,
)  # fmt: skip
from spidersilk.lab.report.tuned import finals
from spidersilk.lab.run.config import RunConfig

RESCUE = "sparse-svrg"  # ours: named where it does what Algorithm 1 does not
UNBIASED = {"sparse-spiderboost": "Algorithm 1", "sparse-svrg": "SparseSVRG"}
SELECTED = {"sparse-svrg-selected": "SparseSVRG, selected"}  # does not rescale, so its random part undoes no bias
FEW = 5.0  # epochs, of "the first few"


def _each_part(word_of: Callable[[Comparison], str], rescue: bool = False, length: float = math.inf) -> Rule:
    """A rule on the best forms of two methods in each part; `rescue`: if Algorithm 1 has no clear win, whether
    SparseSVRG has one."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        made = []
        for key in claim.parts:
            chapter = material.chapters.get(key)
            found = best(chapter, claim.ours, claim.theirs, length) if chapter is not None else []
            if chapter is None or not found:
                made.append(missing(claim, chapter, key))
                continue
            for comparison in found:
                word, more, runs = word_of(comparison), "", [comparison.theirs.name, comparison.ours.name]
                printed = chapter.find(claim.ours)
                if comparison.ours.name != printed.name:
                    word += f" with {comparison.ours.label.partition(', ')[2]}" if word in (YES, SIZE) else ""
                    alone = compare(printed, comparison.theirs, min(length, chapter.part.length))
                    more = f"as printed {alone[0].ratio()}, {alone[0].seeds()}" if alone else "as printed not run"
                saved = best(chapter, RESCUE, claim.theirs, length) if rescue and claim.ours != RESCUE else []
                if comparison.side != FEWER and saved and saved[0].side == FEWER:
                    word = f"only with {chapter.find(RESCUE).label}"
                    more = "; ".join(
                        filter(
                            None,
                            (
                                more,
                                f"{saved[0].ours.label} {saved[0].ratio()}, {saved[0].seeds()}",
                                saved[0].failures(),
                            ),
                        )
                    )
                    runs.append(saved[0].ours.name)
                made.append(verdict_on(claim.text, comparison.word(word), comparison, chapter.part.title, runs, more))
        return made

    return rule


def _better(found: Comparison) -> str:
    return {FEWER: YES, SAME: SAME, MORE: NO}.get(found.side, NONE)


def _slightly_better(found: Comparison) -> str:
    return SIZE if found.side == FEWER and found.median < 1 / CLEARLY else _better(found)


def _slightly_worse(found: Comparison) -> str:
    if found.side == MORE:
        return YES if found.median <= CLEARLY else SIZE
    return {FEWER: NO, SAME: SAME}.get(found.side, NONE)


def _no_worse(found: Comparison) -> str:
    return {FEWER: YES, SAME: YES, MORE: NO}.get(found.side, NONE)


def _within_the_factor(found: Comparison) -> str:
    """Theorem 1's, sqrt(b (k1 + k2) / k2)."""
    config = found.ours.config.completed()
    k1, k2 = (0.05 if k is None else k for k in (config.k1, config.k2))
    factor = math.sqrt((config.batch_size or 1) * (k1 + k2) / k2)
    within, many = sum(ratio <= factor for ratio in found.ratios), len(found.ratios)
    return YES if within == many else f"{YES} in {within} of {many} seeds" if within else NO


def _early(claim: Claim, material: Material) -> list[Verdict]:
    """Whether the gain in the first FEW epochs is larger than over the whole run, seed by seed."""
    made = []
    for key in claim.parts:
        chapter = material.chapters.get(key)
        groups = [chapter.find(m) for m in (claim.ours, claim.theirs)] if chapter is not None else []
        if chapter is None or not all(g.curves for g in groups):
            made.append(missing(claim, chapter, key))
            continue
        whole, first = (compare(groups[0], groups[1], length)[0] for length in (chapter.part.length, FEW))
        pairs = zip(first.ratios, whole.ratios, strict=False)
        later = replace(whole, ratios=tuple(a / b if b else math.nan for a, b in pairs))
        word = {FEWER: YES, SAME: SAME, MORE: NO}.get(later.side, NONE)
        more = f"queries beside SGD's: {first.ratio()} to {FEW:g} N, {whole.ratio()} to {whole.length:.3g} N"
        made.append(verdict_on(claim.text, later.word(word), later, chapter.part.title, [g.name for g in groups], more))
    return made


def _converged(claim: Claim, material: Material) -> list[Verdict]:
    """Whether the lowest loss by the end of what the paper shows is within LEVEL of the lowest of longer runs."""
    chapter = material.chapters.get(claim.parts[0])
    made = []
    for group in [forms(chapter, m)[0] for m in (claim.ours, claim.theirs)] if chapter is not None else []:
        assert chapter is not None
        longer = [c for c in group.curves if c.rows[-1]["queries"] > 2 * chapter.part.length and c.status != "diverged"]
        for curve in longer:
            part = Group(group.config, [curve])
            found = compare(part, part)[0]
            early = [r["train_loss"] for r in curve.rows if r["queries"] <= chapter.part.length and "train_loss" in r]
            low = curve.lowest("train_loss")
            why = f"{group.label}: loss {number(min(early))} by {chapter.part.length:g} N, "
            why += f"{number(low)} by {found.length:.3g} N"
            word = YES if low is not None and min(early) <= LEVEL * low else NO
            word = found.word(word) if len(longer) == 1 else word
            made.append(Verdict(claim.text, word, why, [group.name], chapter.part.title, "", found.seeds()))
    return made[:1] or [Verdict(claim.text, NOT_RUN, "runs beyond what the paper shows", [], "")]


def _smaller_gain(claim: Claim, material: Material) -> list[Verdict]:
    found = [best(c, claim.ours, claim.theirs)[:1] for key in claim.parts if (c := material.chapters.get(key))]
    if len(found) < 2 or not all(found):
        return [Verdict(claim.text, NOT_RUN, f"runs of both {' and '.join(claim.parts)}")]
    here, there = found[0][0], found[1][0]
    word = SAME if here.median == there.median else YES if here.median > there.median * LEVEL else NO
    few = min(len(f.ratios) for f in (here, there))
    why = f"{here.ours.label} needs {here.ratio()} of SpiderBoost's queries on ResNet-18, {there.ratio()} on MNIST"
    runs = [here.ours.name, there.ours.name]
    return [Verdict(claim.text, WORDS.get(few, "") + word, why, runs, "", "", here.seeds())]


def _range(claim: Claim, material: Material) -> list[Verdict]:
    """At which densities Algorithm 1 is no worse than with all coordinates."""
    made = []
    for key in claim.parts:
        chapter = material.chapters.get(key)
        printed = [] if chapter is None else [g for g in chapter.present if g.config.optimizer == claim.ours]
        dense = None if chapter is None else chapter.dense
        found = [compare(g, dense, chapter.part.length) for g in printed if dense and chapter and g.name != dense.name]
        if chapter is None or dense is None or not any(found):
            absent = replace(claim, ours="sparse-spiderboost-0.1", theirs="sparse-spiderboost-1")
            made.append(missing(absent, chapter, key))
            continue
        judged = [f[0] for f in found if f]
        fine = [f for f in judged if f.side in (FEWER, SAME)]
        few = min(len(f.ratios) for f in judged)
        each = [f"{f.ours.label.removeprefix('Algorithm 1, ')} {f.ratio()}" for f in judged]
        some = f"{YES} at {len(fine)} of {len(judged)} densities"
        word = WORDS.get(few, "") + (YES if len(fine) == len(judged) else some if fine else NO)
        runs = [dense.name, *(f.ours.name for f in judged)]
        why = f"queries beside all coordinates: {', '.join(each)}"
        made.append(Verdict(claim.text, word, why, runs, chapter.part.title, "", judged[0].seeds()))
    return made


def _controls(claim: Claim, material: Material) -> list[Verdict]:
    """Algorithm 1 beside each plain method that was run for comparison, and is not among the planned runs."""
    made = []
    for chapter in (material.chapters[key] for key in claim.parts if key in material.chapters):
        planned = [config.name for config in chapter.part.configs]
        for control in chapter.present:
            if control.config.optimizer not in PLAIN or control.name in planned:
                continue
            beside = [compare(form, control, chapter.part.length) for form in forms(chapter, claim.ours)]
            found = min((f for f in beside if f), key=lambda f: place(f[0]), default=[])
            runs = [control.name, *(f.ours.name for f in found[:1])]
            made += [verdict_on(claim.text, f.word(_better(f)), f, chapter.part.title, runs) for f in found]
    return made or [Verdict(claim.text, NOT_RUN, f"missing: {claim.note}")]


def _tuned(word_of: Callable[[Comparison], str]) -> Rule:
    """A rule on the final runs of `spidersilk tune`, wherever both methods have them."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        made = []
        for name, record in material.tunings.items():
            ours, theirs = (tuned_group(record, method) for method in (claim.ours, claim.theirs))
            found = compare(ours, theirs, key=record["metric"]) if ours.curves and theirs.curves else []
            made += [
                verdict_on(claim.text, f.word(word_of(f)), f, _task(name), [f"results/tune/{name}.json"]) for f in found
            ]
        return made or [Verdict(claim.text, NOT_RUN, "missing: tunings of both")]

    return rule


def _task(name: str) -> str:
    return name.removeprefix("tune_").replace("_", " ")


def tuned_group(record: Record, method: str) -> Group:
    """The final runs of a tuned method."""
    curves = finals(record, method) if method in record["methods"] else []
    return Group(RunConfig(record["conditions"]["task"], method, label=f"{LABELS.get(method, method)}, tuned"), curves)


def _splits(methods: dict[str, str]) -> Rule:
    """Two splits k1 : k2 of the same k, for each method: `ours` and `theirs` of the claim are splits."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        made = []
        for key, (method, name) in itertools.product(claim.parts, methods.items()):
            chapter = material.chapters.get(key)
            groups = [chapter.find(f"{method}-{s}") for s in (claim.ours, claim.theirs)] if chapter is not None else []
            found = compare(groups[0], groups[1]) if groups else []
            if chapter is None or not found:
                made.append(Verdict(claim.text, NOT_RUN, f"no runs of {key}-{method}", [], f"{key}, {method}"))
                continue
            word = found[0].word(_better(found[0]))
            made.append(
                verdict_on(claim.text, word, found[0], f"{chapter.part.title}, {name}", [g.name for g in groups])
            )
        return made

    return rule


def _geometric(claim: Claim, material: Material) -> list[Verdict]:
    """Geometric lengths beside fixed ones; `theirs` is the step size."""
    made = []
    for key in claim.parts:
        chapter = material.chapters.get(key)
        names = [f"{claim.ours}-{claim.theirs}-{lengths}" for lengths in ("geometric", "fixed")]
        drawn, fixed = (None, None) if chapter is None else map(chapter.find, names)
        found = compare(drawn, fixed) if drawn is not None and fixed is not None else []
        if chapter is None or not found:
            made.append(missing(replace(claim, ours=names[0], theirs=names[1]), chapter, key))
            continue
        runs = [f"{key}-{name}" for name in names]
        word = {SAME: YES, FEWER: NO, MORE: NO}.get(found[0].side, NONE)
        made.append(verdict_on(claim.text, found[0].word(word), found[0], chapter.part.title, runs))
    return made


def _m_above_b(claim: Claim, material: Material) -> list[Verdict]:
    """By the paper's own settings."""
    configs = [c.find("spiderboost").config.completed() for k in FIGURES if (c := material.chapters.get(k))]
    pairs = list(dict.fromkeys((int(c.inner_steps or 0), int(c.batch_size or 0)) for c in configs))
    why = "; ".join(f"m = {m}, b = {b}" for m, b in pairs)
    word = "so in its experiments" if all(m > b for m, b in pairs) else "not so in its own experiments"
    return [Verdict(claim.text, word, why)]


RULES: dict[str, Rule] = {
    "better": _each_part(_better, rescue=True),
    "consistently": _each_part(_better, rescue=True),
    "slightly better": _each_part(_slightly_better, rescue=True),
    "slightly worse": _each_part(_slightly_worse),
    "no worse": _each_part(_no_worse),
    "within the factor": _each_part(_within_the_factor),
    "early": _early,
    "converged": _converged,
    "smaller gain": _smaller_gain,
    "range": _range,
    "controls": _controls,
    "tuned, consistently": _tuned(_better),
    "tuned, no worse": _tuned(_no_worse),
    "splits": _splits(UNBIASED | SELECTED),
    "splits, unbiased": _splits(UNBIASED),
    "geometric": _geometric,
    "m above b": _m_above_b,
}
