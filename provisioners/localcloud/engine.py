"""The thread that acts on the records: starts machines, watches them, ends them."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from provisioners.base import EndCause, Market
from provisioners.localcloud import processes, rules
from provisioners.localcloud.cloud import Cloud, target_of
from provisioners.localcloud.machine.spec import EXIT_ALREADY_RUNNING, MARKER_VARIABLE, Folder, Report
from provisioners.localcloud.models import Machine
from provisioners.localcloud.processes import Identity, Target

log = logging.getLogger("spotsup.localcloud")

BOOT_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 5.0
_BOOT_LOOK_S = 0.01
_RETRY_S = 1.0
_IDLE_LOOK_S = 30.0
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent.parent
# A shell in the background has these ignored, and what it starts inherits that: a machine's programs must not.
_DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


@dataclass(slots=True)
class _Init:
    """A machine's init, as this server knows it. `handle` is a pidfd: readable once the process ended."""

    identity: Identity
    since: float
    handle: int | None = None


class Engine:
    """One thread over one cloud. The process must be a subreaper: what a dead init leaves becomes its child.

    `on_failure` is called when the thread cannot continue; `failure` then holds the reason. Machines are not affected.
    """

    def __init__(self, cloud: Cloud, on_failure: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._cloud = cloud
        self._on_failure = on_failure
        self._inits: dict[str, _Init] = {}
        self._exits: dict[int, int] = {}
        self._retry_at: dict[str, float] = {}
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        cloud.on_change = self.wake

    def start(self) -> None:
        """Adopt running machines, continue what was begun, and start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, after kills in progress. The machines run on."""
        self._stopping = True
        self.wake()
        self._thread.join(timeout=2 * KILL_TIMEOUT_S)

    def wake(self) -> None:
        """Make the thread look at the records now. From any thread."""
        with suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_write, b".")

    def _run(self) -> None:
        try:
            self._adopt()
            timeout_s = 0.0
            while not self._stopping:
                self._sleep(timeout_s)
                self._reap()
                timeout_s = self._step()
        except BaseException as error:
            self.failure = error
            log.exception("the engine cannot go on; the machines do: start the server again to adopt them")
            self._on_failure()

    def _sleep(self, timeout_s: float) -> None:
        ready = self._poll.poll(timeout_s * 1000)
        if any(handle == self._wake_read for handle, _ in ready):
            os.read(self._wake_read, 65536)

    def _reap(self) -> None:
        """Reap child processes: inits started here, and orphans of dead inits."""
        self._exits.clear()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._exits[pid] = os.waitstatus_to_exitcode(status)

    def _step(self) -> float:
        """Do all that is due. Returns the seconds until the next deadline."""
        machines, settings = self._cloud.machines(), self._cloud.settings()
        due = rules.due(settings, machines, self._inits, self._cloud.now())
        for machine in due.preempt:
            taken = machines[machine].market is Market.SPOT
            cause = EndCause.PREEMPTED if taken else EndCause.UNKNOWN
            self._cloud.update(machine, ending_at=self._cloud.now(), end_cause=cause)
        for machine in due.start:
            self._start(machine)
        booted = [machine for machine in due.boot if self._boot(machine)]
        lost = self._find_lost(machines.values())
        ended = self._end([*due.preempt, *due.end, *lost])
        for machine in due.wipe:
            self._wipe(machine)
        if due.preempt or due.start or booted or lost or ended or due.wipe:
            return 0.0
        if due.boot:
            return _BOOT_LOOK_S
        limit_s = _RETRY_S if self._retry_at else _IDLE_LOOK_S
        return limit_s if due.next_at is None else min(limit_s, max(0.0, due.next_at - self._cloud.now()))

    # -- beginnings ----------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        for machine in self._cloud.machines().values():
            if machine.ended_at is None and machine.running_at is not None:
                self._watch(machine.id, Identity(machine.pid, machine.started))
            if machine.ended_at is None and machine.frozen_at is not None:
                processes.freeze(target_of(machine))  # the last server may have been killed before it did

    def _watch(self, machine: str, identity: Identity) -> None:
        """Wake up when this init ends; `_find_lost` finds one that has ended already."""
        init = _Init(identity, time.monotonic())
        self._inits[machine] = init
        with suppress(ProcessLookupError):
            init.handle = os.pidfd_open(identity.pid)
            self._poll.register(init.handle, select.POLLIN)

    def _start(self, machine: str) -> None:
        folder = self._cloud.store.folder(machine)
        report = folder.read_report()
        try:
            # It may have come up while no server ran.
            identity = Identity(report.pid, report.started) if report else _spawn(machine, folder)
        except OSError as error:
            self._fail(machine, f"its init could not be started: {error}")
            return
        self._inits[machine] = _Init(identity, time.monotonic())

    def _boot(self, machine: str) -> bool:
        """Check whether a started machine is up, or never will be. False while that is undecided."""
        init = self._inits[machine]
        folder = self._cloud.store.folder(machine)
        # Before the report: an init that reported and ended between two looks did come up.
        code = self._exits.get(init.identity.pid)
        report = folder.read_report()
        if report is not None and not report.error:
            self._came_up(machine, report)
        elif report is not None:
            self._fail(machine, report.error)
        elif code not in {None, EXIT_ALREADY_RUNNING}:
            self._fail(machine, f"its init ended with {code} before sshd answered: see {folder.log}")
        elif time.monotonic() - init.since > BOOT_TIMEOUT_S:
            self._fail(machine, f"its sshd did not answer within {BOOT_TIMEOUT_S:.0f} s: see {folder.log}")
        else:
            return False
        return True

    def _came_up(self, machine: str, report: Report) -> None:
        self._watch(machine, Identity(report.pid, report.started))
        updated = self._cloud.update(
            machine,
            running_at=self._cloud.now(),
            pid=report.pid,
            started=report.started,
            ssh_port=report.ssh_port,
            metadata_port=report.metadata_port,
        )
        # A preemption announced while it booted: it may have looked before that was written.
        if updated.preempt_at is not None:
            self._cloud.notify(updated)
        log.info("machine %s (node %s) runs at %s", machine, updated.node, updated.address)

    # -- ends ----------------------------------------------------------------------------------------------

    def _fail(self, machine: str, message: str) -> None:
        log.error("machine %s failed: %s", machine, message)
        self._cloud.update(machine, ending_at=self._cloud.now(), end_cause=EndCause.FAILED, message=message)

    def _find_lost(self, machines: Iterable[Machine]) -> list[str]:
        """Return the machines whose init ended without a decision."""
        running = [each for each in machines if each.running_at is not None and each.ending_at is None]
        lost = [each.id for each in running if not processes.is_alive(self._inits[each.id].identity)]
        for machine in lost:
            self._fail(machine, "its init ended")
        return lost

    def _end(self, machines: Sequence[str]) -> bool:
        """Kill these machines, together. False when there is nothing to do now."""
        now = time.monotonic()
        wanted = [each for each in dict.fromkeys(machines) if self._retry_at.get(each, 0.0) <= now]
        if not wanted:
            return False
        targets = [Target(machine, self._identity(machine)) for machine in wanted]
        for machine in wanted:
            self._unwatch(machine)
        left = processes.kill(targets, KILL_TIMEOUT_S)
        spared = {init.identity.pid for init in self._inits.values()}
        left |= processes.kill_children(os.getpid(), spared, KILL_TIMEOUT_S)
        for machine in wanted:
            if left:
                log.error("machine %s: processes do not die: %s", machine, sorted(each.pid for each in left))
                self._retry_at[machine] = time.monotonic() + _RETRY_S
            else:
                self._ended(machine)
        return True

    def _ended(self, machine: str) -> None:
        self._retry_at.pop(machine, None)
        self._cloud.store.drop_secrets(machine)
        updated = self._cloud.update(machine, ended_at=self._cloud.now())
        log.info("machine %s (node %s) ended: %s %s", machine, updated.node, updated.end_cause, updated.message)

    def _identity(self, machine: str) -> Identity | None:
        if machine in self._inits:
            return self._inits[machine].identity
        report = self._cloud.store.folder(machine).read_report()
        return Identity(report.pid, report.started) if report else None

    def _unwatch(self, machine: str) -> None:
        init = self._inits.pop(machine, None)
        if init is not None and init.handle is not None:
            self._poll.unregister(init.handle)
            os.close(init.handle)

    def _wipe(self, machine: str) -> None:
        try:
            self._cloud.store.wipe(machine)
        except OSError as error:
            log.warning("machine %s: its disk could not be removed: %s", machine, error)
        self._cloud.update(machine, wiped=True)


def _spawn(machine: str, folder: Folder) -> Identity:
    """Start a machine's init in a session of its own. Raises OSError."""
    environ = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TZ", "LANG") if name in os.environ}
    environ |= {MARKER_VARIABLE: machine, "PYTHONPATH": str(_PACKAGE_ROOT)}
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-S", "-P", "-m", "provisioners.localcloud.machine.main", str(folder.path)],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder.log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=_DEFAULT_SIGNALS,
    )
    # Only this thread reaps: even an init that ended at once is still there to be looked at.
    return processes.identity_of(pid)
