"""Compute Engine's REST, in the test cloud: which call a request is, and whether its body and parameters are valid, by
Google's own discovery document; filters and errors.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import googleapiclient

from tests.clouds.base import Answer, FakeError

DOCUMENT = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents" / "compute.v1.json"
PREFIX = "/compute/v1/"
_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


class FakeGcpError(FakeError):
    """An error by its HTTP status and reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    def answer(self, call: Any) -> Answer:
        """In Google's format."""
        first = {"message": str(self), "domain": "global", "reason": self.reason}
        return Answer(self.status, {"error": {"code": self.status, "message": str(self), "errors": [first]}})


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `action`: as the document names it, "instances.insert"."""

    action: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    authorization: str


@dataclass(frozen=True, slots=True)
class _Method:
    action: str
    verb: str
    path: re.Pattern[str]
    query: frozenset[str]
    schema: str


@functools.cache
def _document() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(DOCUMENT.read_text())
    return found


@functools.cache
def _methods() -> tuple[_Method, ...]:
    document = _document()
    common = set(document["parameters"])
    found = []
    for resource, described in document["resources"].items():
        for name, method in described.get("methods", {}).items():
            pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", method["flatPath"])
            query = {key for key, each in method["parameters"].items() if each["location"] == "query"}
            schema = method.get("request", {}).get("$ref", "")
            one = _Method(
                f"{resource}.{name}", method["httpMethod"], re.compile(pattern), frozenset(query | common), schema
            )
            found.append(one)
    return tuple(found)


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """The call that a request makes. Raises FakeGcpError for requests outside Google's description."""
    path = environ["PATH_INFO"]
    for method in _methods():
        match = method.path.fullmatch(path.removeprefix(PREFIX))
        if match is None or method.verb != environ["REQUEST_METHOD"]:
            continue
        asked = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        unknown = sorted(set(asked) - method.query)
        if unknown:
            raise FakeGcpError(400, "invalidParameter", f"Unknown parameter {unknown[0]!r} of {method.action}")
        parsed = json.loads(body) if body else {}
        if parsed and not method.schema:
            raise FakeGcpError(400, "badRequest", f"{method.action} takes no body")
        complaints = list(_complaints(parsed, method.schema, "resource")) if method.schema else []
        if complaints:
            raise FakeGcpError(400, "invalid", f"Invalid JSON payload received. {complaints[0]}")
        names = {key: unquote(each) for key, each in match.groupdict().items()}
        return Call(method.action, names, asked, parsed, environ.get("HTTP_AUTHORIZATION", ""))
    raise FakeGcpError(404, "notFound", f"The requested URL {path} was not found on this server.")


def _complaints(value: Any, schema: str, where: str) -> Iterator[str]:
    """What the document does not allow: unknown fields, wrong types, values outside an enumeration."""
    yield from _complaints_of(value, _document()["schemas"][schema], where)


def _complaints_of(value: Any, described: Mapping[str, Any], where: str) -> Iterator[str]:
    if "$ref" in described:
        yield from _complaints(value, described["$ref"], where)
    elif described["type"] == "array":
        if not isinstance(value, list):
            yield f"{where}: not a list"
            return
        for number, each in enumerate(value):
            yield from _complaints_of(each, described["items"], f"{where}[{number}]")
    elif described["type"] == "object":
        yield from _complaints_of_object(value, described, where)
    elif not isinstance(value, _JSON_TYPES[described["type"]]) or (
        isinstance(value, bool) and described["type"] != "boolean"
    ):
        yield f"{where}: {value!r} is not of type {described['type']}"
    elif "enum" in described and value not in described["enum"]:
        yield f"Invalid value at '{where}': {value!r}"
    elif described.get("format") in {"int64", "uint64"} and not re.fullmatch(r"-?\d+", str(value)):
        yield f"{where}: {value!r} is no number"


def _complaints_of_object(value: Any, described: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: not an object"
        return
    properties = described.get("properties", {})
    for key, each in value.items():
        inner = properties.get(key, described.get("additionalProperties"))
        if inner is None:
            yield f"Unknown name \"{key}\" at '{where}': Cannot find field."
        elif inner.get("readOnly"):
            yield f"{where}.{key} is output only"
        else:
            yield from _complaints_of(each, inner, f"{where}.{key}")


# -- filters -------------------------------------------------------------------------------------------------

_HAS = re.compile(r"([\w.-]+):\*")
_REGEX = re.compile(r"([\w.-]+) (eq|ne) '([^']*)'")
_TERM = re.compile(r"\(?([\w.-]+) (=|!=) (\"[^\"]*\"|[\w.-]+)\)?")


def filter_of(text: str, schema: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an item passes: one regular expression, one field that has to be there, or equalities joined by AND or by
    OR. Raises FakeGcpError.
    """
    if not text:
        return lambda _: True
    if match := _HAS.fullmatch(text):
        there = match[1]
        _must_be_known(there, schema)
        return lambda item: bool(_field(item, there))
    if match := _REGEX.fullmatch(text):
        field, verb, pattern = match.groups()
        _must_be_known(field, schema)
        compiled = re.compile(pattern)
        return lambda item: (compiled.fullmatch(_field(item, field)) is not None) is (verb == "eq")
    joint = " OR " if " OR " in text else " AND "
    terms = [_TERM.fullmatch(each) for each in text.split(joint)]
    if not all(terms):
        raise FakeGcpError(
            400, "invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
        )
    tests = [(match[1], match[2] == "=", match[3].strip('"')) for match in terms if match]
    for field, _, _ in tests:
        _must_be_known(field, schema)
    hold = any if joint == " OR " else all
    return lambda item: hold((_field(item, field) == value) is wanted for field, wanted, value in tests)


def _must_be_known(field: str, schema: str) -> None:
    if field.partition(".")[0] not in _document()["schemas"][schema]["properties"]:
        raise FakeGcpError(400, "invalid", f"Invalid value for field 'filter': no field {field!r}")


def _field(item: Mapping[str, Any], path: str) -> str:
    value: Any = item
    for part in path.split(".", maxsplit=1):
        value = value.get(part, {}) if isinstance(value, Mapping) else {}
    return value if isinstance(value, str) else ""


def page(items: Sequence[Any], query: Mapping[str, str]) -> tuple[Sequence[Any], dict[str, str]]:
    """The requested page of a listing, and the token of the next one."""
    most = int(query.get("maxResults") or 500)
    if most > 500:
        raise FakeGcpError(400, "invalid", "Invalid value for field 'maxResults': must be at most 500")
    first = int(query.get("pageToken") or 0)
    more = {"nextPageToken": str(first + most)} if len(items) > first + most else {}
    return items[first : first + most], more
