"""The launcher of a data job: one node runs one command to its end; after a loss, another node runs it again. No torch.

It joins the job's rendezvous as any launcher does, so the daemon treats it alike: a round of one node is one run of the
command, its failures are the program's, and a replacement waits until the old node has stopped.

`python -m spotsup_trainer.launcher.data_job --help`. Exit code 0: the command ended well, or this node left in order;
1: it failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NoReturn

from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.etcd.access import access_from
from spotsup_trainer.launcher import container_init
from spotsup_trainer.launcher.parent_death import die_with_parent
from spotsup_trainer.launcher.run_dir import Outcome, RunDir
from spotsup_trainer.rendezvous import conf as rdzv_conf
from spotsup_trainer.rendezvous.client import RendezvousClient, RendezvousConfig
from spotsup_trainer.rendezvous.membership import Broken, Over, Standing, Stay, Wait, standing
from spotsup_trainer.rendezvous.view import Rules
from spotsup_trainer.timing import Patience
from spotsup_trainer.wire import DEFAULT_LEASE_TTL_S, Failure, Progress, Result, Round
from spotsup_trainer.worker_files import WorkerFiles

STOP_S = 20.0  # from SIGTERM to SIGKILL; the agent gives this launcher 30 s
MARGIN_S = 1.0  # before the machine's own deadline
_JOIN_TIMEOUT_S = 7 * 24 * 3600.0  # the daemon ends a job; a node that waits must not
_POLL_S = 0.1
_FLUSH_S = 2.0
_LAST_OUTPUT_S = 5.0
_RESULT_RETRY_S = 0.5
_TEXT_CHARS = 200
_MESSAGE_CHARS = 2000
_PIECE_BYTES = 2**16
_LINE_BYTES = 2**16  # how much of the end of a line is kept

_PROGRESS_LINE = re.compile(r"spotsup: progress (?P<fraction>0(\.\d+)?|1(\.0+)?|\.\d+)(\s+(?P<text>.*))?$")

log = logging.getLogger("spotsup_trainer")


@dataclass(frozen=True)
class ReportedProgress:
    """How far the command is, by its own output: a fraction of 1, and a short text."""

    fraction: float
    text: str = ""


def parse_progress(line: str) -> ReportedProgress | None:
    """Return the progress in a line of output such as `spotsup: progress 0.4 copied 12 of 30 files`; else None."""
    found = _PROGRESS_LINE.match(line.strip())
    if found is None:
        return None
    return ReportedProgress(float(found["fraction"]), (found["text"] or "").strip()[:_TEXT_CHARS])


class Command:
    """A running command: a line for bash. Its output goes to `out` as it comes; the command ends with this process."""

    def __init__(self, line: str, environ: dict[str, str], out: IO[bytes]) -> None:
        shell = ["bash", "-e", "-o", "pipefail", "-c", line]
        self.progress: ReportedProgress | None = None
        self.last_line = ""
        self._out = out
        self._process = subprocess.Popen(
            [sys.executable, "-I", container_init.__file__, "--group", *shell],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    def status(self) -> int | None:
        """None while it runs; 128 and its number for a signal."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the command and all its processes."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the command and all its processes, and wait: none of them writes any more."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._reader.join(_LAST_OUTPUT_S)

    def close(self) -> None:
        """Read the rest of its output, after its end."""
        self.kill()

    def _read(self) -> None:
        """Pass the output on piece by piece: a progress bar (\\r) may never end its line."""
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as stdout:
            while piece := os.read(stdout.fileno(), _PIECE_BYTES):
                with contextlib.suppress(OSError):  # a full disk must not end the command: it would, by SIGPIPE
                    self._out.write(piece)
                    self._out.flush()
                *lines, rest = re.split(rb"[\r\n]", rest + piece)
                for line in lines:
                    self._take(line)
                rest = rest[-_LINE_BYTES:]
        self._take(rest)

    def _take(self, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip()
        self.progress = parse_progress(line) or self.progress
        self.last_line = line or self.last_line


class DataJob:
    """Runs the command in the rounds of this node: `run()`. A signal handler may call `leave()`."""

    def __init__(
        self,
        client: RendezvousClient,
        run_dir: RunDir,
        start: Callable[[Round], Command],
    ) -> None:
        self._client = client
        self._run_dir = run_dir
        self._start = start
        self._leave_requests = 0
        self._first_at = 0.0

    def leave(self) -> None:
        """Leave in order; when called twice, at once. Only sets a flag."""
        self._leave_requests += 1

    def run(self) -> Outcome:
        """Run to the end of the job, or of this node's part in it."""
        self._client.open()
        current: Round | None = None
        failure: Failure | None = None
        parked = False
        try:
            while True:
                number = current.number if current else 0
                self._client.announce(state="waiting", store_port=0, round=number, failure=failure, parked=parked)
                found = self._wait_for_round(current)
                if isinstance(found, Outcome):
                    return found
                current = found
                self._client.announce_running(current)
                self._run_dir.begin(current.number)
                ended = self._run_in(current)
                if isinstance(ended, Outcome):
                    return ended
                failure, parked = ended, ended is None
        finally:
            self._client.close(linger=parked or self._leave_requests > 0)

    # -- inside --------------------------------------------------------------------------------------------

    def _wait_for_round(self, current: Round | None) -> Round | Outcome:
        config, patience = self._client.config, Patience(_JOIN_TIMEOUT_S, time.monotonic())
        number = current.number if current else 0
        while True:
            now = self._client.snapshot()
            if now.view.result is not None:
                result = now.view.result
                return Outcome("success" if result.outcome == "success" else "failure", result.message)
            if config.node in now.view.tombstones:
                return Outcome("left", f"the daemon has given node {config.node} up")
            if self._leave_requests:
                return self._leave("asked to leave")
            if patience.is_over(time.monotonic(), away=now.away):
                return Outcome("failure", "no round formed within a week")
            formed = now.view.round
            if formed and formed.number > number and formed.incarnations.get(config.node) == config.incarnation:
                return formed
            wait_s = _POLL_S
            if now.live and not (current and self._client.restore_round(current, running=False)):
                decision = self._client.decide()
                if not isinstance(decision, Wait):
                    wait_s = min(_POLL_S, self._client.try_write(decision))
            self._client.wait_change(wait_s)

    def _run_in(self, current: Round) -> Outcome | Failure | None:
        """Make one run: how the job ended, or why this run did; None if it was stopped for another round."""
        command = self._start(current)
        log.info("round %d: the command runs", current.number)
        try:
            return self._supervise(current, command)
        finally:
            command.close()
            self._write_progress(current, command)

    def _supervise(self, current: Round, command: Command) -> Outcome | Failure | None:
        while True:
            status = command.status()
            self._write_progress(current, command)
            state = self._standing(current)
            if isinstance(state, Over) and self._result_written(state.result):
                return Outcome("success" if state.result.outcome == "success" else "failure", state.result.message)
            if status == 0 and self._client.member.state != "done":
                command.close()
                log.info("round %d: the command ended well", current.number)
                self._client.announce(state="done")
            elif status:
                command.close()
                message = command.last_line[-_MESSAGE_CHARS:] or "it printed nothing"
                log.info("round %d: the command ended with status %d", current.number, status)
                return Failure(current.number, 0, status, message, time.time())
            if self._leave_requests or not isinstance(state, (Stay, Over)):
                return self._stop(command, state)
            self._client.wait_change(_POLL_S)

    def _stop(self, command: Command, state: Standing) -> Outcome | None:
        """SIGTERM, and SIGKILL once time is up; SIGKILL at once if another round goes on without this node."""
        reason = "this node leaves" if self._leave_requests else getattr(state, "reason", "")
        log.info("stopping the command: %s", reason)
        notice = self._client.snapshot().notice
        until = time.monotonic() + (0.0 if isinstance(state, Broken) else STOP_S)
        if notice is not None:
            until = min(until, time.monotonic() + notice.deadline - time.time() - MARGIN_S)
        command.terminate()
        while command.status() is None and time.monotonic() < until and self._leave_requests < 2:
            time.sleep(_POLL_S)
        command.kill()
        return self._leave(reason) if self._leave_requests else None

    def _standing(self, current: Round) -> Standing:
        self._client.restore_round(current, running=True)
        now = self._client.snapshot()
        return standing(now.view, current, self._client.config.node, time.monotonic()) if now.live else Stay()

    def _leave(self, reason: str) -> Outcome:
        self._client.announce(state="leaving", parked=True)
        self._client.flush(_FLUSH_S)
        return Outcome("left", reason)

    def _result_written(self, result: Result) -> bool:
        """Try to write the result. No other node does; without it, the command would run once more."""
        try:
            self._client.finish(result)
        except EtcdError as error:
            log.warning("the job's result is not written yet: %s", error)
            time.sleep(_RESULT_RETRY_S)
            return False
        return True

    def _write_progress(self, current: Round, command: Command) -> None:
        reported, now = command.progress, time.time()
        if reported is None:
            return
        files = WorkerFiles.named_by(self._run_dir.worker_env(current.number, 0))
        self._first_at = self._first_at or now
        known = self._run_dir.progress()
        progress = Progress(current.number, 0, now, self._first_at, fraction=reported.fraction, text=reported.text)
        if known is None or replace(known, at=now) != progress:
            files.write_progress(progress)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    agent_pid = os.environ.pop("SPOTSUP_AGENT_PID", "")
    if agent_pid:
        die_with_parent(int(agent_pid))
    parser = argparse.ArgumentParser(prog="spotsup_trainer.launcher.data_job", description="Run a data job's command.")
    parser.add_argument("--etcd", required=True, help="etcd's endpoints, separated by commas")
    parser.add_argument("--addr", default="127.0.0.1", help="this node's address")
    parser.add_argument("--lease-ttl", type=float, default=DEFAULT_LEASE_TTL_S, metavar="S")
    parser.add_argument("line", help="for bash")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="[spotsup %(asctime)s] %(message)s", datefmt="%H:%M:%S")
    environ = os.environ
    try:
        config = RendezvousConfig(
            cluster=rdzv_conf.name("SPOTSUP_CLUSTER", environ.get("SPOTSUP_CLUSTER", "default")),
            job=rdzv_conf.name("SPOTSUP_JOB", environ.get("SPOTSUP_JOB", "")),
            node=rdzv_conf.name("SPOTSUP_NODE_ID", environ.get("SPOTSUP_NODE_ID", "")),
            incarnation=uuid.uuid4().hex[:12],
            addr=options.addr,
            endpoints=rdzv_conf.endpoints(options.etcd),
            lease_ttl_s=options.lease_ttl,
            access=access_from(environ),
        )
        failures = int(environ.get("SPOTSUP_APP_FAILURES", "0"))
    except ValueError as error:
        sys.stderr.write(f"spotsup: {error}\n")
        return 2
    run_dir = RunDir(Path(environ["SPOTSUP_RUN_DIR"]))

    def start(current: Round) -> Command:
        # The environment's own programs come first; without a terminal, Python would buffer its output.
        path = f"{Path(sys.executable).parent}:{environ.get('PATH', os.defpath)}"
        more = {"PATH": path, "PYTHONUNBUFFERED": "1", "SPOTSUP_ROUND": str(current.number)}
        return Command(options.line, {**environ, **more}, sys.stdout.buffer)

    job = DataJob(RendezvousClient(config, Rules(1, 1, failures)), run_dir, start)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: job.leave())
    outcome = job.run()
    run_dir.write_outcome(outcome)
    log.info("%s: %s", outcome.outcome, outcome.message)
    return 1 if outcome.outcome == "failure" else 0


def run() -> NoReturn:
    """Run the command, and end the process."""
    sys.exit(main())


if __name__ == "__main__":
    run()
