"""A process that does one run after the other: starting Python, torch and CUDA takes longer than a short run."""

from __future__ import annotations

import contextlib
import gc
import os
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from spidersilk.lab.data.files import DataError
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.folder import RunError, Summary
from spidersilk.lab.run.runner import Progress


@dataclass(frozen=True)
class Job:
    config: RunConfig
    folder: Path
    resume: bool
    until: float | None


def do(job: Job, report: runner.Report) -> Summary:
    """Do one run; a run that cannot be done has the status "failed" and the reason."""
    try:
        return runner.run(job.config, job.folder, resume=job.resume, report=report, until=job.until)
    except (DataError, ValueError, RunError, OSError) as error:
        return without_result(job.config, "failed", str(error).replace("\n", " ") or type(error).__name__)


def without_result(config: RunConfig, status: str, reason: str) -> Summary:
    return {"status": status, "reason": reason, "task": config.task, "optimizer": config.optimizer, "last": {}}


def serve(connection: Connection) -> None:
    """Answer each Job with Progress, often, and then with its summary.

    An exception that `do` does not expect is sent as text and ends the process: the CUDA context may be broken.
    """
    with contextlib.suppress(EOFError):  # the other end was closed
        while True:
            job = connection.recv()
            try:
                summary = do(job, connection.send)
            except Exception as error:
                connection.send(f"{type(error).__name__}: {error}")
                return
            gc.collect()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            connection.send(summary)


class Worker:
    """The other end: starts the process, sends it jobs and reads its answers. `number` is that of the job, if any."""

    def __init__(self, threads: int):
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,))
        self.number: int | None = None
        before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        os.environ.update(dict.fromkeys(before, before["OMP_NUM_THREADS"] or str(threads)))  # the process reads them
        self.process.start()
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
        other.close()

    def start(self, number: int, job: Job) -> None:
        self.number = number
        self.connection.send(job)

    def answer(self) -> Progress | Summary | str | None:
        """The latest answer; None if there is none since the last call, a text if the process has ended."""
        answer = None
        try:
            while self.connection.poll() and not isinstance(answer, dict | str):
                answer = self.connection.recv()
        except (EOFError, OSError):
            answer = "the process died"
        if isinstance(answer, str):
            self.process.join()
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
