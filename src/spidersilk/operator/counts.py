"""k1 and k2: a float is a fraction in [0, 1], rounded up; an int is a count. So 1.0 is all, and 1 is one."""

from __future__ import annotations

import math

Count = int | float
MANY = 1000  # coordinates: of so many nobody means to take one


def check_count(name: str, value: Count) -> None:
    """A count of coordinates: an int of at least 0, or a float in [0, 1] as a fraction of d."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} = {value!r} must be an int (a count) or a float in [0, 1] (a fraction of d)")
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{name} = {value} is negative: a count starts at 0")
    if isinstance(value, float) and not 0 <= value <= 1:
        hint = f"for a count write {name}={int(value)}" if value > 1 and value.is_integer() else "a fraction of d"
        raise ValueError(f"{name} = {value} must lie in [0, 1] as a float: {hint}")


def check_counts(k1: Count, k2: Count) -> None:
    """Both are counts, and not both nothing."""
    check_count("k1", k1)
    check_count("k2", k2)
    if k1 + k2 == 0:
        raise ValueError("k1 + k2 = 0 selects nothing: raise k1 or k2 to at least 1 (or a fraction above 0)")


def check_meant(k1: Count, k2: Count, d: int, of: str = "coordinates") -> None:
    """Refuse the int 1 where there are many coordinates: 1.0, all of them, is what was meant, if anything was."""
    for name, value in (("k1", k1), ("k2", k2)):
        if isinstance(value, int) and value == 1 and d >= MANY:
            raise ValueError(
                f"{name} = 1 is a count, one of {d:,} {of}: write {name}=1.0 for all of them, or {name}=1/{d} for one"
            )


def check_shares(k1: Count, k2: Count, groups: str) -> None:
    """What k1 and k2 must be where `groups` ("rows", "columns") are selected: no count fits those of every length."""
    for name, value in (("k1", k1), ("k2", k2)):
        if isinstance(value, int) and value:
            remedy = f"{name}=1.0 for all" if value == 1 else f"for example {name}=0.05"
            raise ValueError(
                f"{name} = {value} is a count, and {groups} are selected by their share among those of each length: "
                f"give a fraction, {remedy}"
            )
    if k1 + k2 > 1 + 1e-9:
        raise ValueError(f"k1 + k2 = {k1 + k2:g} exceeds 1, all {groups}: lower k2 to at most {1 - k1:g}")


def resolve_counts(k1: Count, k2: Count, d: int) -> tuple[int, int]:
    """Turn k1 and k2 into counts of d coordinates; a fraction is rounded up, k2 giving way where both round past d.

    >>> resolve_counts(0.05, 10, 1000)
    (50, 10)
    """
    check_counts(k1, k2)
    top, random = count_of(k1, d), count_of(k2, d)
    if isinstance(k1, float) and isinstance(k2, float) and k1 + k2 <= 1:
        random = min(random, d - top)
    if top > d:
        raise ValueError(f"k1 = {top} exceeds d = {d}: lower k1 to at most {d}")
    if top + random > d:
        raise ValueError(f"k1 + k2 = {top + random} exceeds d = {d}: lower k2 to at most {d - top}")
    return top, random


def count_of(value: Count, d: int) -> int:
    """The number of coordinates that a count or a fraction of d means, not yet compared with d."""
    if isinstance(value, int):
        return value
    return min(d, math.ceil(value * d * (1 - 1e-12)))  # 0.1 * 30 is 3.0000000000000004 and means 3


def counts_within(k1: Count, k2: Count, size: int) -> tuple[int, int]:
    """The counts for one tensor, or for the groups of one length, as far as they reach."""
    top = min(count_of(k1, size), size)
    return top, min(count_of(k2, size), size - top)
