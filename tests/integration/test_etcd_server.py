"""The embedded etcd: it outlives a daemon that is killed, is found again, and stops when asked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd

from supervisor.errors import StartError
from supervisor.journal.etcd_server import EmbeddedEtcd

START = """
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from supervisor.journal.etcd_server import EmbeddedEtcd
etcd = EmbeddedEtcd(Path(sys.argv[1]))
etcd.start()
print(etcd.endpoint, flush=True)
"""


def test_it_outlives_a_daemon_that_ends_without_stopping_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path / "etcd")]
    first = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    client = Etcd([first])
    client.put("/key", b"value")
    later = EmbeddedEtcd(tmp_path / "etcd")
    later.start()
    assert later.endpoint == first
    found = client.get("/key")
    assert found is not None
    assert found.value == b"value"
    client.close()
    later.stop()
    with pytest.raises(StartError):
        _answers(later)


def test_its_data_and_its_address_survive_a_stop(tmp_path: Path) -> None:
    etcd = EmbeddedEtcd(tmp_path / "etcd")
    etcd.start()
    client = Etcd([etcd.endpoint])
    client.put("/key", b"value")
    etcd.stop()
    again = EmbeddedEtcd(tmp_path / "etcd")
    again.start()
    assert again.endpoint == etcd.endpoint
    found = client.get("/key")
    assert found is not None
    assert found.value == b"value"
    client.close()
    again.stop()


class Undying(EmbeddedEtcd):
    """An etcd that seems to hang in the kernel."""

    @property
    def alive(self) -> bool:
        return True


def test_an_etcd_that_hangs_is_reported_and_killed(tmp_path: Path) -> None:
    with started(tmp_path, stop_s=0.2) as etcd:
        os.kill(etcd._running.pid, signal.SIGSTOP)
        while Path(f"/proc/{etcd._running.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.01)  # its threads answer until one of them has handled the signal
        with pytest.raises(StartError, match="the embedded etcd does not answer"):
            EmbeddedEtcd(tmp_path, start_s=0.2).start()
        etcd.stop()
        assert not etcd.alive


def test_an_etcd_that_survives_sigkill_is_left_running(tmp_path: Path) -> None:
    with started(tmp_path):
        began = time.monotonic()
        Undying(tmp_path, stop_s=0.2, kill_s=0.2).stop()
        assert time.monotonic() - began < 20.0


def test_an_etcd_that_cannot_start_is_reported_with_its_last_log_line(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    etcd = EmbeddedEtcd(folder)
    etcd.start()
    etcd.stop()
    shutil.rmtree(folder / "data")
    (folder / "data").write_text("a file where a folder should be")
    with pytest.raises(StartError, match="the embedded etcd does not answer"):
        EmbeddedEtcd(folder).start()


@contextmanager
def started(folder: Path, *, stop_s: float = 10.0) -> Iterator[EmbeddedEtcd]:
    """A running etcd, stopped in the end."""
    etcd = EmbeddedEtcd(folder, stop_s=stop_s)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()


def _answers(etcd: EmbeddedEtcd) -> None:
    """Raises StartError if nothing answers."""
    client = Etcd([etcd.endpoint], timeout_s=1.0)
    try:
        client.get("/")
    except Exception as error:
        raise StartError(str(error)) from error
