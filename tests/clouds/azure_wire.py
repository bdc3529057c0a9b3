"""Azure's wire format in the test cloud: requests, answers, errors, and which members a request may have.

The members are those of the api-version that a request is sent with (azure_models, written by tools/azure_models.py),
and not those of the installed SDK, which knows a newer one. Source of the refusal and its words: azure-cli#18855,
azure-sdk-for-net#37855.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.clouds.base import Answer, FakeError

_MODELS = Path(__file__).with_name("azure_models")
# The types of all bodies that are sent, by method and permission.
_BODIES = {
    ("PUT", "Microsoft.Compute/virtualMachines/write"): "VirtualMachine",
    ("PUT", "Microsoft.Network/networkSecurityGroups/write"): "NetworkSecurityGroup",
    ("PUT", "Microsoft.Network/networkSecurityGroups/securityRules/write"): "SecurityRule",
    ("PUT", "Microsoft.Network/virtualNetworks/write"): "VirtualNetwork",
    ("PUT", "Microsoft.ManagedIdentity/userAssignedIdentities/write"): "Identity",
    ("PUT", "Microsoft.Authorization/roleDefinitions/write"): "RoleDefinition",
    ("PUT", "Microsoft.Authorization/roleAssignments/write"): "RoleAssignmentCreateParameters",
    ("POST", "Microsoft.Storage/checknameavailability/read"): "StorageAccountCheckNameAvailabilityParameters",
    ("PUT", "Microsoft.Storage/storageAccounts/write"): "StorageAccountCreateParameters",
    ("PATCH", "Microsoft.Storage/storageAccounts/write"): "StorageAccountUpdateParameters",
    ("PUT", "Microsoft.Storage/storageAccounts/fileServices/shares/write"): "FileShare",
    ("PUT", "Microsoft.Storage/storageAccounts/blobServices/containers/write"): "BlobContainer",
}
_PLAIN: Mapping[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}

# HTTP statuses: 409 for most; the rest by ARM's page on common errors.
_STATUS = {
    "BadRequest": 400,
    "NoRegisteredProviderFound": 400,
    "InvalidParameter": 400,
    "InvalidResourceReference": 400,
    "InvalidTagNameCharacters": 400,
    "InvalidResourceName": 400,
    "LinkedInvalidPropertyId": 400,
    "PlatformImageNotFound": 404,
    "ResourceNotFound": 404,
    "ResourceGroupNotFound": 404,
    "NotFound": 404,
    "ContainerNotFound": 404,
    "ShareNotFound": 404,
    "AccountNameInvalid": 400,
    "InvalidRequestPropertyValue": 400,
    "InvalidHeaderValue": 400,
    "InvalidShareQuota": 400,
    "RoleDefinitionDoesNotExist": 404,
    "PrincipalNotFound": 400,
    "PreconditionFailed": 412,
    "AuthorizationFailed": 403,
    "InvalidAuthenticationToken": 401,
    "ExpiredAuthenticationToken": 401,
    "TooManyRequests": 429,
    "ServiceUnavailable": 503,
    "InternalServerError": 500,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    action: str = ""

    def json(self) -> dict[str, Any]:
        """The body."""
        found = json.loads(self.body or b"{}")
        assert isinstance(found, dict)
        return found


class FakeAzureError(FakeError):
    """An error by its code."""

    def __init__(self, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers or {}

    def answer(self, call: Any) -> Answer:
        """In ARM's format."""
        body = {"error": {"code": self.code, "message": str(self)}}
        return Answer(_STATUS.get(self.code, 409), body, self.headers)


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """A request of WSGI's."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    return Call(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, headers, body)


@functools.cache
def _models(namespace: str, version: str) -> Mapping[str, Any]:
    try:
        found: dict[str, Any] = json.loads(
            (_MODELS / f"{namespace.lower()}-{version}.json").read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        message = (
            f"No registered resource provider found for API version '{version}' of {namespace}: tools/azure_models.py"
        )
        raise FakeAzureError("NoRegisteredProviderFound", message) from None
    return found


def complaints(body: object, namespace: str, version: str, kind: str) -> list[str]:
    """What of a body Azure refuses by its members alone, in its words: those that this api-version does not know, those
    that it requires, values of the wrong kind or outside of an enumeration. Raises FakeAzureError for a version whose
    models are not in tests/clouds/azure_models.
    """
    return list(_against(_models(namespace, version), kind, body, ""))


def _against(models: Mapping[str, Any], kind: str, value: object, path: str) -> Iterator[str]:
    """`kind`: a type, "[TYPE]" for a list, "{TYPE}" for values by any name."""
    if value is None:
        return
    if kind.startswith("[") and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _against(models, kind[1:-1], each, f"{path}[{number}]")
    elif kind.startswith("{") and isinstance(value, dict):
        for key, each in value.items():
            yield from _against(models, kind[1:-1], each, f"{path}.{key}")
    elif kind in models["types"] and isinstance(value, dict):
        yield from _against_object(models, kind, value, path)
    elif kind.strip("[]{}") not in {*models["types"], *models["enumerations"], *_PLAIN}:
        yield f"The type {kind} is not in tests/clouds/azure_models: name it in tools/azure_models.py. Path '{path}'."
    elif not _fits(models, kind, value):
        yield f"Error converting value {value!r} to type '{kind}'. Path '{path}'."


def _fits(models: Mapping[str, Any], kind: str, value: object) -> bool:
    if kind in models["enumerations"]:
        return value in models["enumerations"][kind]
    # In Python, a bool is an int, too.
    return kind in _PLAIN and isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))


def _against_object(models: Mapping[str, Any], kind: str, value: Mapping[str, Any], path: str) -> Iterator[str]:
    known = models["types"][kind]
    for key, each in value.items():
        inner = f"{path}.{key}".lstrip(".")
        if key in known:
            yield from _against(models, known[key], each, inner)
        else:
            yield f"Could not find member '{key}' on object of type '{kind}'. Path '{inner}'."
    for key in models["required"].get(kind, ()):
        if value.get(key) is None:
            yield f"Required property '{key}' not found in JSON. Path '{path}'."


def check_members(call: Call) -> None:
    """Raises FakeAzureError for a body that the api-version of its request does not admit, as Azure does."""
    if not call.body:
        return
    kind = _BODIES.get((call.method, call.action))
    if kind is None:
        raise FakeAzureError("BadRequest", f"{call.method} with a body, and no type of it is known: {call.action}")
    namespace = call.action.partition("/")[0]
    if found := complaints(call.json(), namespace, call.query["api-version"], kind):
        raise FakeAzureError("BadRequest", " ".join(found))


def resource(path: str, kind: str) -> str:
    """The last name of a resource's id, of this kind; "" of another."""
    match = re.search(rf"/{kind}/([^/]+)$", path, re.IGNORECASE)
    return match[1] if match else ""
