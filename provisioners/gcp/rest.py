"""Google's APIs that google-cloud-compute does not have: IAM, Resource Manager, Cloud Storage and Filestore, as REST.

A library for each would bring grpc; these are few calls, of one command. Errors: AIP-193 (google.aip.dev/193) for IAM,
Resource Manager and Filestore, whose `status` is the code, or the `reason` where the API is not enabled; "Status and
error codes for JSON", Cloud Storage, which has reasons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from provisioners.base import DeniedError, ProvisionerError
from provisioners.calls import Deadline, NoAnswerError, NoCredentialsError, NotSentError, repeated
from provisioners.codes import ApiError, Code, ErrorTable, Kind, denied
from provisioners.gcp.client import Limits, first_line, never_left, raise_of_auth
from provisioners.gcp.errors import GcpErrorReply
from provisioners.gcp.settings import GcpSettings

IAM, RESOURCES, STORAGE, FILESTORE = "iam", "cloudresourcemanager", "storage", "file"
NAMES = {IAM: "Google IAM", RESOURCES: "Google's Resource Manager", STORAGE: "Cloud Storage", FILESTORE: "Filestore"}
NOT_ENABLED = "SERVICE_DISABLED"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_RENEW = "renew the Google credentials of whoever runs this"
_AIP = "google.aip.dev/193"
TABLE = (
    denied("UNAUTHENTICATED", _AIP, _RENEW),
    denied("authError", "Cloud Storage", _RENEW),
    denied("HTTP401", "HTTP", _RENEW),
    Code("RESOURCE_EXHAUSTED", Kind.THROTTLED, _AIP),
    Code("rateLimitExceeded", Kind.THROTTLED, "Cloud Storage"),
    Code("HTTP429", Kind.THROTTLED, "HTTP"),
    *(Code(name, Kind.UNKNOWN, _AIP) for name in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "UNKNOWN")),
    *(Code(name, Kind.UNKNOWN, "Cloud Storage") for name in ("backendError", "internalError")),
    *(Code(f"HTTP{number}", Kind.UNKNOWN, "HTTP") for number in (500, 502, 503, 504)),
)
ERRORS = ErrorTable(TABLE)


class Rest:
    """Calls to these APIs, with the application default credentials. For one thread."""

    def __init__(self, settings: GcpSettings) -> None:
        import requests

        from provisioners.gcp.auth import Bearer

        self._settings = settings
        self._bearer = Bearer(_SCOPES)
        self._session = requests.Session()

    def who(self, timeout_s: float) -> str:
        """Return whose the credentials are, as far as they say."""
        try:
            self._bearer.renew(timeout_s)
        except Exception as error:
            try:
                raise_of_auth(error, "Google Cloud")
            except NoCredentialsError as missing:
                raise DeniedError(str(missing)) from error
            except NotSentError as unsent:
                raise ProvisionerError(str(unsent)) from error
            raise
        return self._bearer.email or "the user of the application default credentials"

    def ask(self, api: str, verb: str, path: str, timeout_s: float, *, want: str = "", **more: Any) -> dict[str, Any]:
        """Make a call that changes nothing, repeated a few times. `want`: a key of each such answer; without it, it is
        a proxy's page, say. Raises ApiError for a final refusal, else a ProvisionerError."""

        def once(left_s: float) -> dict[str, Any]:
            answer = self.once(api, verb, path, left_s, **more)
            if want and want not in answer:
                raise NoAnswerError(f"{NAMES[api]} answered without {want}")
            return answer

        return repeated(once, ERRORS, Deadline(timeout_s), f"{NAMES[api]} did not answer in time")

    def once(
        self,
        api: str,
        verb: str,
        path: str,
        timeout_s: float,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make one call, in one attempt. Raises ApiError, NotSentError, NoAnswerError, NoCredentialsError."""
        import requests

        where, deadline = NAMES[api], Deadline(timeout_s)
        try:
            self._bearer.renew(deadline.left_s())
        except Exception as error:
            raise_of_auth(error, where)
            raise
        headers = {"Authorization": f"Bearer {self._bearer.token}", "Content-Type": "application/json"}
        if billed := self._bearer.billed_to(self._settings.project):
            headers["X-Goog-User-Project"] = billed
        url = f"{self._settings.endpoint or f'https://{api}.googleapis.com'}/{path}"
        limited = Limits(deadline.left_s())(self._session.request)
        try:
            answer = limited(
                verb,
                url,
                params=query,
                data=None if body is None else json.dumps(body),
                headers=headers,
                verify=self._settings.endpoint_ca or True,
                allow_redirects=False,
            )
        except requests.exceptions.ConnectionError as error:
            if never_left(error):
                raise NotSentError(f"{where} cannot be reached: {first_line(error)}") from error
            raise NoAnswerError(f"{where} closed the connection: {first_line(error)}") from error
        except requests.exceptions.RequestException as error:
            raise NoAnswerError(f"{where} gave no usable answer: {first_line(error)}") from error
        try:
            found = answer.json() if answer.content else {}
        except ValueError:
            found = None
        if answer.status_code >= requests.codes.bad_request:
            raise ApiError(_reply(found, answer.status_code, api, self._settings.project))
        if not isinstance(found, dict) or not answer.ok:
            raise NoAnswerError(f"{where} gave no usable answer: HTTP {answer.status_code} without JSON")
        return found


def _reply(found: Any, status: int, api: str, project: str) -> GcpErrorReply:
    """Return the code: why the API as a whole refuses, else its own word, else HTTP's."""
    raw = found.get("error") if isinstance(found, dict) else None
    error = raw if isinstance(raw, dict) else {}
    details = [each for each in error.get("details") or () if isinstance(each, dict)]
    reasons = [each["reason"] for each in details if each.get("reason") == NOT_ENABLED]
    listed = [each["reason"] for each in error.get("errors") or () if isinstance(each, dict) and each.get("reason")]
    # Resource Manager gives a list for those who know its old form; the status says the same in the others' words.
    code = next(iter([*reasons, *([error["status"]] if error.get("status") else []), *listed]), f"HTTP{status}")
    return GcpErrorReply(project, str(code), str(error.get("message") or ""), api=NAMES[api])
