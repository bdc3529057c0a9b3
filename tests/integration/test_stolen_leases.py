"""What a stolen node can do around etcd's users: with leases, and with what old versions of etcd do not check.

Newer versions refuse more of it; the tests hold for both, on whichever etcd runs here.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, EtcdRefusedError, Put

from supervisor.journal.users import open_to_everyone
from supervisor.runtime.leader import SILENT_TTLS, Leadership
from tests.support.etcd_server import cable
from tests.support.secured_etcd import KEYS, SecuredEtcd, a_job, secured_etcd
from tests.support.serving import serving
from tests.support.waiting import until

pytestmark = pytest.mark.long

JOB = a_job()
LEADER, SECRET = f"{KEYS.root}leader", f"{KEYS.world}jobs/{JOB.name}"
RUN, LOGS = KEYS.run(JOB.name), KEYS.logs(JOB.name)
# etcd takes whole seconds.
TTL_S = 2.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with secured_etcd(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
def stack(secured: SecuredEtcd) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    with closing(secured.client()) as etcd:
        etcd.delete("/", prefix=True)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def client(secured: SecuredEtcd, stack: ExitStack, *, thief: bool) -> Etcd:
    made = secured.access(JOB).connect([secured.endpoint]) if thief else secured.client()
    stack.callback(made.close)
    return made


@contextmanager
def again_and_again(attempt: Callable[[], object]) -> Iterator[None]:
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.01):
            with suppress(EtcdError):
                attempt()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


# -- leases ------------------------------------------------------------------------------------------------------------


def test_who_renews_a_dead_leaders_lease_delays_a_takeover_by_some_times_that_lease_and_no_more(
    secured: SecuredEtcd, stack: ExitStack
) -> None:
    etcd, thief = client(secured, stack, thief=False), client(secured, stack, thief=True)
    lease = etcd.grant(TTL_S)
    value = json.dumps({"name": "dead", "lease": lease}).encode()
    created = etcd.put(LEADER, value, lease)
    guard = (Compare(LEADER, "create", created), Compare(LEADER, "value", value))
    with again_and_again(lambda: thief.keepalive(lease)):
        standby = Leadership(client(secured, stack, thief=False), LEADER, "standby", TTL_S)
        stack.callback(standby.stop)
        standby.start()
        until(lambda: standby.leading, 60.0)
        assert standby.lease_valid()
        assert not etcd.txn(guard, [Put(SECRET, b"of a dead leader")]).succeeded
        assert etcd.txn(standby.guard(), [Put(SECRET, b"of the new one")]).succeeded
    time.sleep(1.5 * TTL_S)  # the old lease ends, and takes nothing with it
    assert standby.leading
    assert etcd.txn(standby.guard(), [Put(SECRET, b"still")]).succeeded


def test_a_leader_that_lives_stays_while_standbys_watch_it(secured: SecuredEtcd, stack: ExitStack) -> None:
    daemons = [Leadership(client(secured, stack, thief=False), LEADER, name, TTL_S) for name in ("first", "second")]
    for daemon in daemons:
        stack.callback(daemon.stop)
        daemon.start()
        until(lambda: daemons[0].leading)
    guard = daemons[0].guard()
    time.sleep((SILENT_TTLS + 2) * TTL_S)
    assert [daemon.leading for daemon in daemons] == [True, False]
    assert daemons[0].guard() == guard


def test_a_leader_that_was_cut_off_and_whose_lease_somebody_kept_steps_down_when_it_is_back(
    secured: SecuredEtcd, stack: ExitStack
) -> None:
    thief = client(secured, stack, thief=True)
    wire = stack.enter_context(cable(secured.endpoint))
    through = stack.enter_context(closing(secured.client_at(wire.endpoint.replace("http:", "https:"), timeout_s=1.0)))
    first = Leadership(through, LEADER, "first", TTL_S)
    stack.callback(first.stop)
    first.start()
    until(lambda: first.leading)
    lease = lease_of(client(secured, stack, thief=False), LEADER)
    second = Leadership(client(secured, stack, thief=False), LEADER, "second", TTL_S)
    stack.callback(second.stop)
    second.start()
    until(lambda: second.leader == "first")
    with again_and_again(lambda: thief.keepalive(lease)):
        wire.cut()
        until(lambda: second.leading)
        assert not first.lease_valid()
        wire.repair()
        until(lambda: not first.leading)
    assert second.leading


def test_a_leader_that_reads_and_cannot_write_is_followed_by_one_that_leads_once_it_does_not_any_more(
    secured: SecuredEtcd, stack: ExitStack
) -> None:
    root = client(secured, stack, thief=False)

    def allow(kind: str) -> None:
        permission = {"permType": kind, "key": _b64(LEADER)}
        root.call("/v3/auth/role/grant", {"name": "mute", "perm": permission})

    root.call("/v3/auth/role/add", {"name": "mute"})
    root.call("/v3/auth/user/add", {"name": "mute", "password": "mute"})
    root.call("/v3/auth/user/grant", {"user": "mute", "role": "mute"})
    allow("READWRITE")
    first = Leadership(stack.enter_context(closing(secured.client("mute", "mute"))), LEADER, "first", TTL_S)
    second = Leadership(client(secured, stack, thief=False), LEADER, "second", TTL_S)
    first.start()
    until(lambda: first.leading)
    second.start()
    stack.callback(second.stop)
    stack.callback(first.stop)
    both = []
    allow("READ")
    muted_at = time.monotonic()
    while not second.lease_valid():
        assert time.monotonic() < muted_at + 60.0
        if time.monotonic() < muted_at + 2 * TTL_S:
            assert first.lease_valid(), "what it has decided it carries out"
        time.sleep(0.001)
    for _ in range(500):
        both.append(first.lease_valid() and second.lease_valid())
        time.sleep(0.001)
    assert not any(both)
    assert not first.leading


def test_who_also_ends_the_leases_of_standbys_does_not_keep_them_from_leading(
    secured: SecuredEtcd, stack: ExitStack
) -> None:
    etcd, thief = client(secured, stack, thief=False), client(secured, stack, thief=True)
    dead = etcd.grant(60)
    etcd.put(LEADER, b'{"name": "dead"}', dead)
    standby = Leadership(client(secured, stack, thief=False), LEADER, "standby", TTL_S)
    stack.callback(standby.stop)

    def end_all() -> None:
        for each in etcd.call("/v3/lease/leases", {}).get("leases", ()):  # where it may not list them, it guesses
            if (lease := int(each["ID"])) != dead:
                with suppress(EtcdError):
                    thief.revoke(lease)

    with again_and_again(end_all):
        standby.start()
        until(lambda: standby.leading)
        assert etcd.txn(standby.guard(), [Put(SECRET, b"x")]).succeeded
    with pytest.raises(EtcdRefusedError, match="permission denied"):
        thief.revoke(lease_of(etcd, LEADER))


def lease_of(etcd: Etcd, key: str) -> int:
    found = etcd.get(key)
    assert found is not None
    return found.lease


# -- what old versions do not check ------------------------------------------------------------------------------------


def nested(operation: dict[str, object]) -> dict[str, object]:
    return {"success": [{"request_txn": {"success": [operation]}}]}


ATTEMPTS: dict[str, dict[str, object]] = {
    "read": nested({"request_range": {"key": _b64(SECRET)}}),
    "write": nested({"request_put": {"key": _b64(SECRET), "value": _b64("forged")}}),
    "delete": nested({"request_delete_range": {"key": _b64(SECRET)}}),
}


@pytest.mark.parametrize("login", [True, False])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_the_daemon_says_so_if_etcd_lets_everyone_in_by_a_transaction_within_a_transaction(
    secured: SecuredEtcd, stack: ExitStack, attempt: str, login: bool
) -> None:
    etcd = client(secured, stack, thief=False)
    etcd.put(SECRET, b"secret")
    nobody = stack.enter_context(closing(secured.client("")))
    thief = client(secured, stack, thief=True) if login else nobody
    said = open_to_everyone(nobody)
    assert etcd.get(SECRET) is not None, "to find out changes nothing"
    try:
        answer = json.dumps(thief.call("/v3/kv/txn", ATTEMPTS[attempt]))
    except EtcdRefusedError:
        assert not said
    else:
        found = etcd.get(SECRET)
        broken_in = _b64("secret") in answer or found is None or found.value != b"secret"
        # Without a login it may write nothing, in one version or another, and is told what it asks for.
        assert said or not broken_in
        assert not said or "(CVE-2026-33343): install etcd 3.5.33, 3.6.14, 3.7.1 or newer" in said


def test_a_watch_that_begins_at_a_key_of_its_own_shows_no_more_than_the_documents_say(
    secured: SecuredEtcd, stack: ExitStack
) -> None:
    """From there to the end of all keys: before etcd 3.5.33, 3.6.14 and 3.7.1 it is taken for a watch of one key."""
    etcd, thief = client(secured, stack, thief=False), client(secured, stack, thief=True)
    request = {"create_request": {"key": _b64(LOGS), "range_end": _b64("\0")}}
    endpoint, stream = thief.open_stream("/v3/watch", request)
    assert endpoint == secured.endpoint
    seen = b""
    with closing(stream):
        etcd.put(f"{KEYS.root}before", b"not behind its own keys")
        etcd.put(SECRET, b"secret")
        with suppress(OSError):
            while _b64("secret").encode() not in seen and b"ermission" not in seen:
                seen += b"".join(stream.read())
    assert _b64("not behind its own keys").encode() not in seen


class _Patched(BaseHTTPRequestHandler):
    """As a newer etcd answers one that has not logged in."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = b'{"error":"etcdserver: user name is empty","message":"etcdserver: user name is empty","code":3}'
        self.send_response(400)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def test_of_an_etcd_that_refuses_nothing_is_said() -> None:
    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), _Patched)) as server,
        closing(Etcd([f"http://127.0.0.1:{server.server_port}"])) as etcd,
    ):
        assert open_to_everyone(etcd) == ""
