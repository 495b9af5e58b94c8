"""Says so when somebody waits for kernels to be compiled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 0.9  # seconds of waiting, in all, without a word

_log = logging.getLogger("spidersilk")
_spent = 0.0
_told = threading.Event()


@contextmanager
def compiling() -> Iterator[None]:
    """Around whatever may compile a kernel: a message says so, once in a process, if it takes long in all."""
    global _spent
    if _told.is_set():
        yield
        return
    timer = threading.Timer(max(PATIENCE - _spent, 0.0), _tell)
    timer.daemon = True
    timer.start()
    start = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        _spent += time.monotonic() - start


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        _log.warning("spidersilk compiles or loads its kernels: some seconds, the first time on a machine")
