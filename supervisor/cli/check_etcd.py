"""What `spotsupd check` finds out about etcd: whether it answers, to whom, and whose journal it holds."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence
from functools import partial

from spotsup_trainer.etcd import Etcd, EtcdError
from spotsup_trainer.wire import Keys

from provisioners.base import Finding
from supervisor.config import Config
from supervisor.endpoints import node_endpoints, refusal
from supervisor.errors import SpotsupError
from supervisor.identity import load_identity
from supervisor.journal.codec import load
from supervisor.journal.connection import EtcdLogin, login_of, tls_files
from supervisor.journal.etcd_members import count_of, judged, look
from supervisor.journal.etcd_server import find_etcd
from supervisor.journal.etcd_trust import Ending, ca_ending, ending
from supervisor.journal.maintenance import refuses_writes
from supervisor.journal.reading import CLUSTER
from supervisor.journal.store import FULL
from supervisor.journal.users import open_to_everyone
from supervisor.model import ClusterRecord, JobRecord

_NO_CLIENT_CERTIFICATES = "it asks for a client certificate, and nodes have none: start it without --client-cert-auth"
# Part of an error -> what to do. The first that fits counts. Of Python's ssl, of OpenSSL, and of etcd
# (api/v3rpc/rpctypes/error.go).
_REMEDIES = (
    (
        "certificate has expired",
        "renew etcd's certificate (the daemon's start does, if `spotsupd init` made it), or set this computer's clock",
    ),
    (
        "certificate is not yet valid",
        "set this computer's clock, or that of the one that made the certificate: it is valid from later on",
    ),
    (
        "mismatch, certificate is not valid",
        "make etcd a certificate for it, or correct etcd.endpoints",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "set etcd.ca to the certificate of the CA that made etcd's"),
    ("this is no answer of etcd", "another program answers there: correct etcd.endpoints"),
    (
        "authentication is not enabled",
        "it has no users: make them with `spotsupd etcd-users`, or remove etcd.user and etcd.password_file",
    ),
    ("does not accept user", "correct etcd.user, or the password in the file that etcd.password_file names"),
    ("user name is empty", "it has users: set etcd.user and etcd.password_file"),
    ("permission denied", "give the user of etcd.user the role root"),
    ("no leader", "start a majority of its members"),
    ("ALERT_BAD_CERTIFICATE", _NO_CLIENT_CERTIFICATES),
    ("ALERT_CERTIFICATE_REQUIRED", _NO_CLIENT_CERTIFICATES),
)
# How a conversation ends in which one side speaks TLS, and the other does not: by the version of etcd and of OpenSSL.
_CUT_SHORT = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP request to an HTTPS server",
    "EOF occurred in violation of protocol",
    "TLS/SSL connection has been closed",
    "Connection reset by peer",
    "Remote end closed connection",
)
_HAS_TLS = "does it want TLS? Then write https:// in etcd.endpoints, and set etcd.ca"
_HAS_NO_TLS = "has it TLS there? Otherwise write http:// in etcd.endpoints, or start it with a certificate"
_DEFAULT_REMEDY = "start it, set etcd.endpoints, or let spotsupd start one (--embedded-etcd, also here)"


def check_etcd(config: Config, *, embedded: bool) -> list[Finding]:
    """Nothing is written to it."""
    return [*_etcd(config, embedded=embedded), nodes(config, embedded=embedded)]


def _etcd(config: Config, *, embedded: bool) -> list[Finding]:
    try:
        if embedded:
            where, ca = config.state / "etcd", tls_files(config).ca
            message = f"{find_etcd()} would be started, with its data in {where}"
            soon = ca_ending(ca, dt.datetime.now(dt.UTC)) if ca.exists() else []
            return [Finding("program", ok=True, message=message), *_certificates(soon)]
        etcd = login_of(config).connect()
    except SpotsupError as error:
        return [Finding("set up", ok=False, message=str(error))]
    endpoints = ", ".join(config.etcd.endpoints)
    with contextlib.closing(etcd):
        try:
            etcd.get("/")
            if config.etcd.user:
                etcd.call("/v3/auth/user/list", {})  # it makes users for jobs
            found = held(config, login_of(config), etcd)
        except EtcdError as error:
            message = f"etcd at {endpoints} cannot be used ({error}): {remedy(config, str(error), _DEFAULT_REMEDY)}"
            return [Finding("answer", ok=False, message=message)]
    return [Finding("answer", ok=True, message=f"etcd answers at {endpoints}"), *found]


def held(config: Config, login: EtcdLogin, etcd: Etcd) -> list[Finding]:
    """Return how an etcd that answers a user is, and what it holds. Raises EtcdError, StartError."""
    return [
        *judged(look(login), count_of(etcd), partial(remedy, config, default="start it")),
        *_certificates(ending(login, dt.datetime.now(dt.UTC))),
        _journal(config, etcd),
        *_users(login),
    ]


def _certificates(found: Sequence[Ending]) -> list[Finding]:
    return [Finding("certificates", ok=False, message=each.sentence) for each in found]


def remedy(config: Config, problem: str, default: str) -> str:
    """Return what to do about an error of etcd's, of TLS, or of the network."""
    if any(part in problem for part in _CUT_SHORT):
        return _HAS_NO_TLS if any(each.startswith("https:") for each in config.etcd.endpoints) else _HAS_TLS
    return next((remedy for part, remedy in _REMEDIES if part in problem), default)


