"""Threads that die: each is struck by an error nobody foresaw. Within its limit the daemon has it again, or ends."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from spotsup.transport import Transport
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.etcd.mirror import Mirror

from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.serving import ApiServer
from supervisor.errors import DaemonUnreachableError, ThreadFailedError
from supervisor.planner.actions import Action, ListDone, ListInstances, Outcome
from supervisor.runtime.actor import ThreadActor
from supervisor.runtime.housekeeping import Housekeeping, Task
from supervisor.runtime.leader import Leadership
from supervisor.runtime.supervision import Supervision

pytestmark = pytest.mark.long

WAIT_S = 60.0
TTL_S = 2.0


class Daemon:
    """All threads of a daemon, around one key in etcd, and what is asked of them."""

    def __init__(self, endpoint: str, folder: Path, stack: ExitStack) -> None:
        self.etcd = Etcd([endpoint], timeout_s=1.0)
        stack.callback(self.etcd.close)
        self.on_change: Callable[[], None] = lambda: None
        self.mirror = Mirror(self.etcd, "/world/", self._changed, pulse_s=0.2)
        self.mirror.start()
        stack.callback(self.mirror.close)
        self.leader = Leadership(self.etcd, "/leader", "me", TTL_S, self._changed)
        self.leader.start()
        stack.callback(self.leader.stop)
        self.actor = ThreadActor(self._perform, lambda: None)
        self.actor.start(ListInstances("first"))
        app = FastAPI()
        app.get("/")(lambda: "here")
        self.socket = folder / "api.sock"
        listener = bind_socket(self.socket)
        stack.callback(listener.close)  # a server that is struck may leave it open
        self.api = ApiServer(app, listener)
        self.api.start()
        stack.callback(self.api.stop)
        self.ran = threading.Event()
        self.housekeeping = Housekeeping([Task("look", "* * * * *", self._look)], lambda: True)
        self.housekeeping.start()
        stack.callback(self.housekeeping.stop)
        parts = (self.mirror, self.leader, self.actor, self.api, self.housekeeping)
        self.supervision = Supervision({type(each).__name__: each.vitals for each in parts})
        self.writes = 0

    def _changed(self) -> None:
        self.on_change()

    def problem(self) -> str:
        """With which sentence it would end now, or ""."""
        try:
            self.supervision.check()
        except ThreadFailedError as failure:
            return str(failure)
        return ""

    @staticmethod
    def _perform(action: Action) -> Outcome:
        assert isinstance(action, ListInstances)
        if action.cloud == "sick":
            raise SystemExit("an SDK that ends the process")
        return ListDone(action.cloud, 1.0)

    def _look(self) -> str:
        self.ran.set()
        return ""

    def works(self) -> bool:
        """Whether every thread does its work now."""
        self.writes += 1
        value = str(self.writes).encode()
        self.etcd.put("/world/key", value)
        self.actor.start(ListInstances("a"))
        self.housekeeping.follow(time.time())
        for job in self.housekeeping._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))
        return (
            soon(
                lambda: (
                    (view := self.mirror.view()).live
                    and (kv := view.keys.get("/world/key")) is not None
                    and kv.value == value
                )
            )
            and soon(lambda: bool(self.actor.collect()))
            and self.leader.leading
            and self.leader.lease_valid()
            and self._answers()
            and self.ran.wait(1.0)
        )

    def _answers(self) -> bool:
        with closing(Transport(self.socket, 1.0)) as client, contextlib.suppress(DaemonUnreachableError):
            return bool(client.get("/") == "here")
        return False


@pytest.fixture
def daemon(etcd_endpoint: str, tmp_path: Path) -> Iterator[Daemon]:
    with ExitStack() as stack:
        made = Daemon(etcd_endpoint, tmp_path, stack)
        until(made.works)
        gc.freeze()  # a large heap takes a second to look through
        yield made
    gc.collect()  # what a struck thread left open is not held against the next test
    settle()


def soon(predicate: Callable[[], bool], within_s: float = 1.0) -> bool:
    deadline = time.monotonic() + within_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def until(predicate: Callable[[], bool]) -> None:
    assert soon(predicate, WAIT_S), "timed out"


def strike(name: str, error: type[BaseException]) -> threading.Thread:
    """Raise an error in a thread, wherever it is."""
    thread = next(each for each in threading.enumerate() if each.name == name)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))
    return thread


class Settled(Exception):
    pass


def settle() -> None:
    """Take an error here, in place of a struck thread that ended without taking its own: CPython 3.11 remembers for
    the whole process that one waits, until any thread takes one, and whoever calls `sys.setprofile` then hangs."""
    with contextlib.suppress(Settled):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Settled))
        until(lambda: False)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
@pytest.mark.parametrize(
    "name",
    ["leadership", "mirror /world/", "probe /world/", "actor-list-1", "api", "APScheduler"],
    ids=lambda n: n.split()[0],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_thread_that_is_struck_is_there_again_or_the_daemon_ends_and_says_so(
    daemon: Daemon, name: str, error: type[BaseException]
) -> None:
    faults = sum(daemon.supervision.counters.values())
    thread = strike(name, error)

    problem = ""

    def is_decided() -> bool:
        nonlocal problem
        daemon.ran.clear()
        works = daemon.works()
        problem = daemon.problem()
        outlived = sum(daemon.supervision.counters.values()) > faults or name in {
            "actor-list-1",
            "api",
        }  # an action, a request failed
        return bool(problem) or (works and outlived)

    until(is_decided)
    if problem:
        assert repr(thread.name) in problem
        assert not thread.is_alive()
        assert not (daemon.leader.leading and name == "leadership")
        assert not (daemon.mirror.view().live and name.endswith("/world/"))


def test_an_sdk_that_ends_its_thread_ends_its_action_only(daemon: Daemon) -> None:
    daemon.actor.start(ListInstances("sick"))
    found: list[Any] = []

    def is_done() -> bool:
        found.extend(outcome for action, outcome in daemon.actor.collect() if action == ListInstances("sick"))
        return bool(found)

    until(is_done)
    assert found[0].error == "SystemExit: an SDK that ends the process"
    until(daemon.works)


def test_errors_without_end_end_the_daemon(daemon: Daemon) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    daemon.on_change = fail
    problem = ""

    def has_ended() -> bool:
        nonlocal problem
        daemon.etcd.put("/world/key", b"again")
        problem = daemon.problem()
        return bool(problem)

    until(has_ended)
    assert "unforeseen errors within 10 min, the last: RuntimeError: a bug" in problem
    daemon.on_change = lambda: None
    until(daemon.works)


def test_a_mirror_that_hangs_is_not_live_and_is_made_again(etcd_endpoint: str) -> None:
    hung, go_on = threading.Event(), threading.Event()
    go_on.set()

    def on_change() -> None:
        hung.set()
        go_on.wait()

    with closing(Etcd([etcd_endpoint])) as etcd, closing(Etcd([etcd_endpoint], timeout_s=0.3)) as quick:
        mirror = Mirror(quick, "/m/", on_change, pulse_s=0.05, stale_s=0.5)
        mirror.start()
        try:
            assert mirror.wait_live(WAIT_S)
            hung.clear()
            go_on.clear()
            etcd.put("/m/1", b"1")
            assert hung.wait(WAIT_S)
            etcd.put("/m/2", b"2")
            until(lambda: not mirror.view().live)
            beats = mirror.vitals().pulse
            go_on.set()
            assert mirror.wait(lambda view: view.live and {*view.keys} == {"/m/1", "/m/2"}, WAIT_S)
            until(lambda: mirror.vitals().pulse != beats)
        finally:
            go_on.set()
            mirror.close()


def test_a_leader_that_was_suspended_knows_that_its_lease_may_have_ended(etcd_endpoint: str) -> None:
    """CLOCK_MONOTONIC stands still while a machine is suspended; the clock that leadership reads does not."""
    suspended_s = 0.0
    with closing(Etcd([etcd_endpoint])) as etcd:
        leader = Leadership(etcd, "/leader", "me", 60.0, now_s=lambda: time.monotonic() + suspended_s)
        leader.start()
        try:
            until(leader.lease_valid)
            suspended_s = 61.0
            assert not leader.lease_valid()
        finally:
            leader.stop()
