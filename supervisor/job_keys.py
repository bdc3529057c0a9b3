"""Keys of a job file by their paths, such as `nodes.desired`. Pure, and light: command lines load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.errors import UsageError

# What may be a list: of what, and an example.
_LISTS = {
    "resources": ("alternatives", "[{gpu: H100, gpus_per_node: 8}]"),
    "placement": ("places", "[{cloud: ONE}, {cloud: OTHER}]"),
}


def set_key(spec: dict[str, Any], path: str, value: Any) -> None:
    """Set one key, such as `nodes.desired`. Raises UsageError where a part of its path is no mapping."""
    *parents, last = path.split(".")
    if not all((*parents, last)):
        raise UsageError(f"{path!r} is no key of a job file; write it as nodes.desired")
    if path == "nodes.desired" and isinstance(spec.get("nodes"), int):
        spec["nodes"] = value  # a plain number means exactly that many
        return
    inside = spec
    for depth, parent in enumerate(parents):
        if parent == "nodes" and not depth and isinstance(inside.get(parent), int):
            number = inside[parent]
            inside[parent] = {"min": number, "desired": number, "max": number}
        found = inside.get(parent)
        found = {} if found is None else found
        if not isinstance(found, dict):
            where = ".".join(parents[: depth + 1])
            if where in _LISTS and isinstance(found, list):
                raise UsageError(_whole_list(where))
            raise UsageError(f"the job file: `{where}` is {found!r}; write a mapping")
        inside[parent] = inside = dict(found)
    inside[last] = value


def section(spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a mapping within the job file, empty where it is not there. Raises UsageError for another value."""
    value = spec.get(key, {})
    if key in _LISTS and isinstance(value, list):
        raise UsageError(_whole_list(key))
    if not isinstance(value, dict):
        raise UsageError(f"the job file: `{key}` is {value!r}; write a mapping")
    return value


def _whole_list(key: str) -> str:
    of_what, example = _LISTS[key]
    return (
        f"the job file: `{key}` is a list of {of_what}, and an option would change one of them: change the file, or "
        f"give the whole list, as in --set '{key}={example}'"
    )
