"""What is in a Google Cloud project, as facts for the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from provisioners.base import Owner, owner_of
from provisioners.gcp import names
from provisioners.gcp.account.calls import Calls
from provisioners.gcp.account.plan import FoundAccount, FoundFileSystem, FoundRole, FoundRule
from provisioners.gcp.account.wanted import (
    ACCOUNTS,
    ACT_AS,
    PROJECT,
    ROLES,
    RULES,
    Binding,
    Names,
    Rule,
    buckets_in,
    owner_in,
)
from provisioners.gcp.rest import FILESTORE, IAM, RESOURCES, STORAGE
from provisioners.gcp.settings import GcpSettings

_VERSION = 3  # of policies: an older one would leave out others' conditions, and writing it back would lose them


class Look:
    """Reads a project. Raises ApiError, ProvisionerError."""

    def __init__(self, calls: Calls, settings: GcpSettings, owner: Owner) -> None:
        self._calls = calls
        self._settings = settings
        self._owner = owner
        self._names = Names(owner.cluster, settings.project)
        self._path = f"v1/projects/{settings.project}"

    def rules(self) -> tuple[FoundRule, ...]:
        """Firewall rules with our names, or our mark."""
        called = {self._names.of(use) for use in RULES}
        pages = self._calls.compute_pages("firewalls", "compute.firewalls.list", "compute#firewallList")
        found = [(raw, owner_in(raw.description)) for page in pages for raw in page.items]
        return tuple(_rule(raw, owner) for raw, owner in found if raw.name in called or owner == self._owner)

    def roles(self, ids: Iterable[str]) -> Iterator[FoundRole]:
        """Of these, those that are there, deleted ones included."""
        for name in ids:
            path = f"{self._path}/roles/{name}"
            if (raw := self._calls.get(IAM, "GET", path, "iam.roles.get", want="name")) is not None:
                text = str(raw.get("description", ""))
                granted = frozenset(raw.get("includedPermissions", ()))
                yield FoundRole(name, owner_in(text), granted, buckets_in(text), bool(raw.get("deleted")))

    def accounts(self) -> Iterator[FoundAccount]:
        """By a listing: asked for one that is not there, IAM may answer 403 (terraform-provider-google#15042)."""
        called = {self._names.email(use) for use in ACCOUNTS}
        path = f"{self._path}/serviceAccounts"
        for raw in self._calls.listed(IAM, path, "iam.serviceAccounts.list", "accounts", 100):
            if raw.get("email") in called:
                yield FoundAccount(str(raw["email"]), owner_in(str(raw.get("description", ""))))

    def bindings(self, resources: Iterable[str]) -> frozenset[Binding]:
        """Of these resources, those of our roles and accounts."""
        found = (
            Binding(resource, role, member)
            for resource in resources
            for role, member in _members(self.policy(resource) or {})
            if self._is_ours(role, member)
        )
        return frozenset(found)

    def _is_ours(self, role: str, member: str) -> bool:
        """deleted:serviceAccount:EMAIL?uid=1 is that of an account that someone has deleted before."""
        roles = {self._names.role_path(use) for use in ROLES} | {ACT_AS}
        email = member.partition("serviceAccount:")[2].partition("?")[0]
        return role in roles and email in {self._names.email(use) for use in ACCOUNTS}

    def policy(self, resource: str) -> dict[str, Any] | None:
        """A resource's policy; None where the resource is not there."""
        version = str(_VERSION)
        if resource.startswith("gs://"):
            path = f"storage/v1/b/{resource.removeprefix('gs://')}/iam"
            query = {"optionsRequestedPolicyVersion": version}
            return self._calls.get(STORAGE, "GET", path, "storage.buckets.getIamPolicy", want="etag", query=query)
        if resource == PROJECT:
            path, permission = f"{self._path}:getIamPolicy", "resourcemanager.projects.getIamPolicy"
            body = {"options": {"requestedPolicyVersion": _VERSION}}
            return self._calls.ask(RESOURCES, "POST", path, permission, want="etag", body=body)
        path, permission = f"{self._path}/serviceAccounts/{resource}:getIamPolicy", "iam.serviceAccounts.getIamPolicy"
        query = {"options.requestedPolicyVersion": version}
        return self._calls.get(IAM, "POST", path, permission, want="etag", query=query)

    def file_systems(self) -> Iterator[FoundFileSystem]:
        """Filestore instances of our regions with our name, or our labels."""
        path = f"{self._path}/locations/-/instances"
        for raw in self._calls.listed(FILESTORE, path, "file.instances.list", "instances", 1000):
            where = str(raw.get("name", "")).split("/")  # projects/P/locations/ZONE/instances/NAME
            zone, name = (where[3], where[5]) if len(where) == 6 else ("", "")
            region, owner = names.region_of(zone), owner_of(raw.get("labels") or {})
            if region in self._settings.regions and (name == self._names.of("storage") or owner == self._owner):
                address = next((str(ip) for each in raw.get("networks", ()) for ip in each.get("ipAddresses", ())), "")
                yield FoundFileSystem(region, zone, name, owner, str(raw.get("state", "")), address)


def _members(policy: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, member) of the bindings without a condition."""
    for each in policy.get("bindings", ()):
        if not each.get("condition"):
            yield from ((str(each.get("role")), str(member)) for member in each.get("members", ()))


def _rule(raw: Any, owner: Owner) -> FoundRule:
    """A firewall rule as ours, and whether that says all of it."""
    first = raw.allowed[0] if raw.allowed else None
    ports = list(first.ports) if first is not None else []
    rule = Rule(
        raw.name,
        f"global/networks/{names.last_of(raw.network)}",
        (str(first.I_p_protocol), str(next(iter(ports), ""))) if first is not None else ("", ""),
        next(iter(raw.target_tags), ""),
        tuple(raw.source_ranges),
        next(iter(raw.source_tags), ""),
    )
    single = len(raw.allowed) == 1 and len(ports) <= 1 and len(raw.source_tags) <= 1 and len(raw.target_tags) == 1
    by_account = bool(raw.source_service_accounts or raw.target_service_accounts)
    return FoundRule(rule, owner, plain=single and raw.direction == "INGRESS" and not raw.disabled and not by_account)
