"""Cloud Storage's XML API on loopback: moto's S3, whose requests and listings it shares, and what differs from S3.

That part is ours, made from Google's documentation, for no server that can be installed here speaks it: generations and
conditions on them ("Request preconditions"; "HTTP headers and query string parameters for the XML API"), a token in
place of a signature, one deletion per request, and 404 for one of an object that is not there ("Delete object").
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from tests.support.object_gate import Answer
from tests.support.s3 import S3

TOKEN = "ya29.test"  # noqa: S105 - of this server alone
_GENERATION = "x-goog-generation"


class Gcs(S3):
    """One bucket. What is not in Google's XML API, or not as obstore's client has to send it, is refused."""

    # "HTTP status and error codes for XML".
    slow_down = "503 Service Unavailable", "ServiceUnavailable", "Service temporarily unavailable. Try again later."
    internal = "500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."
    denied = "403 Forbidden", "AccessDenied", "Access denied."
    missing = "404 Not Found", "NoSuchBucket", "The specified bucket does not exist."

    unknown_credentials: ClassVar = {"GOOGLE_BEARER_TOKEN": "ya29.another"}

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(host)
        # Method, the request's own line, and its headers of Google's, as they were sent.
        self.sent: list[tuple[str, str, dict[str, str]]] = []
        self._generations: dict[str, int] = {}
        # Microseconds in Google's; here they only have to grow.
        self._next = itertools.count(1_700_000_000_000_000)

    @property
    def environ(self) -> dict[str, str]:
        """What points clients here."""
        return {"GOOGLE_BASE_URL": self.url, "GOOGLE_BEARER_TOKEN": TOKEN}

    def place_of(self, bucket: str, prefix: str) -> str:
        """As the base says."""
        return f"gs://{bucket}/{prefix}"

    def serve(self, environ: dict[str, Any], body: bytes) -> Answer:
        """As the base says. Names are one escaped path segment, as Google takes them."""
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        if authorization.startswith("AWS4-HMAC-SHA256"):
            return self._by_tests(environ, body)
        if authorization != f"Bearer {TOKEN}":
            return _refusal("401 Unauthorized", "AuthenticationRequired", "Authentication required.")
        method, path = environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"])
        google = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_X_GOOG_")}
        self.sent.append((method, environ["REQUEST_URI"], google))
        # moto knows no escaped bucket's name, and reads the request's own line before PATH_INFO.
        query = environ.get("QUERY_STRING", "")
        environ["PATH_INFO"] = path
        environ["REQUEST_URI"] = environ["RAW_URI"] = quote(path) + (f"?{query}" if query else "")
        is_object = bool(self.key_in(path)) and path.startswith(f"/{self.bucket}/")
        if method not in {"GET", "HEAD", "PUT", "DELETE"}:
            return _refusal("405 Method Not Allowed", "MethodNotAllowed", "The method is not allowed.")
        if not is_object:
            return super().serve(environ, body)
        wanted = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
        if wanted is not None and int(wanted) != self._generations.get(path, 0):
            return _refusal("412 Precondition Failed", "PreconditionFailed", "At least one condition did not hold.")
        if method == "DELETE" and path not in self._generations:
            return _refusal("404 Not Found", "NoSuchKey", "The specified key does not exist.")
        status, headers, content = super().serve(environ, body)
        if status.startswith("2"):
            self._written(method, path)
            if path in self._generations:
                headers.append((_GENERATION, str(self._generations[path])))
        return status, headers, content

    def _by_tests(self, environ: dict[str, Any], body: bytes) -> Answer:
        """The tests' own controls, which are boto3's."""
        answer = super().serve(environ, body)
        if answer[0].startswith("2") and self.key_in(environ["PATH_INFO"]):
            self._written(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        return answer

    def _written(self, method: str, path: str) -> None:
        if method == "PUT":
            self._generations[path] = next(self._next)
        elif method == "DELETE":
            self._generations.pop(path, None)


def _refusal(status: str, code: str, message: str) -> Answer:
    text = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    )
    return status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))], text
