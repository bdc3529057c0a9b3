"""etcd's users: the daemon's, and one per job, whose role is what the job's nodes need (`Keys.grants`).

A job's user is made before its first node is prepared, and deleted once the job has ended and its nodes are being
terminated. Nothing about users is stored anywhere but in etcd: names and passwords follow from the journal and from the
cluster's key, so any daemon may go on where another one died, and whatever is too much is pruned.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError
from spotsup_trainer.etcd.access import EtcdAccess
from spotsup_trainer.wire import Grant, Keys

from supervisor.errors import JournalUnavailableError, StartError
from supervisor.identity import Identity
from supervisor.journal.journal import EtcdUse
from supervisor.model import JobRecord

ROOT = "root"
# grpc's FAILED_PRECONDITION. etcd says "already exists", "not found" and "is not enabled" with it, or with
# INVALID_ARGUMENT, by version; so its texts are read: etcd's api/v3rpc/rpctypes/error.go.
_EXISTS = ("user name already exists", "role name already exists")
_MISSING = ("user name not found", "role name not found")
_NOT_ENABLED = "authentication is not enabled"
# Without the known ways around its users: GHSA-rfx7-8w68-q57q, GHSA-q8m4-xhhv-38mg, GHSA-x35m-3gp4-4fh5 and
# GHSA-xg4h-6gfc-h4m8, of which 3.4 has no remedy for the last.
SAFE_VERSIONS = "3.5.33, 3.6.14, 3.7.1"


def enable_users(anonymous: Etcd, login: Etcd, user: str, password: str) -> bool:
    """Make `user`, who may do everything, and let etcd answer to users only. Returns False if it did before.

    `login`: a client that logs in as `user`. Each step may find itself done, so a crash in between does not matter.
    `root`, without whom etcd enables no users, gets no password: no one can log in as root.
    Raises StartError if etcd has users and `user` is none who may manage them; EtcdError.
    """
    try:
        login.call("/v3/auth/user/list", {})
    except EtcdRefusedError as error:
        if _NOT_ENABLED not in str(error):
            raise StartError(
                f"etcd at {', '.join(login.endpoints)} has users, but {user!r} may not manage them ({error}): check "
                "the password, and give that user the role root"
            ) from error
    else:
        return False
    try:
        _enable(anonymous, user, password)
    except EtcdRefusedError:
        # Another host may have done it meanwhile: then etcd answers to users only, and has this one.
        try:
            login.call("/v3/auth/user/list", {})
        except EtcdRefusedError:
            pass
        else:
            return False
        raise
    return True


def _enable(anonymous: Etcd, user: str, password: str) -> None:
    _ask(anonymous, "role/add", {"name": ROOT}, _EXISTS)
    _ask(anonymous, "user/add", {"name": ROOT, "options": {"no_password": True}}, _EXISTS)
    _ask(anonymous, "user/grant", {"user": ROOT, "role": ROOT})
    _ask(anonymous, "user/add", {"name": user, "password": password}, _EXISTS)
    _ask(anonymous, "user/changepw", {"name": user, "password": password})
    _ask(anonymous, "user/grant", {"user": user, "role": ROOT})
    anonymous.call("/v3/auth/enable", {})


def add_daemon(etcd: Etcd, user: str, password: str) -> None:
    """Make the daemons' user in an etcd that has users; goes on where it was interrupted. Raises EtcdError."""
    _ask(etcd, "user/add", {"name": user, "password": password}, _EXISTS)
    _ask(etcd, "user/grant", {"user": user, "role": ROOT})


def open_to_everyone(anonymous: Etcd) -> str:
    """Return what an etcd that has users lets everyone do who reaches it, and what to do about it; "" if nothing.

    It is tried, and nothing is written: distributions fix old versions without a new number. Raises EtcdError.
    `anonymous`: a client without a login.
    """
    read = {"request_range": {"key": _b64("/"), "range_end": _b64("0"), "limit": "1", "keys_only": True}}
    try:
        # What a transaction within a transaction does is checked from etcd 3.4.42, 3.5.28 and 3.6.9 on.
        anonymous.call("/v3/kv/txn", {"success": [{"request_txn": {"success": [read]}}]})
    except EtcdRefusedError:
        return ""
    version = anonymous.status().get("version", "of this version")
    return (
        f"etcd {version} lets everyone who reaches its port read and change everything, without a login "
        f"(CVE-2026-33343): install etcd {SAFE_VERSIONS} or newer (docs/install.md#an-etcd-that-is-closed); until then "
        "let only machines that you trust reach it"
    )


