"""Calls for an account: those that look are repeated, those that change something are made once; a refusal says whether
to look again."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from provisioners.account import NotUsedError, changed_once, refusal_of
from provisioners.azure.client import CREDENTIALS_HINT, MAX_PAGES, Azure, Clients
from provisioners.azure.errors import ERRORS, is_missing
from provisioners.azure.settings import AzureSettings
from provisioners.base import DeniedError, ProvisionerError
from provisioners.calls import Deadline, NoCredentialsError, NotSentError
from provisioners.codes import ApiError

CALL_S = 20.0
ALLOWED = "docs/permissions/azure-account-role.json"
NETWORKS, IDENTITIES = "Microsoft.Network", "Microsoft.ManagedIdentity"
AUTHORIZATION, STORAGE = "Microsoft.Authorization", "Microsoft.Storage"
_VERSIONS = {
    NETWORKS: "2024-05-01",
    IDENTITIES: "2023-01-31",
    AUTHORIZATION: "2022-04-01",
    STORAGE: "2023-05-01",
    "resources": "2021-04-01",
}
# What is there already, not there yet, being changed, or still in use: the next look decides. Sources: "Troubleshoot
# Azure RBAC" for roles and principals; terra-workspace-manager#502, cluster-api-provider-azure#172 for networks;
# azure-cli#31148, azurefile-csi-driver's list of what it repeats, for storage.
NOT_YET = frozenset(
    {
        *("PrincipalNotFound", "RoleDefinitionDoesNotExist", "RoleAssignmentExists", "RoleDefinitionHasAssignments"),
        *("InUseNetworkSecurityGroupCannotBeDeleted", "InUseSubnetCannotBeDeleted", "SecurityRuleConflict"),
        *("ReferencedResourceNotProvisioned", "ResourceNotFound", "NotFound", "ParentResourceNotFound"),
        *("CanceledAndSupersededDueToAnotherOperation", "OperationNotAllowedOnResourceBeingDeleted"),
        *("StorageAccountOperationInProgress", "StorageAccountIsNotProvisioned"),
        *("ShareBeingDeleted", "ContainerBeingDeleted"),
    }
)
DENIALS = frozenset({"AuthorizationFailed", "LinkedAuthorizationFailed", "LinkedAccessCheckFailed", "HTTP 403"})
_REGISTER = frozenset({"MissingSubscriptionRegistration", "SubscriptionNotRegistered"})


class Calls:
    """Resource Manager's REST. `api`: the provider of the resource."""

    def __init__(self, settings: AzureSettings) -> None:
        self._azure = Azure(settings)

    def who(self) -> str:
        """Return whose the credentials are, as their token says; "" where it does not."""
        try:
            return name_in(self._azure.token(CALL_S))
        except NoCredentialsError as error:
            raise DeniedError(f"{error}{CREDENTIALS_HINT}") from error
        except NotSentError as error:
            raise ProvisionerError(str(error)) from error

    def get(self, what: str, path: str, api: str) -> dict[str, Any] | None:
        """Return a resource; None where there is none."""
        try:
            return self.ask(what, "GET", path, api)
        except ApiError as error:
            if is_missing(error.reply.code):
                return None
            raise

    def ask(self, what: str, method: str, path: str, api: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a call that changes nothing. Raises ApiError, ProvisionerError."""
        asked = {"api-version": _VERSIONS[api]}

        def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
            found = clients.raw(method, path, asked, more, body)
            if not {"id", "value", "name", "nameAvailable"} & set(found):
                raise ValueError("the answer is no resource")
            return found

        found: dict[str, Any] = self._permitted(lambda: self._azure.ask(what, ask, Deadline(CALL_S)), api)
        return found

    def listed(
        self, what: str, path: str, api: str, params: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield all of a listing."""
        url, asked = path, {"api-version": _VERSIONS[api], **(params or {})}
        for _ in range(MAX_PAGES):
            page = self._page(what, url, asked, api)
            yield from page["value"]
            if not (url := str(page.get("nextLink") or "")):
                return
            asked = {}  # it has them
        raise ProvisionerError(f"Azure has more than {MAX_PAGES} pages of {what}")

    def _page(self, what: str, url: str, asked: Mapping[str, str], api: str) -> dict[str, Any]:
        def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
            found = clients.raw("GET", url, asked, more)
            if not isinstance(found.get("value"), list):
                raise TypeError("the page has no list")
            return found

        page: dict[str, Any] = self._permitted(lambda: self._azure.ask(what, ask, Deadline(CALL_S)), api)
        return page

    def failure_of(self, what: str, operation: str) -> str | None:
        """Return why an operation of Azure's has failed, "" where it has not; None while it goes on, or is not
        shown."""

        def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.raw("GET", operation, {}, more)

        try:
            found = self._azure.ask(what, ask, Deadline(CALL_S))
        except ApiError as error:
            return "" if is_missing(error.reply.code) else str(error)
        except DeniedError:
            return None  # no permission is documented for it
        state, reason = str(found.get("status", "")), found.get("error") or {}
        if state in {"Failed", "Canceled"}:
            return f"{reason.get('code', state)}: {reason.get('message', '')}"
        return "" if state == "Succeeded" or "id" in found else None

    def change(self, what: str, method: str, path: str, api: str, body: Mapping[str, Any] | None = None) -> str:
        """Make a call that changes something: once; the address of the operation that goes on, "" for none. Raises
        NotYetError, ApiError, ProvisionerError."""
        asked = {"api-version": _VERSIONS[api]}

        def once() -> Any:
            return self._azure.once(what, lambda clients, more: clients.begin(method, path, asked, more, body), CALL_S)

        return str(changed_once(lambda: self._permitted(once, api), _is_late, CREDENTIALS_HINT)[1])

    def _permitted(self, call: Callable[[], Any], api: str) -> Any:
        """Azure names the action that is missing; this says where all of them are. So with providers."""
        try:
            return call()
        except ProvisionerError as error:
            cause = refusal_of(error)
            code = cause.reply.code if cause else ""
            if code in DENIALS:
                raise DeniedError(f"{cause}; {ALLOWED} has all that who runs this needs") from error
            if code in _REGISTER:
                command = f"az provider register --wait --namespace {api}"
                raise NotUsedError(f"{cause}; run once: {command}") from error
            raise


def _is_late(error: ApiError) -> bool:
    code = error.reply.code
    return code in NOT_YET or is_missing(code) or ERRORS.is_retryable(error.reply)


def name_in(token: str) -> str:
    """Whom a token is for: a person's name, or an application's id. "" where it does not say: it is Azure's to read."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
        return str(claims.get("upn") or claims.get("unique_name") or claims.get("appid") or claims.get("oid") or "")
    except (IndexError, ValueError, AttributeError):
        return ""
