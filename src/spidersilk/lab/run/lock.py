"""A lock on the folder of a run: one process at a time works in it. The kernel frees it when the process dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO

from spidersilk.lab.run.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_UNSUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
_TRIES = 3


class Lock:
    """A file that says who holds it, locked by flock while it is held and removed afterwards.

    Where there is no flock (Windows, some network file systems), what the file says counts: a process of this machine
    that is dead holds nothing, and for any other the message names the file to remove.
    """

    def __init__(self, path: Path, remedy: str = "wait until it has ended, or give another name"):
        self.path, self.remedy = path, remedy
        self._stream: BinaryIO | None = None

    def check(self) -> None:
        """Raise RunError if another process holds the lock."""
        if self._stream is None:
            with contextlib.suppress(FileNotFoundError), self.path.open("rb") as stream:
                self._claim(stream, shared=True)

    def take(self) -> None:
        """Take the lock, if it is not ours already; raise RunError if another process holds it."""
        while self._stream is None:
            stream = self.path.open("a+b")
            try:
                self._claim(stream)
                if _is_at(stream, self.path):
                    self._stream, stream = stream, None
            finally:
                if stream is not None:
                    stream.close()
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._stream.truncate(0)
        self._stream.write(json.dumps(facts).encode())
        self._stream.flush()

    def _claim(self, stream: BinaryIO, shared: bool = False) -> None:
        try:
            _flock(stream, shared)
        except BlockingIOError:
            remedy = self.remedy
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            if _is_free(_holder(stream)):
                return
            remedy = f"wait until it has ended; if it has, remove {self.path}"
        else:
            return
        holder = _holder(stream)
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder else "another process"
        raise RunError(f"{self.path.parent} is in use by {who}: {remedy}")

    def release(self) -> None:
        if self._stream is not None:
            self.path.unlink(missing_ok=True)
            self._stream.close()
            self._stream = None


def _flock(stream: BinaryIO, shared: bool) -> None:
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "there is no flock")
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(stream, how)
            return
        time.sleep(0.05)  # one that only checks lets go at once
    fcntl.flock(stream, how)


def _is_at(stream: BinaryIO, path: Path) -> bool:
    """Whether the file is still the one at `path`: its last holder may have removed it before we locked it."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(stream: BinaryIO) -> dict[str, Any]:
    stream.seek(0)
    try:
        holder = json.loads(stream.read())
        return {name: holder[name] for name in ("pid", "host", "since")}
    except (ValueError, KeyError, TypeError):  # not written yet, or cut off
        return {}


def _is_free(holder: dict[str, Any]) -> bool:
    if not holder:
        return True
    if os.name != "posix" or holder["host"] != socket.gethostname() or not isinstance(holder["pid"], int):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
