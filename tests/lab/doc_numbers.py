"""Decimal numbers in Markdown, and whether results/ has them.

The pages are cut at their headings. In a section that names files of results/, every decimal number (2.3, 0.058; in
running text and in tables, not in code) and every larger whole number in a table must be one of these files' numbers
rounded as it is printed, or 100 times one (a percentage). A ratio of two such numbers has to be listed with both parts,
and what is neither, a constant, with its reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

SMALL = 20  # whole numbers below it are counts of this and that
LONG = 12  # a longer list of numbers is a curve, among whose points any short number can be found
ROOT = Path(__file__).parents[2]
LINK = re.compile(r"results/([\w*/]+?)(?:\.json\b|`|\*)")
NUMBER = re.compile(r"(?<![\w.,-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(e[-+]?\d+)?(?![\w]|\.\d)")
# What stands before a number that is a setting or a place, not a measurement.
SETTING = re.compile(r"(lr|k1 =|k2 =|k =|k/d =|rank|torch|Python|python3 \(|Section|Theorem|alpha|decay)\s*$")


@dataclass
class Section:
    """The text under a heading, without code."""

    page: str
    heading: str
    text: str

    @property
    def files(self) -> list[Path]:
        found = []
        for name in LINK.findall(self.text):
            found += sorted(
                (ROOT / "results").glob(f"{name.rstrip('*')}*.json" if "*" in self._after(name) else f"{name}.json")
            )
        return list(dict.fromkeys(found))

    def _after(self, name: str) -> str:
        at = self.text.index(f"results/{name}") + len(f"results/{name}")
        return self.text[at : at + 1]

    def _in_a_table(self, at: int) -> bool:
        """Whether a place is in a row of a table that is not its head, nor the row's first cell."""
        start = self.text.rfind("\n", 0, at) + 1
        line, _, rest = self.text[start:].partition("\n")
        return line.startswith("| ") and not rest.startswith("|--") and "|" in self.text[start + 1 : at]

    def numbers(self) -> Iterator[tuple[str, float, int]]:
        """Each decimal number, and in tables each other that is not small, as printed, its value, and its decimals."""
        for match in NUMBER.finditer(self.text):
            _, part, power = match.groups()
            measured = (
                part or power or (float(match.group().replace(",", "")) >= SMALL and self._in_a_table(match.start()))
            )
            if measured and not SETTING.search(self.text[: match.start()]):
                yield match.group(), *_read(match.group())


def _read(printed: str) -> tuple[float, int]:
    plain = printed.replace(",", "")
    digits, _, power = plain.partition("e")
    decimals = len(digits.partition(".")[2]) - int(power or 0)
    return float(plain), decimals


def sections(path: Path) -> list[Section]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    made, heading, lines = [], "", []
    for line in [*text.splitlines(), "# "]:
        if line.startswith("#"):
            body = "\n".join(lines)
            links = " ".join([*re.findall(r"results/[\w*/]+(?:\.json)?`?", body), *_beside(path, body)])
            made.append(Section(_name(path), heading, re.sub(r"`[^`]*`", "` `", _no_links(body)) + "\n" + links))
            heading, lines = line.lstrip("# "), []
        else:
            lines.append(line)
    return made


def _name(path: Path) -> str:
    """docs/guide.md is guide.md; of results/tune/README.md there is more than one."""
    return path.relative_to(ROOT).as_posix() if ROOT / "results" in path.parents else path.name


def _beside(path: Path, body: str) -> list[str]:
    """Links of a page in results/ to the files beside it."""
    if ROOT / "results" not in path.parents:
        return []
    found = [(path.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+\.json)\)", body)]
    return [file.relative_to(ROOT).as_posix() for file in found if file.is_file()]


def _no_links(text: str) -> str:
    return re.sub(r"\]\([^)]*\)", "]", text)


@lru_cache
def values(path: Path) -> frozenset[float]:
    """Every number of a JSON file, in keys too."""
    return frozenset(_values(json.loads(path.read_text())))


def _values(held: Any) -> Iterator[float]:
    if isinstance(held, bool) or held is None:
        return
    if isinstance(held, int | float):
        if math.isfinite(held):
            yield float(held)
    elif isinstance(held, str):
        yield from (float(x) for x in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])", held))
    elif isinstance(held, dict):
        for key, value in held.items():
            yield from _values(key)
            yield from _values(value)
    elif len(held) <= LONG or not all(isinstance(value, int | float | None) for value in held):
        for value in held:
            yield from _values(value)


def is_rounding(value: float, decimals: int, exact: float) -> bool:
    """Whether `exact`, or 100 times it, is `value` when rounded to so many decimals."""
    half = 0.5 * 10.0**-decimals * (1 + 1e-6) + 1e-12
    return abs(exact - value) <= half or abs(100 * exact - value) <= half


def unknown(section: Section, constants: set[str], derived: dict[str, tuple[float, float]]) -> list[str]:
    """The printed numbers that nothing explains; `derived` has ratios by what is printed, with both parts."""
    known = frozenset().union(*(values(path) for path in section.files))
    beside = [_read(match.group()) for match in NUMBER.finditer(section.text)]
    told = []
    for printed, value, decimals in section.numbers():
        if printed in constants or any(is_rounding(value, decimals, x) for x in known):
            continue
        parts = derived.get(printed)
        if parts is None or not is_ratio(value, decimals, *parts):
            told.append(printed)
        elif not all(part in known or part in (10, 100, 1000) or any(part == x for x, _ in beside) for part in parts):
            told.append(f"{printed} = {parts[0]} / {parts[1]}, of which one is neither in results nor on the page")
    return told


def is_ratio(value: float, decimals: int, a: float, b: float) -> bool:
    return abs(a / b - value) <= 0.5 * 10.0**-decimals * (1 + 1e-6)
