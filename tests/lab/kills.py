"""Runs of one task that are killed with SIGKILL and resumed: `python kills.py TASK FOLDER KILLS`, for test_kills.py.

Torch is imported once; each run is a fork, so that a kill costs no import. Half of the kills come at random moments,
the others inside what a run writes: a checkpoint, the config, the summary or a row of metrics.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lab_helpers import SMALL, config, metrics

from spidersilk.lab.data import files
from spidersilk.lab.run import checkpoint, folder, runner
from spidersilk.lab.run.config import RunConfig

SETTINGS: dict[str, dict[str, Any]] = {
    "image": {"options": {"data": "digits", "model": "fc", "eval_samples": 200}, "budget": 4.0, **SMALL},
    "logistic": {"options": {"data": "digits"}, "budget": 8.0, "lr": 1.0},
    "ranking": {"options": {"rank": 5}, "budget": 0.2},
    "finetune": {"options": {"text": "library", "train_bytes": 20_000, "eval_samples": 4, "pretrain_steps": 2},
                 "optimizer": "sparse-adamw", "batch_size": 4, "anchor_batch_size": 4, "steps": 100},
    "language": {"options": {"hidden": 16, "embedding": 8, "train_tokens": 40_000, "eval_tokens": 4000}, "budget": 1.0},
}  # fmt: skip
KINDS = ("half of a file", "before the file is in place", "after the file is in place", "half of a row")
Start = Callable[[], Any]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fork(do: Start) -> int:
    """Do it in a process of its own; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def ended(pid: int) -> int:
    """Wait; the exit code, or minus the number of the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(do: Start, seconds: float) -> bool:
    """Whether it was killed after so many seconds; it may have ended before."""
    pid = fork(do)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return ended(pid) == -signal.SIGKILL


def killed_in(do: Start, kind: str, number: int) -> bool:
    """Whether it was killed inside its write of this number."""

    def patched() -> None:
        counts = {"files": 0, "rows": 0}
        append = folder.RunFolder.append

        def write(path: Path, content: bytes) -> None:
            counts["files"] += 1
            mine = counts["files"] == number and kind in KINDS[:3]
            partial = path.with_name(path.name + ".part")
            partial.write_bytes(content[: len(content) // 2] if mine and kind == KINDS[0] else content)
            if mine and kind in KINDS[:2]:
                die()
            partial.replace(path)
            if mine:
                die()

        def append_half(self: folder.RunFolder, row: dict[str, Any]) -> int:
            counts["rows"] += 1
            if counts["rows"] == number and kind == KINDS[3]:
                line = json.dumps(row).encode()
                with self.metrics.open("ab") as stream:
                    stream.write(line[: len(line) // 2])
                die()
            return append(self, row)

        for module in (files, folder, checkpoint):
            module.write_atomically = write
        folder.RunFolder.append = append_half
        do()

    return ended(fork(patched)) == -signal.SIGKILL


def main(task: str, place: Path, kills: int) -> None:
    chance = random.Random(task)
    made = config(task, checkpoint_every=0.01, name="run", **SETTINGS[task])
    made = replace(made, eval_every=made.budget / 20)
    torch.set_num_threads(1)
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    runner.Run(made.completed(), place)._build(lambda _: None)  # it imports what every run needs, and makes its start
    gc.freeze()  # an optimizer looks for its model among all objects but these
    whole = time.time()
    assert ended(fork(lambda: runner.run(made, place / "whole"))) == 0
    whole = time.time() - whole
    told: list[dict[str, Any]] = []
    while len(told) < kills:
        run = replace(made, checkpoint_every=chance.choice([0.0, 0.02]))
        told += one(run, place / f"{len(told)}-{chance.random():.6f}", whole, chance, in_writing=len(told) % 2 == 1)
    for fact in told:
        fact["equal"] = metrics(place / fact["folder"]) == metrics(place / "whole")
    print(json.dumps(told))


def one(run: RunConfig, place: Path, whole: float, chance: random.Random, in_writing: bool) -> list[dict[str, Any]]:
    """Kill a run and let it go on to its end; nothing if it ended before the kill."""
    start: Start = lambda: runner.run(run, place)  # noqa: E731
    if in_writing:
        kind = chance.choice(KINDS)
        landed = killed_in(start, kind, chance.randint(1, 8))
    else:
        kind = "any moment"
        landed = killed_at(start, whole * chance.uniform(0.1, 0.95))
    if not landed:
        return []
    left = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    code = ended(fork(lambda: runner.run(run, place, resume=True)))
    return [{"folder": place.name, "kind": kind, "left": left, "code": code}]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
