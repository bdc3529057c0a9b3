"""What a stolen node tries on etcd itself, beside its job's keys: a real one with TLS and users, and what became of it.

More is in test_etcd_users.py and test_stolen_leases.py. Versions differ in what they refuse of what changes nothing of
others; after each try all keys of others are as they were, and the daemons can write.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, Put

from supervisor.journal.journal import Journal
from supervisor.journal.maintenance import make_room
from supervisor.journal.store import MAX_CHANGES_BYTES, EtcdStore
from tests.support.secured_etcd import DAEMON, KEYS, SecuredEtcd, a_job, secured_etcd

pytestmark = pytest.mark.long

JOB, OTHER = a_job("evil", "eeeee"), a_job("ann", "aaaaa")
RUN, LEADER = KEYS.run(JOB.name), f"{KEYS.root}leader"
THEIRS = (LEADER, KEYS.member(OTHER.name, "n"), KEYS.hint(JOB.name), f"{KEYS.world}jobs/{OTHER.name}", f"{KEYS.world}x")
FAR_FUTURE_S = 9_000_000_000
REFUSED = r"(?i)permission ?denied|lease already exists"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with secured_etcd(tmp_path_factory.mktemp("stolen")) as made:
        yield made


@pytest.fixture(scope="module")
def root(secured: SecuredEtcd) -> Iterator[Etcd]:
    with closing(secured.client()) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def thief(secured: SecuredEtcd) -> Iterator[Etcd]:
    with closing(secured.access(JOB).connect([secured.endpoint])) as etcd:
        yield etcd


@pytest.fixture
def theirs(root: Etcd) -> Iterator[int]:
    """The lease of keys of others; they are the same afterwards."""
    lease = root.grant(60)
    for key in THEIRS:
        root.put(key, b"secret", lease)
    before = {kv.key: (kv.value, kv.mod_revision, kv.lease) for kv in root.range("/").kvs if not _is_evils(kv.key)}
    yield lease
    make_room(root, 2**31)  # as a daemon does where the alarm is raised
    assert {
        kv.key: (kv.value, kv.mod_revision, kv.lease) for kv in root.range("/").kvs if not _is_evils(kv.key)
    } == before
    root.put(THEIRS[-1], b"daemons can write")
    assert root.keepalive(lease) > 0
    root.delete("/", prefix=True)


def _is_evils(key: str) -> bool:
    return key.startswith((RUN, KEYS.logs(JOB.name))) and not key.startswith(KEYS.ctl(JOB.name))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _call(path: str, **body: Any) -> Callable[[Etcd, int], object]:
    return lambda etcd, lease: etcd.call(path, {name: lease if value is ... else value for name, value in body.items()})


# What is tried, with the lease of others' keys where `...` stands; True where etcd may do it, for it harms nobody.
ATTEMPTS: dict[str, tuple[Callable[[Etcd, int], object], bool]] = {
    "lead-by-the-election-api": (_call("/v3/election/campaign", name=_b64(LEADER), value=_b64("me")), False),
    "proclaim-in-the-leaders-name": (
        _call("/v3/election/proclaim", leader={"name": _b64(LEADER), "key": _b64(LEADER)}, value="eA=="),
        False,
    ),
    "resign-in-the-leaders-name": (
        lambda etcd, lease: etcd.call(
            "/v3/election/resign",
            {"leader": {"name": _b64(LEADER), "key": _b64(LEADER), "rev": "1", "lease": str(lease)}},
        ),
        True,  # nothing is deleted: the revision is not the key's, or it may not
    ),
    "observe-the-leader": (
        lambda etcd, _: etcd.call("/v3/election/leader", {"name": _b64(LEADER)}),
        False,
    ),
    "lock-the-leaders-key": (_call("/v3/lock/lock", name=_b64(LEADER), lease=...), False),
    "unlock-the-leaders-key": (_call("/v3/lock/unlock", key=_b64(LEADER)), False),
    "end-the-lease-of-others": (lambda etcd, lease: etcd.revoke(lease), False),
    "renew-the-lease-of-others": (lambda etcd, lease: etcd.keepalive(lease), True),
    "ask-for-the-keys-of-a-lease": (_call("/v3/lease/timetolive", ID=..., keys=True), True),
    "list-leases": (_call("/v3/lease/leases"), True),
    "take-the-number-of-a-lease": (_call("/v3/lease/grant", TTL="5", ID=...), False),
    "leases-of-a-chosen-number": (
        lambda etcd, _: [etcd.call("/v3/lease/grant", {"TTL": "5", "ID": str(number)}) for number in range(1, 50)],
        True,
    ),
    "a-lease-for-ever": (_call("/v3/lease/grant", TTL=str(FAR_FUTURE_S)), True),
    "put-a-key-under-the-lease-of-others": (lambda etcd, lease: etcd.put(f"{RUN}x", b"", lease), False),
    "raise-the-alarm": (_call("/v3/maintenance/alarm", action="ACTIVATE", alarm="NOSPACE", memberID="0"), True),
    "compact-what-is-watched": (lambda etcd, _: etcd.compact(int(etcd.status()["header"]["revision"])), True),
    "hash-all-keys": (_call("/v3/maintenance/hash", revision="0"), True),
    "let-another-member-lead": (_call("/v3/maintenance/transfer-leadership", targetID="1"), True),
    "add-a-member": (_call("/v3/cluster/member/add", peerURLs=["http://127.0.0.1:1"]), False),
    "make-a-user": (_call("/v3/auth/user/add", name="me"), False),
    "delete-the-daemons-user": (_call("/v3/auth/user/delete", name=DAEMON), False),
    "find-out-keys-by-guards": (
        lambda etcd, _: etcd.txn([Compare(THEIRS[1], "create", 0)], [Put(f"{RUN}x", b"")]),
        False,
    ),
    "count-the-keys-of-others": (
        _call("/v3/kv/range", key=_b64(KEYS.run(OTHER.name)), range_end=_b64("/t"), count_only=True),
        False,
    ),
    "delete-from-its-own-keys-on": (
        _call("/v3/kv/deleterange", key=_b64(RUN), range_end=_b64("\0")),
        False,
    ),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_with_the_login_of_a_stolen_node_etcd_is_as_it_was_for_others(
    thief: Etcd, root: Etcd, theirs: int, name: str
) -> None:
    attempt, may_pass = ATTEMPTS[name]
    if may_pass:
        with suppress(EtcdError):
            attempt(thief, theirs)
    else:
        with pytest.raises(EtcdError, match=REFUSED):
            attempt(thief, theirs)


def test_of_output_without_end_a_daemon_reads_some_and_no_more(thief: Etcd, root: Etcd) -> None:
    """Whoever asks for the logs of such a job does not fill the daemon's memory."""
    size = 2**20
    for number in range(MAX_CHANGES_BYTES // size + 8):
        thief.put(f"{KEYS.logs(JOB.name)}n/{number:08d}", b"x" * size)
    store = EtcdStore(root, KEYS.world)
    read = sum(len(kv.value) for kv in store.changes(KEYS.logs(JOB.name), 0).kvs)
    assert MAX_CHANGES_BYTES < read < MAX_CHANGES_BYTES + 8 * size
    journal = Journal(store, KEYS)
    assert journal.logs(JOB.name).chunks
    assert journal.log_begins(JOB.name, "", 0.0) == {}
    root.delete(KEYS.logs(JOB.name), prefix=True)
