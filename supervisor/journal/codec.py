"""Records as JSON and back, strictly: no field is lost, and a record of another schema is refused, never guessed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from json import JSONEncoder
from typing import Any, TypeAlias, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from supervisor.access import AuditEntry, TokenRecord
from supervisor.budget import BudgetRecord
from supervisor.curve import Curve
from supervisor.errors import SchemaError
from supervisor.market.journaled import CapacityRecord
from supervisor.model import SCHEMA_VERSION, ClusterRecord, DaemonPause, Event, JobRecord, NodeRecord, PastRun
from supervisor.sealed import SecretRecord
from supervisor.sweep import SweepRecord

AnyRecord: TypeAlias = (
    JobRecord
    | NodeRecord
    | Event
    | ClusterRecord
    | DaemonPause
    | PastRun
    | CapacityRecord
    | BudgetRecord
    | Curve
    | TokenRecord
    | AuditEntry
    | SweepRecord
    | SecretRecord
)
Record = TypeVar(
    "Record",
    JobRecord,
    NodeRecord,
    Event,
    ClusterRecord,
    DaemonPause,
    PastRun,
    CapacityRecord,
    BudgetRecord,
    Curve,
    TokenRecord,
    AuditEntry,
    SweepRecord,
    SecretRecord,
)

_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter[Any](kind) for kind in get_args(AnyRecord)}
MAX_RECORD_BYTES = 1024 * 1024
_FINITE = JSONEncoder(allow_nan=False)
# Fields that are gone, which records of before may have: without them a record means the same, or what its change says.
_REMOVED: Mapping[type, frozenset[str]] = {SweepRecord: frozenset({"early_stop"})}
_FIELDS = {kind: frozenset(field.name for field in fields(kind)) for kind in _ADAPTERS}


def dump(record: AnyRecord) -> bytes:
    """Encode a record as JSON."""
    return _ADAPTERS[type(record)].dump_json(record)


def load(kind: type[Record], raw: bytes, key: str) -> Record:
    """Decode a record. Raises SchemaError if it has another schema, or is not a record of this kind.

    Every field has its declared type, numbers are finite, and its size and depth are bounded.
    """
    if len(raw) > MAX_RECORD_BYTES:
        raise _not_a_record(kind, key, f"it has {len(raw)} bytes; at most {MAX_RECORD_BYTES} are read")
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
    unknown = sorted(parsed.keys() - _FIELDS[kind] - _REMOVED.get(kind, frozenset()))
    if unknown or version > SCHEMA_VERSION:
        what = f"it has `{unknown[0]}`" if unknown else f"schema {version}; this one reads {SCHEMA_VERSION}"
        raise SchemaError(
            f"{key} was written by a newer spotsupd ({what}): run the newer version, or restore an older backup"
        )
    try:
        record = _ADAPTERS[kind].validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        # Not chained: pydantic's own text quotes the record, which may hold a job's secrets.
        raise _not_a_record(kind, key, f"{where}: {first['msg']}" if where else first["msg"]) from None
    assert isinstance(record, kind)
    return record


def schema_of(raw: bytes) -> object:
    """Return the schema that a record names; this daemon's where it names none, or is no record."""
    try:
        parsed = from_json(raw)
    except ValueError:
        return SCHEMA_VERSION
    return parsed.get("schema", SCHEMA_VERSION) if isinstance(parsed, dict) else SCHEMA_VERSION


def _parsed(kind: type, raw: bytes, key: str) -> dict[str, Any]:
    try:
        parsed = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise _not_a_record(kind, key, str(error)) from error
    if not isinstance(parsed, dict):
        raise _not_a_record(kind, key, "it is not a JSON object")
    if not _is_finite(parsed):
        raise _not_a_record(kind, key, "a number is too large")
    return parsed


def _is_finite(value: Any) -> bool:
    """True if no number in it is too large for a float: from_json reads 1e999 as infinity."""
    try:
        _FINITE.encode(value)
    except ValueError:
        return False
    return True


def _not_a_record(kind: type, key: str, why: str) -> SchemaError:
    return SchemaError(f"{key} in etcd is not a valid {kind.__name__}: {why}")
