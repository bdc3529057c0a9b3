"""The OpenAPI document has the fields of answers, from the types that the code fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fuzz.api import an_api

# Answers whose form follows from a job's file and its curve: described as objects.
OPEN = {"GET /v1/jobs/{name}/report", "POST /v1/recorded", "POST /v1/explain"}
# No JSON.
OTHER = {"GET /metrics"}


def fields(schema: dict[str, Any], document: dict[str, Any]) -> set[str]:
    """Of an object, or of the objects of a list."""
    if "$ref" in schema:
        return fields(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    return fields(schema["items"], document) if schema.get("type") == "array" else {*schema.get("properties", ())}


def test_every_answer_has_its_fields(tmp_path: Path) -> None:
    with an_api(tmp_path) as (_, document):
        without = {
            f"{method.upper()} {path}"
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if not fields(
                operation["responses"]["200"]["content"].get("application/json", {}).get("schema", {}), document
            )
        }
    assert without == OPEN | OTHER
