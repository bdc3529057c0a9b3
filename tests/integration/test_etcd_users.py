"""Users of etcd, on a real one with TLS: made, complete after any crash, swept; and what a stolen login can do."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from spotsup_trainer.etcd import (
    Compare,
    Delete,
    Etcd,
    EtcdError,
    EtcdRefusedError,
    EtcdUnavailableError,
    Put,
)

from supervisor.errors import JournalUnavailableError, StartError
from supervisor.features.flood.rule import FLOOD
from supervisor.features.pause.record import PauseRecord
from supervisor.journal.codec import dump
from supervisor.journal.journal import EtcdUse, Journal
from supervisor.journal.maintenance import make_room
from supervisor.journal.store import EtcdStore
from supervisor.journal.users import JobUsers, enable_users
from supervisor.model import JobState, NodeState
from tests.support.secured_etcd import DAEMON, IDENTITY, KEYS, PHRASE, SecuredEtcd, a_job, a_node, secured_etcd

pytestmark = pytest.mark.long

JOB, OTHER = a_job(), a_job("other", "zzzzz")
NO_USE = EtcdUse((), (), frozenset())


@pytest.fixture(scope="module")
def worker_secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with secured_etcd(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
def secured(worker_secured: SecuredEtcd) -> SecuredEtcd:
    """Without jobs' users and without keys."""
    worker_secured.use = NO_USE
    with worker_secured.users() as users, closing(worker_secured.client()) as etcd:
        users.prune()
        etcd.delete("/", prefix=True)
    return worker_secured


class CrashError(Exception):
    """The daemon died."""


class Dying(Etcd):
    """A client whose process dies before its call number `calls`, or after it where `sent`."""

    def __init__(self, of: Etcd, calls: int, *, sent: bool) -> None:
        vars(self).update(vars(of))
        self.left = calls
        self.sent = sent

    def call(self, path: str, body: dict[str, Any], *, endpoint: str | None = None) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0 and not self.sent:
            raise CrashError
        answer = super().call(path, body, endpoint=endpoint)
        if self.left < 0:
            raise CrashError
        return answer


def names(etcd: Etcd, what: str) -> set[str]:
    return {name for name in etcd.call(f"/v3/auth/{what}/list", {}).get(f"{what}s", ()) if name.startswith("spotsup/")}


def of(*jobs: Any) -> set[str]:
    return {f"spotsup/test/{job.task_id}" for job in jobs}


# -- made, and swept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [False, True])
def test_a_crash_between_any_two_steps_of_making_a_user_is_mended_by_the_next_daemon(
    secured: SecuredEtcd, sent: bool
) -> None:
    secured.use = replace(NO_USE, jobs=(JOB,), with_nodes=(JOB,))
    with closing(secured.client()) as etcd:
        for calls in range(20):
            dying = JobUsers(Dying(etcd, calls, sent=sent), KEYS, IDENTITY, lambda: secured.ca, lambda: secured.use)
            try:
                dying.ensure(JOB)
                break
            except CrashError:
                pass
            access = secured.access(JOB)
            with closing(access.connect([secured.endpoint])) as node:
                node.put(KEYS.member(JOB.name, "n"), b"1")
                assert node.get(KEYS.member(JOB.name, "n")) is not None
            secured.use = NO_USE
            with secured.users() as users:
                users.prune()
            secured.use = replace(NO_USE, jobs=(JOB,), with_nodes=(JOB,))
        assert 5 < calls < 19


@pytest.mark.parametrize("sent", [False, True])
def test_a_crash_between_any_two_steps_of_revoking_leaves_nothing_that_the_next_sweep_does_not_find(
    secured: SecuredEtcd, sent: bool
) -> None:
    with closing(secured.client()) as etcd, secured.users() as users:
        for calls in range(20):
            access = users.ensure(JOB)
            dying = JobUsers(Dying(etcd, calls, sent=sent), KEYS, IDENTITY, lambda: secured.ca, lambda: NO_USE)
            try:
                dying.prune()
                break
            except CrashError:
                pass
            users.prune()
            assert names(etcd, "user") == names(etcd, "role") == set()
            with closing(access.connect([secured.endpoint])) as node, pytest.raises(EtcdRefusedError):
                node.get(KEYS.hint(JOB.name))
        assert 3 < calls < 19