@dataclass(slots=True)
class JobUsers:
    """Makes and deletes the users of jobs. For any number of threads, and of daemons.

    `etcd`: a client of a user with the role root. `ca`: reads by which CAs nodes trust etcd, as PEM text.
    `wanted`: reads which jobs may use etcd, not from a copy.
    """

    etcd: Etcd
    keys: Keys
    identity: Identity
    ca: Callable[[], str]
    wanted: Callable[[], EtcdUse]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raise StartError if the daemon's user may not manage users; EtcdUnavailableError."""
        try:
            self._names("user")
        except EtcdRefusedError as error:
            raise StartError(
                f"etcd lets its user make no users for jobs ({error}): check etcd.user and etcd.password_file, and "
                "give that user the role root; `spotsupd etcd-users` does"
            ) from error

    def ensure(self, job: JobRecord) -> EtcdAccess:
        """Return how the nodes of a job log in; its user is made where it is missing. Raises JournalUnavailableError.

        Users of earlier jobs of that name, whose keys are the same, are deleted first.
        """
        name = self._name(job.task_id)
        try:
            with self._lock:
                users = self._names("user")
                for each in sorted(users - {name}):
                    if self._is_of(each, job.name):
                        self._delete(each)
                if name not in users or not self._is_complete(name):
                    self._make(name, job.name)
        except EtcdError as error:
            raise _unavailable(error) from error
        return EtcdAccess(name, self.identity.etcd_password(name), self.ca())

    def prune(self) -> str:
        """Delete the users of jobs that use etcd no more, and make those that are missing or not complete: an etcd that
        lost its data, or was restored, has none, and a daemon may have died while it made one. Returns what was done,
        or "". Raises EtcdError, SpotsupError.

        The journal is read after the users: a job is in it before it has a user, so none is deleted that is new.
        """
        with self._lock:
            users = self._names("user")
            found = users | self._names("role")
            use = self.wanted()
            kept = {self._name(job.task_id) for job in use.jobs}
            gone = sorted(
                name for name in found - kept if not any(self._is_of(name, unreadable) for unreadable in use.unreadable)
            )
            for name in gone:
                self._delete(name)
            needed = {self._name(job.task_id): job.name for job in use.with_nodes}
            made = sorted(name for name in needed if name not in users or not self._is_complete(name))
            for name in made:
                self._make(name, needed[name])
        done = [f"revoked {name}" for name in gone] + [f"made {name} again" for name in made]
        return f"users of etcd: {', '.join(done)}" if done else ""

    def _name(self, task_id: str) -> str:
        return f"{self._prefix}{task_id}"

    def _is_of(self, name: str, job: str) -> bool:
        """True if it is the user of a job of that name. uids have no dash, so `a-b-1f` is of `a-b`, not of `a`."""
        return name.removeprefix(self._prefix).rpartition("-")[0] == job

    @property
    def _prefix(self) -> str:
        return f"spotsup/{self.keys.cluster}/"

    def _names(self, what: Literal["user", "role"]) -> set[str]:
        found = self.etcd.call(f"/v3/auth/{what}/list", {}).get(f"{what}s", ())
        return {str(name) for name in found if str(name).startswith(self._prefix)}

    def _is_complete(self, name: str) -> bool:
        """True if nothing of `_make` is left to do: a user gets its role last."""
        return name in self.etcd.call("/v3/auth/user/get", {"name": name}).get("roles", ())

    def _make(self, name: str, job: str) -> None:
        _ask(self.etcd, "role/add", {"name": name}, _EXISTS)
        for grant in self.keys.grants(job):
            _ask(self.etcd, "role/grant", {"name": name, "perm": _permission(grant)})
        _ask(self.etcd, "user/add", {"name": name, "password": self.identity.etcd_password(name)}, _EXISTS)
        _ask(self.etcd, "user/grant", {"user": name, "role": name})

    def _delete(self, name: str) -> None:
        """Delete the user first: its tokens end with it. A role without a user is pruned the next time."""
        _ask(self.etcd, "user/delete", {"name": name}, _MISSING)
        _ask(self.etcd, "role/delete", {"role": name}, _MISSING)


def _permission(grant: Grant) -> dict[str, str]:
    return {"permType": grant.kind, "key": _b64(grant.begin), "range_end": _b64(grant.end)}


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _ask(etcd: Etcd, path: str, body: dict[str, object], expected: Sequence[str] = ()) -> None:
    """Make a call that may find its work done: by the same daemon before a crash, or by another one just now."""
    try:
        etcd.call(f"/v3/auth/{path}", body)
    except EtcdRefusedError as error:
        if not any(each in str(error) for each in expected):
            raise


def _unavailable(error: EtcdError) -> JournalUnavailableError:
    if isinstance(error, EtcdRefusedError):
        return JournalUnavailableError(
            f"etcd refuses to make a user for the job's nodes ({error}): give the user of etcd.user the role root"
        )
    return JournalUnavailableError(f"no user for the job's nodes: {error}")
