"""Records as JSON and back, strictly. A record of a newer daemon is refused, never guessed at."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from supervisor.errors import SchemaError
from supervisor.model import SCHEMA_VERSION, Event, JobRecord, NodeRecord

Record = TypeVar("Record", JobRecord, NodeRecord, Event)

_ADAPTERS: dict[type, TypeAdapter[object]] = {
    kind: TypeAdapter[object](kind) for kind in (JobRecord, NodeRecord, Event)
}


def dump(record: JobRecord | NodeRecord | Event) -> bytes:
    """A record as JSON."""
    return _ADAPTERS[type(record)].dump_json(record)


def load(kind: type[Record], raw: bytes, key: str) -> Record:
    """JSON as a record. Raises SchemaError where it is of a newer version, or is none."""
    version = json.loads(raw).get("schema", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"{key} was written by a newer spotsupd (schema {version}, this one knows {SCHEMA_VERSION}): "
            "run the newer version, or restore an older backup"
        )
    try:
        record = _ADAPTERS[kind].validate_json(raw)
    except ValidationError as error:
        raise SchemaError(f"{key} in etcd is not a {kind.__name__}: {error.errors()[0]['msg']}") from error
    assert isinstance(record, kind)
    return record