def test_users_of_jobs_that_may_use_etcd_stay_and_all_others_go(secured: SecuredEtcd) -> None:
    gone, unreadable = a_job("gone"), a_job("a-b")
    with secured.users() as users, closing(secured.client()) as etcd:
        for job in (JOB, OTHER, gone, unreadable):
            users.ensure(job)
        foreign = JobUsers(etcd, type(KEYS)("elsewhere"), IDENTITY, lambda: secured.ca, lambda: NO_USE)
        foreign.ensure(JOB)
        secured.use = EtcdUse((JOB, OTHER), (JOB,), frozenset({"a-b"}))
        assert users.prune() == "users of etcd: revoked spotsup/test/gone-abcde"
        assert (
            names(etcd, "user")
            == names(etcd, "role")
            == of(JOB, OTHER, unreadable) | {f"spotsup/elsewhere/{JOB.task_id}"}
        )
        assert not users.prune()
        foreign.prune()


def test_a_restored_etcd_gets_its_users_again(secured: SecuredEtcd) -> None:
    access = secured.access(JOB)
    etcd = secured.client()
    etcd.call("/v3/auth/user/delete", {"name": access.user})
    etcd.call("/v3/auth/role/delete", {"role": access.user})
    secured.use = EtcdUse((JOB, OTHER), (JOB,), frozenset())
    with closing(etcd), closing(access.connect([secured.endpoint])) as node, secured.users() as users:
        with pytest.raises(EtcdRefusedError, match="does not accept user"):
            node.get(KEYS.hint(JOB.name))
        assert users.prune() == f"users of etcd: made {access.user} again"  # OTHER has no nodes yet
        assert node.get(KEYS.hint(JOB.name)) is None


def test_a_job_that_uses_a_name_again_locks_the_earlier_one_out_before_it_starts(secured: SecuredEtcd) -> None:
    earlier, alike = a_job(uid="11111"), a_job("job-b", "22222")
    stolen, kept = secured.access(earlier), secured.access(alike)
    with closing(stolen.connect([secured.endpoint])) as node, closing(kept.connect([secured.endpoint])) as other:
        node.put(KEYS.member(JOB.name, "n"), b"1")
        secured.access(JOB)
        with pytest.raises(EtcdRefusedError):
            node.put(KEYS.member(JOB.name, "n"), b"2")
        other.put(KEYS.member(alike.name, "n"), b"1")


def test_what_the_journal_says_of_who_uses_etcd(secured: SecuredEtcd) -> None:
    ended = a_job("ended")
    leaving = a_job("leaving")
    idle = a_job("idle")
    flooding = replace(a_job("flooding"), pause=PauseRecord(1.0, FLOOD))
    with closing(secured.client()) as etcd:
        store = EtcdStore(etcd, KEYS.world)
        journal = Journal(store, KEYS)
        for job, state in (
            (ended, JobState.SUCCEEDED),
            (leaving, JobState.CANCELLED),
            (idle, JobState.QUEUED),
            (flooding, JobState.RUNNING),
            (JOB, JobState.RUNNING),
        ):
            etcd.put(f"{KEYS.world}jobs/{job.name}", dump(replace(job, state=state)))
        for job, state_ in (
            (ended, NodeState.TERMINATING),
            (leaving, NodeState.DRAINING),
            (flooding, NodeState.MEMBER),
            (JOB, NodeState.MEMBER),
        ):
            etcd.put(f"{KEYS.world}nodes/{job.name}/{job.task_id}-1", dump(a_node(job, 1, state_)))
        etcd.put(f"{KEYS.world}jobs/broken", b"{}")
        etcd.put(f"{KEYS.world}nodes/odd/odd-abcde-1", b"[")
        use = journal.etcd_use()
    assert {job.name for job in use.jobs} == {"leaving", "idle", "job"}, "one that floods it loses its user"
    assert {job.name for job in use.with_nodes} == {"leaving", "job"}
    assert use.unreadable == {"broken", "odd"}


