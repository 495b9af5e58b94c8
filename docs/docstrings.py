"""For the site: our plain docstrings as Markdown. `name: meaning` lines become a list, `>>>` lines a block of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"(\w+(?:, \w+)*): (?=\S)")


def as_markdown(text: str) -> str:
    made: list[str] = []
    in_code = in_list = False
    for line in text.splitlines():
        code = line.startswith(">>>") or (in_code and bool(line.strip()))
        item = None if code else ITEM.match(line)
        if code and not in_code:
            made += ["", "```pycon"]
        elif in_code and not code:
            made.append("```")
        if item and not in_list:
            made.append("")
        in_code, in_list = code, bool(item) or (in_list and line.startswith("    "))
        made.append(f"- **{item[1]}**: {line[item.end() :]}" if item else line)
    return "\n".join([*made, "```"] if in_code else made)


class Markdown(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
