"""Watches this node's GPUs: every minute, and when its launcher asks why workers stopped. On its own thread.

Nothing here waits for the driver: nvidia-smi runs in a process of its own, which is killed after a while. If the driver
holds it in the kernel, it is left behind, and no other is started until it has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Optional

from spotsup_trainer.agent.gpu_verdict import (
    HEALTHY,
    QUERY,
    ROWS_QUERY,
    Answer,
    Verdict,
    Xid,
    judge_hangs,
    judge_rows,
    judge_smi,
    judge_xids,
    read_xids,
)
from spotsup_trainer.launcher.run_dir import RunDir

EVERY_S = 60.0
_POLL_S = 0.2
# Of nvidia-smi: the first try, and each one after a try that did not end.
TRIES_S = (10.0, 60.0)
_ROWS_S = 5.0
_KILL_WAIT_S = 1.0
_LOG_S = 5.0
_LOG_LINES = 2000
_MAX_BYTES = 1 << 20
_MAX_XIDS = 256
KMSG = "/dev/kmsg"
_KMSG_RECORD_BYTES = 8192  # the kernel's CONSOLE_EXT_LOG_MAX
_MAX_RECORDS = 20_000

log = logging.getLogger(__name__)


# Runs a command for so many seconds: its answer, or None if it did not end. Raises OSError.
Runs = Callable[[Sequence[str], float], Optional[Answer]]


class Abandoning:
    """Runs one program at a time, and leaves one behind that cannot be killed."""

    def __init__(self, kill: Callable[[int, int], None] = os.killpg) -> None:
        self._kill = kill
        self._left: subprocess.Popen[bytes] | None = None

    def __call__(self, command: Sequence[str], limit_s: float) -> Answer | None:
        """None also while an earlier program has not ended."""
        if self._left is not None and self._left.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._left.wait(limit_s)
            return None
        with tempfile.TemporaryFile() as output:
            # A file, not a pipe: reading a pipe would wait for whoever holds its other end.
            process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    self._kill(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_WAIT_S)
                self._left = process
                return None
            output.seek(0)
            return Answer(status, output.read(_MAX_BYTES).decode(errors="replace"))


class KernelLog:
    """Errors of GPUs in the kernel's log since this was made: from /dev/kmsg, else from the journal, as far as this
    user may read them."""

    def __init__(self, run: Runs, path: str = KMSG, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._clock = clock
        self._since = clock()
        self._file: int | None = None
        self.readable = True
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)

    def read(self) -> tuple[Xid, ...]:
        """Return what is new. An empty answer may mean that the log cannot be read: `readable`."""
        if self._file is not None:
            return read_xids(self._records(self._file))
        since, self._since = self._since, self._clock()
        command = ("journalctl", "-k", "-b", "-o", "cat", "--no-pager", "-n", str(_LOG_LINES))
        try:
            answer = self._run((*command, f"--since=@{since - _LOG_S:.0f}"), _LOG_S)
        except OSError:
            answer = None
        # Without permission it ends well, and hints that you are "currently not seeing messages from other users".
        self.readable = answer is not None and answer.status == 0 and "not seeing messages" not in answer.output
        return read_xids(answer.output) if answer is not None and self.readable else ()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            os.close(self._file)

    @staticmethod
    def _records(file: int) -> str:
        """Return what is new in /dev/kmsg: one record per read. Old records are overwritten, which a read reports
        once."""
        found: list[str] = []
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(file, _KMSG_RECORD_BYTES)
            except BrokenPipeError:
                continue
            except OSError:  # nothing new (BlockingIOError), or a record that is too long
                break
            if not record:
                break
            if b"NVRM: Xid" in record:
                found.append(record.decode(errors="replace"))
        return "\n".join(found)


class GpuWatch:
    """Checks `gpus` GPUs, and calls `publish` when their health changes. `start` it; it ends with the process."""

    def __init__(
        self,
        gpus: int,
        run_dir: RunDir,
        publish: Callable[[Verdict], None],
        *,
        run: Runs | None = None,
        kernel_log: KernelLog | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._gpus = gpus
        self._run_dir = run_dir
        self._publish = publish
        self._run = run or Abandoning()
        self._kernel_log = kernel_log or KernelLog(Abandoning())
        self._every_s = every_s
        self._xids: tuple[Xid, ...] = ()
        # How many tries of nvidia-smi in a row did not end.
        self._hangs = 0
        self._published = HEALTHY
        self._warned: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpus", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Check no more. A check that is under way is not waited for."""
        self._stopping.set()

    def check(self) -> Verdict:
        """Return the GPUs now. The kernel's log comes first: it is there at once, also where nvidia-smi hangs."""
        verdict = self._by_log()
        if verdict.healthy:
            verdict = self._by_smi()
        return self._by_log() if verdict.healthy else verdict

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(_POLL_S):
            asked = self._run_dir.asked_gpu_check()
            if asked is None and time.monotonic() < due:
                continue
            try:
                verdict = self.check()
            except Exception as error:  # noqa: BLE001 - whatever it is: without this thread failed rounds wait for answers
                self._warn(f"the GPUs cannot be checked: {error!r}")
                verdict = HEALTHY
            if verdict != self._published:
                self._published = verdict
                self._publish(verdict)
            if asked is not None:
                self._answer(asked, verdict)
            # One that hangs is tried again at once: whether it is only slow is what everybody waits for.
            due = time.monotonic() + (0.0 if self._hangs == 1 else self._every_s)

    def _answer(self, round_number: int, verdict: Verdict) -> None:
        try:
            self._run_dir.answer_gpu_check(round_number, verdict.reason)
        except OSError as error:
            self._warn(f"the launcher cannot be informed about its GPUs: {error}")

    def _by_log(self) -> Verdict:
        found = dict.fromkeys((*self._xids, *self._kernel_log.read()))
        # Those that mean something: programs cause as many of the others as they like.
        self._xids = tuple(each for each in found if not judge_xids((each,)).healthy)[:_MAX_XIDS]
        if not self._kernel_log.readable:
            self._warn("the kernel's log cannot be read, so errors of GPUs are known from nvidia-smi only")
        return judge_xids(self._xids)

    def _by_smi(self) -> Verdict:
        limit_s = TRIES_S[min(self._hangs, 1)]
        try:
            query = f"--query-gpu={','.join(QUERY)}"
            found = self._run(("nvidia-smi", query, "--format=csv,noheader,nounits"), limit_s)
            if found is None:
                self._hangs += 1
                return judge_hangs(self._hangs)
            self._hangs = 0
            verdict = judge_smi(self._gpus, found)
            if verdict is None:
                line = next(iter(found.output.splitlines()), "")
                self._warn(f"nvidia-smi ended with status {found.status}, which says nothing about the GPUs: {line}")
                return HEALTHY
            if not verdict.healthy:
                return verdict
            query = f"--query-remapped-rows={','.join(ROWS_QUERY)}"
            rows = self._run(("nvidia-smi", query, "--format=csv,noheader"), _ROWS_S)
        except OSError as error:
            self._warn(f"nvidia-smi cannot be run: {error}")
            return HEALTHY
        return HEALTHY if rows is None else judge_rows(rows)

    def _warn(self, text: str) -> None:
        """Warn of each problem once."""
        if text not in self._warned and len(self._warned) < _MAX_XIDS:
            self._warned.add(text)
            log.warning("%s", text)
