"""How values are written in tables and sentences: times, sizes, metrics, and which cells are numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spidersilk.lab.report.evidence import number
from spidersilk.lab.run.curve import words

_NUMBER = re.compile(r"([-+]?[\d.,]+(e[-+]?\d+)?( ?(%|ms|s|min|h|kB|MB|GB))?( \d+ (s|min))?|nan|inf|-|not reached|)")
BESIDE = ("test_accuracy", "valid_loss", "auc")  # metrics that are shown beside the training loss
_NAMES = {"valid_loss": "validation loss", "auc": "AUC of held-out items"}


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether a column of cells is one of numbers, which stand to the right."""
    return all(_NUMBER.fullmatch(cell) for cell in cells)


def duration(seconds: float) -> str:
    """To three digits, in the unit that suits.

    >>> duration(0.0123), duration(7.5), duration(312), duration(7500)
    ('12.3 ms', '7.50 s', '5 min 12 s', '2 h 5 min')
    """
    if seconds < 0.9995:
        return f"{1e3 * seconds:#.3g}".rstrip(".") + " ms"
    if seconds < 99.95:
        return f"{seconds:#.3g}".rstrip(".") + " s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"


def size(count: float) -> str:
    """Bytes.

    >>> size(5_709_376), size(800)
    ('5.71 MB', '0.800 kB')
    """
    unit, name = next(pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= pair[0] or pair[0] == 1e3)
    return f"{count / unit:#.3g}".rstrip(".") + f" {name}"


def head_of(metric: str) -> str:
    """A metric's name as the head of a column or the label of an axis."""
    return _NAMES.get(metric, words(metric) + (", %" if scale_of(metric) == 100 else ""))


def scale_of(metric: str) -> float:
    """What values of a metric are multiplied with to be shown."""
    return 100.0 if metric.endswith("_accuracy") else 1.0


def value_of(metric: str, value: float | None) -> str:
    """A value of a metric, in the unit of its head."""
    if value is None:
        return ""
    return f"{100 * value:.1f}" if scale_of(metric) == 100 else number(value, 4)


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
