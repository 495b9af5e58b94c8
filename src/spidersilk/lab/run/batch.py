"""Several runs: one after the other in this process, or side by side in processes that each do many."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.runner import Progress
from spidersilk.lab.run.worker import Job, Worker, do, without_result

GRACE = 30.0  # seconds in which a run must end when its time is over


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
    "stopped"; a run that does not end within GRACE is killed). `ended` is called after each run. A `pool` keeps
    processes alive between calls.
    """
    until = None if time_limit is None else time.time() + time_limit
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
    with Bars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        ids = [bars.add_task(c.name, total=c.budget, state="", start=False, visible=False) for c in configs]

        def show(number: int, progress: Progress) -> None:
            bars.start_task(ids[number])
            text = f"{progress.queries:.2f} N  loss {progress.loss:.4g}"
            bars.update(ids[number], completed=min(progress.queries, progress.budget), state=text, visible=True)

        def end(number: int, summary: Summary) -> None:
            bars.update(ids[number], visible=len(configs) <= 20, completed=configs[number].budget)
            if ended is not None:
                ended(configs[number], summary)

        work = _Work(configs, folder, resume, until, show, end)
        if jobs <= 1:
            return _in_turn(work)
        with Pool() if pool is None else contextlib.nullcontext(pool) as workers:
            return _side_by_side(work, jobs, workers)


@dataclass
class _Work:
    configs: list[RunConfig]
    folder: Path
    resume: bool
    until: float | None
    show: Callable[[int, Progress], None]
    end: Callable[[int, Summary], None]

    def job(self, number: int) -> Job:
        config = self.configs[number]
        return Job(config, self.folder / config.name, self.resume, self.until)

    def is_over(self, grace: float = 0.0) -> bool:
        return self.until is not None and time.time() > self.until + grace

    def waiting(self, number: int) -> Summary:
        return without_result(self.configs[number], "waiting", "the time was over before it began")


def _in_turn(work: _Work) -> list[Summary]:
    summaries = []
    for number in range(len(work.configs)):
        if work.is_over():
            summaries.append(work.waiting(number))
            continue
        summaries.append(do(work.job(number), lambda progress, n=number: work.show(n, progress)))
        work.end(number, summaries[-1])
    return summaries


class Pool:
    """Worker processes that can outlive a batch; a context manager that ends them."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        self.workers = []


def _side_by_side(work: _Work, jobs: int, pool: Pool) -> list[Summary]:
    """The runs in up to `jobs` processes."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    waiting = list(range(len(work.configs)))
    workers = pool.workers
    summaries: dict[int, Summary] = {}
    while waiting or any(w.number is not None for w in workers):
        if work.is_over():
            summaries |= {number: work.waiting(number) for number in waiting}
            waiting = []
        idle = [w for w in workers if w.number is None]
        while waiting and (idle or len(workers) < jobs):
            if not idle:
                idle.append(Worker(threads))
                workers += idle
            number = waiting.pop(0)
            idle.pop().start(number, work.job(number))
        time.sleep(0.05)
        for worker in [w for w in workers if w.number is not None]:
            number, summary = worker.number, _look(worker, work)
            if number is not None and summary is not None:
                summaries[number], worker.number = summary, None
                work.end(number, summary)
                if not worker.process.is_alive():
                    worker.close()
                    workers.remove(worker)
    return [summaries[number] for number in range(len(work.configs))]


def _look(worker: Worker, work: _Work) -> Summary | None:
    """Show a run's progress; its summary once it has ended, None before."""
    number = worker.number
    assert number is not None
    answer = worker.answer()
    if isinstance(answer, str):
        return without_result(work.configs[number], "failed", answer)
    if isinstance(answer, Progress):
        work.show(number, answer)
    elif answer is not None:
        return answer
    elif work.is_over(GRACE):
        worker.process.kill()
        worker.process.join()
        return without_result(work.configs[number], "stopped", "it did not end in time")
    return None


def named(config: RunConfig) -> RunConfig:
    """The config with a name; without one, it is made of task, options, optimizer and seed."""
    if config.name:
        return config
    parts = [config.task, *(str(v) for v in config.options.values() if isinstance(v, str)), config.optimizer]
    return replace(config, name="-".join([*parts, f"seed{config.seed}"]))


def with_seeds(configs: list[RunConfig], seeds: int) -> list[RunConfig]:
    """Each config once for each of so many seeds, from its seed on; every one has a name."""
    many = [replace(c, seed=c.seed + s) for c in configs for s in range(seeds)]
    if seeds > 1:
        many = [replace(c, name=f"{c.name}-seed{c.seed}" if c.name else "") for c in many]
    return [named(c) for c in many]
