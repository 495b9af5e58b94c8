"""Several runs: one after the other in this process, or side by side in processes that each do many."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.runner import Progress, Report
from spidersilk.lab.run.worker import Job, Pool


def run_all(
    configs: list[RunConfig],
    folder: Path,
    *,
    jobs: int,
    resume: bool,
    console: Console,
    time_limit: float | None = None,
    ended: Callable[[RunConfig, Summary], None] | None = None,
    pool: Pool | None = None,
) -> list[Summary]:
    """Run each config in `folder`/<its name>; a run that fails or diverges does not stop the others.

    Returns the summaries in order; a run that could not be done has the status "failed" and the reason. After
    `time_limit` seconds no run is started (status "waiting"), and those under way save a checkpoint and end (status
    "stopped"; a run in another process that does not end soon is killed). `ended` is called after each run. A `pool`
    keeps processes alive between calls.
    """
    until = math.inf if time_limit is None else time.time() + time_limit
    threads = max(1, (os.cpu_count() or 1) // jobs)
    one_at_a_time = threading.Lock()

    def one(config: RunConfig, do: Callable[[Job, Report], Summary]) -> Summary:
        job = Job(config, folder / config.name, resume, until, threads)
        if time.time() > until:
            return job.without_result("waiting", "the time was over before it began")
        bar = bars.add_task(config.name, total=config.budget, state="")

        def show(progress: Progress) -> None:
            text = f"{progress.queries:.2f} N  loss {progress.loss:.4g}"
            bars.update(bar, completed=min(progress.queries, config.budget), state=text)

        summary = do(job, show)
        bars.update(bar, visible=len(configs) <= 20, completed=config.budget)
        with one_at_a_time:
            if ended is not None:
                ended(config, summary)
        return summary

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
    with Bars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        if jobs <= 1:
            return [one(config, Job.do) for config in configs]
        own = Pool() if pool is None else contextlib.nullcontext(pool)
        with ThreadPoolExecutor(jobs) as waiting, own as workers:
            return list(waiting.map(one, configs, repeat(workers.do)))


def with_seeds(configs: list[RunConfig], seeds: int) -> list[RunConfig]:
    """Each config once for each of so many seeds, from its seed on; every one has a name."""
    many = [replace(c, seed=c.seed + s) for c in configs for s in range(seeds)]
    return [replace(c, name=_name(c, seeds > 1)) for c in many]


def _name(config: RunConfig, several: bool) -> str:
    """The config's, and its seed if there are several; without one, it is made of task, options, optimizer and seed."""
    if config.name:
        return f"{config.name}-seed{config.seed}" if several else config.name
    words = [value for value in config.options.values() if isinstance(value, str)]
    return "-".join([config.task, *words, config.optimizer, f"seed{config.seed}"])
