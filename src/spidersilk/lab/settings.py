"""What a setting may be: its kind, range and meaning. Parsing, refusals and the help of `spidersilk list` use it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spidersilk.lab.yaml_text import read_yaml
from spidersilk.operator.counts import check_count


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Any value. A subclass is a kind of value: `allowed` says in words what it takes, and `_accept` checks it.

    about: what it means, in a few words. optional: None stands for the default of the task or the optimizer.
    """

    about: str = ""
    optional: bool = False

    @property
    def allowed(self) -> str:
        return "a value"

    def check(self, name: str, value: Any) -> Any:
        """The value as it is used; ValueError with name, value and range if it is refused."""
        return None if value is None and self.optional else self._accept(name, value)

    def parse(self, name: str, text: str) -> Any:
        """The value that a text of the command line means."""
        if not text.strip():
            raise ValueError(f"{name}= has no value: write {name}=VALUE, {self.allowed}")
        return self.check(name, self._read(name, text))

    def _read(self, name: str, text: str) -> Any:
        return read_yaml(text, name)

    def _accept(self, name: str, value: Any) -> Any:
        return value

    def refusal(self, name: str, value: Any, remedy: str = "") -> ValueError:
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        reason = remedy or self.about
        return ValueError(f"{name} = {shown} must be {self.allowed}" + (f": {reason}" if reason else ""))


@dataclass(frozen=True, kw_only=True)
class Number(Setting):
    """A finite number from `low` to `high`, or above `above`. `words` are accepted in place of one."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    words: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        return " or ".join([f"{self._noun()}{self._range()}", *map(repr, self.words)])

    def _range(self) -> str:
        low = self.low if self.above is None else self.above
        if low is None:
            return "" if self.high is None else f" of at most {self.high:,}"
        if self.high is not None and self.above is None:
            return f" from {low:,} to {self.high:,}"
        start = f" of at least {low:,}" if self.above is None else f" above {low:,}"
        return start + ("" if self.high is None else f" and at most {self.high:,}")

    def _noun(self) -> str:
        return "a number"

    def _accept(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(name, value)
        if not abs(value) <= 1e300 or not self._within(value):  # not so for NaN and infinity
            raise self.refusal(name, value)
        return value

    def _within(self, value: float) -> bool:
        above = self.above is None or value > self.above
        return above and (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True, kw_only=True)
class Whole(Number):
    """A whole number; 1e3 is one. The largest is that of 64 bits."""

    def _noun(self) -> str:
        return "a whole number"

    def _accept(self, name: str, value: Any) -> Any:
        value = super()._accept(name, value)
        if isinstance(value, str):
            return value
        if value != int(value) or abs(value) >= 2**63:
            raise self.refusal(name, value)
        return int(value)


@dataclass(frozen=True, kw_only=True)
class Count(Setting):
    """k1 and k2: a whole number is a count of coordinates, any other number a fraction of them."""

    @property
    def allowed(self) -> str:
        return "a count (a whole number of at least 0) or a fraction from 0.0 to 1.0"

    def _accept(self, name: str, value: Any) -> Any:
        check_count(name, value)
        return value


@dataclass(frozen=True, kw_only=True)
class Flag(Setting):
    @property
    def allowed(self) -> str:
        return "true or false"

    def _accept(self, name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise self.refusal(name, value)
        return value


@dataclass(frozen=True, kw_only=True)
class Text(Setting):
    """A line of text: one of `choices`, if there are any, or of at most `longest` characters."""

    choices: tuple[str, ...] = ()
    longest: int = 1000

    @property
    def allowed(self) -> str:
        return ", ".join(self.choices) if self.choices else f"one line of text of at most {self.longest} characters"

    def _read(self, name: str, text: str) -> Any:
        return None if self.optional and text == "null" else text

    def _accept(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"{name} = {value!r} must be text: put it in quotes")
        if self.choices and value not in self.choices:
            raise ValueError(f"{name} = {value!r} is not known{nearest(value, self.choices)}")
        if len(value) > self.longest or not value.isprintable():
            raise self.refusal(name, value)
        return value


@dataclass(frozen=True, kw_only=True)
class FileName(Text):
    """The name of a file or folder, without a path."""

    longest: int = 180

    @property
    def allowed(self) -> str:
        return f"a plain name of at most {self.longest} bytes, without / or \\ and not beginning with . or -"

    def _accept(self, name: str, value: Any) -> Any:
        value = super()._accept(name, value)
        plain = re.fullmatch(r"[^\s./\\-]([^/\\]*[^\s/\\])?", value) and len(value.encode()) <= self.longest
        if value and not plain:
            raise self.refusal(name, value, "--out chooses the folder")
        return value


@dataclass(frozen=True, kw_only=True)
class Fields(Setting):
    """A mapping with these keys, or with any keys of the kind `key` if no `fields` are given."""

    fields: Mapping[str, Setting] | None = None
    key: Setting = Setting()
    value: Setting = Setting()
    example: str = "{key: value}"

    @property
    def allowed(self) -> str:
        return f"a mapping such as {self.example}"

    def _accept(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise self.refusal(name, value)
        if self.fields is not None:
            return check_all(value, self.fields, f"is no key of {name}", f"{name}: ")
        where = f"{name}: a key"
        return {self.key.check(where, key): self.value.check(f"{name}[{key!r}]", v) for key, v in value.items()}


def deduced(default: Any) -> Setting:
    """The setting of an option of which only the default is known."""
    kinds: dict[type, Setting] = {bool: Flag(), int: Whole(), float: Number(), str: Text()}
    return kinds.get(type(default), Setting(optional=True))


def check_all(values: Mapping[Any, Any], known: Mapping[str, Setting], problem: str, where: str = "") -> dict[str, Any]:
    """Each value by its setting; a key that is not known is refused with the nearest that is."""
    for key in values:
        if key not in known:
            raise ValueError(f"{key!r} {problem}{nearest(str(key), known)}")
    return {key: known[key].check(f"{where}{key}", value) for key, value in values.items()}


def nearest(name: str, known: Iterable[str]) -> str:
    """ ": did you mean ...?" if a known name is similar, else the list of known names."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(repr, known))}"
