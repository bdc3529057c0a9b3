"""Records as JSON and back, strictly: no field is lost, and a record of another schema is refused, never guessed at."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from supervisor.errors import SchemaError
from supervisor.model import SCHEMA_VERSION, ClusterRecord, DaemonPause, Event, JobRecord, NodeRecord

AnyRecord: TypeAlias = JobRecord | NodeRecord | Event | ClusterRecord | DaemonPause
Record = TypeVar("Record", JobRecord, NodeRecord, Event, ClusterRecord, DaemonPause)

_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter[Any](kind) for kind in (JobRecord, NodeRecord, Event, ClusterRecord, DaemonPause)
}
_FIELDS = {kind: frozenset(field.name for field in fields(kind)) for kind in _ADAPTERS}


def dump(record: AnyRecord) -> bytes:
    """Encode a record as JSON."""
    return _ADAPTERS[type(record)].dump_json(record)


def load(kind: type[Record], raw: bytes, key: str) -> Record:
    """Decode a record. Raises SchemaError if it has another schema, or is not a record of this kind."""
    parsed = _parsed(kind, raw, key)
    version = parsed.get("schema", SCHEMA_VERSION)
    if not isinstance(version, int):
        raise _not_a_record(kind, key, f"its schema is {version!r}, not a number")
    if version < SCHEMA_VERSION:
        # There is no migration before 0.1.0.
        raise SchemaError(
            f"{key} was written by an older spotsupd (schema {version}; this one reads {SCHEMA_VERSION}): "
            "cancel the job with the older version, then submit it again with this one"
        )
    unknown = sorted(parsed.keys() - _FIELDS[kind])
    if unknown or version > SCHEMA_VERSION:
        what = f"it has `{unknown[0]}`" if unknown else f"schema {version}; this one reads {SCHEMA_VERSION}"
        raise SchemaError(
            f"{key} was written by a newer spotsupd ({what}): run the newer version, or restore an older backup"
        )
    try:
        record = _ADAPTERS[kind].validate_json(raw)
    except ValidationError as error:
        raise _not_a_record(kind, key, error.errors()[0]["msg"]) from error
    assert isinstance(record, kind)
    return record


def schema_of(raw: bytes) -> object:
    """The schema that a record names; this daemon's where it names none, or is no record."""
    try:
        parsed = from_json(raw)
    except ValueError:
        return SCHEMA_VERSION
    return parsed.get("schema", SCHEMA_VERSION) if isinstance(parsed, dict) else SCHEMA_VERSION


def _parsed(kind: type, raw: bytes, key: str) -> dict[str, Any]:
    try:
        parsed = from_json(raw)
    except ValueError as error:
        raise _not_a_record(kind, key, str(error)) from error
    if not isinstance(parsed, dict):
        raise _not_a_record(kind, key, "it is not a JSON object")
    return parsed


def _not_a_record(kind: type, key: str, why: str) -> SchemaError:
    return SchemaError(f"{key} in etcd is not a valid {kind.__name__}: {why}")
