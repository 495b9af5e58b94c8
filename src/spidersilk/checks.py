"""Argument checks. Every message gives the value, the allowed range and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from torch import Size, Tensor


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} = {value!r} is not one of {', '.join(map(repr, allowed))}")


def check_positive_int(name: str, value: object, remedy: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} = {value!r} must be a whole number of at least 1: {remedy}")


def check_number(name: str, value: object, remedy: str, above_zero: bool = False) -> None:
    """A finite number of at least 0, or above it. A tensor of one entry is one, as for torch's optimizers."""
    low = "above 0" if above_zero else "of at least 0"
    number = math.nan
    if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        number = float(value)
    if isinstance(value, bool) or not 0 <= number < math.inf or (above_zero and number == 0):
        raise ValueError(f"{name} = {value!r} must be a finite number {low}: {remedy}")


def check_fraction(name: str, value: float, remedy: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r} must lie in [0, 1]: {remedy}")


def check_same_settings(here: Mapping[str, object], there: object, remedy: str) -> None:
    """Refuse a saved state whose settings differ, naming each that does."""
    check_saved("state['settings']", there, {})
    assert isinstance(there, Mapping)
    wrong = [f"{k}: {there.get(k)!r} there, {here[k]!r} here" for k in here if there.get(k) != here[k]]
    if wrong:
        raise ValueError(f"the state was saved with other settings ({'; '.join(wrong)}): {remedy}")


Form = type | tuple[type, ...] | Size | Sequence["Form"] | Mapping[str, "Form"]
"""What a saved value must be: of a type, a tensor of a shape, a list of such forms, or a mapping with these keys."""


def check_saved(where: str, saved: object, form: Form) -> None:
    """Refuse a part of a saved state that does not have the form, before anything is loaded from it."""
    if isinstance(form, dict):
        _check_type(where, saved, Mapping, "a mapping")
        assert isinstance(saved, Mapping)
        for key, inner in form.items():
            if key not in saved:
                raise ValueError(f"{where} has no {key!r}: the state is damaged or of another kind; load a whole one")
            check_saved(f"{where}[{key!r}]", saved[key], inner)
    elif isinstance(form, list):
        _check_type(where, saved, (list, tuple), "a list")
        assert isinstance(saved, Sequence)
        if len(saved) != len(form):
            raise ValueError(f"{where} has {len(saved)} entries and must have {len(form)}: the state is damaged")
        for number, (part, inner) in enumerate(zip(saved, form, strict=True)):
            check_saved(f"{where}[{number}]", part, inner)
    elif isinstance(form, Size):
        _check_type(where, saved, Tensor, "a tensor")
        assert isinstance(saved, Tensor)
        if saved.shape != form:
            raise ValueError(f"{where} has shape {tuple(saved.shape)} and must have {tuple(form)}: it does not fit")
    else:
        types = cast(tuple[type, ...], form if isinstance(form, tuple) else (form,))
        wanted = (*types, int) if float in types else types
        _check_type(where, saved, wanted, " or ".join(t.__name__ for t in types))
        if isinstance(saved, bool) and bool not in types:
            raise ValueError(f"{where} = {saved!r} must be a number: the state is damaged")


def check_entry(where: str, value: object, shape: tuple[int, ...]) -> None:
    """A number, or a tensor that fits a parameter of `shape`: one number, or of its shape, rows or columns."""
    check_saved(where, value, (Tensor, float, bool, type(None)))
    if isinstance(value, Tensor) and value.numel() != 1:
        sizes = zip(value.shape, shape, strict=False)
        if value.dim() != len(shape) or any(size not in (1, whole) for size, whole in sizes):
            raise ValueError(f"{where} has shape {tuple(value.shape)}, the parameter {tuple(shape)}: it does not fit")


def _check_type(where: str, saved: object, types: type | tuple[type, ...], words: str) -> None:
    if not isinstance(saved, types):
        shown = repr(saved) if isinstance(saved, str | int | float | None) else f"a {type(saved).__name__}"
        raise ValueError(f"{where} is {shown:.60} and must be {words}: the state is damaged or of another kind")
