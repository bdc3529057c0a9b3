"""Start a cloud's server as a child, stop it, and destroy a cloud with all its machines."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from provisioners.base import EndCause
from provisioners.calls import NoAnswerError, NotSentError
from provisioners.localcloud import processes
from provisioners.localcloud.client import call
from provisioners.localcloud.models import Ping
from provisioners.localcloud.processes import Identity, Target
from provisioners.localcloud.store import Store, StoreError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
_LOOK_S = 0.02


class ServerError(Exception):
    """The server did not start or did not stop; quotes its log."""


@dataclass(frozen=True, slots=True)
class Destroyed:
    """The result of ending a cloud: machines that had not ended before, pids that did not die."""

    machines: tuple[str, ...]
    processes_left: tuple[int, ...]


def start_server(
    directory: Path,
    *,
    launch_delay_s: float | None = None,
    listing_lag_s: float | None = None,
    capacity: Mapping[str, int] | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> subprocess.Popen[bytes]:
    """Serve `directory` from a child in a session of its own; returns once it answers. Raises ServerError.

    What is None stays as the directory has it. SIGTERM to the child stops the server, not the machines: that is
    `destroy`. The server logs to `server.log` in the directory.
    """
    store = Store(directory)
    store.create()
    arguments = [sys.executable, "-m", "provisioners.localcloud.main", "serve", "--dir", str(store.directory)]
    if launch_delay_s is not None:
        arguments += ["--launch-delay", str(launch_delay_s)]
    if listing_lag_s is not None:
        arguments += ["--listing-lag", str(listing_lag_s)]
    for zone, room in (capacity or {}).items():
        arguments += ["--capacity", f"{zone}={room}"]
    with store.log.open("ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if _serves(directory, process.pid):
            return process
        time.sleep(_LOOK_S)
    code = process.poll()
    if code is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_TIMEOUT_S)
    output = store.log.read_bytes()[offset:].decode(errors="replace").strip()
    why = f"ended with {code}" if code is not None else f"did not answer within {timeout_s:.0f} s"
    raise ServerError(f"the local cloud's server for {directory} {why}: {output[-1000:]}")


def _serves(directory: Path, pid: int) -> bool:
    try:
        answer = call(directory, "GET", "/v1/ping", timeout_s=1.0)
        return Ping.model_validate_json(answer.content).pid == pid
    except (NotSentError, NoAnswerError, ValidationError):
        return False  # not yet, or the server before it on its way out


def take_over(store: Store, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Stop the server, if there is one, and hold the directory's lock. True when there was one. Raises ServerError.

    Another that holds the lock to stop or destroy the cloud is waited for.
    """
    stopped: Identity | None = None
    start = time.monotonic()
    while time.monotonic() < start + timeout_s:
        try:
            store.lock()
        except StoreError:
            pass
        else:
            return stopped is not None
        server = store.server()
        if server is not None and server != stopped:
            processes.send(server, signal.SIGTERM)
            stopped = server
        elif server is not None and time.monotonic() > start + timeout_s / 2:
            processes.send(server, signal.SIGKILL)
        time.sleep(_LOOK_S)
    raise ServerError(f"who serves, stops or destroys {store.directory} does not let go of it within {timeout_s:.0f} s")


def destroy(directory: Path) -> Destroyed:
    """End every machine and the server, alive or not, and check that no process is left.

    Raises ServerError where the server does not stop, StoreError where the directory is no cloud's.
    """
    store = Store(directory)
    birth = store.birth()
    if birth is None:
        raise StoreError(f"{directory} is not the directory of a local cloud: it has no cloud.json")
    take_over(store)
    try:
        going = [machine for machine in store.machines().values() if machine.ended_at is None]
        targets = []
        for machine in going:
            if machine.ending_at is None:
                change = {"ending_at": time.time(), "end_cause": EndCause.USER}
                store.save_machine(machine.model_copy(update=change))
            report = store.folder(machine.id).read_report()
            targets.append(Target(machine.id, Identity(report.pid, report.started) if report else None))
        left = processes.kill(targets, KILL_TIMEOUT_S)
        left |= processes.kill_marked(birth.machine_prefix, KILL_TIMEOUT_S)
        if not left:
            for machine in [each for each in store.machines().values() if each.ended_at is None]:
                store.drop_secrets(machine.id)
                store.save_machine(machine.model_copy(update={"ended_at": time.time()}))
        store.forget_endpoint()
    finally:
        store.unlock()
    return Destroyed(tuple(machine.id for machine in going), tuple(sorted(each.pid for each in left)))
