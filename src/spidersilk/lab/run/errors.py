"""Why a run cannot start or go on, or was interrupted."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run cannot start or go on; the message says why and what to do."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM; runs under way have saved a checkpoint."""
