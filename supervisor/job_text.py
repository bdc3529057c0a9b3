"""Reads the text of job files: YAML 1.2, where a text stays the text that it is written as.

YAML 1.1, which PyYAML reads by itself, has numbers of base 60 (1:30 is 90), octals (0777 is 511), 1_000, times, and
yes, no, on and off. Here only what YAML 1.2's core schema calls a number, or true or false, is one, but for octals and
hexadecimal numbers, which are texts. The values of `env` are texts, as they are written: 3.10 is no 3.1.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_YAML = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """A key that occurs twice is an error; otherwise the last one would win silently."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as its base class has it

    def get_single_node(self) -> yaml.Node | None:
        root: yaml.Node | None = super().get_single_node()
        for node in _nodes_of_env(root):
            if node.tag in {f"{_YAML}{each}" for each in ("bool", "int", "float")}:
                node.tag = f"{_YAML}str"
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


_INT = r"[-+]?(0|[1-9][0-9]*)"
_EXPONENT = r"([eE][-+]?[0-9]+)?"
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", rf"{_INT}(\.[0-9]*)?{_EXPONENT}|[-+]?\.[0-9]+{_EXPONENT}", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"{_YAML}{_tag}", re.compile(f"(?:{_pattern})\\Z"), _first)


def _nodes_of_env(root: yaml.Node | None) -> list[yaml.Node]:
    if not isinstance(root, yaml.MappingNode):
        return []
    found = [value for key, value in root.value if key.value == "env" and isinstance(value, yaml.MappingNode)]
    return [node for env in found for pair in env.value for node in pair]


def read_yaml(text: str) -> Any:
    """Return the value of a text in YAML. Raises ValueError, which says what the text is: "is not YAML: …"."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        if "expected a single document" in str(error):
            raise ValueError("has several documents, separated by ---; a job file is one") from error
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply: at most 20 levels are read") from error
