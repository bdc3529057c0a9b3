"""The table of what an installation has in a Google Cloud project, in the order in which it is made. Bindings' row:
policies.py; the bucket's: buckets.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from provisioners.account import Begun, Found, Made, NotYetError, Resource, Row, Seen, State, Wish, owner_in
from provisioners.base import Owner, ProvisionerError, owner_of
from provisioners.codes import ApiError
from provisioners.gcp import names
from provisioners.gcp.account import wanted
from provisioners.gcp.account.buckets import Buckets
from provisioners.gcp.account.calls import ALLOWED, DENIALS, Calls
from provisioners.gcp.account.policies import Policies
from provisioners.gcp.account.wanted import (
    ACCOUNTS,
    CAPACITY_GB,
    OPTIONAL,
    ROLES,
    RULES,
    SHARE,
    TIER,
    Names,
    Rule,
    described,
)
from provisioners.gcp.rest import FILESTORE, IAM
from provisioners.gcp.settings import GcpSettings

ETCD_PORT = 2379
# "You can't create a role with role_id … where there is an existing role with that role_id in a deleted state":
# terraform-provider-google's answer to a name of the last 37 days.
_KEPT_NAME = "deleted state"
# Of a role that is deleted, or restored, already: the next look shows it.
_NOT_IN_STATE = "FAILED_PRECONDITION"
# "Permission x is not valid.": terraform-provider-google#14033.
_REFUSED = "INVALID_ARGUMENT"
_STATES = {"READY": State.READY, "DELETING": State.GOING, "ERROR": State.BROKEN, "SUSPENDED": State.BROKEN}


class GcpTable:
    """One installation's part of a project."""

    marked_by = "mark"
    allowed = ALLOWED
    denials = DENIALS

    def __init__(self, settings: GcpSettings, wish: Wish) -> None:
        self._calls = calls = Calls(settings)
        self._settings = settings
        self._wish = wish
        self._names = Names(wish.owner.cluster, settings.project)
        self._zones: dict[str, str] | None = None
        self._path = path = f"v1/projects/{settings.project}"
        accounts = f"{path}/serviceAccounts"
        self.rows: Sequence[Row] = (
            Row(
                wanted.RULE,
                self._rules,
                lambda what, _: self._write_rule("insert_unary", "create", what),
                lambda what, _: calls.compute_change(
                    "firewalls", "delete_unary", "compute.firewalls.delete", firewall=what.name
                ),
                # An update replaces all of it; a patch could not take away what someone has added.
                change=lambda what, _: self._write_rule("update_unary", "update", what, firewall=what.name),
                settle=wanted.with_sources,
                problem=_of_another_network,
            ),
            # A deleted role keeps its name: for 7 days it can be restored, and for 30 more there can be no other one
            # ("Create and manage custom roles").
            Row(
                wanted.ROLE,
                self._roles,
                self._make_role,
                lambda what, _: self._change_role("DELETE", f"/{what.name}", "delete"),
                change=self._set_role,
                settle=wanted.as_it_can_be,
            ),
            Row(
                wanted.ACCOUNT,
                self._accounts,
                calls.does(IAM, "POST", accounts, "iam.serviceAccounts.create", self._new_account),
                calls.does(IAM, "DELETE", f"{accounts}/{{name}}", "iam.serviceAccounts.delete"),
            ),
            Buckets(calls, settings, wish.owner).row,
            Policies(calls, self._names).row,
            Row(wanted.FILE_SYSTEM, self._systems, self._make_system,
                self._delete_system, data=True, optional=True),
        )  # fmt: skip

    def whose(self) -> str:
        """As Table says."""
        who = self._calls.who()
        self._calls.compute("projects", "get", "compute.projects.get", kind="compute#project")
        return f"the Google Cloud project {self._settings.project}, as {who}"

    def wanted(self) -> list[Resource]:
        """As Table says."""
        if self._zones is None:
            self._zones = {}
            for region in self._settings.regions if self._wish.shared_storage else ():
                called = {"kind": "compute#region", "region": region}
                found = self._calls.compute("regions", "get", "compute.regions.get", **called)
                if not found.zones:
                    raise ProvisionerError(f"{region} has no zone for a Filestore instance")
                self._zones[region] = min(names.last_of(each) for each in found.zones)
        return wanted.wanted(self._settings, self._wish, self._zones)

    def outcome(self, operation: str) -> str | None:
        """As Table says."""
        if operation.startswith("projects/"):
            raw = self._calls.ask(FILESTORE, "GET", f"v1/{operation}", "file.operations.get", want="name")
            error = raw.get("error") or {}
            return (str(error.get("message", error)) if error else "") if raw.get("done") else None
        read, kind = "compute.globalOperations.get", "compute#operation"
        found = self._calls.compute("globalOperations", "get", read, kind=kind, operation=operation)
        failure = "; ".join(f"{each.code}: {each.message}" for each in found.error.errors)
        return failure if found.status == found.Status.DONE else None

    def made(self, seen: Seen) -> Made:
        """As Table says."""
        tags = [each for each in self._settings.network_tags if each != self._names.tag]
        found: dict[str, Any] = {"network_tags": [*tags, self._names.tag]}
        if self._wish.checkpoints:
            found["service_account"] = self._names.email("node")
        return Made(found, tuple(self._todo(seen)))

    def _todo(self, seen: Seen) -> Iterator[str]:
        project = f"--project {self._settings.project}"
        if self._wish.host_identity:
            account = f"--service-account {self._names.email('daemon')} --scopes cloud-platform"
            command = f"gcloud compute instances set-service-account HOST {project} --zone ZONE {account}"
            yield f"{command}     # of the daemon's host, which has to be stopped for it"
        if not self._settings.etcd_by_ssh:
            network = f"--network {names.last_of(self._settings.network or 'default')}"
            rule = f"{network} --allow tcp:{ETCD_PORT} --source-tags {self._names.tag} --destination-ranges ADDRESS/32"
            mark = f"--description '{described(self._wish.owner)}'"
            command = f"gcloud compute firewall-rules create {self._names.of('etcd')} {project} {rule} {mark}"
            yield f"{command}     # ADDRESS: that of the daemon's host in this network"
        for each in seen.ours(wanted.ROLE):
            granted = each.what.has.permissions
            if each.what.name == self._names.role("daemon") and (lacking := sorted(OPTIONAL - granted)):
                yield (
                    f"set prices of spot machines in [prices]: Google took no {' and no '.join(lacking)} into the role "
                    f"{each.what.name}, so the daemon cannot read them"
                )
        for each in seen.ours(wanted.FILE_SYSTEM) if self._wish.shared_storage else ():
            yield f'in job files:  storage: [{{mount: /mnt/shared, nfs: "{each.raw}:/{SHARE}"}}]'

    # -- firewall rules ------------------------------------------------------------------------------------

    def _rules(self, seen: Seen) -> Iterator[Found]:
        """Yield those with our names, or our mark."""
        called = {self._names.of(use) for use in RULES}
        for page in self._calls.compute_pages("firewalls", "compute.firewalls.list", "compute#firewallList"):
            for raw in page.items:
                owner = owner_in(raw.description)
                if raw.name in called or owner == seen.owner:
                    yield Found(wanted.firewall(raw.name, _rule(raw)), owner)

    def _write_rule(self, method: str, verb: str, what: Resource, **more: str) -> Begun:
        rule = what.has
        protocol, port = rule.allowed
        body: dict[str, Any] = {
            "name": what.name,
            "description": described(self._wish.owner),
            "network": rule.network,
            "direction": "INGRESS",
            "disabled": False,
            "allowed": [{"I_p_protocol": protocol, **({"ports": [port]} if port else {})}],
            "source_ranges": list(rule.sources),
            "source_tags": [rule.source_tag] if rule.source_tag else [],
            "target_tags": [rule.target_tag],
        }
        permission = f"compute.firewalls.{verb}"
        return self._calls.compute_change("firewalls", method, permission, firewall_resource=body, **more)

    # -- roles and accounts --------------------------------------------------------------------------------

    def _roles(self, _seen: Seen) -> Iterator[Found]:
        for use in ROLES:
            name = self._names.role(use)
            path = f"{self._path}/roles/{name}"
            if (raw := self._calls.get(IAM, "GET", path, "iam.roles.get", want="name")) is not None:
                text = str(raw.get("description", ""))
                has = wanted.Role(frozenset(raw.get("includedPermissions", ())), wanted.buckets_in(text))
                state = State.DELETED if raw.get("deleted") else State.READY
                yield Found(wanted.role(name, has), owner_in(text), state=state)

    def _make_role(self, what: Resource, _seen: Seen) -> None:
        self._write_role(what, lambda text: self._change_role("POST", "", "create", roleId=what.name, role=text))

    def _set_role(self, what: Resource, seen: Seen) -> None:
        if seen.there(what).state is State.DELETED:
            self._change_role("POST", f"/{what.name}:undelete", "undelete")
        else:
            mask = {"updateMask": "title,description,includedPermissions,stage"}
            self._write_role(what, lambda text: self._change_role("PATCH", f"/{what.name}", "update", mask, **text))

    def _write_role(self, what: Resource, write: Callable[[dict[str, Any]], None]) -> None:
        """Write a role; where Google refuses it for a permission that the daemon can do without, without those."""
        try:
            write(self._text_of(what, what.has.permissions))
        except ApiError as error:
            if error.reply.code != _REFUSED or not any(each in error.reply.message for each in OPTIONAL):
                raise
            write(self._text_of(what, what.has.permissions - OPTIONAL))

    def _change_role(
        self, verb: str, path: str, permission: str, query: dict[str, str] | None = None, **body: Any
    ) -> None:
        more = {"query": query, "body": None if verb == "DELETE" else body}
        try:
            self._calls.change(IAM, verb, f"{self._path}/roles{path}", f"iam.roles.{permission}", **more)
        except ApiError as error:
            if _KEPT_NAME in error.reply.message:
                kept = "Google keeps the name of a deleted role for 37 days; give --cluster another name"
                raise ProvisionerError(f"{error}: {kept}") from error
            if error.reply.code == _NOT_IN_STATE:
                raise NotYetError(str(error)) from error
            raise

    def _text_of(self, what: Resource, permissions: frozenset[str]) -> dict[str, Any]:
        return {
            "title": what.given,
            "description": described(self._wish.owner, what.has.buckets),
            "includedPermissions": sorted(permissions),
            "stage": "GA",
        }

    def _accounts(self, _seen: Seen) -> Iterator[Found]:
        """Yield the accounts by a listing: asked for one that is not there, IAM may answer 403
        (terraform-provider-google#15042)."""
        called = {self._names.email(use) for use in ACCOUNTS}
        path = f"{self._path}/serviceAccounts"
        for raw in self._calls.listed(IAM, path, "iam.serviceAccounts.list", "accounts", 100):
            if raw.get("email") in called:
                what = wanted.service_account(str(raw["email"]))
                yield Found(what, owner_in(str(raw.get("description", ""))))

    def _new_account(self, what: Resource) -> dict[str, Any]:
        text = {"displayName": what.given, "description": described(self._wish.owner)}
        return {"accountId": what.name.partition("@")[0], "serviceAccount": text}

    # -- Filestore -----------------------------------------------------------------------------------------

    def _systems(self, seen: Seen) -> list[Found]:
        """Instances of our regions with our name, or our labels. Zones may have the same names: ours counts."""
        return sorted(self._named_systems(seen.owner), key=lambda each: each.owner == seen.owner)

    def _named_systems(self, owner: Owner) -> Iterator[Found]:
        path = f"{self._path}/locations/-/instances"
        for raw in self._calls.listed(FILESTORE, path, "file.instances.list", "instances", 1000):
            where = str(raw.get("name", "")).split("/")  # projects/P/locations/ZONE/instances/NAME
            zone, name = (where[3], where[5]) if len(where) == 6 else ("", "")
            region, whose, said = names.region_of(zone), owner_of(raw.get("labels") or {}), str(raw.get("state", ""))
            if region in self._settings.regions and (name == self._names.of("storage") or whose == owner):
                address = next((str(ip) for each in raw.get("networks", ()) for ip in each.get("ipAddresses", ())), "")
                state = _STATES.get(said, State.PENDING)
                yield Found(wanted.file_system(name, region), whose, zone, state, said, address)

    def _make_system(self, what: Resource, _seen: Seen) -> Begun:
        zone, network = what.given
        body = {
            "tier": TIER,
            "description": "spotsup: a file system for nodes",
            "labels": {**self._settings.tags, **self._wish.owner.tags},
            "fileShares": [{"name": SHARE, "capacityGb": str(CAPACITY_GB)}],
            "networks": [{"network": names.last_of(network), "modes": ["MODE_IPV4"]}],
        }
        path, query = f"{self._path}/locations/{zone}/instances", {"instanceId": what.name}
        answer = self._calls.change(FILESTORE, "POST", path, "file.instances.create", query=query, body=body)
        return Begun(operation=str(answer.get("name", "")))

    def _delete_system(self, what: Resource, seen: Seen) -> None:
        path = f"{self._path}/locations/{seen.there(what).id}/instances/{what.name}"
        self._calls.change(FILESTORE, "DELETE", path, "file.instances.delete")


def _of_another_network(what: Resource, found: Found) -> str:
    have, wish = found.what.has.network, what.has.network
    return f"{found} is of the network {have}, and not of {wish}: delete it, and repeat" if have != wish else ""


def _rule(raw: Any) -> Rule:
    """Return a firewall rule as ours."""
    first = raw.allowed[0] if raw.allowed else None
    ports = list(first.ports) if first is not None else []
    single = len(raw.allowed) == 1 and len(ports) <= 1 and len(raw.source_tags) <= 1 and len(raw.target_tags) == 1
    by_account = bool(raw.source_service_accounts or raw.target_service_accounts)
    return Rule(
        f"global/networks/{names.last_of(raw.network)}",
        (str(first.I_p_protocol), str(next(iter(ports), ""))) if first is not None else ("", ""),
        next(iter(raw.target_tags), ""),
        tuple(raw.source_ranges),
        next(iter(raw.source_tags), ""),
        plain=single and raw.direction == "INGRESS" and not raw.disabled and not by_account,
    )
