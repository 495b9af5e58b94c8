"""Several runs: one after the other in this process, or side by side in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from spidersilk.lab import runner
from spidersilk.lab.config import RunConfig
from spidersilk.lab.files import DataError

PROGRESS = "progress.json"


def run_all(
    configs: list[RunConfig], folder: Path, *, jobs: int, resume: bool, console: Console
) -> list[dict[str, Any]]:
    """Run each config in `folder`/<its name>; a run that fails or diverges does not stop the others.

    Summaries come back in order; that of a run that could not be done has the status "failed" and the reason.
    """
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}")
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        bars = [progress.add_task(c.name, total=c.budget, told="", start=False) for c in configs]

        def show(number: int, told: dict[str, float]) -> None:
            progress.start_task(bars[number])
            text = f"{told['queries']:.2f} N  loss {told['loss']:.4g}"
            progress.update(bars[number], completed=min(told["queries"], told["budget"]), told=text)

        work = _in_turn if jobs <= 1 else _side_by_side
        return work(configs, folder, resume, show, jobs)


def _in_turn(configs: list[RunConfig], folder: Path, resume: bool, show: Any, _jobs: int) -> list[dict[str, Any]]:
    done = []
    for number, config in enumerate(configs):
        try:
            done.append(
                runner.run(config, folder / config.name, resume=resume, report=lambda p, n=number: show(n, vars(p)))
            )
        except (DataError, ValueError, runner.RunError, OSError) as error:
            done.append(failed(config, str(error)))
    return done


def _side_by_side(configs: list[RunConfig], folder: Path, resume: bool, show: Any, jobs: int) -> list[dict[str, Any]]:
    """Each run in a process of its own, `jobs` at a time; their progress is read from their folders."""
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    waiting = list(enumerate(configs))
    running: dict[int, subprocess.Popen[str]] = {}
    done: dict[int, dict[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, config = waiting.pop(0)
                running[number] = _start(config, folder / config.name, resume, threads)
            time.sleep(0.2)
            for number, process in list(running.items()):
                path = folder / configs[number].name / PROGRESS
                if path.is_file():
                    show(number, json.loads(path.read_text()))
                if process.poll() is not None:
                    told = process.stderr.read() if process.stderr else ""
                    done[number] = _result(configs[number], folder, process.returncode, told)
                    del running[number]
    finally:
        for process in running.values():
            process.kill()
    return [done[number] for number in range(len(configs))]


def _start(config: RunConfig, folder: Path, resume: bool, threads: str) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.yaml"
    job.write_text(config.to_yaml())
    command = [sys.executable, "-m", "spidersilk.lab.worker", str(job), str(folder), *(["--resume"] if resume else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _result(config: RunConfig, folder: Path, code: int, told: str) -> dict[str, Any]:
    summary = folder / config.name / "summary.json"
    if code == 0 and summary.is_file():
        return json.loads(summary.read_text())
    lines = told.strip().splitlines()
    return failed(config, lines[-1] if lines else f"the process ended with {code}")


def failed(config: RunConfig, reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason, "task": config.task, "optimizer": config.optimizer, "last": {}}


def named(config: RunConfig) -> RunConfig:
    """With a name made of what sets it apart, where it has none."""
    if config.name:
        return config
    parts = [config.task, *(str(v) for v in config.options.values() if isinstance(v, str)), config.optimizer]
    return replace(config, name="-".join([*parts, f"seed{config.seed}"]))
