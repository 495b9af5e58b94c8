"""What the command says when something is wrong, or worth knowing: one line on stderr."""

from __future__ import annotations

import sys
from functools import cache
from multiprocessing import parent_process


def error_line(message: str) -> None:
    """Print the message in one line; a character that cannot be printed is shown by its code."""
    _line("error:", message)


@cache
def note(message: str) -> None:
    """Print the message once; processes that do runs for another are silent."""
    if parent_process() is None:
        _line("note:", message)


def _line(head: str, message: str) -> None:
    text = " ".join(message.split())
    print(head, "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text), file=sys.stderr)
