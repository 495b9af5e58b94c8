"""The engine of verdicts: each rule on curves that are made for it, and what two swapped files change."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

import page
import page_material
import page_paper

from spidersilk.lab.experiments.ablations import ablations
from spidersilk.lab.experiments.claims import CLAIMS, Claim
from spidersilk.lab.experiments.paper import experiments
from spidersilk.lab.experiments.plan import path_of
from spidersilk.lab.report import evidence, verdicts
from spidersilk.lab.report.comparison import CLEARLY, FEWER, LEVEL, MORE, NONE, SAME, Comparison, compare
from spidersilk.lab.report.evidence import Chapter, Group
from spidersilk.lab.report.html import section_of, sections_of
from spidersilk.lab.report.judging import Material, best, forms
from spidersilk.lab.run import collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve

ROOT = Path(__file__).parents[2]
DENSE = [2.3, 1.0, 0.6, 0.4, 0.3]
FAST = [2.3, 0.5, 0.25, 0.2, 0.15]
SLOW = [2.3, 2.0, 1.5, 1.2, 0.9]
THREE = (0, 1, 2)


def run(
    name: str, losses: list[float], seed: int = 0, status: str = "finished", step: float = 0.5, **summary: float
) -> Curve:
    """A run with these losses at 0, 1, 2 ... steps of queries over N."""
    rows = [{"queries": i * step, "seconds": float(i), "train_loss": x} for i, x in enumerate(losses)]
    config = {"task": "image", "optimizer": name, "name": name, "seed": seed, "budget": (len(losses) - 1) * step}
    return Curve(name, rows, status, config=config, summary=dict(summary))


def falling(evaluations: int, total: int = 40) -> list[float]:
    """Losses that get from 2.3 to 0.3 in so many evaluations, and stay there."""
    return [2.3 - 2 * min(1.0, i / evaluations) for i in range(total + 1)]


def group(name: str, *curves: Curve) -> Group:
    return Group(RunConfig("image", "sgd", name=name, label=name), list(curves))


def seeds(name: str, losses: list[float], **more: Any) -> Group:
    return group(name, *(run(name, losses, seed, **more) for seed in THREE))


def only(ours: Group, theirs: Group, length: float = math.inf) -> Comparison:
    (found,) = compare(ours, theirs, length)
    return found


# The rules of a comparison.


def test_a_ratio_is_of_the_queries_to_the_higher_of_the_lowest_losses() -> None:
    found = only(seeds("fast", FAST), seeds("dense", DENSE))
    assert found.ratios == (0.5, 0.5, 0.5)  # 0.3: at 1 N, and at 2 N
    assert (found.side, found.ratio(), found.seeds()) == (FEWER, "0.50", "3 won, 2 N")


@pytest.mark.parametrize("pair", [(FAST, DENSE), (DENSE, SLOW), (DENSE, DENSE)])
def test_exchanging_the_methods_exchanges_the_word(pair: tuple[list[float], list[float]]) -> None:
    one, other = (seeds(name, losses) for name, losses in zip("ab", pair, strict=True))
    there, back = only(one, other), only(other, one)
    assert there.middle == pytest.approx(1 / back.middle)
    assert {there.side, back.side} in ({FEWER, MORE}, {SAME})


@pytest.mark.parametrize(("step", "side"), [(0.99 / LEVEL, FEWER), (1.01 / LEVEL, SAME), (LEVEL, SAME), (1.21, MORE)])
def test_a_difference_within_the_factor_is_none(step: float, side: str) -> None:
    assert only(seeds("a", falling(40), step=step), seeds("b", falling(40), step=1.0)).side == side


@pytest.mark.parametrize(("later", "outcome"), [(0, "tied"), (1, "tied"), (2, "lost")])
def test_a_difference_within_an_interval_between_evaluations_is_a_tie(later: int, outcome: str) -> None:
    """Whatever its factor is: here up to 2."""
    late = [2.3, *[2.2] * later, 1.0, 0.3, *[0.3] * 5][:6]
    found = only(seeds("a", late), seeds("b", [2.3, 1.0, 0.3, 0.3, 0.3, 0.3]))
    assert {pair.outcome for pair in found.pairs} == {outcome}
    assert (found.side == MORE) == (outcome == "lost")
    assert found.seeds() == f"3 {outcome}, 2.5 N"
    back = only(seeds("b", [2.3, 1.0, 0.3, 0.3, 0.3, 0.3]), seeds("a", late))
    assert {pair.outcome for pair in back.pairs} == {"won" if outcome == "lost" else "tied"}


def test_a_difference_within_the_spread_of_the_seeds_is_none() -> None:
    theirs = seeds("b", DENSE)
    mixed = group("a", run("a", FAST, 0), run("a", FAST, 1), run("a", SLOW, 2))
    assert only(mixed, theirs).side == SAME  # two of three
    four = group("a", *(run("a", FAST, seed) for seed in range(4)), run("a", SLOW, 4))
    five = only(four, group("b", *(run("b", DENSE, seed) for seed in range(5))))
    assert (five.side, five.seeds()) == (FEWER, "4 won, 1 lost, 2 N")


def test_a_run_that_failed_reached_nothing() -> None:
    fine = seeds("b", DENSE)
    for status, losses in (("diverged", [2.3, 0.1, 60.0]), ("collapsed", [2.3, 0.1, 2.3]), ("finished", [2.3, 2.4])):
        lost = seeds("a", losses, status=status)
        assert only(lost, fine).ratios == (math.inf,) * 3
        assert only(fine, lost).ratios == (0.0,) * 3
        both = only(lost, lost)
        assert (both.side, both.ratio(), both.word(YES)) == (NONE, "both fail", "no verdict: both fail")
    assert only(seeds("a", [2.3, 0.1, 60.0], status="diverged"), fine).notes() == "a diverged at 1 N (3 of 3 seeds)"
    ends = group("a", *(run("a", [2.3, 0.1, 60.0][: 2 + (seed == 1)], seed, "diverged") for seed in THREE))
    assert ends.breakdown() == "diverged at 0.5 to 1 N (3 of 3 seeds)"


def test_a_run_that_stays_near_the_loss_of_guessing_has_failed() -> None:
    """Also where it is below its first loss, and however fast it got there."""
    near = seeds("a", [2.4, 2.26, 2.26, 2.26, 2.26], guess_loss=2.3)
    told = "a never gets 2 % below guessing (3 of 3 seeds)"
    found = only(near, seeds("b", SLOW, guess_loss=2.3))
    assert (found.side, found.ratio(), found.seeds(), found.notes()) == (MORE, "fails", "3 failed, 2 N", told)
    assert only(near, near).word(YES) == "no verdict: both fail"
    clear = seeds("a", [2.4, 2.25, 2.25, 2.25, 2.25], guess_loss=2.3)
    assert only(clear, seeds("b", SLOW, guess_loss=2.3)).side != MORE
    assert only(seeds("a", [2.4, 2.38, 2.36]), clear).ratio() == "fails"  # without one, the first loss takes its place


def test_a_failure_is_no_part_of_a_median() -> None:
    """Outcomes are counted; seeds with which both fail decide nothing, and the others may be few."""
    lost = [2.3, 60.0, 60.0, 60.0, 60.0]
    ours = group("a", run("a", DENSE, 0), run("a", lost, 1, "diverged"), run("a", lost, 2, "diverged"))
    theirs = group("b", run("b", lost, 0, "diverged"), run("b", lost, 1, "diverged"), run("b", DENSE, 2))
    found = only(ours, theirs)
    assert found.ratio() == "fails in 1 of 3; the other fails in 1 of 3; both fail in 1 of 3"
    assert (found.side, found.seeds()) == (SAME, "1 won, 1 failed, 1 both failed, 2 N")
    some = only(group("a", *(run("a", FAST, i) for i in THREE)), theirs)
    assert (some.ratio(), some.side) == ("0.50; the other fails in 2 of 3", FEWER)
    all_lost = only(seeds("a", lost, status="diverged"), theirs)
    assert (all_lost.side, all_lost.word("more")) == (NONE, "no verdict: one seed")
    theirs.curves[1] = run("b", DENSE, 1)
    all_lost = only(seeds("a", lost, status="diverged"), theirs)
    assert (all_lost.side, all_lost.word("more")) == (MORE, "two seeds: more")
    two = (
        group("a", run("a", FAST, 0), run("a", DENSE, 1)),
        group("b", run("b", SLOW, 0), run("b", SLOW, 1)),
    )
    assert only(*two).ratio() == "0.25 and 0.50"  # both values, and no mean of them


def test_the_same_seed_on_two_machines_is_two_runs() -> None:
    ours = group("a", run("a", FAST, 0), run("a", [2.3, 60.0], 0, "diverged"), run("a", FAST, 1), run("a", FAST, 2))
    found = only(ours, seeds("b", DENSE))
    assert (found.side, found.seeds()) == (SAME, "3 won, 1 failed (4 pairs of 3 seeds), 2 N")
    assert "a is chaotic: seed 0 fails on one machine and not on another" in found.notes()
    again = page_material.distinct([*ours.curves, run("other", FAST, 1), run("other", SLOW, 2)])
    assert [(c.label, c.config["seed"]) for c in again] == [("a", 0), ("a", 0), ("a", 1), ("a", 2), ("other", 2)]


def test_a_loss_that_rises_again_is_told() -> None:
    risen = only(seeds("a", [2.3, 0.5, 0.25, 0.2, 0.45]), seeds("b", DENSE))
    assert (risen.ratio(), risen.notes()) == ("0.50", "a ends above 2 times its lowest loss (3 of 3 seeds)")
    assert only(seeds("a", [2.3, 0.5, 0.25, 0.2, 0.35]), seeds("b", DENSE)).notes() == ""
    mixed = group("a", run("a", [2.3, 0.2, 0.2, 0.2, 0.45]), run("a", [2.3, 60.0], 1, "diverged"))
    assert "a ends above 2 times its lowest loss (1 of 2 seeds)" in only(mixed, seeds("b", DENSE)).notes()


YES = "reproduced"


def test_few_seeds_are_said_and_one_of_a_small_network_gives_no_verdict() -> None:
    """By the number of parameters, which no machine changes."""

    def word(many: int, parameters: float) -> str:
        ours, theirs = (
            group(name, *(run(name, losses, seed, parameters=parameters) for seed in range(many)))
            for name, losses in (("a", FAST), ("b", DENSE))
        )
        return only(ours, theirs).word(YES)

    assert [word(1, 1e7), word(2, 1e4), word(3, 1e4)] == ["one seed: reproduced", "two seeds: reproduced", YES]
    assert word(1, 1e4) == "no verdict: one seed"


def test_methods_are_judged_at_the_length_that_the_paper_shows() -> None:
    late = [2.3, 2.25, 2.2, 2.2, 2.1, *[0.01] * 6]
    dense = [2.3, 1.0, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3, 0.2, 0.1]
    assert only(seeds("a", late), seeds("b", dense)).side == FEWER
    early = only(seeds("a", late), seeds("b", dense), 2.0)
    assert (early.side, early.length) == (MORE, 2.0)
    # A run that falls back for a moment, just at that length, has not collapsed.
    assert only(seeds("a", [2.3, 0.1, 0.1, 2.3, 0.1]), seeds("b", DENSE), 1.5).side == FEWER


def test_where_more_seeds_got_there_is_a_second_verdict() -> None:
    def some(name: str, losses: list[float]) -> Group:
        curves = [run(name, losses, 0), run(name, losses[:3], 1), run(name, losses[:3], 2)]
        return group(name, *curves)

    whole, shorter = compare(some("a", FAST), some("b", DENSE))
    assert (len(whole.pairs), whole.length) == (1, 2.0)
    assert (len(shorter.pairs), shorter.length) == (3, 1.0)


# Claims.


def chapter(**losses: Sequence[Any]) -> Chapter:
    """Figure 1, right, with three seeds of each method: its losses, and what `run` takes."""
    part = next(p for p in experiments("paper")["figure1"] if p.key == "figure1-right")
    curves = {}
    for method, (values, *more) in losses.items():
        name = f"figure1-right-{method.replace('_', '-')}"
        config = next(c for c in part.configs if c.name == name)
        for seed in THREE:
            made = run(name, values, seed, *more)
            settings = vars(replace(config, seed=seed))
            curves[f"{name}-seed{seed}" if seed else name] = replace(made, config=settings, label=config.label)
    return evidence.make_chapter("figure1", part, curves)


def judged(made: Chapter, rule: str, ours: str = "sparse-spiderboost", theirs: str = "spiderboost") -> verdicts.Verdict:
    claim = Claim("a sentence", rule, "", (made.part.key,), ours, theirs)
    return verdicts.judge(claim, Material({made.part.key: made}))[0]


def test_a_claim_is_reproduced_only_where_fewer_queries_are_needed() -> None:
    assert judged(chapter(spiderboost=(DENSE,), sparse_spiderboost=(FAST,)), "better").word == "reproduced"
    assert judged(chapter(spiderboost=(DENSE,), sparse_spiderboost=(SLOW,)), "better").word == "not reproduced"
    assert judged(chapter(spiderboost=(DENSE,), sparse_spiderboost=(DENSE,)), "better").word == "no clear difference"
    alone = judged(chapter(spiderboost=(DENSE,)), "better")
    assert (alone.word, alone.why) == ("not run", "missing: figure1-right-sparse-spiderboost")


def test_every_form_of_algorithm_1_counts_and_is_named() -> None:
    printed = ([2.3, 60.0], "diverged")
    made = chapter(spiderboost=(DENSE,), sparse_spiderboost=printed, sparse_spiderboost_adaptive=(FAST,))
    assert [g.label for g in forms(made, "sparse-spiderboost")] == [
        "Algorithm 1 (sparse SpiderBoost)", "Algorithm 1, adaptive anchors"
    ]  # fmt: skip
    found = judged(made, "better")
    assert found.word == "only with adaptive anchors, ours"  # never "reproduced"
    assert found.why.startswith("Algorithm 1 (sparse SpiderBoost) beside SpiderBoost to loss 0.300 (from 2.30)")
    assert "Algorithm 1, adaptive anchors beside SpiderBoost 0.50, 3 won, 2 N" in found.why
    assert "SpiderBoost has no such run" in found.why
    assert best(made, "sparse-spiderboost", "spiderboost")[0].ours.name == "figure1-right-sparse-spiderboost"
    free = best(made, "sparse-spiderboost", "spiderboost", free=True)
    assert free[0].ours.name == "figure1-right-sparse-spiderboost-adaptive"
    assert judged(made, "no worse").word == "only with adaptive anchors, ours"
    rescued = chapter(spiderboost=(DENSE,), sparse_spiderboost=printed, sparse_svrg_refresh=(FAST,))
    found = judged(rescued, "better")
    assert found.word == "only with SparseSVRG, refresh, ours"
    assert "SparseSVRG, refresh beside SpiderBoost 0.50, 3 won, 2 N" in found.why
    assert "diverged at 0.5 N (3 of 3 seeds)" in found.why
    assert "dense SVRG not run" in found.why
    other = chapter(spiderboost=(DENSE,), sparse_spiderboost=printed)
    other.groups[1].config = replace(other.groups[1].config, lr=0.05)  # another step size is another method
    assert "figure1-right-spiderboost" in [g.name for g in other.groups]


@pytest.mark.parametrize(("dense", "more"), [(FAST, ", or with dense SVRG"), (DENSE, "")])
def test_dense_svrg_is_named_where_it_does_the_same(dense: list[float], more: str) -> None:
    made = chapter(spiderboost=(DENSE,), sparse_spiderboost=([2.3, 60.0], "diverged"), sparse_svrg=(FAST,))
    svrg = seeds("figure1-right-svrg", dense)
    made.groups.append(svrg)
    found = judged(made, "better")
    assert found.word == f"only with SparseSVRG, ours{more}"
    assert "dense SVRG beside SpiderBoost" in found.why
    assert "SparseSVRG beside dense SVRG" in found.why


def test_the_rival_enters_with_its_best_form_too() -> None:
    """Forms of ours do so beside forms of ours."""
    made = chapter(spiderboost=(DENSE,), sparse_spiderboost=(SLOW,), sparse_spiderboost_adaptive=(FAST,))
    assert judged(made, "better", "spiderboost", "sparse-spiderboost").word == "reproduced"
    assert best(made, "spiderboost", "sparse-spiderboost", free=True)[0].side == MORE
    made.find("sparse-spiderboost-adaptive").curves[1:] = []  # one seed of a small network does not replace three
    assert best(made, "spiderboost", "sparse-spiderboost", free=True)[0].side == FEWER


def test_slightly_is_not_many_times() -> None:
    step = ("finished", 0.05)
    made = chapter(sgd=(falling(30), *step), spiderboost=(falling(40), *step), sparse_spiderboost=(falling(20), *step))
    more = "reproduced in direction, by more than slightly"
    assert judged(made, "slightly worse", "spiderboost", "sgd").word == "reproduced"  # 4 / 3
    assert judged(made, "slightly worse", "spiderboost", "sparse-spiderboost").word == more
    assert judged(made, "slightly worse", "sgd", "spiderboost").word == "not reproduced"
    assert judged(made, "slightly better").word == more
    assert judged(made, "slightly better", "sgd", "spiderboost").word == "reproduced"
    assert 4 / 3 < CLEARLY < 2
    assert judged(made, "no worse", "sgd", "spiderboost").word == "reproduced"
    assert judged(made, "no worse", "spiderboost", "sgd").word == "not reproduced"


def test_seeds_that_disagree_do_not_count_for_the_paper() -> None:
    """Of three, one needs half of the queries and one twice as many: no worse is not what they show, nor the same."""
    made = chapter(spiderboost=(falling(20), "finished", 0.05), sgd=(falling(20), "finished", 0.05))
    mine = made.find("sgd")
    mine.curves = [
        replace(mine.curves[i], rows=run("", falling(n), i, step=0.05).rows) for i, n in enumerate((10, 20, 40))
    ]
    words = {
        rule: judged(made, rule, "sgd", "spiderboost").word
        for rule in ("no worse", "named, no worse", "named, the same")
    }
    assert set(words.values()) == {"no clear difference"}
    mine.curves = [replace(c, rows=run("", falling(21), i, step=0.05).rows) for i, c in enumerate(mine.curves)]
    words = {rule: judged(made, rule, "sgd", "spiderboost").word for rule in words}
    assert set(words.values()) == {"reproduced"}


def test_a_report_and_the_page_agree() -> None:
    """The section of an HTML report has the verdicts of the engine, and so have the runs of `compare`."""
    made = chapter(spiderboost=(DENSE,), sparse_spiderboost=(FAST,))
    told = section_of(made).verdicts
    assert told == [v for v in verdicts.of(made) if v.word != "not run"]
    assert {v.word for v in told if "significant advantage" in v.claim} == {"reproduced"}
    assert section_of(chapter(spiderboost=(DENSE,))).verdicts == []  # nothing to compare with
    curves = [curve for g in made.present for curve in g.curves]
    (section,) = sections_of([replace(c, config=c.config | {"options": {}}) for c in curves])
    (compared,) = section.verdicts
    assert (compared.word, compared.ratio) == ("fewer queries", "0.50")
    assert compared.claim == "Algorithm 1 (sparse SpiderBoost) beside SpiderBoost"


def test_a_claim_is_about_the_printed_form_whatever_ran_first() -> None:
    """The paper's SGD, not the tuned one that --only put before it."""
    part = experiments("paper")["figure3"][0]
    names = ["figure3-sgd-tuned", "figure3-sgd", "figure3-spiderboost"]
    part = replace(part, configs=sorted(part.configs, key=lambda c: names.index(c.name) if c.name in names else 9))
    losses = {"figure3-sgd-tuned": [0.7, 0.1, 0.05], "figure3-sgd": [0.7, 0.6, 0.5], "figure3-spiderboost": DENSE}
    curves = {n: run(n, losses[n], step=1.0, seconds=200.0) for n in names}
    made = evidence.make_chapter("figure3", part, curves)
    assert [g.name for g in made.present] == names
    worse = next(v for v in verdicts.of(made) if v.claim == "We see SpiderBoost is slightly worse than SGD")
    assert worse.runs == ["figure3-sgd", "figure3-spiderboost"]


