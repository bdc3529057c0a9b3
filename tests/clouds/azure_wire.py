"""Azure's wire format in the test cloud: requests and errors. (What they may consist of: azure_contract.py.)"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from tests.clouds.base import Answer, FakeError

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


def resource(path: str, kind: str) -> str:
    """The last name of a resource's id, of this kind; "" of another."""
    match = re.search(rf"/{kind}/([^/]+)$", path, re.IGNORECASE)
    return match[1] if match else ""
