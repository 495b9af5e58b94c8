"""The checkpoint of a run: one file with its own SHA-256. Nothing of it is used before it is known to be good."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.run.errors import RunError

HEAD = b"spidersilk checkpoint, sha256 "
REMEDY = "put back the file as it was, or give --overwrite to begin the run anew"
State = dict[str, Any]


def write(path: Path, state: State) -> None:
    """Replace the file: HEAD, the SHA-256 of the rest and a line feed, then what torch.save makes of the state."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        write_atomically(path, signed(buffer.getvalue()))
    except OSError as error:
        path.with_name(path.name + ".part").unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written ({error.strerror}): free some space") from error


def signed(content: bytes) -> bytes:
    return HEAD + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def read(path: Path, device: torch.device, parts: Iterable[str]) -> State:
    """The state in the file; RunError if it is not as it was written, or lacks one of these parts."""
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
    if missing := sorted(set(parts) - state.keys()):
        raise refusal(path, f"it has no {', '.join(missing)}")
    return state


def refusal(path: Path, why: str) -> RunError:
    return RunError(f"{path}: not a checkpoint that can be loaded ({why}): {REMEDY}")