def test_the_first_epochs_are_compared_with_the_whole() -> None:
    part = experiments("paper")["figure3"][0]

    def word(ours: list[float]) -> str:
        theirs = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
        losses = {"figure3-sgd": theirs, "figure3-sparse-spiderboost": ours}
        curves = {f"{n}-seed{s}" if s else n: run(n, x, s, step=1.0) for n, x in losses.items() for s in THREE}
        made = evidence.make_chapter("figure3", part, curves)
        claim = next(c for c in CLAIMS if c.rule == "early")
        return verdicts.judge(replace(claim, parts=("figure3",)), Material({"figure3": made}))[0].word

    assert word([1.0, 0.5, 0.45, 0.42, 0.41, 0.4, 0.35, 0.3, 0.2, 0.1]) == "reproduced"  # 0.2 early, 1 at the end
    assert word([1.0, 0.9, 0.8, 0.7, 0.6, 0.1, 0.1, 0.1, 0.1, 0.1]) == "not reproduced"


def entropy_chapter(many: int = 3, broken: str = "", loss: float = 0.5, **ends: tuple[float, float]) -> Chapter:
    """Table 1 with runs over 150 epochs that have these entropies at the start and at the end."""
    part = experiments("paper")["table1"][0]
    curves = {}
    for name, (before, after) in ends.items():
        key = f"table1-{name.replace('_', '-')}"
        for seed in range(many):
            rows = [
                {"queries": q, "seconds": 0.0, "entropy": e, "train_loss": x}
                for q, e, x in ((0.0, before, 2.3), (150.0, after, loss))
            ]
            status = "collapsed" if name == broken else "finished"
            curves[f"{key}-seed{seed}" if seed else key] = Curve(name, rows, status)
    return evidence.make_chapter("table1", part, curves)


