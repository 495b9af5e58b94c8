"""YAML as people mean it: 1e-3 is a number; 010, 1:30 and yes are text; a key that comes twice is refused."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                problem = f"the key {key!r} comes twice" if isinstance(key, Hashable) else f"{key!r} cannot be a key"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what this loader or any other might not read as text."""


_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (r"[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9]+|(?:0|[1-9][0-9_]*)\.?)(?:[eE][-+]?[0-9]+)?"
              r"|[-+]?\.?(?:inf|Inf|INF)|\.?(?:nan|NaN|NAN)", "-+.0123456789iInN"),
}  # fmt: skip
_Loader.yaml_implicit_resolvers = {}
for _kind in (_Loader, _Dumper):
    for _tag, (_pattern, _first) in _SCALARS.items():
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def read_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; `where` is the file or setting that an error names."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark and "\n" in text else ""
        raise ValueError(f"{where}{line}: not readable as YAML ({error.problem or error.context})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{where}: not readable as YAML ({str(error).splitlines()[0]})") from error


def load_mapping(path: Path) -> dict[Any, Any]:
    """The settings in a YAML file."""
    try:
        values = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(values, dict):
        what = "empty" if values is None else f"a {type(values).__name__}"
        raise ValueError(f"{path}: it must be a mapping of settings to values, as in `task: logistic`, and is {what}")
    return values


def write_yaml(values: Mapping[str, Any]) -> str:
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False)