# -- enabling ----------------------------------------------------------------------------------------------------------


def test_a_crash_between_any_two_steps_of_enabling_users_does_not_lock_the_daemon_out(tmp_path: Path) -> None:
    with secured_etcd(tmp_path, enable=False) as etcd, closing(etcd.client("")) as nobody, closing(etcd.client()) as me:
        for calls in range(20):
            with suppress(CrashError):
                assert not enable_users(Dying(nobody, calls, sent=True), me, DAEMON, PHRASE)
                break
        assert 5 < calls < 19
        with pytest.raises(EtcdRefusedError):
            nobody.get("/")
        refused = pytest.raises(StartError, match=r"'spotsupd' may not manage them .*check the password")
        with closing(etcd.client(DAEMON, "wrong")) as wrong, refused:
            enable_users(nobody, wrong, DAEMON, "wrong")
        with closing(etcd.client("root", "")) as root, pytest.raises(EtcdError):
            root.get("/")


def test_a_daemon_whose_user_may_make_no_users_says_so(secured: SecuredEtcd) -> None:
    access = secured.access(JOB)
    with closing(access.connect([secured.endpoint])) as etcd:
        users = JobUsers(etcd, KEYS, IDENTITY, lambda: secured.ca, lambda: NO_USE)
        with pytest.raises(JournalUnavailableError, match=r"give the user of etcd\.user the role root"):
            users.ensure(OTHER)
        with pytest.raises(StartError, match="`spotsupd etcd-users` does"):
            users.check()


# -- one job's users change while others work --------------------------------------------------------------------------


def test_users_that_come_and_go_disturb_nobody_else(secured: SecuredEtcd) -> None:
    """etcd refuses what is under way when a user or a role changes; the client sends it again."""
    access = secured.access(JOB)
    stop, problems, rounds = Event(), list[EtcdError](), list[int]()

    def work() -> None:
        with closing(access.connect([secured.endpoint])) as node:
            count = 0
            while not stop.is_set():
                try:
                    node.put(KEYS.member(JOB.name, "n"), b"1")
                    node.range(KEYS.run(JOB.name))
                    node.txn([Compare(KEYS.round(JOB.name), "mod", 0)], [Delete(KEYS.round(JOB.name))])
                    node.keepalive(node.grant(60))
                    count += 1
                except EtcdError as error:
                    problems.append(error)
            rounds.append(count)

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        secured.access(a_job(f"job{number}"))
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert min(rounds) > 0


# -- a stolen node -----------------------------------------------------------------------------------------------------


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