def entropy_words(made: Chapter) -> dict[str, str]:
    material = Material({"table1": made})
    return {c.rule: verdicts.judge(c, material)[0].word for c in CLAIMS if c.rule.startswith("entropy")}


def test_entropies_against_the_printed_ones() -> None:
    good = {"cnn_mnist": (14.2, 2.8), "cnn_svhn": (13.1, 3.1), "resnet18_svhn": (22.6, 22.0)}
    words = entropy_words(entropy_chapter(**good))
    some = {
        "entropy falls": "reproduced with 2 of 3",
        "entropy stays": "reproduced with 1 of 3",
        "entropy of the dead": "not run",
    }
    assert {rule: word for rule, word in words.items() if word != "reproduced"} == some
    assert len(words) == 9
    words = entropy_words(entropy_chapter(cnn_mnist=(14.2, 9.0), cnn_svhn=(10.0, 3.1), resnet18_svhn=(22.6, 20.0)))
    assert words["entropy before"] == "reproduced in 2 of 3"
    assert words["entropy after"] == words["entropy about 3"].replace("1 of 2", "1 of 3") == "reproduced in 1 of 3"
    assert words["entropy steady"] == "not reproduced"
    # A dead network has little entropy, and shows nothing.
    # Nor does one that hardly trains, whose entropy falls.
    hardly = entropy_chapter(loss=2.0, fc_cifar10=(17.4, 12.0), fc_svhn=(17.2, 11.9))
    assert entropy_words(hardly)["entropy falls"] == "not reproduced"
    made = entropy_chapter(
        3, "cnn_mnist", cnn_mnist=(14.2, 2.8), cnn_svhn=(13.1, 3.1), fc_mnist=(16.0, 9.0), fc_svhn=(15.0, 9.1)
    )
    assert (
        entropy_words(made)["entropy by model"] == "reproduced"
    )  # one data set of the CNN is left: nothing to compare
    dead = entropy_words(entropy_chapter(broken="cnn_mnist", cnn_mnist=(14.2, 2.8)))
    assert dead["entropy about 3"] == "not reproduced"
    alone = entropy_words(entropy_chapter(1, **good))
    assert alone["entropy about 3"] == "no verdict: one seed"


