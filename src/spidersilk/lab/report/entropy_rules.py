"""The rules on Table 1: entropies of M over seeds, beside those that the paper prints.

A run's entropy counts after training only if the run did not diverge or collapse: a network without a live unit has
little entropy, and shows no structure of a gradient that trains.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

from spidersilk.lab.experiments.claims import Claim
from spidersilk.lab.experiments.paper import EPOCHS, TABLE_1
from spidersilk.lab.report.comparison import NONE, WORDS, is_large
from spidersilk.lab.report.evidence import LOSS, SLACK, Group, number
from spidersilk.lab.report.judging import NO, NOT_RUN, YES, Material, Rule, Verdict
from spidersilk.lab.tasks.models import MODELS

NAMES = {"fc": "FC", "cnn": "CNN", "resnet18": "ResNet-18"}
HARDLY = 0.8  # of the loss before training
BIT = 1.0  # the text of the paper rounds entropies to whole bits ("approximately 3")
# The groups for which the sentence holds, the numbers, and groups that cannot be judged.
Judge = Callable[[list[Group]], tuple[list[Group], str] | tuple[list[Group], str, list[Group]]]


def model_and_data(group: Group) -> tuple[str, str]:
    return group.config.options["model"], group.config.options["data"]


def data_title(group: Group) -> str:
    given = group.curves[0].summary.get("data") if group.curves else None
    return given or model_and_data(group)[1]


def entropies(group: Group) -> tuple[float, float]:
    """Of M, at the first anchor and at the end: medians over seeds."""
    seen = [[row["entropy"] for row in curve.rows if "entropy" in row] for curve in group.curves]
    return statistics.median(s[0] for s in seen), statistics.median(s[-1] for s in seen)


def maximum(group: Group) -> float:
    return math.log2(MODELS[model_and_data(group)[0]][1])


def _table1(judge: Judge, model: str = "", whole: bool = True, several: bool = False, some: bool = False) -> Rule:
    """A rule over the runs whose entropies the paper prints; `whole`: over those that went on for 150 epochs;
    `several`: over models with more than one data set. `some`: one that holds is enough."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        chapter = material.chapters.get("table1")
        printed = [] if chapter is None else [g for g in chapter.present if model_and_data(g) in TABLE_1]
        groups = [_whole(g) if whole else _at_the_start(g, material) for g in printed]
        groups = [g for g in groups if g.curves and model_and_data(g)[0].startswith(model)]
        if several:
            models = [model_and_data(g)[0] for g in groups]
            groups = [g for g in groups if models.count(model_and_data(g)[0]) > 1]
        if not groups:
            return [Verdict(claim.text, NOT_RUN, "no runs of table1")]
        every, why, *unknown = judge(groups)
        groups = [g for g in groups if all(g is not u for each in unknown for u in each)]
        judged = [g for g in groups if len(g.curves) > 1 or is_large(*g.curves)]
        holds = [g for g in judged if any(g is h for h in every)]
        many = sorted({len(g.curves) for g in judged})
        few = "" if not many or many[0] > 2 else f"{many[0]} to {many[-1]} seeds: " if len(many) > 1 else WORDS[many[0]]
        if not judged or (some and every and not holds):
            word = f"{NONE}: one seed"
        elif some and holds:
            word = f"{few}{YES} with {len(holds)} of {len(judged)}"
        elif len(holds) == len(judged):
            word = few + YES
        else:
            word = few + (f"{YES} in {len(holds)} of {len(judged)}" if holds else NO)
        left = [named(g) for g in groups if all(g is not j for j in judged)]
        why += f"; one seed of a small network, so no verdict: {'; '.join(left)}" if left else ""
        seeds = f"{many[0]} seed{'s' if many[0] > 1 else ''}" if len(many) == 1 else ""  # the word has them
        return [Verdict(claim.text, word, why, [g.name for g in groups], "Table 1", "", seeds)]

    return rule


def _whole(group: Group) -> Group:
    return replace(group, curves=[c for c in group.curves if c.rows[-1]["queries"] >= EPOCHS * (1 - SLACK)])


def _at_the_start(group: Group, material: Material) -> Group:
    """The five seeds of benchmarks/entropy.py, where it has measured the model."""
    rows = material.facts.get("benchmarks/entropy", {}).get("before", [])
    place = (model_and_data(group)[0], data_title(group), "ours")
    values = next((r["values"] for r in rows if (r["model"], r["data"], r["variant"]) == place), [])
    first = group.curves[0]
    starts = [replace(first, rows=[{"queries": 0.0, "seconds": 0.0, "entropy": v}], status="finished") for v in values]
    return replace(group, curves=starts or group.curves)


def named(group: Group) -> str:
    return f"{NAMES[model_and_data(group)[0]]}, {data_title(group).partition(',')[0]}"


def hardly_trained(group: Group) -> bool:
    """A loss at the end that is not far below the first one."""
    first, last = group.median(lambda c: c.rows[0].get(LOSS)), group.end(LOSS)
    return not group.broken and first is not None and last is not None and last > HARDLY * first


def _ended(group: Group) -> str:
    """How the training ended, where it failed."""
    if hardly_trained(group):
        return ", hardly trained"
    return f", {group.breakdown().split(' ')[0]}" if group.broken else ""