RUN, CTL = KEYS.run(JOB.name), KEYS.ctl(JOB.name)
FOREIGN = KEYS.member(OTHER.name, "n")
# What is tried, and how. The table in docs/security.md has the same rows.
REFUSED: dict[str, Callable[[Etcd], object]] = {
    "read another job's messages": lambda etcd: etcd.range(KEYS.run(OTHER.name)),
    "read another job's logs": lambda etcd: etcd.range(KEYS.logs(OTHER.name)),
    "watch another job's messages": lambda etcd: etcd.watch(KEYS.run(OTHER.name)).close(),
    "write another job's messages": lambda etcd: etcd.put(FOREIGN, b""),
    "write another job's logs": lambda etcd: etcd.put(f"{KEYS.logs(OTHER.name)}x", b""),
    "forge its own hint": lambda etcd: etcd.put(KEYS.hint(JOB.name), b"{}"),
    "forge a tombstone": lambda etcd: etcd.put(KEYS.tombstone(JOB.name, "n"), b"{}"),
    "delete the daemon's messages": lambda etcd: etcd.delete(CTL, prefix=True),
    "delete all messages of its job": lambda etcd: etcd.delete(RUN, prefix=True),
    "hide a forged hint in a transaction": lambda etcd: etcd.txn(
        [Compare(f"{RUN}x", "mod", 5)], [], [Put(KEYS.hint(JOB.name), b"{}")]
    ),
    "read records of jobs": lambda etcd: etcd.range(f"{KEYS.world}jobs/"),
    "read its own job's record": lambda etcd: etcd.get(f"{KEYS.world}jobs/{JOB.name}"),
    "change its own job's record": lambda etcd: etcd.put(f"{KEYS.world}jobs/{JOB.name}", b"{}"),
    "change a node's record": lambda etcd: etcd.put(f"{KEYS.world}nodes/{JOB.name}/n", b"{}"),
    "read code": lambda etcd: etcd.range(f"{KEYS.root}blobs/"),
    "read events": lambda etcd: etcd.range(f"{KEYS.root}events/"),
    "pause the daemons": lambda etcd: etcd.put(f"{KEYS.world}pause", b"{}"),
    "guess who leads": lambda etcd: etcd.txn([Compare(f"{KEYS.root}leader", "create", 0)], [Put(f"{RUN}x", b"")]),
    "become the leader": lambda etcd: etcd.put(f"{KEYS.root}leader", b"me"),
    "read everything": lambda etcd: etcd.range("/"),
    "watch everything": lambda etcd: etcd.watch("/").close(),
    "list users": lambda etcd: etcd.call("/v3/auth/user/list", {}),
    "read another user": lambda etcd: etcd.call("/v3/auth/user/get", {"name": DAEMON}),
    "change its password": lambda etcd: etcd.call("/v3/auth/user/changepw", {"name": DAEMON, "password": "x"}),
    "give itself a role": lambda etcd: etcd.call(
        "/v3/auth/user/grant", {"user": f"spotsup/test/{JOB.task_id}", "role": "root"}
    ),
    "give its role a key": lambda etcd: etcd.call(
        "/v3/auth/role/grant",
        {"name": f"spotsup/test/{JOB.task_id}", "perm": {"permType": "READWRITE", "key": _b64("/")}},
    ),
    "switch users off": lambda etcd: etcd.call("/v3/auth/disable", {}),
    "lock another job's key": lambda etcd: etcd.call("/v3/lock/lock", {"name": _b64(FOREIGN)}),
    "remove a member of etcd": lambda etcd: etcd.call("/v3/cluster/member/remove", {"ID": "1"}),
    "defragment etcd": lambda etcd: etcd.call("/v3/maintenance/defragment", {}),
    "copy etcd's data": lambda etcd: etcd.call("/v3/maintenance/snapshot", {}),
}


@pytest.mark.parametrize("attempt", REFUSED)
def test_with_the_login_of_a_stolen_node_one_cannot(secured: SecuredEtcd, attempt: str) -> None:
    with closing(secured.client()) as etcd:
        for key in (FOREIGN, KEYS.hint(JOB.name), f"{KEYS.world}jobs/{JOB.name}"):
            etcd.put(key, b"secret")
        before = {kv.key: (kv.value, kv.mod_revision) for kv in etcd.range("/").kvs}
        access = secured.access(JOB)
        refused = pytest.raises((EtcdRefusedError, EtcdUnavailableError), match=r"(?i)permission ?denied")
        with closing(access.connect([secured.endpoint])) as node, refused:
            REFUSED[attempt](node)
        assert {kv.key: (kv.value, kv.mod_revision) for kv in etcd.range("/").kvs} == before