def test_runs_cut_short_and_seeds_are_named(tmp_path: Path) -> None:
    made = chapter(spiderboost=(DENSE, "stopped", 0.365), sgd=(FAST,))
    assert page_paper.state(made, made.find("spiderboost")) == "to 1.5 N"
    assert page_paper.at(made.find("sgd"), 1.0, "train_loss") == [0.25] * 3
    assert page_paper.at(made.find("spiderboost"), 2.0, "train_loss") == []
    (line,) = page_paper.missing([made])
    assert "`figure1-right-spiderboost` (to 1.5 N of 20 N)" in line
    assert "figure1-right-sgd" not in line


# The page.


def words_of(results: Path) -> dict[tuple[str, str, str], str]:
    material = page_material.material(results)
    made = {(c.text, c.rule): verdicts.judge(c, material) for c in CLAIMS}
    return {(*claim, f"{v.part} {v.seeds.rpartition(', ')[2]}"): v.word for claim, found in made.items() for v in found}


@pytest.fixture(scope="module")
def held() -> dict[tuple[str, str, str], str]:
    return words_of(ROOT / "results")


def swapped(folder: Path, file: str, one: str, other: str) -> Path:
    """A copy of results/ in which two runs, of all seeds, have each other's curves and ends."""
    for name in ("paper", "benchmarks", "inspect", "tune"):
        shutil.copytree(ROOT / "results" / name, folder / name, ignore=shutil.ignore_patterns("*.png"))
    path = folder / file
    runs = {r["name"]: r for r in json.loads(path.read_text())["runs"]}
    taken = ("curve", "status", "reason")
    for end in ("", *(f"-seed{seed}" for seed in range(1, 5))):
        a, b = runs.get(one + end), runs.get(other + end)
        if a is not None and b is not None:
            old = {key: a[key] for key in taken}
            a |= {key: b[key] for key in taken}
            b |= old
    path.write_text(json.dumps({"runs": list(runs.values())}))
    return folder


