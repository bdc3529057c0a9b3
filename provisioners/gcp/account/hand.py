"""Looks at a Google Cloud project, and changes it by one step: as CloudAccount says.

Policies are read, changed and written with their etag: who writes in between wins, and the next look decides. One
without an etag is never written: it would replace the rights of all others ("Understanding allow policies").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioners.account import Made, NotYetError, Plan, Wish
from provisioners.base import DeniedError, ProvisionerError
from provisioners.codes import ApiError
from provisioners.gcp import names
from provisioners.gcp.account import plan
from provisioners.gcp.account.buckets import Buckets
from provisioners.gcp.account.calls import Calls, NotEnabledError
from provisioners.gcp.account.look import Look
from provisioners.gcp.account.plan import (
    Bind,
    CloseBucket,
    Delete,
    Facts,
    MakeAccount,
    MakeBucket,
    MakeFileSystem,
    MakeRole,
    MakeRule,
    RestoreRole,
    SetRole,
    SetRule,
    Unbind,
)
from provisioners.gcp.account.wanted import (
    ACT_AS,
    CAPACITY_GB,
    PROJECT,
    ROLES,
    SHARE,
    TIER,
    Binding,
    Names,
    Role,
    Rule,
    Wanted,
    described,
    wanted,
)
from provisioners.gcp.rest import FILESTORE, IAM, RESOURCES, STORAGE
from provisioners.gcp.settings import GcpSettings

ETCD_PORT = 2379
# "You can't create a role with role_id … where there is an existing role with that role_id in a deleted state":
# terraform-provider-google's answer to a name of the last 37 days.
_KEPT_NAME = "deleted state"
# Of a role that is deleted, or restored, already: the next look shows it.
_NOT_IN_STATE = "FAILED_PRECONDITION"


class GcpAccount:
    """One installation's part of a project."""

    def __init__(self, settings: GcpSettings, wish: Wish) -> None:
        self._calls = Calls(settings)
        self._look = Look(self._calls, settings, wish.owner)
        self._settings = settings
        self._wish = wish
        self._names = Names(wish.owner.cluster, settings.project)
        self._path = f"v1/projects/{settings.project}"
        self._zones: dict[str, str] | None = None
        self._buckets = Buckets(self._calls, settings, wish.owner)
        # As the last look and the steps after it showed them.
        self._bound: frozenset[Binding] = frozenset()
        self._addresses: dict[str, str] = {}
        # Accounts that this process has made. Such a one may be refused for a minute as if a permission were missing.
        self._young: set[str] = set()
        # Operations that were started, by step: they say why something did not come to be.
        self._operations: dict[str, str] = {}

    def whose(self) -> str:
        """As CloudAccount says."""
        who = self._calls.who()
        self._calls.compute("projects", "get", "compute.projects.get", kind="compute#project")
        return f"the Google Cloud project {self._settings.project}, as {who}"

    def missing(self) -> Plan:
        """As CloudAccount says."""
        needed = self._wanted()
        buckets = tuple(found for each in needed.buckets if (found := self._buckets.found(each.name)))
        accounts = tuple(self._look.accounts()) if needed.accounts else ()
        # There is no policy of an account that is not there.
        known = {PROJECT, *(each.email for each in accounts if each.email not in self._young)}
        resources = {each.resource for each in needed.bindings}
        bindings = self._look.bindings(each for each in resources if each in known or each.startswith("gs://"))
        bindings |= self._of_young(resources)
        roles = tuple(self._look.roles(each.id for each in needed.roles))
        systems = tuple(self._look.file_systems()) if needed.file_systems else ()
        facts = Facts(self._look.rules(), roles, accounts, bindings, systems, buckets)
        return plan.missing(needed, self._keep(facts), self._wish.owner)

    def remaining(self, *, with_data: bool) -> Plan:
        """As CloudAccount says: by what descriptions say, and by names for what has another's or none."""
        owner = self._wish.owner
        roles = tuple(self._look.roles(self._names.role(use) for use in ROLES))
        mine = [each for each in roles if each.owner == owner]
        buckets = {f"gs://{bucket}" for each in mine for bucket in each.buckets}
        bindings = self._look.bindings({PROJECT, *buckets}) if mine else frozenset[Binding]()
        try:
            systems = tuple(self._look.file_systems())
        except NotEnabledError:
            systems = ()  # so there is none
        try:
            own = tuple(self._buckets.ours())
        except NotEnabledError:
            own = ()
        facts = Facts(self._look.rules(), roles, tuple(self._look.accounts()), bindings, systems, own)
        return plan.remaining(self._keep(facts), owner, with_data=with_data)

    def made(self) -> Made:
        """As CloudAccount says."""
        tags = [each for each in self._settings.network_tags if each != self._names.tag]
        found: dict[str, Any] = {"network_tags": [*tags, self._names.tag]}
        if self._wish.checkpoints:
            found["service_account"] = self._names.email("node")
        return Made(found, tuple(self._todo()))

    def take(self, step: Any) -> None:
        """As CloudAccount says."""
        match step:
            case MakeRule(rule) | SetRule(rule):
                self._write_rule(rule, str(step), new=isinstance(step, MakeRule))
            case MakeRole() | RestoreRole() | SetRole():
                self._write_role(step)
            case MakeAccount(account):
                text = {"displayName": account.title, "description": described(self._wish.owner)}
                body = {"accountId": account.id, "serviceAccount": text}
                self._young.add(account.email)
                self._calls.change(
                    IAM, "POST", f"{self._path}/serviceAccounts", "iam.serviceAccounts.create", body=body
                )
            case Bind(binding):
                self._rebind(binding, there=True)
            case Unbind(binding):
                self._rebind(binding, there=False)
                self._bound -= {binding}
            case MakeBucket() | CloseBucket():
                self._buckets.take(step)
            case MakeFileSystem():
                self._make_file_system(step)
            case Delete(plan.BUCKET, name):
                self._buckets.delete(name)
            case Delete():
                self._delete(step)
            case _:
                raise AssertionError(step)

    # -- steps ---------------------------------------------------------------------------------------------

    def _write_rule(self, rule: Rule, step: str, *, new: bool) -> None:
        self._check_operation(step)
        protocol, port = rule.allowed
        body: dict[str, Any] = {
            "name": rule.name,
            "description": described(self._wish.owner),
            "network": rule.network,
            "direction": "INGRESS",
            "disabled": False,
            "allowed": [{"I_p_protocol": protocol, **({"ports": [port]} if port else {})}],
            "source_ranges": list(rule.sources),
            "source_tags": [rule.source_tag] if rule.source_tag else [],
            "target_tags": [rule.target_tag],
        }
        # An update replaces all of it; a patch could not take away what someone has added.
        method, more = ("insert_unary", {}) if new else ("update_unary", {"firewall": rule.name})
        permission = f"compute.firewalls.{'create' if new else 'update'}"
        called = {"firewall_resource": body, **more}
        self._operations[step] = self._calls.compute_change("firewalls", method, permission, **called)

    def _write_role(self, step: MakeRole | RestoreRole | SetRole) -> None:
        roles, role = f"{self._path}/roles", step.role
        match step:
            case MakeRole():
                body = {"roleId": role.id, "role": self._role_text(role)}
                self._change_role("POST", roles, "iam.roles.create", body=body)
            case RestoreRole():
                self._change_role("POST", f"{roles}/{role.id}:undelete", "iam.roles.undelete", body={})
            case SetRole():
                mask = {"updateMask": "title,description,includedPermissions,stage"}
                body = self._role_text(role)
                self._change_role("PATCH", f"{roles}/{role.id}", "iam.roles.update", query=mask, body=body)

    def _change_role(self, verb: str, path: str, permission: str, **more: Any) -> None:
        try:
            self._calls.change(IAM, verb, path, permission, **more)
        except ApiError as error:
            if _KEPT_NAME in error.reply.message:
                kept = "Google keeps the name of a deleted role for 37 days; give --cluster another name"
                raise ProvisionerError(f"{error}: {kept}") from error
            if error.reply.code == _NOT_IN_STATE:
                raise NotYetError(str(error)) from error
            raise

    def _role_text(self, role: Role) -> dict[str, Any]:
        return {
            "title": role.title,
            "description": described(self._wish.owner, role.buckets),
            "includedPermissions": sorted(role.permissions),
            "stage": "GA",
        }

    def _rebind(self, binding: Binding, *, there: bool) -> None:
        """Read the policy, add or remove one member, and write it."""
        try:
            policy = self._look.policy(binding.resource)
            if policy is None:
                raise NotYetError(f"{binding.resource} is not there")
            self._write_policy(binding.resource, _changed(policy, binding, there=there))
        except DeniedError as error:
            if binding.resource not in self._young:
                raise
            raise NotYetError(str(error)) from error

    def _write_policy(self, resource: str, policy: dict[str, Any]) -> None:
        if resource.startswith("gs://"):
            path = f"storage/v1/b/{resource.removeprefix('gs://')}/iam"
            self._calls.change(STORAGE, "PUT", path, "storage.buckets.setIamPolicy", body=policy)
            return
        body = {"policy": policy}
        if resource == PROJECT:
            path, permission = f"{self._path}:setIamPolicy", "resourcemanager.projects.setIamPolicy"
            self._calls.change(RESOURCES, "POST", path, permission, body=body)
        else:
            path, permission = (
                f"{self._path}/serviceAccounts/{resource}:setIamPolicy",
                "iam.serviceAccounts.setIamPolicy",
            )
            self._calls.change(IAM, "POST", path, permission, body=body)

    def _make_file_system(self, step: MakeFileSystem) -> None:
        system = step.file_system
        if step.state:
            raise NotYetError(f"it is in the state {step.state}, which takes minutes")
        self._check_operation(str(step))
        body = {
            "tier": TIER,
            "description": "spotsup: a file system for nodes",
            "labels": {**self._settings.tags, **self._wish.owner.tags},
            "fileShares": [{"name": SHARE, "capacityGb": str(CAPACITY_GB)}],
            "networks": [{"network": names.last_of(system.network), "modes": ["MODE_IPV4"]}],
        }
        path, query = f"{self._path}/locations/{system.zone}/instances", {"instanceId": system.name}
        answer = self._calls.change(FILESTORE, "POST", path, "file.instances.create", query=query, body=body)
        self._operations[str(step)] = str(answer.get("name", ""))

    def _delete(self, step: Delete) -> None:
        if step.kind == plan.RULE:
            self._check_operation(str(step))
            called = {"firewall": step.name}
            name = self._calls.compute_change("firewalls", "delete_unary", "compute.firewalls.delete", **called)
            self._operations[str(step)] = name
            return
        if step.kind in {plan.ACCOUNT, plan.ROLE} and self._is_bound(step):
            raise NotYetError("it is still in a policy")
        if step.state == plan.GOING:
            raise NotYetError("Filestore is deleting it, which takes minutes")
        match step.kind:
            case plan.ROLE:
                self._change_role("DELETE", f"{self._path}/roles/{step.name}", "iam.roles.delete")
            case plan.ACCOUNT:
                path = f"{self._path}/serviceAccounts/{step.name}"
                self._calls.change(IAM, "DELETE", path, "iam.serviceAccounts.delete")
            case plan.FILE_SYSTEM:
                path = f"{self._path}/locations/{step.zone}/instances/{step.name}"
                self._calls.change(FILESTORE, "DELETE", path, "file.instances.delete")
            case _:
                raise AssertionError(step)

    def _is_bound(self, step: Delete) -> bool:
        if step.kind == plan.ROLE:
            return any(each.role == f"projects/{self._settings.project}/roles/{step.name}" for each in self._bound)
        return any(step.name in each.member for each in self._bound if each.role != ACT_AS)

    def _check_operation(self, step: str) -> None:
        """Raises NotYetError for an operation that this step has begun, ProvisionerError for one that failed."""
        if not (name := self._operations.get(step)):
            return
        if name.startswith("projects/"):
            raw = self._calls.ask(FILESTORE, "GET", f"v1/{name}", "file.operations.get", want="name")
            done, error = bool(raw.get("done")), raw.get("error") or {}
            failure = str(error.get("message", error)) if error else ""
        else:
            read = "compute.globalOperations.get"
            kind = "compute#operation"
            found = self._calls.compute("globalOperations", "get", read, kind=kind, operation=name)
            done = found.status == found.Status.DONE
            failure = "; ".join(f"{each.code}: {each.message}" for each in found.error.errors)
        if not done:
            raise NotYetError("Google is at it")
        del self._operations[step]
        if failure:
            raise ProvisionerError(f"could not {step}: {failure}")
        raise NotYetError("Google has done it, and does not show it yet")

    # -- looking -------------------------------------------------------------------------------------------

    def _wanted(self) -> Wanted:
        if self._zones is None:
            self._zones = {}
            for region in self._settings.regions if self._wish.shared_storage else ():
                called = {"kind": "compute#region", "region": region}
                found = self._calls.compute("regions", "get", "compute.regions.get", **called)
                if not found.zones:
                    raise ProvisionerError(f"{region} has no zone for a Filestore instance")
                self._zones[region] = min(names.last_of(each) for each in found.zones)
        return wanted(self._settings, self._wish, self._zones)

    def _of_young(self, resources: set[str]) -> frozenset[Binding]:
        """The bindings of accounts that this process has made: none where IAM refuses to say."""
        try:
            return self._look.bindings(resources & self._young)
        except DeniedError:
            return frozenset()

    def _keep(self, facts: Facts) -> Facts:
        """For the steps."""
        self._bound = facts.bindings
        ready = (each for each in facts.file_systems if each.owner == self._wish.owner and each.state == plan.READY)
        self._addresses = {each.region: each.address for each in ready}
        return facts

    def _todo(self) -> Iterator[str]:
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
        for address in self._addresses.values() if self._wish.shared_storage else ():
            yield f'in job files:  storage: [{{mount: /mnt/shared, nfs: "{address}:/{SHARE}"}}]'


def _changed(policy: dict[str, Any], binding: Binding, *, there: bool) -> dict[str, Any]:
    """The policy with one member more or less; all else as it is.

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
