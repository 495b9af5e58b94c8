"""The runs of a tuning: trials round by round, then the final runs; its file is written after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from spidersilk.lab.experiments.tuning import Tuning
from spidersilk.lab.run import batch, collect
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import load_run
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
    with batch.Pool() as pool:
        return _Tuner(tuning, folder, console, jobs, command, until, pool).go()


@dataclass
class _Tuner:
    tuning: Tuning
    folder: Path
    console: Console
    jobs: int
    command: str
    until: float | None
    pool: batch.Pool

    def go(self) -> bool:
        tuning, number = self.tuning, 1
        while trials := tuning.next_round():
            todo = [config for *_, config in trials if config.name not in tuning.outcomes]
            self._do(todo, f"round {number}", self._tried)
            if not tuning.end_round(trials):
                tuning.save(self.command)
                return False
            tuning.save(self.command)
            number += 1
        wanted = tuning.final_runs(tuning.methods)
        todo = [c for c in wanted if not collect.is_done(c, tuning.finals)]
        if todo:
            self._do(todo, "the best of each", self._ended)
        tuning.save(self.command)
        return all(collect.is_done(c, tuning.finals) for c in wanted)

    def _do(self, configs: list[RunConfig], title: str, add: Callable[[RunConfig, Summary], None]) -> None:
        self.console.print(f"{title}: {len(configs)} runs")
        left = None if self.until is None else max(0.0, self.until - time.time())

        def ended(config: RunConfig, summary: Summary) -> None:
            if summary["status"] in FINISHED:
                add(config, summary)
                self.tuning.save(self.command)

        how = {"jobs": self.jobs, "resume": True, "time_limit": left, "pool": self.pool}
        summaries = batch.run_all(configs, self.folder, console=self.console, ended=ended, **how)
        if failed := [s["reason"] for s in summaries if s["status"] == "failed"]:
            raise ValueError(f"a run could not be done: {failed[0]}")

    def _tried(self, config: RunConfig, summary: Summary) -> None:
        self.tuning.add_trial(config, summary, load_run(self.folder / config.name))

    def _ended(self, config: RunConfig, summary: Summary) -> None:
        self.tuning.add_final(load_run(self.folder / config.name))