@pytest.mark.parametrize(
    ("file", "one", "other", "claim", "before", "after"),
    [
        ("paper/paper_figure1.json", "figure1-left-spiderboost", "figure1-left-sparse-spiderboost",
         "works well on large neural networks", "one seed: only with SparseSVRG or adaptive anchors, ours",
         "one seed: reproduced$"),
        ("paper/paper_figure3.json", "figure3-sgd", "figure3-spiderboost",
         "We see SpiderBoost is slightly worse than SGD", "not reproduced", "in direction, by more than slightly"),
        ("paper/ablation_split.json", "split-cnn-sparse-svrg-0.1-0", "split-cnn-sparse-svrg-0-0.1",
         "the top-k operator generally", "only with SparseSVRG, ours", "not reproduced"),
        ("paper/paper_figure1.json", "figure1-right-spiderboost", "figure1-right-sparse-svrg",
         "sparsity provides a significant advantage", "only with SparseSVRG, ours", "not reproduced"),
    ],
)  # fmt: skip
def test_swapped_runs_change_the_verdict_and_the_page(
    file: str, one: str, other: str, claim: str, before: str, after: str, held: dict, tmp_path: Path
) -> None:
    folder = swapped(tmp_path, file, one, other)
    now = words_of(folder)
    changed = [key for key in held if claim in key[0] and held[key] == before and re.search(after, now.get(key, ""))]
    assert changed, {key: (held[key], now.get(key)) for key in held if claim in key[0]}
    made = page.texts(folder)
    assert made["reproduction/claims.md"] != (ROOT / "docs/reproduction/claims.md").read_text()
    short = file != "paper/ablation_split.json"  # the rows in short are of the paper's figures
    assert (made["reproduction.md"] != (ROOT / "docs/reproduction.md").read_text()) == short


