"""Calls for a project's account: those that look are repeated, those that change something are made once; a refusal
says whether to look again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from provisioners.account import Begun, Do, NotUsedError, NotYetError, Resource, Seen, changed_once, refusal_of
from provisioners.base import DeniedError, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.codes import ApiError
from provisioners.gcp import names
from provisioners.gcp.client import Gcp
from provisioners.gcp.errors import ERRORS, is_gone
from provisioners.gcp.rest import ERRORS as REST_ERRORS
from provisioners.gcp.rest import NOT_ENABLED, Rest
from provisioners.gcp.settings import GcpSettings

CALL_S = 20.0
MAX_PAGES = 100
ALLOWED = "docs/permissions/gcp-account-role.yaml"
# What is there already, not there yet, being changed by another, or still in use: the next look decides. Sources:
# google.aip.dev/193 for the names; terraform-provider-google#2939: a new service account is not known everywhere for
# a minute; "Setting a policy" (Cloud Storage): 412 for an etag that is old.
NOT_YET = frozenset(
    {
        *("ALREADY_EXISTS", "ABORTED", "NOT_FOUND", "conditionNotMet", "notFound", "conflict"),
        *("alreadyExists", "resourceNotReady", "resourceInUseByAnotherResource", "RESOURCE_NOT_READY"),
    }
)
# A new account, or a new role, in a policy: "Service account x does not exist", with these codes.
_UNKNOWN_YET = ("does not exist", frozenset({"INVALID_ARGUMENT", "invalid", "badRequest"}))
DENIALS = frozenset({"PERMISSION_DENIED", "forbidden", "insufficientPermissions", "IAM_PERMISSION_DENIED", "HTTP403"})
_DISABLED = frozenset({NOT_ENABLED, "accessNotConfigured"})
_COMPUTE = "compute"


class Calls:
    """Calls to Compute Engine by its SDK, and to the other APIs by REST. `permission`: what each needs."""

    def __init__(self, settings: GcpSettings) -> None:
        self._gcp = Gcp(settings)
        self._rest = Rest(settings)
        self._settings = settings

    def who(self) -> str:
        """Return whose the credentials are."""
        return self._rest.who(CALL_S)

    def get(self, api: str, verb: str, path: str, permission: str, **more: Any) -> dict[str, Any] | None:
        """Return what a call shows; None where there is no such thing."""
        try:
            return self.ask(api, verb, path, permission, **more)
        except ApiError as error:
            if error.reply.code in {"NOT_FOUND", "notFound"}:
                return None
            raise

    def ask(self, api: str, verb: str, path: str, permission: str, **more: Any) -> dict[str, Any]:
        """Make a call that changes nothing. Raises ApiError, ProvisionerError."""
        ask = functools.partial(self._rest.ask, api, verb, path, CALL_S, **more)
        found: dict[str, Any] = self._permitted(ask, api, permission)
        return found

    def change(self, api: str, verb: str, path: str, permission: str, **more: Any) -> dict[str, Any]:
        """Make a call that changes something: once. Raises NotYetError, ApiError, ProvisionerError."""
        once = functools.partial(self._rest.once, api, verb, path, CALL_S, **more)
        found: dict[str, Any] = self._once(once, api, permission)
        return found

    def listed(self, api: str, path: str, permission: str, key: str, size: int) -> Iterator[dict[str, Any]]:
        """Yield all of a listing, which has no key at all where it is empty. Raises UnreachableError for one with gaps
        in our regions."""
        query = {"pageSize": str(size)}
        for _ in range(MAX_PAGES):
            answer = self.ask(api, "GET", path, permission, query=query)
            if unknown := sorted(set(answer) - {key, "nextPageToken", "unreachable"}):
                raise UnreachableError(f"a listing of {key} has {unknown[0]!r} in it: it is not Google's")
            if gaps := [str(each) for each in answer.get("unreachable", ()) if self._is_ours(str(each))]:
                raise UnreachableError(f"a listing of {key} lacks {', '.join(gaps)}; repeat")
            yield from answer.get(key, ())
            if not (token := answer.get("nextPageToken")):
                return
            query = {**query, "pageToken": str(token)}
        raise ProvisionerError(f"there are more than {MAX_PAGES} pages of {key}")

    def _is_ours(self, location: str) -> bool:
        place = names.last_of(location)
        return place in self._settings.regions or names.region_of(place) in self._settings.regions

    def compute(self, service: str, method: str, permission: str, **parameters: Any) -> Any:
        """Make a call to Compute Engine that changes nothing. Raises ApiError, ProvisionerError."""
        ask = functools.partial(self._gcp.ask, service, method, Deadline(CALL_S), **parameters)
        return self._permitted(ask, _COMPUTE, permission)

    def compute_pages(self, service: str, permission: str, kind: str) -> list[Any]:
        """Return all pages of a listing. Raises as `compute`."""

        def read() -> list[Any]:
            return list(self._gcp.pages(service, "list", Deadline(CALL_S), kind, max_results=500))

        pages: list[Any] = self._permitted(read, _COMPUTE, permission)
        return pages

    def compute_change(self, service: str, method: str, permission: str, **parameters: Any) -> Begun:
        """Begin a change: an operation. Raises as `change`."""
        once = functools.partial(self._gcp.once, service, method, CALL_S, **parameters)
        if not (name := str(self._once(once, _COMPUTE, permission).name)):
            raise NotYetError("the answer names no operation")
        return Begun(operation=name)

    def does(
        self, api: str, verb: str, path: str, permission: str, body: Callable[[Resource], Any] | None = None
    ) -> Do:
        """Return a row's call. `path`: with {name} for the resource's."""

        def do(what: Resource, _seen: Seen) -> None:
            more = {"body": body(what)} if body else {}
            self.change(api, verb, path.format(name=what.name), permission, **more)

        return do

    def _once(self, call: Callable[[], Any], api: str, permission: str) -> Any:
        def is_late(error: ApiError) -> bool:
            reply, (part, codes) = error.reply, _UNKNOWN_YET
            young = reply.code in codes and part in reply.message
            errors = ERRORS if api == _COMPUTE else REST_ERRORS
            return young or reply.code in NOT_YET or is_gone(reply) or errors.is_retryable(reply)

        return changed_once(lambda: self._permitted(call, api, permission), is_late)

    def _permitted(self, call: Callable[[], Any], api: str, permission: str) -> Any:
        """Make a call. A missing permission is named: Google's own message does not always do it."""
        try:
            return call()
        except ProvisionerError as error:
            cause = refusal_of(error)
            code = cause.reply.code if cause else ""
            if code in _DISABLED:
                command = f"gcloud services enable {api}.googleapis.com --project {self._settings.project}"
                raise NotUsedError(f"{cause}; `{command}`, and repeat after some minutes") from error
            if code in DENIALS:
                raise DeniedError(
                    f"{cause}; who runs this lacks {permission}, or what that needs: {ALLOWED} has all of it"
                ) from error
            raise
