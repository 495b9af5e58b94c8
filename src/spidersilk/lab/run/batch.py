"""Several runs: one after the other in this process, or side by side in processes that each do many."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from spidersilk.lab.data.files import DataError
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.worker import PROGRESS

GRACE = 30.0  # seconds that a run has to end in when its time is over

Show = Callable[[int, dict[str, float]], None]
Ended = Callable[[RunConfig, dict[str, Any]], None]


def run_all(
    configs: list[RunConfig],
    folder: Path,
    *,
    jobs: int,
    resume: bool,
    console: Console,
    time_limit: float | None = None,
    ended: Ended | None = None,
    pool: Pool | None = None,
) -> list[dict[str, Any]]:
    """Run each config in `folder`/<its name>; a run that fails or diverges does not stop the others.

    Summaries come back in order; that of a run that could not be done has the status "failed" and the reason. After
    `time_limit` seconds no run is started any more (status "waiting") and those under way save a checkpoint and end
    (status "stopped"; one that takes long over it is ended). `ended` is told of each run that came to an end. A `pool`
    keeps processes from call to call.
    """
    until = None if time_limit is None else time.time() + time_limit
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}")
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        bars = [progress.add_task(c.name, total=c.budget, told="", start=False, visible=False) for c in configs]

        def show(number: int, told: dict[str, float]) -> None:
            progress.start_task(bars[number])
            text = f"{told['queries']:.2f} N  loss {told['loss']:.4g}"
            progress.update(bars[number], completed=min(told["queries"], told["budget"]), told=text, visible=True)

        def end(number: int, summary: dict[str, Any]) -> None:
            progress.update(bars[number], visible=len(configs) <= 20, completed=configs[number].budget)
            if ended is not None:
                ended(configs[number], summary)

        work = _Work(configs, folder, resume, until, show, end)
        if jobs <= 1:
            return _in_turn(work)
        if pool is not None:
            return _side_by_side(work, jobs, pool)
        with Pool() as own:
            return _side_by_side(work, jobs, own)


@dataclass
class _Work:
    configs: list[RunConfig]
    folder: Path
    resume: bool
    until: float | None
    show: Show
    end: Callable[[int, dict[str, Any]], None]

    def is_over(self, grace: float = 0.0) -> bool:
        return self.until is not None and time.time() > self.until + grace


def _in_turn(work: _Work) -> list[dict[str, Any]]:
    done = []
    for number, config in enumerate(work.configs):
        if work.is_over():
            done.append(_unfit(config, "waiting", "the time was over before it began"))
            continue
        try:
            report = lambda p, n=number: work.show(n, vars(p))  # noqa: E731
            told = runner.run(config, work.folder / config.name, resume=work.resume, report=report, until=work.until)
        except (DataError, ValueError, runner.RunError, OSError) as error:
            told = _unfit(config, "failed", str(error))
        work.end(number, told)
        done.append(told)
    return done


class _Worker:
    """A process that does runs as it is asked to."""

    def __init__(self, threads: str):
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "spidersilk.lab.run.worker", "--serve"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=self.errors, text=True
        )
        self.number: int | None = None

    def ask(self, number: int, work: _Work) -> None:
        config = work.configs[number]
        folder = work.folder / config.name
        folder.mkdir(parents=True, exist_ok=True)
        job = folder / "job.yaml"
        job.write_text(config.to_yaml())
        asked = {"job": str(job), "folder": str(folder), "resume": work.resume, "until": work.until}
        assert self.process.stdin is not None
        self.number = number
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # it ended; `answer` will say why
            pass

    def answer(self) -> tuple[bool, str | None]:
        """Whether the run is over, and what went wrong."""
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], 0)[0]
        line = self.process.stdout.readline() if ready else ""  # an answer is one short line, written at once
        if line:
            return True, json.loads(line)["error"]
        if self.process.poll() is None:
            return False, None
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return True, lines[-1] if lines else f"the process ended with {self.process.returncode}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()


class Pool:
    """Processes that outlast a batch; a context manager that ends them."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        self.workers = []


def _side_by_side(work: _Work, jobs: int, pool: Pool) -> list[dict[str, Any]]:
    """`jobs` processes; their progress is read from the folders of their runs."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // jobs))
    waiting = list(range(len(work.configs)))
    workers = pool.workers
    done: dict[int, dict[str, Any]] = {}
    while waiting or any(w.number is not None for w in workers):
        if work.is_over():
            for number in waiting:
                done[number] = _unfit(work.configs[number], "waiting", "the time was over before it began")
            waiting = []
        idle = [w for w in workers if w.number is None]
        while waiting and (idle or len(workers) < jobs):
            if not idle:
                idle.append(_Worker(threads))
                workers += idle
            idle.pop().ask(waiting.pop(0), work)
        time.sleep(0.05)
        for worker in list(workers):
            if worker.number is None:
                continue
            _show_progress(worker.number, work)
            over, error = worker.answer()
            late = not over and work.is_over(GRACE)
            if over or late:
                config = work.configs[worker.number]
                told = _unfit(config, "stopped", "it did not end in time") if late else None
                done[worker.number] = told or _result(config, work.folder, error)
                work.end(worker.number, done[worker.number])
                worker.number = None
                if late or worker.process.poll() is not None:
                    worker.close()
                    workers.remove(worker)
    return [done[number] for number in range(len(work.configs))]


def _show_progress(number: int, work: _Work) -> None:
    try:
        told = json.loads((work.folder / work.configs[number].name / PROGRESS).read_text())
    except FileNotFoundError:
        return
    work.show(number, told)


def _result(config: RunConfig, folder: Path, error: str | None) -> dict[str, Any]:
    summary = folder / config.name / "summary.json"
    if error is None and summary.is_file():
        return json.loads(summary.read_text())
    return _unfit(config, "failed", error or "it left no summary")


def _unfit(config: RunConfig, status: str, reason: str) -> dict[str, Any]:
    return {"status": status, "reason": reason, "task": config.task, "optimizer": config.optimizer, "last": {}}


def named(config: RunConfig) -> RunConfig:
    """With a name made of what sets it apart, where it has none."""
    if config.name:
        return config
    parts = [config.task, *(str(v) for v in config.options.values() if isinstance(v, str)), config.optimizer]
    return replace(config, name="-".join([*parts, f"seed{config.seed}"]))
