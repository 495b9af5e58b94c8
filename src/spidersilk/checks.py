"""Argument checks. Every message gives the value, the allowed range and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value!r} is not one of {', '.join(map(repr, allowed))}")


def check_positive_int(name: str, value: object, remedy: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} = {value!r} must be a whole number of at least 1: {remedy}")


def check_fraction(name: str, value: float, remedy: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r} must lie in [0, 1]: {remedy}")


def check_same_settings(here: Mapping[str, object], there: Mapping[str, object], remedy: str) -> None:
    """Refuse a saved state whose settings differ, naming each that does."""
    wrong = [f"{k}: {there.get(k)!r} there, {here[k]!r} here" for k in here if there.get(k) != here[k]]
    if wrong:
        raise ValueError(f"the state was saved with other settings ({'; '.join(wrong)}): {remedy}")
