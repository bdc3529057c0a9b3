"""Azure's wire format in the test cloud: requests, answers, errors, and validation by the SDK's models."""

from __future__ import annotations

import enum
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from azure.mgmt.compute import models

from tests.clouds.base import Answer, FakeError

# HTTP statuses: 409 for most; the rest by ARM's page on common errors.
_STATUS = {
    "InvalidParameter": 400,
    "InvalidRequestContent": 400,
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


def complaints(body: object, model: type = models.VirtualMachine, where: str = "$") -> list[str]:
    """What a body has that is not in the SDK's model: names, values of enumerations, types of values."""
    if not isinstance(body, dict):
        return [f"{where}: no object"]
    attributes = {field_._rest_name: name for name, field_ in model({})._attr_to_rest_field.items()}
    hints = _hints(model)
    found = []
    for key, value in body.items():
        if key not in attributes:
            found.append(f"{where}.{key}: unknown")
        else:
            found += _against(value, hints[attributes[key]], f"{where}.{key}")
    return found


def _hints(model: type) -> dict[str, Any]:
    package = sys.modules[model.__module__.rpartition(".")[0]]
    names = {"_models": package, "_types": types, "datetime": __import__("datetime")}
    names |= {name: getattr(package, name) for name in package.__all__}
    return typing.get_type_hints(model, globalns={**vars(__import__(model.__module__, fromlist=["x"])), **names})


def _against(value: object, hint: Any, where: str) -> list[str]:
    if value is None:
        return []
    kinds = [each for each in _alternatives(hint) if each is not type(None)]
    enums = [each for each in kinds if isinstance(each, type) and issubclass(each, enum.Enum)]
    if models.VirtualMachineSizeTypes in enums:
        return []  # the model's list is of 2019; the cloud's SKUs have the existing sizes
    if enums:
        known = {member.value for each in enums for member in each}
        return [] if value in known else [f"{where}: {value!r} is none of {sorted(known)}"]
    for kind in kinds:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in {list, typing.Sequence} and isinstance(value, list):
            return [each for n, item in enumerate(value) for each in _against(item, arguments[0], f"{where}[{n}]")]
        if origin in {dict, typing.Mapping} and isinstance(value, dict):
            return [each for key, item in value.items() for each in _against(item, arguments[1], f"{where}.{key}")]
        if isinstance(kind, type) and kind.__module__.startswith("azure.mgmt"):
            return complaints(value, kind, where)
    plain = {str: str, int: int, float: (int, float), bool: bool}
    wanted = [plain[each] for each in kinds if each in plain]
    if wanted and not any(_is(value, each) for each in wanted):
        return [f"{where}: {value!r} is of a wrong kind"]
    return []


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _alternatives(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return [each for argument in typing.get_args(hint) for each in _alternatives(argument)]
    return [hint]


def resource(path: str, kind: str) -> str:
    """The last name of a resource's id, of this kind; "" of another."""
    match = re.search(rf"/{kind}/([^/]+)$", path, re.IGNORECASE)
    return match[1] if match else ""