ROW = re.compile(
    r"^\| .+ \| \*\*(.+?)\*\* \| (.*?) \| ((?:\d+ (?:won|tied|lost|failed|both failed)[ ,]+)+.*?) \| ", re.M
)


def test_words_on_the_page_follow_from_the_numbers_beside_them() -> None:
    """Read as a reader would: each row of a comparison with its outcomes, its median if there is one, and its word."""
    text = (ROOT / "docs" / "reproduction" / "claims.md").read_text()
    read = 0
    for section in text.split("\n### ")[1:]:
        number = int(section.partition(".")[0])
        rule = CLAIMS[number - 1].rule
        for word, ratio, told in ROW.findall(section):
            count = {o: int(n) for n, o in re.findall(r"(\d+) (won|tied|lost|failed|both failed)", told)}
            judged = sum(n for o, n in count.items() if o != "both failed")
            won, lost = count.get("won", 0), count.get("lost", 0) + count.get("failed", 0)
            middle = re.match(r"([\d.e+-]+)(?: \(|$)", ratio)
            fewer, more = 5 * (judged - won) <= judged, 5 * (judged - lost) <= judged
            if middle:
                fewer, more = fewer and float(middle[1]) < 1 / LEVEL, more and float(middle[1]) > LEVEL
            said = re.sub("^(one seed|two seeds): ", "", word)
            if not judged:
                assert "reproduced" not in said or said.startswith("only with"), (number, word, told)
            elif said == "not reproduced":
                wrong_side = fewer if rule == "slightly worse" else more or rule in ("named, the same", "early")
                assert wrong_side, (number, word, told)
            elif said.startswith("reproduced") and ("better" in rule or "consistently" in rule):
                assert fewer, (number, word, told)
            elif said.startswith("reproduced") and rule == "slightly worse":
                assert more, (number, word, told)
            elif said == "no clear difference":
                assert not fewer, (number, word, told)
                assert not more, (number, word, told)
            read += 1
    assert read > 60


