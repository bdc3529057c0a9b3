"""Azure's requests and answers in the test cloud, held against Microsoft's own description of the api-version called.

The descriptions (azure_models, written by tools/azure_models.py) are of the operations, of the types of bodies and
answers, and of the versions that requests are sent with, and not those of the installed SDK, which knows a newer one.
Azure refuses a body with an unknown member (azure-cli#18855, azure-sdk-for-net#37855), and so does the test cloud; all
else that is not described is a complaint, which fails the test. Not described by any SDK: `NOT_DESCRIBED`, the retail
prices, and Entra ID's tokens.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.clouds import covered
from tests.clouds.azure_wire import Call, FakeAzureError
from tests.clouds.base import Answer

_MODELS = Path(__file__).with_name("azure_models")
# Addresses of operations that go on, from Azure's own headers: the SDK has no methods for them.
NOT_DESCRIBED = frozenset(
    {"Microsoft.Compute/locations/operations/read", "Microsoft.Storage/locations/asyncoperations/read"}
)
_PLAIN: Mapping[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool, "datetime": str}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class _Operation:
    """`query`: parameters, and whether they are required. `body`, `answer`: types; "" for none."""

    name: str
    method: str
    path: re.Pattern[str]
    query: Mapping[str, bool]
    body: str
    answer: str
    statuses: tuple[int, ...]


class _Document:
    """The description of a namespace in an api-version. `name`: as complaints and counts have it."""

    def __init__(self, name: str, described: Mapping[str, Any]) -> None:
        self.name = name
        self.types: Mapping[str, Mapping[str, str]] = described["types"]
        self.enumerations = {key: frozenset(values) for key, values in described["enumerations"].items()}
        self.required: Mapping[str, list[str]] = described["required"]
        self.read_only = {key: frozenset(members) for key, members in described["read_only"].items()}
        self.operations = [_operation(name, each) for name, each in described["operations"].items()]
        self._noted: set[tuple[str, str, str]] = set()

    def note(self, way: str, kind: str, member: str) -> None:
        """Note that a request or an answer had a member; once per process."""
        if (way, kind, member) not in self._noted:
            self._noted.add((way, kind, member))
            covered.note_member(self.name, way, f"{kind}.{member}")

    def find(self, call: Call) -> _Operation | None:
        """The operation that a call is; where two have one path, the one with its parameters."""
        path = call.path.rstrip("/")
        found = [each for each in self.operations if each.method == call.method and each.path.fullmatch(path)]
        return min(found, key=lambda each: len(set(call.query) - set(each.query)), default=None)


def _operation(name: str, described: Mapping[str, Any]) -> _Operation:
    # A scope is any number of parts.
    path = re.sub(r"\\{(\w+)\\}", lambda part: ".+" if part[1] == "scope" else "[^/]+", re.escape(described["path"]))
    return _Operation(
        name,
        described["method"],
        re.compile(path, re.IGNORECASE),
        described["query"],
        described["body"],
        described["answer"],
        tuple(described["statuses"]),
    )


@functools.cache
def _document(namespace: str, version: str) -> _Document | None:
    try:
        text = (_MODELS / f"{namespace.lower()}-{version}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return _Document(f"{namespace.lower()} {version}", json.loads(text))


def _must_have(namespace: str, version: str) -> _Document:
    if (found := _document(namespace, version)) is None:
        message = (
            f"No registered resource provider found for API version '{version}' of {namespace}: tools/azure_models.py"
        )
        raise FakeAzureError("NoRegisteredProviderFound", message)
    return found


@functools.cache
def _sdks_are_described() -> bool:
    """Whether the installed SDKs are those whose versions are described: others, as the oldest that are admitted, send
    other versions."""
    sources = {json.loads(each.read_text(encoding="utf-8"))["source"] for each in _MODELS.iterdir()}
    return all(f"{name}=={metadata.version(name)}" in sources for name in ("azure-mgmt-compute", "azure-mgmt-network"))


def _place(call: Call) -> tuple[str, str]:
    return call.action.partition("/")[0], call.query.get("api-version", "")


# -- calls ---------------------------------------------------------------------------------------------------


def asked(call: Call) -> Iterator[str]:
    """What of a request is not described, beside its body: its version, its operation, its parameters."""
    if call.action in NOT_DESCRIBED:
        return
    namespace, version = _place(call)
    document = _document(namespace, version)
    if document is None:
        if _sdks_are_described():
            yield f"{call.method} {call.path}: {namespace} {version} is not in tools/azure_models.py"
        return
    operation = document.find(call)
    if operation is None:
        yield f"{document.name} has no operation {call.method} {call.path} in tests/clouds/azure_models"
        return
    covered.note_call(document.name, "request", operation.name)
    # The rest of a listing has an address from Azure, with a parameter of Azure's own.
    own = {"$skiptoken"} if "nextLink" in document.types.get(operation.answer, {}) else set()
    for key in sorted({*call.query} - {*operation.query} - own):
        yield f"{operation.name} of {document.name} has no parameter '{key}'"
    for key in sorted(key for key, required in operation.query.items() if required and key not in call.query):
        yield f"{operation.name} of {document.name} requires the parameter '{key}'"


def check_members(call: Call) -> None:
    """Raises FakeAzureError for a body that the api-version of its request does not admit, as Azure does."""
    if not call.body:
        return
    document = _must_have(*_place(call))
    operation = document.find(call)
    if operation is None or not operation.body:
        raise FakeAzureError("BadRequest", f"{call.method} with a body, and no type of it is known: {call.action}")
    if found := _against(document, operation.body, call.json(), "request"):
        raise FakeAzureError("BadRequest", " ".join(found))


def against(call: Call, answer: Answer) -> Iterator[str]:
    """What of an answer is not described."""
    document = None if call.action in NOT_DESCRIBED else _document(*_place(call))
    if document is None or (operation := document.find(call)) is None:
        return  # `asked` has said so
    covered.note_call(document.name, "answer", operation.name)
    where = f"{operation.name} of {document.name}"
    if answer.status not in operation.statuses:
        yield f"{where} does not answer with status {answer.status}"
    if answer.body is None:
        if operation.answer and answer.status not in {202, 204}:
            yield f"{where} answers with a body, also with status {answer.status}"
    elif not operation.answer:
        yield f"{where} answers without a body, and not {answer.body!r}"
    else:
        yield from (f"{where}: {each}" for each in _against(document, operation.answer, answer.body, "answer"))


# -- bodies --------------------------------------------------------------------------------------------------


def complaints(body: object, namespace: str, version: str, kind: str, way: str = "request") -> list[str]:
    """What of a body is not described by this api-version, in Azure's words: members that it does not know, those that
    it requires, values of the wrong kind or outside of an enumeration. `way`: whether it is a "request" or an "answer",
    which alone has what is read-only. Raises FakeAzureError for a version that is not in tests/clouds/azure_models.
    """
    return _against(_must_have(namespace, version), kind, body, way)


def _against(document: _Document, kind: str, value: object, way: str) -> list[str]:
    return list(_of_value(document, kind, value, "", way))


def _of_value(document: _Document, kind: str, value: object, path: str, way: str) -> Iterable[str]:
    """`kind`: a type, "[TYPE]" for a list, "{TYPE}" for values by any name."""
    if value is None or kind == "object":
        return ()
    if kind in document.types and isinstance(value, dict):
        return _of_object(document, kind, value, path, way)
    if kind in document.enumerations or kind in _PLAIN:
        return () if _fits(document, kind, value) else _wrong(kind, value, path)
    items: Iterable[tuple[str, object]] = ()
    if kind.startswith("[") and isinstance(value, list):
        items = ((f"{path}[{number}]", each) for number, each in enumerate(value))
    elif kind.startswith("{") and isinstance(value, dict):
        items = ((f"{path}.{key}", each) for key, each in value.items())
    elif kind.strip("[]{}") not in {*document.types, *document.enumerations, *_PLAIN, "object"}:
        text = f"The type {kind} is not in tests/clouds/azure_models: name it in tools/azure_models.py. Path '{path}'."
        return (text,)
    else:
        return _wrong(kind, value, path)
    return [text for where, each in items for text in _of_value(document, kind[1:-1], each, where, way)]


def _wrong(kind: str, value: object, path: str) -> tuple[str]:
    return (f"Error converting value {value!r} to type '{kind}'. Path '{path}'.",)


def _fits(document: _Document, kind: str, value: object) -> bool:
    if kind in document.enumerations:
        return value in document.enumerations[kind]
    # In Python, a bool is an int, too.
    if not isinstance(value, _PLAIN[kind]) or (kind != "bool" and isinstance(value, bool)):
        return False
    return kind != "datetime" or _TIME.fullmatch(str(value)) is not None


def _of_object(document: _Document, kind: str, value: Mapping[str, Any], path: str, way: str) -> list[str]:
    known, found = document.types[kind], []
    hidden = document.read_only.get(kind, frozenset()) if way == "request" else frozenset()
    for key, each in value.items():
        inner = f"{path}.{key}" if path else key
        if key not in known:
            found.append(f"Could not find member '{key}' on object of type '{kind}'. Path '{inner}'.")
        elif key in hidden:
            found.append(f"The member '{key}' on object of type '{kind}' is read-only. Path '{inner}'.")
        else:
            document.note(way, kind, key)
            found += _of_value(document, known[key], each, inner, way)
    for key in document.required.get(kind, ()):
        if value.get(key) is None:
            found.append(f"Required property '{key}' not found in JSON. Path '{path}'.")
    return found
