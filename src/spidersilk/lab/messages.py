"""What the command says when something is wrong: one line on stderr."""

from __future__ import annotations

import sys


def error_line(message: str) -> None:
    """Print the message in one line; a character that cannot be printed is shown by its code."""
    text = " ".join(message.split())
    print("error:", "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text), file=sys.stderr)
