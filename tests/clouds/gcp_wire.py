"""Google's REST, in the test cloud: which call a request is, and whether its body and parameters are valid, by Google's
own discovery documents; filters and errors. Compute Engine's actions are named as in its document ("instances.insert"),
those of other APIs by the API, too ("iam.projects.roles.create").
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import googleapiclient

from tests.clouds import covered
from tests.clouds.base import Answer, FakeError

_DOCUMENTS = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
COMPUTE = "compute"
_VERSIONS = {COMPUTE: "compute.v1", "storage": "storage.v1"} | {
    name: f"{name}.v1" for name in ("iam", "cloudresourcemanager", "file")
}
# The APIs by the begin of a path, and what comes before the paths of their documents.
_PATHS = (
    (re.compile("/compute/v1/"), COMPUTE, "/compute/v1/"),
    (re.compile("/storage/v1/"), "storage", "/storage/v1/"),
    (re.compile("/v1/projects/[^/]+/locations/"), "file", "/"),
    (re.compile("/v1/projects/[^/]+$"), "cloudresourcemanager", "/"),
    (re.compile("/v1/"), "iam", "/"),
)
# google.aip.dev/193: the statuses of APIs that have no reasons. Other reasons are statuses already.
_STATUSES = {
    "rateLimitExceeded": (429, "RESOURCE_EXHAUSTED"),
    "backendError": (503, "UNAVAILABLE"),
    "forbidden": (403, "PERMISSION_DENIED"),
    "authError": (401, "UNAUTHENTICATED"),
    "notFound": (404, "NOT_FOUND"),
    "invalid": (400, "INVALID_ARGUMENT"),
    "invalidParameter": (400, "INVALID_ARGUMENT"),
    "badRequest": (400, "INVALID_ARGUMENT"),
}
NOT_ENABLED = "SERVICE_DISABLED"
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
        """In Google's format; of Compute Engine and Cloud Storage with reasons, of the others with a status."""
        if call is not None and call.api not in {COMPUTE, "storage"}:
            status, name = _STATUSES.get(self.reason, (self.status, self.reason))
            error: dict[str, Any] = {"code": status, "message": str(self), "status": name}
            if self.reason == NOT_ENABLED:
                info = "type.googleapis.com/google.rpc.ErrorInfo"
                error |= {"status": "PERMISSION_DENIED", "details": [{"@type": info, "reason": self.reason}]}
            return Answer(status, {"error": error})
        first = {"message": str(self), "domain": "global", "reason": self.reason}
        return Answer(self.status, {"error": {"code": self.status, "message": str(self), "errors": [first]}})


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    action: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    authorization: str
    api: str = COMPUTE


@dataclass(frozen=True, slots=True)
class _Method:
    action: str
    verb: str
    path: re.Pattern[str]
    query: frozenset[str]
    schema: str  # of the body; "" for none
    answer: str  # the schema of the answer; "" for none


