"""Runs grouped by settings, with what can be read off their curves: the material of every verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spidersilk.lab.experiments.paper import LABELS, Part
from spidersilk.lab.experiments.plan import name_without_seed
from spidersilk.lab.run.config import RunConfig, from_dict
from spidersilk.lab.run.curve import BROKEN, Curve
from spidersilk.lab.run.folder import LOCAL

LOSS = "train_loss"
SLACK = 0.02  # a step can overshoot a count of queries: a curve is read within this share of the count


@dataclass
class Group:
    """Runs with the same settings, one for each seed, and the run as it was planned."""

    config: RunConfig
    curves: list[Curve] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def label(self) -> str:
        return self.config.title()

    @property
    def broken(self) -> bool:
        """Whether at least one seed diverged or collapsed."""
        return any(c.status in BROKEN for c in self.curves)

    def breakdown(self) -> str:
        """Where it diverged, or by when it had collapsed, in words."""
        only_seed_0, words = [c.config.get("seed", 0) for c in self.curves] == [0], []
        for status in BROKEN:
            ends = sorted(c.rows[-1]["queries"] for c in self.curves if c.status == status)
            if ends:
                span = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (ends[0], ends[-1])))
                where = f"at {span} N" if status == "diverged" else f"by {ends[-1]:.3g} N"
                words.append(f"{status} {where}" + ("" if only_seed_0 else f" ({of_seeds(len(ends), self.curves)})"))
        return ", ".join(words)

    def end(self, key: str) -> float | None:
        return self.median(lambda c: c.last(key))

    def median(self, value: Callable[[Curve], float | None]) -> float | None:
        """Over seeds; None if one has no such value."""
        values = [value(c) for c in self.curves]
        known = [v for v in values if v is not None]
        return statistics.median(known) if known and len(known) == len(values) else None


@dataclass
class Chapter:
    """A table or figure of the paper, or one side of a figure, with its runs."""

    experiment: str
    part: Part
    groups: list[Group]

    def find(self, method: str) -> Group:
        """The runs of a method as the paper has it, or of this name; without curves if there are none."""
        name = f"{self.part.key}-{method}"
        absent = Group(replace(self.groups[0].config, name=name, label=LABELS.get(method, method)))
        return next((g for g in self.groups if g.name in (name, method)), absent)

    @property
    def dense(self) -> Group:
        """SpiderBoost; in a sweep, Algorithm 1 with all coordinates."""
        return self.find("sparse-spiderboost-1" if self.experiment == "sparsity" else "spiderboost")

    @property
    def present(self) -> list[Group]:
        """Those that have runs."""
        return [g for g in self.groups if g.curves]


def make_chapter(experiment: str, part: Part, curves: Mapping[str, Curve]) -> Chapter:
    """A part with its curves by the name of the planned run, to which "-seed1" and so on may be appended."""
    groups = []
    for config in (c for c in part.configs if c.name == name_without_seed(c)):
        names = sorted(n for n in curves if n == config.name or n.startswith(f"{config.name}-seed"))
        present = [curves[n] for n in names if curves[n].rows]
        options = present[0].config.get("options", config.options) if present else config.options
        groups.append(Group(replace(config, options=options), present))  # on digits, if they stood in
    return Chapter(experiment, part, groups)


def groups_of(curves: Iterable[Curve]) -> list[Group]:
    """Runs with the same settings together, in the order of the first of each."""
    groups: dict[str, Group] = {}
    for curve in curves:
        settings = {k: v for k, v in curve.config.items() if k not in LOCAL}
        config = from_dict(settings) if "optimizer" in settings else RunConfig("image", "sgd", label=curve.label)
        same = replace(config, seed=0, name="")
        config = replace(config, name=name_without_seed(config))
        groups.setdefault(repr(same), Group(config)).curves.append(curve)
    return list(groups.values())


def of_seeds(many: int, curves: Sequence[Curve]) -> str:
    """ "2 of 3 seeds"; "runs" where a seed ran on several machines."""
    runs = len({c.config.get("seed", 0) for c in curves}) < len(curves)
    return f"{many} of {len(curves)} {'run' if runs else 'seed'}{'s' if len(curves) > 1 else ''}"


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits; with an exponent if it is very small or large."""
    if value is None or not math.isfinite(value):
        return "-"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits - 1}e}"
    return f"{value:#.{digits}g}".rstrip(".")