def test_no_form_of_ours_is_a_reproduction() -> None:
    text = (ROOT / "docs" / "reproduction" / "claims.md").read_text()
    for section in text.split("\n### ")[1:]:
        for word, why in re.findall(r"^\| .+ \| \*\*(.+?)\*\* \| .*? \| .*? \| (.+?) beside ", section, re.M):
            ours = "adaptive anchors" in why or why.lower().replace(" ", "").startswith(("sparsesvrg", "sparse-svrg"))
            assert not (ours and re.search("(^|: )reproduced", word)), (word, why)
            assert re.search("only with .*, ours", word) or "only with" not in word


def test_the_page_in_short_and_the_table_have_the_same_verdict() -> None:
    pages = page.texts(ROOT / "results")
    table = pages["reproduction/claims.md"].partition("## One by one")[0]
    short = re.findall(r"^\| (?:Table 1|Figure)[^|]*#claim-(\d+)\) \| \*\*(.+?)\*\*", pages["reproduction.md"], re.M)
    assert len(short) == 6
    for number, word in short:
        (row,) = (line for line in table.splitlines() if line.startswith(f"| [{number}]"))
        assert f"| **{word}** |" in row


def test_every_claim_has_a_rule_and_its_test_exists() -> None:
    for claim in CLAIMS:
        assert claim.rule in verdicts.RULES, claim
        assert claim.rule not in page.TOLD or claim.note, claim
        if claim.test:
            file, _, name = claim.test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(), claim.test


