"""The embedded etcd is killed, loses its disk, or is full: its keeper has it back, with everything that it held."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError

from supervisor.journal import etcd_keeper
from supervisor.journal.etcd_keeper import RESTART_S, EtcdKeeper
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.journal.maintenance import MaintenanceError, make_room, refuses_writes
from tests.support import disks

WAIT_S = 60.0


@contextmanager
def kept(folder: Path, quota_bytes: int = 2**31) -> Iterator[tuple[EmbeddedEtcd, Etcd, EtcdKeeper]]:
    server = EmbeddedEtcd(folder, quota_bytes=quota_bytes)
    server.start()
    try:
        with closing(Etcd([server.endpoint], timeout_s=2.0)) as etcd, closing(Etcd([server.endpoint])) as patient:
            keeper = EtcdKeeper(server, patient)
            keeper.start()
            try:
                yield server, etcd, keeper
            finally:
                keeper.stop()
    finally:
        server.stop()


def until(predicate: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not predicate():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def takes(etcd: Etcd, value: bytes) -> bool:
    with suppress(EtcdError):
        return etcd.put("/key", value) > 0
    return False


def holds(etcd: Etcd, value: bytes) -> bool:
    with suppress(EtcdError):
        found = etcd.get("/key")
        return found is not None and found.value == value
    return False


def fill(etcd: Etcd, key: str) -> str:
    """Write half a MB after the other; returns why etcd refuses at last."""
    for number in range(100):
        try:
            etcd.put(key.format(number), bytes(500_000))
        except EtcdRefusedError as error:
            return str(error)
    return "it never refuses"


def test_one_that_was_killed_is_started_again_with_all_its_data(tmp_path: Path) -> None:
    with kept(tmp_path / "etcd") as (server, etcd, keeper):
        etcd.put("/key", b"before")
        for _ in range(2):
            endpoint, pid = server.endpoint, server._running.pid
            os.kill(pid, signal.SIGKILL)
            until(lambda: server.alive and server._running.pid != pid)  # noqa: B023 - waited for
            until(lambda: holds(etcd, b"before"))
            assert server.endpoint == endpoint
        assert takes(etcd, b"after")
        assert not keeper.vitals().ended
        assert keeper.vitals().faults == 0
        # the daemon that comes next finds this one
        assert EmbeddedEtcd(tmp_path / "etcd").alive


def test_one_that_cannot_start_is_tried_again_after_pauses_that_grow(tmp_path: Path) -> None:
    class Broken(EmbeddedEtcd):
        alive = False
        starts: list[float] = []  # noqa: RUF012

        def launch(self) -> None:
            self.starts.append(now)

    server, now = Broken(tmp_path), 0.0
    with closing(Etcd(["http://127.0.0.1:1"])) as etcd:
        keeper = EtcdKeeper(server, etcd)
        for now in range(1, 200):
            keeper._step(float(now))
    pauses = [later - sooner for sooner, later in zip(server.starts, server.starts[1:], strict=False)]
    assert pauses == [*RESTART_S, *[RESTART_S[-1]] * (len(pauses) - len(RESTART_S))]


@pytest.mark.long
def test_one_whose_disk_was_full_is_back_when_it_has_room(tmp_path: Path) -> None:
    with disks.memory(tmp_path, 256) as disk, kept(disk / "etcd") as (server, etcd, keeper):
        etcd.put("/key", b"before")
        full = disks.Full(disk)
        full.inject()
        pid = server._running.pid
        number = 0

        def has_died() -> bool:
            nonlocal number
            number += 1
            with suppress(EtcdError):
                etcd.put(f"/more/{number}", bytes(500_000))
            return server._running.pid != pid or not server.alive

        until(has_died)
        full.repair()
        until(lambda: holds(etcd, b"before"))
        assert takes(etcd, b"after")
        assert not keeper.vitals().ended


def test_one_whose_quota_was_used_up_by_history_takes_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_keeper, "SPACE_CHECK_S", 3600.0)
    with kept(tmp_path / "etcd", quota_bytes=8 * 2**20) as (_, etcd, keeper):
        assert "space exceeded" in fill(etcd, "/key")
        keeper._space_at = 0.0
        until(lambda: takes(etcd, b"again"))


def test_what_it_holds_itself_is_never_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_keeper, "SPACE_CHECK_S", 3600.0)
    with kept(tmp_path / "etcd", quota_bytes=8 * 2**20) as (_, etcd, _keeper):
        assert "space exceeded" in fill(etcd, "/other/{}")
        with pytest.raises(MaintenanceError, match="what it holds fills its space quota"):
            make_room(etcd, 2**22)
        assert refuses_writes(etcd)
