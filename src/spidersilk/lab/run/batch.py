"""Several runs: one after the other in this process, or side by side in processes that each do many."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from spidersilk.lab.data.files import DataError
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.errors import Interrupted, RunError
from spidersilk.lab.run.folder import Summary
from spidersilk.lab.run.start import Progress as At
from spidersilk.lab.run.start import Report

GRACE = 30.0  # seconds in which a run must end when its time is over


@dataclass(frozen=True)
class Job:
    config: RunConfig
    folder: Path
    resume: bool
    overwrite: bool
    until: float
    threads: int

    def do(self, report: Report) -> Summary:
        """Do the run; one that cannot be done has the status "failed" and the reason."""
        gc.collect()  # what the run before has left would count in this one's peak of memory
        try:
            how = {"resume": self.resume, "overwrite": self.overwrite, "until": self.until}
            return runner.run(self.config, self.folder, report=report, **how)
        except (DataError, ValueError, RunError, OSError) as error:
            return self.without_result("failed", str(error).replace("\n", " ") or type(error).__name__)

    def without_result(self, status: str, reason: str) -> Summary:
        config = self.config
        return {"status": status, "reason": reason, "task": config.task, "optimizer": config.optimizer, "last": {}}


def serve(connection: Connection) -> None:
    """In a process of its own: answer each Job with its progress, often, and then with its summary.

    It does one after the other, as starting Python, torch and CUDA takes longer than a short run.
    """
    with contextlib.suppress(EOFError, KeyboardInterrupt):  # the other end was closed, or Ctrl-C, which reaches both
        while True:
            job: Job = connection.recv()
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(job.threads)
            try:
                summary = job.do(connection.send)
            except Interrupted:
                summary = job.without_result("stopped", "it was interrupted")
            except Exception as error:
                summary = job.without_result("failed", f"{type(error).__name__}: {error}")
            gc.collect()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            connection.send(summary)


class Worker:
    """The other end: starts the process, sends it jobs and reads its answers."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,))
        self.process.start()
        other.close()
        self.deadline = math.inf

    def do(self, job: Job, report: Report) -> Summary:
        """Do the run in the process, which is killed if something went wrong: its CUDA context may be broken."""
        try:
            self.deadline = job.until + GRACE
            self.connection.send(job)
            while isinstance(answer := self._answer(job), At):
                report(answer)
        except (EOFError, OSError):
            answer = job.without_result("failed", "the process died")
        if answer["status"] in ("stopped", "failed"):
            self.kill()
        return answer

    def _answer(self, job: Job) -> Any:
        while not self.connection.poll(1.0):
            if time.time() > self.deadline:
                return job.without_result("stopped", "it did not end in time")
        return self.connection.recv()

    def stop(self) -> None:
        """Let the run under way save a checkpoint and end, soon."""
        self.deadline = min(self.deadline, time.time() + GRACE)
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Pool(contextlib.ExitStack):
    """Worker processes for the threads of a batch, which can outlive it; they are killed at the context's end."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[Worker] = []
        self.busy: list[Worker] = []
        self.lock = threading.Lock()

    def do(self, job: Job, report: Report) -> Summary:
        """Do a run in an idle process, or in a new one."""
        with self.lock:
            if not self.idle:
                self.idle.append(Worker())
                self.callback(self.idle[0].kill)
            worker = self.idle.pop()
            self.busy.append(worker)
        summary = worker.do(job, report)
        with self.lock:
            self.busy.remove(worker)
            if worker.process.is_alive():
                self.idle.append(worker)
        return summary

    def stop(self) -> None:
        with self.lock:
            for worker in self.busy:
                worker.stop()


def run_all(
    configs: list[RunConfig],
    folder: Path,
    *,
    jobs: int,
    resume: bool,
    overwrite: bool = False,
    console: Console,
    time_limit: float | None = None,
    ended: Callable[[RunConfig, Summary], None] = lambda *_: None,
    pool: Pool | None = None,
) -> list[Summary]:
    """Run each config in `folder`/<its name>; a run that fails or diverges does not stop the others.

    Returns the summaries in order; a run that could not be done has the status "failed" and the reason. After
    `time_limit` seconds no run is started (status "waiting"), and those under way save a checkpoint and end (status
    "stopped"; a run in another process that does not end soon is killed). `ended` is called after each run. A `pool`
    keeps processes alive between calls. After Ctrl-C no run is started, those under way save a checkpoint and end, and
    `Interrupted` is raised.
    """
    until = math.inf if time_limit is None else time.time() + time_limit
    threads = max(1, (os.cpu_count() or 1) // jobs)
    one_at_a_time, stopping = threading.Lock(), threading.Event()

    def one(config: RunConfig, do: Callable[[Job, Report], Summary]) -> Summary:
        job = Job(config, folder / config.name, resume, overwrite, until, threads)
        if stopping.is_set():
            return job.without_result("waiting", "the batch was interrupted before it began")
        if time.time() > until:
            return job.without_result("waiting", "the time was over before it began")
        lines = {"": bars.add_task(config.name, total=1.0, state="")}

        def show(at: At) -> None:
            if at.what not in lines:
                lines[at.what] = bars.add_task(f"{config.name}, {at.what}", total=1.0, state="")
            where = f"step {at.at:.0f}" if at.what else f"{at.at:.2f} N"
            bars.update(lines[at.what], completed=at.share, state=f"{where}  loss {at.loss:.4g}")

        summary = do(job, show)
        for line in lines.values():
            bars.update(line, visible=len(configs) <= 20, completed=1.0)
        with one_at_a_time:
            ended(config, summary)
        return summary

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        try:
            if jobs <= 1:
                return [one(config, Job.do) for config in configs]
            own = Pool() if pool is None else contextlib.nullcontext(pool)
            with ThreadPoolExecutor(jobs) as waiting, own as workers:
                try:
                    return list(waiting.map(one, configs, repeat(workers.do)))
                except KeyboardInterrupt:
                    stopping.set()
                    workers.stop()
                    waiting.shutdown(cancel_futures=True)
                    raise
        except KeyboardInterrupt:
            raise Interrupted from None


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
