"""Which runs of an experiment are made: chosen by name, in an order, with the data that is available."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from spidersilk.lab.experiments.paper import PRINTED, Experiments, Part, on_embedded_data
from spidersilk.lab.run import collect
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.settings import nearest
from spidersilk.lab.tasks import find


def all_runs(experiments: Experiments) -> list[tuple[str, Part, RunConfig]]:
    """Each run with its part and the name of its experiment."""
    return [(name, part, config) for name, parts in experiments.items() for part in parts for config in part.configs]


def choose(
    known: Experiments, what: str, only: str = "", budget: float | None = None, seeds: int = 1,
    settings: Iterable[str] = (),
) -> Experiments:  # fmt: skip
    """The experiments named in `what`, with the runs that `only` names; "all" are those of the paper.

    `budget` limits the budget of each run. With several seeds each run is repeated, and its name says the seed.
    """
    names, patterns = [name.strip() for name in what.split(",")], _patterns(only)
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"there is no experiment {name!r}{nearest(name, [*known, 'all'])}")
    named = {name: known[name] for name in known if name in names or ("all" in names and name in PRINTED)}
    for pattern in patterns:
        if not any(fnmatch(config.name, pattern) for *_, config in all_runs(named)):
            every = [config.name for *_, config in all_runs(known)]
            raise ValueError(f"--only {pattern!r} names no run{nearest(pattern, every)}")

    def chosen(part: Part) -> Part:
        configs = [c for c in part.configs if any(fnmatch(c.name, pattern) for pattern in patterns)]
        configs = [apply_settings(c, list(settings)) for c in configs]
        if budget is not None:
            configs = [replace(c, budget=min(budget, c.budget)) for c in configs]
        return replace(part, configs=[_seeded(c, seed) for seed in range(seeds) for c in configs])

    made = {name: [part for part in map(chosen, parts) if part.configs] for name, parts in named.items()}
    return {name: parts for name, parts in made.items() if parts}


def _patterns(only: str) -> list[str]:
    return [pattern.strip() for pattern in only.split(",") if pattern.strip()] or ["*"]


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return config if seed == 0 else replace(config, seed=config.seed + seed, name=f"{config.name}-seed{seed}")


def name_without_seed(config: RunConfig) -> str:
    return config.name.removesuffix(f"-seed{config.seed}")


def in_order(experiments: Experiments, only: str = "") -> list[RunConfig]:
    """All runs, seed by seed; within a seed in the order of the patterns of `only`, then of the experiments."""
    patterns = _patterns(only)

    def place(config: RunConfig) -> tuple[int, int]:
        name = name_without_seed(config)
        return config.seed, next((i for i, p in enumerate(patterns) if fnmatch(name, p)), len(patterns))

    return sorted((config for *_, config in all_runs(experiments)), key=place)


@dataclass(frozen=True)
class PlannedRun:
    """A run as it is planned, the run that is made for it, if any, why the two differ, and what is collected of it."""

    config: RunConfig
    run: RunConfig | None
    missing: str = ""
    experiment: str = ""
    collected: collect.Packed | None = None


def planned_runs(configs: Iterable[RunConfig], stand_in: bool = True) -> list[PlannedRun]:
    """Each config with its run. If its data is not available, digits may stand in. Several configs may then share a
    run, which is made for the first of them."""
    planned: list[PlannedRun] = []
    for config in configs:
        missing = find(config.task).missing_data(config.options, config.data_dir)
        other = config if missing is None else on_embedded_data(config) if stand_in else None
        reason = "" if missing is None else f"{'digits stand in, as ' if other else ''}{missing}"
        planned.append(PlannedRun(config, None if other in [p.run for p in planned] else other, reason))
    return planned


def path_of(folder: Path, experiment: str) -> Path:
    """The file in which the runs of an experiment are collected."""
    return folder / f"{'paper_' if experiment in PRINTED else ''}{experiment.replace('-', '_')}.json"


def load_collected(experiments: Experiments, folder: Path | None) -> dict[str, dict[str, collect.Packed]]:
    """The collected runs of each experiment by name; none without a folder."""
    return {name: {} if folder is None else collect.load(path_of(folder, name)) for name in experiments}


def make_plan(experiments: Experiments, only: str, collect_to: Path | None, stand_in: bool) -> list[PlannedRun]:
    """All runs, in order; those that are finished in the files of `collect_to` are not made again."""
    homes = {config.name: name for name, _, config in all_runs(experiments)}
    files = load_collected(experiments, collect_to)
    todo, done = [], []
    for config in in_order(experiments, only):
        (done if collect.is_done(config, files[homes[config.name]]) else todo).append(config)
    plan = [*planned_runs(todo, stand_in), *(PlannedRun(config, None) for config in done)]
    return [
        replace(p, experiment=(home := homes[p.config.name]), collected=files[home].get(p.config.name)) for p in plan
    ]