def _users(login: EtcdLogin) -> list[Finding]:
    """Check whether they keep anyone out. Raises EtcdError."""
    if not login.user:
        return []
    with contextlib.closing(login.anonymous().connect()) as anonymous:
        problem = open_to_everyone(anonymous)
    return [Finding("users", ok=not problem, message=problem or "etcd answers to its users only")]


def _journal(config: Config, etcd: Etcd) -> Finding:
    """Check whether this daemon could go on with the journal that etcd holds. Raises EtcdError."""
    keys = Keys(config.cluster)
    if refuses_writes(etcd):
        return Finding("journal", ok=False, message=FULL)
    try:
        if (found := etcd.get(f"{keys.world}{CLUSTER}")) is None:
            return Finding("journal", ok=True, message=f"etcd has no journal of cluster {config.cluster} yet")
        begun = load(ClusterRecord, found.value, found.key)
        jobs = etcd.range(f"{keys.world}jobs/").kvs
        for job in jobs:
            load(JobRecord, job.value, job.key)
    except SpotsupError as error:
        return Finding("journal", ok=False, message=str(error))
    if problem := _other_key(config, begun.key_mark):
        return Finding("journal", ok=False, message=problem)
    return Finding("journal", ok=True, message=f"the journal of cluster {config.cluster} has {len(jobs)} jobs")


def _other_key(config: Config, mark: str) -> str:
    """Return why the journal is not of this installation's key. Without it the daemon can log in to none of its
    nodes."""
    path = config.state / "cluster.key"
    try:
        own = load_identity(path).mark if path.exists() else ""
    except (SpotsupError, OSError):
        return ""  # the check of the key reports it
    if mark in {"", own}:
        return ""
    has = f"{path} is another one (mark {own})" if own else f"there is no {path}"
    return (
        f"the journal of cluster {config.cluster} in etcd belongs to a cluster.key with mark {mark}, and {has}: copy "
        "the key from another daemon's state folder or a backup, or set another `cluster`"
    )


def nodes(config: Config, *, embedded: bool) -> Finding:
    """Check whether nodes may be given etcd's endpoints. Whether they reach them is tried by each node's bootstrap."""
    if problem := refusal(config, embedded=embedded):
        return Finding("nodes", ok=False, message=problem)
    found = node_endpoints(config, embedded=embedded)
    return Finding("nodes", ok=True, message=f"nodes are given etcd at {', '.join(found)}")