@functools.cache
def _document(api: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((_DOCUMENTS / f"{_VERSIONS[api]}.json").read_text())
    return found


@functools.cache
def _methods(api: str) -> tuple[_Method, ...]:
    document = _document(api)
    common = set(document["parameters"])
    found = []
    for name, method in _described_methods(document["resources"]):
        path = method.get("flatPath", method["path"])
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", path)
        query = {key for key, each in method.get("parameters", {}).items() if each["location"] == "query"}
        schema, answer = (method.get(way, {}).get("$ref", "") for way in ("request", "response"))
        action = name if api == COMPUTE else f"{api}.{name}"
        found.append(
            _Method(action, method["httpMethod"], re.compile(pattern), frozenset(query | common), schema, answer)
        )
    return tuple(found)


def _described_methods(resources: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for resource, described in resources.items():
        yield from ((f"{above}{resource}.{name}", method) for name, method in described.get("methods", {}).items())
        yield from _described_methods(described.get("resources", {}), f"{above}{resource}.")


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """The call that a request makes. Raises FakeGcpError for requests outside Google's description."""
    # As it was sent: a slash within a name is quoted.
    path = environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0]
    api, prefix = next(((api, prefix) for begin, api, prefix in _PATHS if begin.match(path)), ("", ""))
    for method in _methods(api) if api else ():
        match = method.path.fullmatch(path.removeprefix(prefix))
        if match is None or method.verb != environ["REQUEST_METHOD"]:
            continue
        asked = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        unknown = sorted(set(asked) - method.query)
        if unknown:
            raise FakeGcpError(400, "invalidParameter", f"Unknown parameter {unknown[0]!r} of {method.action}")
        parsed = json.loads(body) if body else {}
        if parsed and not method.schema:
            raise FakeGcpError(400, "badRequest", f"{method.action} takes no body")
        covered.note_call(api, "request", method.action)
        complaints = list(_complaints(parsed, method.schema, "resource", api, "request")) if method.schema else []
        if complaints:
            raise FakeGcpError(400, "invalid", f"Invalid JSON payload received. {complaints[0]}")
        names = {key: unquote(each) for key, each in match.groupdict().items()}
        return Call(method.action, names, asked, parsed, environ.get("HTTP_AUTHORIZATION", ""), api)
    raise FakeGcpError(404, "notFound", f"The requested URL {path} was not found on this server.")


def against(call: Call, body: Any) -> Iterator[str]:
    """What of an answer's body Google's description does not know."""
    (schema,) = {each.answer for each in _methods(call.api) if each.action == call.action}
    covered.note_call(call.api, "answer", call.action)
    if schema:
        found = _complaints({} if body is None else body, schema, "answer", call.api, "answer")
        yield from (f"{call.action} of {call.api}'s discovery document: {each}" for each in found)
    elif body:
        yield f"{call.action} of {call.api}'s discovery document answers nothing, and not {body!r}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a document a value is described, and whether it is of a "request" or an "answer"."""

    api: str
    way: str
    kind: str


def _complaints(value: Any, schema: str, where: str, api: str, way: str) -> Iterator[str]:
    """What the document does not allow: unknown fields, wrong types, values outside an enumeration. `way`: whether it
    is a "request" or an "answer", which alone has what is for output only."""
    yield from _complaints_of(value, _document(api)["schemas"][schema], where, _Place(api, way, schema))


def _complaints_of(value: Any, described: Mapping[str, Any], where: str, place: _Place) -> Iterator[str]:
    if "$ref" in described:
        yield from _complaints(value, described["$ref"], where, place.api, place.way)
    elif described["type"] == "array":
        if not isinstance(value, list):
            yield f"{where}: not a list"
            return
        for number, each in enumerate(value):
            yield from _complaints_of(each, described["items"], f"{where}[{number}]", place)
    elif described["type"] == "object":
        yield from _complaints_of_object(value, described, where, place)
    elif described["type"] == "any":
        return
    elif not isinstance(value, _JSON_TYPES[described["type"]]) or (
        isinstance(value, bool) and described["type"] != "boolean"
    ):
        yield f"{where}: {value!r} is not of type {described['type']}"
    elif "enum" in described and value not in described["enum"]:
        yield f"Invalid value at '{where}': {value!r}"
    elif described.get("format") in {"int64", "uint64"} and not re.fullmatch(r"-?\d+", str(value)):
        yield f"{where}: {value!r} is no number"


def _complaints_of_object(value: Any, described: Mapping[str, Any], where: str, place: _Place) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: not an object"
        return
    properties = described.get("properties", {})
    for key, each in value.items():
        inner = properties.get(key, described.get("additionalProperties"))
        if inner is None:
            yield f"Unknown name \"{key}\" at '{where}': Cannot find field."
        elif inner.get("readOnly") and place.way == "request":
            yield f"{where}.{key} is output only"
        else:
            member = f"{place.kind}.{key if key in properties else '*'}"
            covered.note_member(place.api, place.way, member)
            yield from _complaints_of(each, inner, f"{where}.{key}", replace(place, kind=member))


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
    if field.partition(".")[0] not in _document(COMPUTE)["schemas"][schema]["properties"]:
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
