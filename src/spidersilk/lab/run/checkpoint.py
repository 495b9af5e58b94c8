"""The checkpoint of a run: one file with its own SHA-256. Nothing of it is used before it is known to be good."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.run.errors import RunError

HEAD = b"spidersilk checkpoint, sha256 "
REMEDY = "put back the file as it was, or give --overwrite to begin the run anew"
State = dict[str, Any]


def write(path: Path, state: State) -> None:
    """Replace the file: HEAD, the SHA-256 of the rest and a line feed, then what torch.save makes of the state."""
    buffer = io.BytesIO()
    torch.save(state | {"structure": {name: _structure(part) for name, part in state.items()}}, buffer)
    try:
        write_atomically(path, signed(buffer.getvalue()))
    except OSError as error:
        path.with_name(path.name + ".part").unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written ({error.strerror}): free some space") from error


def signed(content: bytes) -> bytes:
    return HEAD + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def read(path: Path, device: torch.device, parts: Iterable[str]) -> State:
    """The state in the file; RunError if it is not as it was written, or not made of these parts."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}): {REMEDY}") from error
    body = content.partition(b"\n")[2]
    if not content.startswith(HEAD):
        raise refusal(path, "it is empty" if not content else "it does not begin like one")
    if content != signed(body):
        raise refusal(path, "its content is not what its SHA-256 says, so it is cut short or altered")
    try:
        state = torch.load(io.BytesIO(body), map_location=device, weights_only=True)
    except Exception as error:
        raise refusal(path, f"torch cannot load it: {type(error).__name__}") from error
    if not isinstance(state, dict):
        raise refusal(path, f"it holds a {type(state).__name__} in place of a dictionary")
    _check_parts(path, state, {*parts, "structure"})
    return state


def refusal(path: Path, why: str) -> RunError:
    return RunError(f"{path}: not a checkpoint that can be loaded ({why}): {REMEDY}")


def _check_parts(path: Path, state: State, wanted: set[str]) -> None:
    """Whether the state has these parts, each with the structure that it was saved with."""
    if missing := sorted(wanted - state.keys()):
        raise refusal(path, f"it has no {', '.join(missing)}")
    if more := sorted(map(str, state.keys() - wanted)):
        raise refusal(path, f"it has parts that this run lacks: {', '.join(more)}")
    saved = state["structure"]
    if not isinstance(saved, dict):
        raise refusal(path, "its structure is not a dictionary")
    differ = [name for name in wanted - {"structure"} if saved.get(name) != _structure(state[name])]
    if differ:
        raise refusal(path, f"something is missing in, or was changed in: {', '.join(sorted(differ))}")


def _structure(value: Any) -> str:
    """A hash of the keys, types and shapes in a state."""
    return hashlib.sha256(repr(_outline(value)).encode()).hexdigest()


def _outline(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape)
    if isinstance(value, dict):
        return [(key, _outline(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_outline(item) for item in value]
    return type(value).__name__


def check_counters(path: Path, given: Any, wanted: State) -> None:
    """Whether the counters have the names and types of `wanted`, and are finite and not negative."""
    if not isinstance(given, dict) or given.keys() != wanted.keys():
        raise refusal(path, f"its counters are not {', '.join(wanted)}")
    for name, value in given.items():
        kind = type(wanted[name])
        if type(value) not in ((int, float) if kind is float else (int,)) or not 0 <= value < math.inf:
            raise refusal(path, f"its counter {name} is {value!r}")
