"""A process that does one run after the other: starting Python, torch and CUDA takes longer than a short run."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from spidersilk.lab.data.files import DataError
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.folder import RunError, Summary

GRACE = 30.0  # seconds in which a run must end when its time is over


@dataclass(frozen=True)
class Job:
    config: RunConfig
    folder: Path
    resume: bool
    until: float
    threads: int

    def do(self, report: runner.Report) -> Summary:
        """Do the run; one that cannot be done has the status "failed" and the reason."""
        try:
            return runner.run(self.config, self.folder, resume=self.resume, report=report, until=self.until)
        except (DataError, ValueError, RunError, OSError) as error:
            return self.without_result("failed", str(error).replace("\n", " ") or type(error).__name__)

    def without_result(self, status: str, reason: str) -> Summary:
        told = {"task": self.config.task, "optimizer": self.config.optimizer}
        return {"status": status, "reason": reason, **told, "last": {}}


def serve(connection: Connection) -> None:
    """Answer each Job with Progress, often, and then with its summary.

    An exception that `Job.do` does not expect is sent as text and ends the process: the CUDA context may be broken.
    """
    with contextlib.suppress(EOFError):  # the other end was closed
        while True:
            job: Job = connection.recv()
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(job.threads)
            try:
                summary = job.do(connection.send)
            except Exception as error:
                connection.send(f"{type(error).__name__}: {error}")
                return
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

    def do(self, job: Job, report: runner.Report) -> Summary:
        """Do the run in the process, which has ended afterwards if something went wrong with it."""
        try:
            self.connection.send(job)
            answer = None
            while not isinstance(answer, dict | str):
                while not self.connection.poll(1.0):
                    if time.time() > job.until + GRACE:
                        self.kill()
                        return job.without_result("stopped", "it did not end in time")
                answer = self.connection.recv()
                if isinstance(answer, runner.Progress):
                    report(answer)
        except (EOFError, OSError):
            answer = "the process died"
        if isinstance(answer, dict):
            return answer
        self.kill()
        return job.without_result("failed", answer)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Pool:
    """Worker processes for the threads of a batch, which can outlive it; a context manager that ends them."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.idle: list[Worker] = []
        self.lock = threading.Lock()

    def do(self, job: Job, report: runner.Report) -> Summary:
        """Do a run in an idle process, or in a new one."""
        with self.lock:
            if not self.idle:
                self.idle.append(Worker())
                self.workers += self.idle
            worker = self.idle.pop()
        summary = worker.do(job, report)
        if worker.process.is_alive():
            self.idle.append(worker)
        return summary

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            for worker in self.workers:
                worker.kill()
            self.workers, self.idle = [], []
