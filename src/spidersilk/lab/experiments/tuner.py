"""The runs of a tuning: trials round by round, then the final runs; its file is written after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from spidersilk.lab.experiments.tuning import Tuning
from spidersilk.lab.run import batch, collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import Curve, load_run
from spidersilk.lab.run.folder import FINISHED, Summary


def tune(
    tuning: Tuning, folder: Path, console: Console, *, jobs: int, resume: bool, command: str, time_limit: float | None
) -> bool:
    """All trials, round by round, then the final runs; returns whether all were done within the time limit."""
    if not resume and tuning.path.is_file():
        raise ValueError(f"{tuning.path} is there already: give --resume to go on with it, or another --to")
    tuning.load()
    if tuning.dropped:
        console.print(f"trials of another grid, to be repeated: {', '.join(tuning.dropped)}")
    until = None if time_limit is None else time.time() + time_limit

    def do(configs: list[RunConfig], title: str, add: Callable[[RunConfig, Summary, Curve], None]) -> None:
        console.print(f"{title}: {len(configs)} runs")
        left = None if until is None else max(0.0, until - time.time())

        def ended(config: RunConfig, summary: Summary) -> None:
            if summary["status"] in FINISHED:
                add(config, summary, load_run(folder / config.name))
                tuning.save(command)

        how = {"jobs": jobs, "resume": True, "time_limit": left, "pool": pool}
        summaries = batch.run_all(configs, folder, console=console, ended=ended, **how)
        if failed := [s["reason"] for s in summaries if s["status"] == "failed"]:
            raise ValueError(f"a run could not be done: {failed[0]}")

    with batch.Pool() as pool:
        number = 1
        while trials := tuning.next_round():
            todo = [config for *_, config in trials if config.name not in tuning.outcomes]
            do(todo, f"round {number}", tuning.add_trial)
            whole = tuning.end_round(trials)
            tuning.save(command)
            if not whole:
                return False
            number += 1
        wanted = tuning.final_runs(tuning.methods)
        todo = [c for c in wanted if not collect.is_done(c, tuning.finals)]
        if todo:
            do(todo, "the best of each", lambda _, __, curve: tuning.add_final(curve))
        tuning.save(command)
    return all(collect.is_done(c, tuning.finals) for c in wanted)
