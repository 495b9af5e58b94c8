"""The start of a model that takes long to make: it is made once, and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from spidersilk.lab.data.files import cache_folder
from spidersilk.lab.messages import note
from spidersilk.lab.run import checkpoint
from spidersilk.lab.run.errors import RunError
from spidersilk.lab.run.lock import Lock
from spidersilk.lab.tasks import State, Task


class Progress(NamedTuple):
    """How far a run is, or what comes before it."""

    at: float  # queries over N, or steps
    loss: float
    share: float  # of all there is to do
    what: str = ""  # "pretraining", or nothing: the run itself


Report = Callable[[Progress], None]


def prepare(task: Task, report: Report) -> None:
    """Give the task's model its start: that in the cache, or one that is made now and put there."""
    if task.remark:
        note(task.remark)
    facts = task.start()
    if facts is None:
        return
    path = path_of(task.name, facts)
    if (state := _read(path, task.device)) is None:
        with _held(path):
            state = _read(path, task.device)  # another process may have made it by now
            if state is None:
                state = task.make_start(lambda step, of, loss: report(Progress(step, loss, step / of, "pretraining")))
                checkpoint.write(path, {"facts": facts, "model": state})
    task.model.load_state_dict(state)


def path_of(name: str, facts: State) -> Path:
    """Where a start is kept, by all that it depends on."""
    content = json.dumps(facts, sort_keys=True).encode()
    return cache_folder().parent / "starts" / f"{name}-{hashlib.sha256(content).hexdigest()[:24]}.pt"


def _read(path: Path, device: torch.device) -> State | None:
    if not path.is_file():
        return None
    try:
        return checkpoint.read(path, device, ("facts", "model"))["model"]
    except RunError as error:
        note(f"{str(error).removesuffix(checkpoint.REMEDY)}it is made anew")
        return None


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """The lock of this start. Who makes it holds the lock; others wait."""
    lock = Lock(path.with_suffix(".lock"), "it makes the same pretrained start, which is waited for")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not _taken(lock):
            time.sleep(0.2)
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that can be written to"
        raise RunError(f"{path.parent}: nothing can be kept there ({error.strerror}): {remedy}") from error
    try:
        yield
    finally:
        lock.release()


def _taken(lock: Lock) -> bool:
    try:
        lock.take()
    except RunError as error:
        note(str(error))
        return False
    return True
