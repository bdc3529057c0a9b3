"""A Google Cloud project beside its machines, for tests: firewall rules, service accounts, roles, policies, Filestore.

It has what hurts of the real ones. Sources: "Access change propagation" (IAM): what was written is read late;
terraform-provider-google#2939 and #15042: a new service account is not known everywhere for a minute, and IAM answers
403 meanwhile; k8s-config-connector#279: a policy that names a deleted account and the new one of its address is
refused; firebase-tools#11043: "Service account … does not exist"; django-cloud-deploy#268: the answer to an old etag;
"Create and manage custom roles": names of deleted roles; Compute Engine's and Filestore's operations.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.clouds.gcp_wire import NOT_ENABLED, Call, FakeGcpError

_ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
_ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_PERMISSION = re.compile(r"[a-z]+(\.[A-Za-z]+){2}")
_RULE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
ACT_AS = "iam.serviceAccounts.actAs"
# Further permissions that calls need: each operation's documentation.
NEEDS = {
    "firewalls.insert": ("compute.firewalls.create", "compute.networks.updatePolicy"),
    "firewalls.update": ("compute.firewalls.update", "compute.networks.updatePolicy"),
    "firewalls.delete": ("compute.firewalls.delete", "compute.networks.updatePolicy"),
    "iam.projects.serviceAccounts.testIamPermissions": (),
    "iam.projects.roles.create": ("iam.roles.create",),
    "iam.projects.roles.get": ("iam.roles.get",),
    "iam.projects.roles.patch": ("iam.roles.update",),
    "iam.projects.roles.undelete": ("iam.roles.undelete",),
    "iam.projects.roles.delete": ("iam.roles.delete",),
    **{
        f"iam.projects.serviceAccounts.{each}": (f"iam.serviceAccounts.{each}",)
        for each in ("create", "list", "delete", "getIamPolicy", "setIamPolicy")
    },
    **{
        f"cloudresourcemanager.projects.{each}": (f"resourcemanager.projects.{each}",)
        for each in ("getIamPolicy", "setIamPolicy")
    },
    **{f"storage.buckets.{each}": (f"storage.buckets.{each}",) for each in ("getIamPolicy", "setIamPolicy")},
    **{f"storage.buckets.{each}": (f"storage.buckets.{each}",) for each in ("get", "list", "delete")},
    "storage.buckets.insert": ("storage.buckets.create",),
    "storage.buckets.patch": ("storage.buckets.update",),
    **{f"storage.objects.{each}": (f"storage.objects.{each}",) for each in ("list", "delete")},
    **{
        f"file.projects.locations.instances.{each}": (f"file.instances.{each}",)
        for each in ("create", "list", "delete")
    },
    "file.projects.locations.operations.get": ("file.operations.get",),
}


@dataclass(slots=True)
class Policy:
    """A policy with its history: reads are some writes behind, for a while."""

    versions: list[list[dict[str, Any]]] = field(default_factory=lambda: [[]])
    stale_reads: int = 0

    def read(self) -> tuple[int, list[dict[str, Any]]]:
        """(the number of the version that is shown, its bindings)."""
        stale = self.stale_reads > 0 and len(self.versions) > 1
        self.stale_reads -= 1
        number = len(self.versions) - (2 if stale else 1)
        return number, copy.deepcopy(self.versions[number])


class Project:
    """What can be set: for how many calls what is new is unknown and what is going still there (`late`); APIs that are
    not enabled (`disabled`), the `buckets`, locations that Filestore cannot reach (`unreachable`), how the next
    operation fails (`failure`), how many writes of policies meet another's in between (`races`). Callers hold the
    fleet's lock.
    """

    def __init__(self, project: str, firewalls: Callable[[], list[dict[str, Any]]]) -> None:
        self.late = 0
        self.disabled: set[str] = set()
        self.unreachable: list[str] = []
        self.failure = ""
        self.races = 0
        self.policies: dict[str, Policy] = {project: Policy()}
        self.accounts: dict[str, dict[str, Any]] = {}
        self.roles: dict[str, dict[str, Any]] = {}
        self.others: set[str] = set()  # accounts that the daemon may not act as
        self.unsupported: set[str] = set()  # permissions that no role of the project's own can have
        self.purged: set[str] = set()  # roles whose names are taken, and nothing else
        self.file_systems: dict[str, dict[str, Any]] = {}
        self.buckets: dict[str, dict[str, Any]] = {}
        self.others_buckets: set[str] = set()  # of other projects
        self.objects: dict[tuple[str, str, str], bytes] = {}  # by bucket, name and generation
        self._project = project
        self._read_firewalls = firewalls
        self._pending: dict[str, Counter[str]] = {"make": Counter(), "delete": Counter()}
        self._young: Counter[str] = Counter()
        self._operations: dict[str, tuple[str, str]] = {}  # by name: its target, and how it failed
        self._ids = 10**15
        self.handlers: dict[str, Callable[[Call], Mapping[str, Any]]] = {
            "firewalls.insert": self._insert_rule,
            "firewalls.update": self._update_rule,
            "firewalls.delete": self._delete_rule,
            "globalOperations.get": self._operation,
            "iam.projects.serviceAccounts.create": self._make_account,
            "iam.projects.serviceAccounts.list": self._accounts,
            "iam.projects.serviceAccounts.delete": self._delete_account,
            "iam.projects.serviceAccounts.testIamPermissions": self._test,
            "iam.projects.serviceAccounts.getIamPolicy": self._get_policy,
            "iam.projects.serviceAccounts.setIamPolicy": self._set_policy,
            "iam.projects.roles.create": self._make_role,
            "iam.projects.roles.get": self._get_role,
            "iam.projects.roles.patch": self._patch_role,
            "iam.projects.roles.undelete": self._undelete_role,
            "iam.projects.roles.delete": self._delete_role,
            "cloudresourcemanager.projects.getIamPolicy": self._get_policy,
            "cloudresourcemanager.projects.setIamPolicy": self._set_policy,
            "storage.buckets.getIamPolicy": self._get_policy,
            "storage.buckets.setIamPolicy": self._set_policy,
            "storage.buckets.get": self._bucket,
            "storage.buckets.list": lambda _: {"kind": "storage#buckets", "items": list(self.buckets.values())},
            "storage.buckets.insert": self._make_bucket,
            "storage.buckets.patch": self._patch_bucket,
            "storage.buckets.delete": self._delete_bucket,
            "storage.objects.list": self._list_objects,
            "storage.objects.delete": self._delete_object,
            "file.projects.locations.instances.create": self._make_file_system,
            "file.projects.locations.instances.list": self._file_systems,
            "file.projects.locations.instances.delete": self._delete_file_system,
            "file.projects.locations.operations.get": self._file_operation,
        }

    @property
    def _firewalls(self) -> list[dict[str, Any]]:
        return self._read_firewalls()

    def admit(self, call: Call) -> None:
        """Raises FakeGcpError for an API that is not enabled."""
        if call.api in self.disabled:
            message = (
                f"{call.api} API has not been used in project 123 before or it is disabled. Enable it by visiting…"
            )
            reason = "accessNotConfigured" if call.api in {"compute", "storage"} else NOT_ENABLED
            raise FakeGcpError(403, reason, message)

    def left(self) -> list[str]:
        """What spotsup made and is there: rules, accounts, roles, members of policies, instances."""
        rules = [each["name"] for each in self._firewalls if each["name"].startswith("spotsup-")]
        roles = [name for name, each in self.roles.items() if not each.get("deleted")]
        members = [member for name in self.policies for member in self.members(name) if "spotsup-" in member]
        buckets = [name for name, each in self.buckets.items() if each.get("labels")]
        return [*rules, *self.accounts, *roles, *members, *self.file_systems, *buckets]

    def members(self, resource: str) -> list[str]:
        """Of a resource's policy: "role member" for each."""
        bindings = self.policies[resource].versions[-1]
        return [f"{each['role']} {member}" for each in bindings for member in each["members"]]

    def grant(self, resource: str, role: str, *members: str, **more: Any) -> None:
        """Another's binding."""
        policy = self.policies.setdefault(resource, Policy())
        policy.versions.append([*policy.versions[-1], {"role": role, "members": list(members), **more}])

    def add_bucket(self, name: str) -> None:
        """A bucket of a person's own, with its project's bindings."""
        self.buckets[name] = {"name": name, "location": "US"}
        self.grant(name, "roles/storage.legacyBucketOwner", f"projectOwner:{self._project}")

    def _is_late(self, counts: Counter[str], name: str) -> bool:
        counts[name] -= 1
        return counts[name] >= 0

    # -- firewall rules ------------------------------------------------------------------------------------

    def listed_rules(self) -> list[dict[str, Any]]:
        """What a listing shows: nothing of what is being made, all of what is being deleted."""
        making, deleting = self._pending["make"], self._pending["delete"]
        for name in [each["name"] for each in self._firewalls if each["name"] in deleting]:
            if not self._is_late(deleting, name):
                del deleting[name]
                self._firewalls[:] = [each for each in self._firewalls if each["name"] != name]
        return [each for each in self._firewalls if not self._is_late(making, each["name"])]

    def _insert_rule(self, call: Call) -> Mapping[str, Any]:
        body = call.body
        _check_rule(body)
        if any(each["name"] == body["name"] for each in self._firewalls):
            message = f"The resource 'projects/p/global/firewalls/{body['name']}' already exists"
            raise FakeGcpError(409, "alreadyExists", message)
        if not self.failure:
            self._pending["make"][body["name"]] = self.late
            self._firewalls.append({**self._described(body), "id": str(self._next_id())})
        return self._begun("insert", body["name"])

    def _described(self, body: Mapping[str, Any]) -> dict[str, Any]:
        network = f"https://www.googleapis.com/compute/v1/projects/p/{body['network']}"
        return {**body, "kind": "compute#firewall", "network": network}

    def _update_rule(self, call: Call) -> Mapping[str, Any]:
        rule = self._settled_rule(call)
        _check_rule(call.body)
        rule.clear()
        rule.update(self._described(call.body))
        return self._begun("update", call.path["firewall"])

    def _delete_rule(self, call: Call) -> Mapping[str, Any]:
        name = self._settled_rule(call)["name"]
        self._pending["delete"][name] = self.late
        if not self.late:
            self.listed_rules()
        return self._begun("delete", name)

    def _settled_rule(self, call: Call) -> dict[str, Any]:
        name = call.path["firewall"]
        rule = next((each for each in self._firewalls if each["name"] == name), None)
        if rule is None:
            raise FakeGcpError(404, "notFound", f"The resource 'projects/p/global/firewalls/{name}' was not found")
        if any(pending[name] > 0 for pending in self._pending.values()):
            raise FakeGcpError(400, "resourceNotReady", f"The resource '{name}' is not ready")
        return rule

    def _begun(self, kind: str, target: str) -> Mapping[str, Any]:
        name = f"operation-{self._next_id()}"
        self._operations[name], self.failure = (target, self.failure), ""
        return self._shown(name, kind, "RUNNING")

    def _shown(self, name: str, kind: str, status: str) -> dict[str, Any]:
        failure = self._operations[name][1] if status == "DONE" else ""
        errors = {"error": {"errors": [{"code": "QUOTA_EXCEEDED", "message": failure}]}} if failure else {}
        raw = {"kind": "compute#operation", "id": str(self._next_id()), "name": name, "operationType": kind}
        return {**raw, "status": status, **errors}

    def _operation(self, call: Call) -> Mapping[str, Any]:
        name = call.path["operation"]
        if name not in self._operations:
            raise FakeGcpError(404, "notFound", f"The resource '{name}' was not found")
        busy = any(pending[self._operations[name][0]] > 0 for pending in self._pending.values())
        return self._shown(name, "insert", "RUNNING" if busy else "DONE")

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    # -- service accounts and roles ------------------------------------------------------------------------

    def _make_account(self, call: Call) -> Mapping[str, Any]:
        name, text = call.body["accountId"], call.body.get("serviceAccount", {})
        if not _ACCOUNT_ID.fullmatch(name) or len(text.get("description", "").encode()) > 256:
            raise FakeGcpError(400, "INVALID_ARGUMENT", "The account ID or the description does not have the form…")
        email = f"{name}@{self._project}.iam.gserviceaccount.com"
        if email in self.accounts:
            raise FakeGcpError(409, "ALREADY_EXISTS", f"Service account {name} already exists within project")
        self.accounts[email] = {**text, "email": email, "uniqueId": str(self._next_id())}
        self.policies[email] = Policy()
        self._young.update({f"list {email}": self.late, f"policy {email}": self.late, f"member {email}": self.late})
        return self.accounts[email]

    def _accounts(self, call: Call) -> Mapping[str, Any]:
        found = [each for email, each in self.accounts.items() if not self._is_late(self._young, f"list {email}")]
        size, first = int(call.query.get("pageSize", 20)), int(call.query.get("pageToken", 0))
        more = {"nextPageToken": str(first + size)} if len(found) > first + size else {}
        return {**({"accounts": found[first : first + size]} if found else {}), **more}

    def _delete_account(self, call: Call) -> Mapping[str, Any]:
        email = call.path["serviceAccountsId"]
        if email not in self.accounts:
            raise FakeGcpError(404, "NOT_FOUND", f"Unknown service account {email}")
        unique = self.accounts.pop(email)["uniqueId"]
        self.policies.pop(email, None)
        for policy in self.policies.values():
            for entry in policy.versions[-1]:
                gone = f"serviceAccount:{email}"
                entry["members"] = [
                    f"deleted:{gone}?uid={unique}" if each == gone else each for each in entry["members"]
                ]
        return {}

    def _test(self, call: Call) -> Mapping[str, Any]:
        """Which of these permissions the caller has; an empty answer for none."""
        email = call.path["serviceAccountsId"]
        if email not in self.accounts:
            raise FakeGcpError(404, "NOT_FOUND", f"Unknown service account {email}")
        found = [each for each in call.body["permissions"] if each == ACT_AS and email not in self.others]
        return {"permissions": found} if found else {}

    def refuse(self, email: str) -> tuple[str, str] | None:
        """(code, message) of the operation that would give a machine this account; None where it may."""
        if email not in self.accounts:
            return "EXTERNAL_RESOURCE_NOT_FOUND", f"The resource '{email}' of type 'serviceAccount' was not found."
        if email in self.others:
            ask = "Ask a project owner to grant you the iam.serviceAccountUser role on the service account"
            return "SERVICE_ACCOUNT_ACCESS_DENIED", f"The user does not have access to service account '{email}'. {ask}"
        return None

    def know(self, email: str, *, act_as: bool = True) -> str:
        """A service account that somebody else has made; its address. `act_as`: whether the daemon's may act as it."""
        self.accounts[email] = {"email": email, "uniqueId": str(self._next_id())}
        self.others |= set() if act_as else {email}
        return email

    def _make_role(self, call: Call) -> Mapping[str, Any]:
        name, body = call.body["roleId"], call.body["role"]
        _check_role(name, body, self.unsupported)
        if name in self.purged or self.roles.get(name, {}).get("deleted"):
            message = (
                f"You can't create a role with role_id ({name}) where there is an existing role with that role_id in"
            )
            raise FakeGcpError(400, "FAILED_PRECONDITION", f"{message} a deleted state.")
        if name in self.roles:
            raise FakeGcpError(409, "ALREADY_EXISTS", f"A role named {name} in projects/p already exists.")
        self.roles[name] = {**body, "name": f"projects/{self._project}/roles/{name}", "etag": "BwX="}
        self._young.update({f"role {name}": self.late, f"granted {name}": self.late})
        return self.roles[name]

    def _get_role(self, call: Call) -> Mapping[str, Any]:
        name = call.path["rolesId"]
        if name not in self.roles or self._is_late(self._young, f"role {name}"):
            raise FakeGcpError(404, "NOT_FOUND", f"The role named projects/p/roles/{name} was not found.")
        return self.roles[name]

    def _known_role(self, call: Call) -> dict[str, Any]:
        if (name := call.path["rolesId"]) not in self.roles:
            raise FakeGcpError(404, "NOT_FOUND", f"The role named projects/p/roles/{name} was not found.")
        return self.roles[name]

    def _patch_role(self, call: Call) -> Mapping[str, Any]:
        role = self._known_role(call)
        if role.get("deleted"):
            raise FakeGcpError(400, "FAILED_PRECONDITION", "You can't update a deleted role.")
        _check_role(call.path["rolesId"], call.body, self.unsupported)
        role.update({key: call.body[key] for key in call.query["updateMask"].split(",")})
        return role

    def _undelete_role(self, call: Call) -> Mapping[str, Any]:
        role = self._known_role(call)
        if not role.pop("deleted", False):
            raise FakeGcpError(400, "FAILED_PRECONDITION", "The role is not deleted.")
        return role

    def _delete_role(self, call: Call) -> Mapping[str, Any]:
        role = self._known_role(call)
        if role.get("deleted"):
            raise FakeGcpError(400, "FAILED_PRECONDITION", "The role is deleted already.")
        role["deleted"] = True
        return role

    # -- policies ------------------------------------------------------------------------------------------

    def _policy(self, call: Call) -> tuple[str, Policy]:
        name = call.path.get("serviceAccountsId") or call.path.get("bucket") or call.path["resource"]
        if name not in self.policies:
            reason = "notFound" if call.api == "storage" else "NOT_FOUND"
            raise FakeGcpError(404, reason, f"{name} was not found.")
        if self._is_late(self._young, f"policy {name}"):
            raise FakeGcpError(403, "PERMISSION_DENIED", "Permission denied on resource (or it may not exist).")
        return name, self.policies[name]

    def _get_policy(self, call: Call) -> Mapping[str, Any]:
        _, policy = self._policy(call)
        number, bindings = policy.read()
        asked = call.query.get("options.requestedPolicyVersion") or call.query.get("optionsRequestedPolicyVersion")
        version = int(asked or call.body.get("options", {}).get("requestedPolicyVersion", 1))
        if version < 3:
            for each in bindings:
                if each.pop("condition", None):
                    each["role"] += "_withcond_0123456789abcdef"
        conditions = any("condition" in each for each in bindings)
        shown: dict[str, Any] = {"version": 3 if conditions else 1, "etag": f"BwW{number}="}
        return {**shown, **({"bindings": bindings} if bindings else {})}

    def _set_policy(self, call: Call) -> Mapping[str, Any]:
        name, policy = self._policy(call)
        sent = call.body if call.api == "storage" else call.body["policy"]
        bindings = copy.deepcopy(list(sent.get("bindings", ())))
        self._check_members(bindings)
        if any("condition" in each for each in bindings) and sent.get("version") != 3:
            raise FakeGcpError(400, "INVALID_ARGUMENT", "A policy with conditions has to be of version 3.")
        if self.races:
            self.races -= 1
            self.grant(name, "roles/viewer", f"user:colleague{self.races}@example.com")
        # Without an etag, a policy replaces any other.
        if "etag" in sent and sent["etag"] != f"BwW{len(policy.versions) - 1}=":
            if call.api == "storage":
                raise FakeGcpError(412, "conditionNotMet", "Precondition Failed")
            message = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential…"
            raise FakeGcpError(409, "ABORTED", message)
        policy.versions.append(bindings)
        policy.stale_reads = self.late
        return {"etag": f"BwW{len(policy.versions) - 1}=", "bindings": bindings}

    def _check_members(self, bindings: list[dict[str, Any]]) -> None:
        members = {member for each in bindings for member in each["members"]}
        for member in members:
            kind, _, email = member.partition(":")
            ours = kind == "serviceAccount" and email.endswith(f"@{self._project}.iam.gserviceaccount.com")
            if ours and (email not in self.accounts or self._is_late(self._young, f"member {email}")):
                raise FakeGcpError(400, "INVALID_ARGUMENT", f"Service account {email} does not exist.")
            if any(each.startswith(f"deleted:{member}?") for each in members):
                message = f"Inconsistent representation of deleted member: 'deleted:{member}?uid=1' and '{member}'"
                raise FakeGcpError(400, "INVALID_ARGUMENT", message)
        for role in {each["role"] for each in bindings if each["role"].startswith("projects/")}:
            name = role.rpartition("/")[2]
            known = name in self.roles and not self._is_late(self._young, f"granted {name}")
            if not known:
                raise FakeGcpError(400, "INVALID_ARGUMENT", f"Role {role} does not exist in the resource's hierarchy.")

    # -- buckets -------------------------------------------------------------------------------------------

    def _bucket(self, call: Call) -> dict[str, Any]:
        name = call.path["bucket"]
        if name in self.others_buckets:
            raise FakeGcpError(403, "forbidden", f"daemon does not have storage.buckets.get access to {name}.")
        if name not in self.buckets:
            raise FakeGcpError(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def _make_bucket(self, call: Call) -> Mapping[str, Any]:
        name = str(call.body["name"])
        if name in self.buckets or name in self.others_buckets:
            raise FakeGcpError(409, "conflict", "The requested bucket name is not available.")
        self.add_bucket(name)
        self.buckets[name] = {**call.body, "location": str(call.body["location"]).upper()}
        return self.buckets[name]

    def _patch_bucket(self, call: Call) -> Mapping[str, Any]:
        self._bucket(call).update(call.body)
        return self._bucket(call)

    def _delete_bucket(self, call: Call) -> Mapping[str, Any]:
        name = self._bucket(call)["name"]
        if any(bucket == name for bucket, _, _ in self.objects):
            raise FakeGcpError(409, "conflict", "The bucket you tried to delete is not empty.")
        del self.buckets[name], self.policies[name]
        return {}

    def _list_objects(self, call: Call) -> Mapping[str, Any]:
        name = self._bucket(call)["name"]
        found = [{"name": key, "generation": number} for bucket, key, number in self.objects if bucket == name]
        return {"kind": "storage#objects", **({"items": found[:2]} if found else {})}

    def _delete_object(self, call: Call) -> Mapping[str, Any]:
        key = (call.path["bucket"], call.path["object"], call.query["generation"])
        if key not in self.objects:
            raise FakeGcpError(404, "notFound", "No such object")
        del self.objects[key]
        return {}

    # -- Filestore -----------------------------------------------------------------------------------------

    def _make_file_system(self, call: Call) -> Mapping[str, Any]:
        zone, name, body = call.path["locationsId"], call.query["instanceId"], call.body
        whole = f"projects/{self._project}/locations/{zone}/instances/{name}"
        if whole in self.file_systems:
            raise FakeGcpError(409, "ALREADY_EXISTS", f"Resource '{whole}' already exists")
        if body["tier"] == "BASIC_HDD" and int(body["fileShares"][0]["capacityGb"]) < 1024:
            raise FakeGcpError(400, "INVALID_ARGUMENT", "the capacity is below the minimum of the tier")
        operation = f"projects/{self._project}/locations/{zone}/operations/operation-{self._next_id()}"
        self._operations[operation], failure = (whole, self.failure), self.failure
        self.failure = ""
        if not failure:
            self.file_systems[whole] = {**body, "name": whole, "state": "CREATING"}
            self._young[whole] = self.late
        return {"name": operation, "done": False}

    def _file_systems(self, call: Call) -> Mapping[str, Any]:
        assert call.path["locationsId"] == "-"
        for name, each in list(self.file_systems.items()):
            if self._is_late(self._young, name):
                continue
            if each["state"] == "DELETING":
                del self.file_systems[name]
            elif each["state"] == "CREATING":
                network = {**each["networks"][0], "ipAddresses": ["10.9.8.2"]}
                each.update(state="READY", networks=[network])
        found = {"instances": list(self.file_systems.values())} if self.file_systems else {}
        return {**found, **({"unreachable": self.unreachable} if self.unreachable else {})}

    def _delete_file_system(self, call: Call) -> Mapping[str, Any]:
        whole = f"projects/{self._project}/locations/{call.path['locationsId']}/instances/{call.path['instancesId']}"
        if whole not in self.file_systems:
            raise FakeGcpError(404, "NOT_FOUND", f"Resource '{whole}' was not found")
        if self.file_systems[whole]["state"] == "DELETING":
            raise FakeGcpError(409, "ABORTED", "there is an operation on it already")
        self.file_systems[whole]["state"] = "DELETING"
        self._young[whole] = self.late
        return {"name": f"projects/{self._project}/locations/z/operations/operation-{self._next_id()}", "done": False}

    def _file_operation(self, call: Call) -> Mapping[str, Any]:
        name = f"projects/{self._project}/locations/{call.path['locationsId']}/operations/{call.path['operationsId']}"
        if name not in self._operations:
            raise FakeGcpError(404, "NOT_FOUND", f"Resource '{name}' was not found")
        target, failure = self._operations[name]
        if failure:
            return {"name": name, "done": True, "error": {"code": 8, "message": failure}}
        return {"name": name, "done": self.file_systems.get(target, {}).get("state") != "CREATING"}


def _check_rule(body: Mapping[str, Any]) -> None:
    """Source: "VPC firewall rules", specifications."""
    if not _RULE_NAME.fullmatch(body["name"]):
        raise FakeGcpError(400, "invalid", f"Invalid value for field 'resource.name': '{body['name']}'.")
    if body["network"].rpartition("/")[2] != "default":
        raise FakeGcpError(404, "notFound", f"The resource '{body['network']}' was not found")
    if len({":" in each for each in body.get("sourceRanges", ())}) > 1:
        raise FakeGcpError(400, "invalid", "Invalid value for field 'resource.sourceRanges': one kind of address only")
    if any(each["IPProtocol"] == "all" and each.get("ports") for each in body["allowed"]):
        raise FakeGcpError(
            400, "invalid", "Invalid value for field 'resource.allowed[0].ports': none for all protocols"
        )


def _check_role(name: str, body: Mapping[str, Any], unsupported: Container[str]) -> None:
    if not _ROLE_ID.fullmatch(name) or len(body.get("title", "").encode()) > 100:
        raise FakeGcpError(400, "INVALID_ARGUMENT", "The role name must be in the form…")
    for permission in body["includedPermissions"]:
        if not _PERMISSION.fullmatch(permission) or permission in unsupported:
            raise FakeGcpError(400, "INVALID_ARGUMENT", f"Permission {permission} is not valid.")