def test_a_node_can_do_what_it_has_to(secured: SecuredEtcd) -> None:
    access = secured.access(JOB)
    with closing(secured.client()) as etcd, closing(access.connect([secured.endpoint])) as node:
        watch = node.watch(RUN)
        lease = node.grant(10)
        for key in (KEYS.round, KEYS.result, KEYS.progress):
            node.txn([Compare(key(JOB.name), "mod", 0)], [Put(key(JOB.name), b"1")])
        for own in (KEYS.member, KEYS.agent, KEYS.notice, KEYS.health, KEYS.ended):
            node.put(own(JOB.name, "n"), b"1", lease)
        node.put(f"{KEYS.logs(JOB.name, 'n')}00000001", b"x")
        node.delete(f"{KEYS.logs(JOB.name, 'n')}00000001")
        assert node.keepalive(lease) > 0
        etcd.put(KEYS.hint(JOB.name), b"2")
        etcd.put(KEYS.tombstone(JOB.name, "m"), b"3")
        seen: set[str] = set()
        for batch in watch:
            seen |= {event.key for event in batch.events}
            if len(seen) == 10:
                watch.close()
        assert {kv.key for kv in node.range(RUN).kvs} == seen
        node.revoke(lease)
        assert len(node.range(RUN).kvs) == 5


def test_a_stolen_login_does_not_outlive_the_job(secured: SecuredEtcd) -> None:
    access = secured.access(JOB)
    node = access.connect([secured.endpoint])
    lease = node.grant(60)
    node.put(KEYS.member(JOB.name, "n"), b"1", lease)
    secured.use = NO_USE
    with secured.users() as users, closing(node):
        assert users.prune() == f"users of etcd: revoked {access.user}"
        for attempt in (
            lambda: node.get(KEYS.member(JOB.name, "n")),
            lambda: node.put(KEYS.member(JOB.name, "n"), b"2"),
            lambda: node.keepalive(lease),
            lambda: node.grant(60),
            lambda: node.range(KEYS.logs(JOB.name)),
        ):
            with pytest.raises(EtcdRefusedError, match="does not accept user"):
                attempt()
        with pytest.raises(EtcdError):
            node.watch(RUN)


def test_what_etcd_leaves_open_to_every_user_reads_and_changes_nothing_of_others(secured: SecuredEtcd) -> None:
    """The last rows of the table: newer versions of etcd may refuse them, and then that is as well."""
    with closing(secured.client()) as etcd:
        leader = etcd.grant(60)
        etcd.put(f"{KEYS.root}leader", b"me", leader)
        etcd.put(FOREIGN, b"secret")
        access = secured.access(JOB)
        node = access.connect([secured.endpoint])
        watch = node.watch(RUN)
        before = {kv.key: kv.value for kv in etcd.range("/").kvs}
        for attempt in (
            lambda: node.call("/v3/lease/leases", {}),
            lambda: node.keepalive(leader),
            lambda: node.compact(int(node.status()["header"]["revision"])),
        ):
            with suppress(EtcdError):
                attempt()
        with pytest.raises(EtcdRefusedError, match="permission denied"):
            node.revoke(leader)
        with pytest.raises(EtcdRefusedError, match="permission denied"):
            node.put(f"{RUN}x", b"", leader)  # else it could keep the lease from being revoked
        assert {kv.key: kv.value for kv in etcd.range("/").kvs} == before
        try:
            node.call("/v3/maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "0"})
        except EtcdError:
            pass
        else:
            with pytest.raises(EtcdRefusedError, match="space"):
                etcd.put(FOREIGN, b"full")
            assert "takes writes again" in make_room(etcd, 2**31)
        etcd.put(FOREIGN, b"not full")
        # A watch that was open when the job ended: it shows what it showed before, and nothing else.
        secured.use = NO_USE
        with secured.users() as users:
            users.prune()
        etcd.put(FOREIGN, b"later secret")
        etcd.put(KEYS.hint(JOB.name), b"a later job")
        seen = list[str]()
        with suppress(EtcdError):
            for batch in watch:
                seen += [event.key for event in batch.events]
                watch.close()
        assert set(seen) <= {KEYS.hint(JOB.name)}
        watch.close()
        node.close()