def _near(place: int) -> Judge:
    """Within a bit of what is printed, before (0) or after training (1)."""

    def judge(groups: list[Group]) -> tuple[list[Group], str]:
        off = {g.name: entropies(g)[place] - TABLE_1[model_and_data(g)][place] for g in groups}
        told = "; ".join(f"{named(g)} {off[g.name]:+.2f}{_ended(g) if place else ''}" for g in groups)
        near = [g for g in groups if abs(off[g.name]) <= BIT and not (place and g.broken)]
        return near, f"bits off the printed value: {told}"

    return judge


def _almost_maximal(groups: list[Group]) -> tuple[list[Group], str]:
    """As near to the maximum as the lowest value that the paper calls so."""
    bar = min(TABLE_1[model_and_data(g)][0] / maximum(g) for g in groups)
    shares = {g.name: entropies(g)[0] / maximum(g) for g in groups}
    told = "; ".join(f"{named(g)} {100 * shares[g.name]:.0f} %" for g in groups)
    return [g for g in groups if shares[g.name] >= bar], f"{told} of the maximum (printed: {100 * bar:.0f} % and more)"


def _falls(groups: list[Group]) -> tuple[list[Group], str]:
    """While the model trains."""
    changes = {g.name: entropies(g)[1] - entropies(g)[0] for g in groups}
    told = "; ".join(f"{named(g)} {changes[g.name]:+.2f} bits{_ended(g)}" for g in groups)
    return [g for g in groups if changes[g.name] < -BIT and not _ended(g)], told


def _stays(groups: list[Group]) -> tuple[list[Group], str]:
    bar = min(before / math.log2(MODELS[model][1]) for (model, _), (before, _) in TABLE_1.items())
    shares = {g.name: entropies(g)[1] / maximum(g) for g in groups}
    told = "; ".join(f"{named(g)} {100 * shares[g.name]:.0f} %{_ended(g)}" for g in groups)
    return [g for g in groups if shares[g.name] >= bar and not g.broken], f"after training, {told} of the maximum"


def _about_3(groups: list[Group]) -> tuple[list[Group], str]:
    told = "; ".join(f"{named(g)} {entropies(g)[1]:.2f} (loss {number(g.end(LOSS))}{_ended(g)})" for g in groups)
    return [g for g in groups if abs(entropies(g)[1] - 3) <= BIT and not g.broken], told


def _steady(groups: list[Group]) -> tuple[list[Group], str]:
    """Changes no larger than those of the printed values."""
    printed = [after - before for (model, _), (before, after) in TABLE_1.items() if model == "resnet18"]
    changes = {g.name: entropies(g)[1] - entropies(g)[0] for g in groups}
    told = "; ".join(f"{named(g)} {changes[g.name]:+.2f} bits" for g in groups)
    limit = max(map(abs, printed))
    steady = [g for g in groups if abs(changes[g.name]) <= limit and not g.broken]
    return steady, f"{told} (printed: {', '.join(f'{x:+.2f}' for x in printed)})"


def _by_model(groups: list[Group]) -> tuple[list[Group], str, list[Group]]:
    """Differences between data sets no larger than those of the printed values; of runs that trained."""
    printed = max(_spread({g: after for g, (_, after) in TABLE_1.items()}, m) for m in ("fc", "cnn", "resnet18"))
    alive = {model_and_data(g): entropies(g)[1] for g in groups if not g.broken}
    told, fine, unknown = [], [], [g for g in groups if g.broken]
    for model in dict.fromkeys(model_and_data(g)[0] for g in groups):
        if sum(m == model for m, _ in alive) > 1:
            told.append(f"{NAMES[model]} differs by {_spread(alive, model):.2f} bits between data sets")
            fine += [g for g in groups if model_and_data(g) in alive and model_and_data(g)[0] == model
                     and _spread(alive, model) <= printed]  # fmt: skip
        else:
            told.append(f"{NAMES[model]} is left with fewer than two data sets, the others collapsed")
            unknown += [g for g in groups if model_and_data(g)[0] == model]
    return fine, f"{'; '.join(told)} (printed: at most {printed:.2f})", unknown


def _spread(values: dict[tuple[str, str], float], model: str) -> float:
    of_model = [value for (m, _), value in values.items() if m == model]
    return max(of_model) - min(of_model)


def _of_the_dead(claim: Claim, material: Material) -> list[Verdict]:
    """What the paper prints for the CNN beside benchmarks/entropy.py's networks without a live unit."""
    dead = {
        r["data"]: r["mean"]
        for r in material.facts.get("benchmarks/entropy", {}).get("dead", [])
        if r["model"] == "cnn"
    }
    printed = {data: after for (model, data), (_, after) in TABLE_1.items() if model == "cnn"}
    word = YES if min(printed.values()) > math.log2(10) else "does not follow: a dead network has as little"
    why = f"printed {', '.join(f'{x:.2f}' for x in printed.values())}; CNNs without a live unit have "
    why += ", ".join(f"{x:.2f} ({data.partition(',')[0]})" for data, x in dead.items())
    return [Verdict(claim.text, word if dead else NOT_RUN, why, ["results/benchmarks/entropy.json"])]


RULES: dict[str, Rule] = {
    "entropy of the dead": _of_the_dead,
    "entropy before": _table1(_near(0), whole=False),
    "entropy after": _table1(_near(1)),
    "entropy almost maximal": _table1(_almost_maximal, whole=False),
    "entropy falls": _table1(_falls, some=True),
    "entropy stays": _table1(_stays, some=True),
    "entropy about 3": _table1(_about_3, "cnn"),
    "entropy by model": _table1(_by_model, several=True),
    "entropy steady": _table1(_steady, "resnet18"),
}
