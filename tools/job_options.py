"""Writes the options of `spotsupctl submit` from the model of a job file: `make docs`.

The command line reads what is written here, since the model would take it a quarter of a second to load.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.spec import JobSpec
from supervisor.spec_limits import LimitChanges

WRITTEN = Path(__file__).resolve().parent.parent / "supervisor" / "cli" / "job_options.json"
# Keys that are given in another way: as an argument, with an option that takes YAML, or only in a file.
_WITHOUT = {"run", "env", "storage", "places", "resources.speed"}
_TYPES = {"integer": "integer", "number": "number", "string": "text"}


def text(model: type[JobSpec] = JobSpec) -> str:
    """Return what the file has to say: an option for each key, one a line."""
    schema = model.model_json_schema()
    rows = [json.dumps(each, ensure_ascii=False) for each in _options(schema, schema, "")]
    return "[\n  " + ",\n  ".join(rows) + "\n]\n"


def _options(schema: Mapping[str, Any], model: Mapping[str, Any], prefix: str) -> Iterator[dict[str, Any]]:
    for name, property_ in model["properties"].items():
        key = f"{prefix}{name}"
        if key in _WITHOUT:
            continue
        if inner := model_of(schema, property_):
            yield from _options(schema, inner, f"{key}.")
            continue
        yield _option(key, name, property_)


def _option(key: str, name: str, property_: Mapping[str, Any]) -> dict[str, Any]:
    kind = next(each for each in property_.get("anyOf", [property_]) if each.get("type") != "null")
    repeated = kind["type"] == "array"
    flag = property_.get("x-option") or f"--{(name.removesuffix('s') if repeated else name).replace('_', '-')}"
    row: dict[str, Any] = {"flag": flag, "key": key, "help": brief(property_["description"])}
    row["type"] = _TYPES[kind["items"]["type"] if repeated else kind["type"]]
    # The clouds are named by whatever daemon is asked.
    if "enum" in kind and key != "placement.cloud":
        row["type"] = kind["enum"]
    if repeated:
        row["repeated"] = True
    if key.startswith("limits.") and name in LimitChanges.model_fields:
        row["changeable"] = True
    return row


def brief(description: str) -> str:
    """Return the first sentence of a key's text, for a terminal."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(description.split()))
    return re.split(r"(?<=[^.]\.)\s", plain, maxsplit=1)[0]


def model_of(schema: Mapping[str, Any], property_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model behind a key, also of a list or a table of models; {} for a plain value."""
    inner = property_.get("items") or next(iter(property_.get("patternProperties", {}).values()), property_)
    for each in (inner, *inner.get("anyOf", ())):
        if "$ref" in each:
            found: Mapping[str, Any] = schema["$defs"][each["$ref"].rpartition("/")[2]]
            return found
    return {}


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
