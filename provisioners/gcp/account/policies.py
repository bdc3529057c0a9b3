"""Policies: who has which role on a project, a bucket or an account.

They are read, changed and written with their etag: who writes in between wins, and the next look decides. One without
an etag is never written: it would replace the rights of all others ("Understanding allow policies").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from provisioners.account import Found, NotYetError, Resource, Row, Seen
from provisioners.base import DeniedError
from provisioners.gcp.account import wanted
from provisioners.gcp.account.calls import Calls
from provisioners.gcp.account.wanted import ACCOUNTS, ACT_AS, PROJECT, ROLES, Binding, Names
from provisioners.gcp.rest import IAM, RESOURCES, STORAGE

_VERSION = 3  # of policies: an older one would leave out others' conditions, and writing it back would lose them


class Policies:
    """The bindings of one installation's roles and accounts."""

    def __init__(self, calls: Calls, names: Names) -> None:
        self._calls = calls
        self._path = f"v1/projects/{names.project}"
        self._roles = {names.role_path(use) for use in ROLES} | {ACT_AS}
        self._emails = {names.email(use) for use in ACCOUNTS}
        self.row = Row(wanted.BINDING, self._bindings, self._bind, self._unbind)

    def _bindings(self, seen: Seen) -> Iterator[Found]:
        """On the resources where there should be some; or where all is to go, on those that our roles name."""
        accounts = {each.what.name for each in seen.all(wanted.ACCOUNT)}
        # There is no policy of an account that is not there; and one that this process has made may be refused for a
        # minute as if a permission were missing: then it has none.
        young = {name for name in self._emails if wanted.service_account(name).key in seen.made}
        places = {each.place for each in seen.wants(wanted.BINDING)}
        if not seen.wanted and (roles := seen.ours(wanted.ROLE)):
            places = {PROJECT, *(f"gs://{bucket}" for role in roles for bucket in role.what.has.buckets)}
        bindings = list(self._in(each for each in places if each not in self._emails or each in accounts - young))
        with suppress(DeniedError):
            bindings += self._in(places & young)
        for what in map(wanted.bound, bindings):
            if whole := seen.get(what.whole):
                yield Found(what, whole.owner)

    def _in(self, places: Iterable[str]) -> list[Binding]:
        """Return those of our roles and accounts, without a condition."""
        found = {
            Binding(place, str(each.get("role")), str(member))
            for place in places
            for each in (self._policy(place) or {}).get("bindings", ())
            if not each.get("condition")
            for member in each.get("members", ())
        }
        return sorted((each for each in found if each.role in self._roles and each.email in self._emails), key=str)

    def _policy(self, place: str) -> dict[str, Any] | None:
        """Return a resource's policy; None where the resource is not there."""
        version = str(_VERSION)
        if place.startswith("gs://"):
            path = f"storage/v1/b/{place.removeprefix('gs://')}/iam"
            query = {"optionsRequestedPolicyVersion": version}
            return self._calls.get(STORAGE, "GET", path, "storage.buckets.getIamPolicy", want="etag", query=query)
        if place == PROJECT:
            path, permission = f"{self._path}:getIamPolicy", "resourcemanager.projects.getIamPolicy"
            body = {"options": {"requestedPolicyVersion": _VERSION}}
            return self._calls.ask(RESOURCES, "POST", path, permission, want="etag", body=body)
        path, permission = f"{self._path}/serviceAccounts/{place}:getIamPolicy", "iam.serviceAccounts.getIamPolicy"
        query = {"options.requestedPolicyVersion": version}
        return self._calls.get(IAM, "POST", path, permission, want="etag", query=query)

    def _bind(self, what: Resource, seen: Seen) -> None:
        try:
            self._rebind(what.given, there=True)
        except DeniedError as error:
            if wanted.service_account(what.place).key not in seen.made:
                raise
            raise NotYetError(str(error)) from error

    def _unbind(self, what: Resource, _seen: Seen) -> None:
        self._rebind(what.given, there=False)

    def _rebind(self, binding: Binding, *, there: bool) -> None:
        """Read the policy, add or remove one member, and write it."""
        place = binding.resource
        if (policy := self._policy(place)) is None:
            raise NotYetError(f"{place} is not there")
        changed = _changed(policy, binding, there=there)
        if place.startswith("gs://"):
            path = f"storage/v1/b/{place.removeprefix('gs://')}/iam"
            self._calls.change(STORAGE, "PUT", path, "storage.buckets.setIamPolicy", body=changed)
            return
        at = "" if place == PROJECT else f"/serviceAccounts/{place}"
        api, kind = (RESOURCES, "resourcemanager.projects") if place == PROJECT else (IAM, "iam.serviceAccounts")
        path = f"{self._path}{at}:setIamPolicy"
        self._calls.change(api, "POST", path, f"{kind}.setIamPolicy", body={"policy": changed})


def _changed(policy: dict[str, Any], binding: Binding, *, there: bool) -> dict[str, Any]:
    """Return the policy with one member more or less; all else as it is.

    A deleted account of this address stays in policies under another name, and Google takes none with both
    ("Inconsistent representation of deleted member", k8s-config-connector#279): where the new one is added, it goes.
    """
    dead = f"deleted:{binding.member}?"
    entries = [{**each, "members": list(each.get("members", ()))} for each in policy.get("bindings", ())]
    own = [each for each in entries if each.get("role") == binding.role and not each.get("condition")]
    if not own:
        own = [{"role": binding.role, "members": []}]
        entries += own
    for entry in own:
        entry["members"] = [each for each in entry["members"] if each != binding.member]
    if there:
        own[0]["members"].append(binding.member)
        for entry in entries:
            entry["members"] = [each for each in entry["members"] if not str(each).startswith(dead)]
    return {**policy, "bindings": [each for each in entries if each["members"]]}