def test_a_page_needs_no_results(tmp_path: Path) -> None:
    collect.save(path_of(tmp_path / "paper", "figure1"), [])
    assert "**not run**" in page.texts(tmp_path)["reproduction/claims.md"]


def test_controls_and_lengths_enter_when_their_runs_are_there(tmp_path: Path) -> None:
    """SGD that takes a loop's steps at once, as good as Algorithm 1; and geometric loops, as good as fixed ones."""
    shutil.copytree(ROOT / "results" / "paper", tmp_path / "paper", ignore=shutil.ignore_patterns("*.png"))
    runs = collect.load(tmp_path / "paper" / "paper_figure3.json")
    known = ablations("paper")

    def copied(experiment: str, names: dict[str, str]) -> None:
        configs = {c.name: c for part in known[experiment] for c in part.configs}
        made = []
        for name, source in names.items():
            for seed in THREE:
                end = f"-seed{seed}" if seed else ""
                config = vars(replace(configs[name], name=name + end, seed=seed))
                made.append(runs[source + end] | {"name": name + end, "config": config})
        collect.save(path_of(tmp_path / "paper", experiment), made)

    def words(rule: str) -> list[tuple[str, str]]:
        claim = next(c for c in CLAIMS if c.rule == rule)
        return [(v.part, v.word) for v in verdicts.judge(claim, page_material.material(tmp_path))]

    title = "Figure 2 (b): BPR matrix factorisation, MovieLens 100K: SGD, b"
    copied("controls-figure3", {"controls-figure3-sgd-summed": "figure3-sparse-spiderboost"})
    assert (f"{title} 1030, lr 5.95", "no clear difference") in words("controls")
    copied("controls-figure3", {"controls-figure3-sgd-mean": "figure3-sgd"})
    assert (f"{title} 103, lr 0.595", "reproduced") in words("controls")
    same = {
        f"lengths-fc-sparse-spiderboost-0.01-{lengths}": "figure3-spiderboost" for lengths in ("fixed", "geometric")
    }
    copied("ablation-lengths", same)
    geometric = "Fixed and geometric loops, FC on MNIST: Algorithm 1, lr 0.01, geometric"
    assert (geometric, "reproduced") in words("named, the same")
