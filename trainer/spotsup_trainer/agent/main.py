"""The agent's loop: start the launcher, restart it if it dies, publish its progress and the provider's notice."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spotsup_trainer import __version__
from spotsup_trainer.agent.child import Child
from spotsup_trainer.agent.dead_man_switch import HEARD_FILE, DeadManSwitch
from spotsup_trainer.agent.decisions import HEALTHY_AFTER_S, Exit, has_changed, judge, log_budget, must_leave
from spotsup_trainer.agent.gpu_use import GpuUse
from spotsup_trainer.agent.gpu_verdict import Verdict
from spotsup_trainer.agent.gpu_watch import GpuWatch
from spotsup_trainer.agent.host_metrics import start_host_metrics
from spotsup_trainer.agent.log_mirror import LogMirror
from spotsup_trainer.agent.logs import LogShipper
from spotsup_trainer.agent.metrics import start_gpu_metrics
from spotsup_trainer.agent.notices import NoticeReader, NoticeWatcher, reader_for
from spotsup_trainer.etcd.access import EtcdAccess, read_access
from spotsup_trainer.etcd.outbox import Outbox
from spotsup_trainer.launcher.preparation import Preparation
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.timing import LeaseTimes, seconds_in
from spotsup_trainer.wire import (
    AgentConfig,
    AgentStatus,
    Ended,
    Health,
    Keys,
    Notice,
    Pauses,
    Progress,
    RankTimes,
    WireError,
    decode,
    encode,
)

_TICK_S = 0.2
_PROGRESS_S = 1.0  # publish steps at most this often: the daemon reads those of all jobs
_PREPARING_S = 1.0
_LEAVE_SLACK_S = 10.0  # beyond what the launcher gives its workers
_FINAL_FLUSH_TIMEOUT_S = 600.0

log = logging.getLogger("spotsup_trainer.agent")


class Agent:
    """One node's agent. `run` from the main thread; `stop` from a signal handler."""

    def __init__(self, config: AgentConfig, access: EtcdAccess, reader: NoticeReader | None, boot_id: str) -> None:
        self._config = config
        self._keys = Keys(config.cluster)
        self._status = AgentStatus(config.node, boot_id, os.getpid(), time.time(), __version__)
        self._published = False
        self._preparation, self._preparing_at = Preparation(config.run_dir), 0.0
        self._run_dir = RunDir(Path(config.run_dir))
        Path(config.log_dir).mkdir(parents=True, exist_ok=True)
        self._log_file = Path(config.log_dir) / f"{config.node}.log"
        # Two time limits: a keepalive must not be spent on a dead endpoint, a chunk of log may take longer.
        times = LeaseTimes(config.lease_ttl_s, len(config.etcd_endpoints))
        self._etcd = access.connect(config.etcd_endpoints, times.call_s)
        self._outbox = Outbox(self._etcd, ttl_s=config.lease_ttl_s, name="agent")
        prefix = self._keys.logs(config.job, config.node)
        budget = log_budget(config.max_nodes)
        self._logs = LogShipper(access.connect(config.etcd_endpoints), self._log_file, prefix, config.node, budget)
        mirror = Path(config.log_mirror)
        self._mirror = LogMirror(self._log_file, mirror, config.node, self._run_dir.path) if config.log_mirror else None
        self._watcher = NoticeWatcher(reader, self._on_notice) if reader else None
        self._gpus = GpuWatch(config.gpus, self._run_dir, self._on_health) if config.gpus else None
        self._gpu_use = GpuUse() if config.gpus else None
        self._deadline: float | None = None
        self._stops = 0
        self._stops_forwarded = 0
        self._kill_at: float | None = None
        self._crashes = 0
        self._progress: Progress | None = None
        self._progress_at = 0.0
        self._pauses: Pauses | None = None
        self._rank_times: RankTimes | None = None
        self._dead_man_switch = DeadManSwitch(
            Path.home() / HEARD_FILE, self._outbox.answered_at, self._run_dir.path, self._log_file
        )

    def stop(self) -> None:
        """Leave in order; when called twice, at once. Only sets a flag."""
        self._stops += 1

    def run(self) -> Ended:
        """Run the launcher to the end of this node's part in the job. Returns once etcd has the outcome."""
        config = self._config
        self._outbox.start()
        self._publish_status()
        self._logs.start()
        start_gpu_metrics(config.addr)
        start_host_metrics(config.addr)
        if self._gpus:
            self._gpus.start()
        if self._gpu_use:
            self._gpu_use.start()
        if self._mirror:
            self._mirror.start()
        if self._watcher:
            self._watcher.start()
        ended = self._run_launchers()
        log.info("%s: %s", ended.outcome, ended.message)
        if self._watcher:
            self._watcher.stop()
        if self._gpus:
            self._gpus.stop()
        if self._gpu_use:
            self._gpu_use.stop()
        self._publish_progress(last=True)
        self._logs.close()
        # The last message: the daemon may terminate the machine as soon as it has it.
        self._outbox.put(self._keys.ended(config.job, config.node), encode(ended))
        if self._mirror:
            self._mirror.close()
        self._final_flush()
        self._outbox.close()
        self._etcd.close()
        return ended

    # -- inside --------------------------------------------------------------------------------------------

    def _publish_status(self) -> None:
        """Once, and again when what the launcher prepares changes, at most once a second."""
        preparing = self._status.preparing
        if time.monotonic() >= self._preparing_at + _PREPARING_S:
            self._preparing_at, preparing = time.monotonic(), self._preparation.current()
        if self._published and preparing == self._status.preparing:
            return
        self._published, self._status = True, replace(self._status, preparing=preparing)
        self._outbox.put(self._keys.agent(self._config.job, self._config.node), encode(self._status), leased=True)

    def _on_notice(self, deadline: float) -> None:
        config = self._config
        self._deadline = deadline
        notice = Notice(config.node, deadline, time.time(), config.metadata.kind)
        self._outbox.put(self._keys.notice(config.job, config.node), encode(notice))
        log.info("notice: this machine will be taken in %.1f s", deadline - time.time())

    def _on_health(self, verdict: Verdict) -> None:
        config = self._config
        health = Health(config.node, verdict.healthy, time.time(), verdict.reason, verdict.xid, verdict.fatal)
        self._outbox.put(self._keys.health(config.job, config.node), encode(health))
        log.warning("GPUs: %s", verdict.reason or "healthy again")

    def _run_launchers(self) -> Ended:
        while True:
            self._run_dir.take_outcome()  # drop one that a killed agent left unread
            try:
                child = Child(self._config, self._log_file)
            except OSError as error:
                return Ended(self._config.node, "failure", 1, f"cannot start the launcher: {error}", time.time())
            log.info("launcher started, pid %d; its log is %s", child.pid, self._log_file)
            code = self._supervise(child)
            if time.monotonic() - child.started_at >= HEALTHY_AFTER_S:
                self._crashes = 0
            end = Exit(self._config.node, code, self._run_dir.take_outcome(), self._must_stop(), self._crashes)
            verdict = judge(end, time.time())
            if isinstance(verdict, Ended):
                return verdict
            self._crashes += 1
            log.warning("%s; restarting it in %.0f s", verdict.reason, verdict.after_s)
            self._wait(verdict.after_s)
            if self._must_stop():
                return Ended(self._config.node, "left", code, f"asked to leave after {verdict.reason}", time.time())

    def _supervise(self, child: Child) -> int:
        self._stops_forwarded, self._kill_at = 0, None
        while (code := child.exit_code()) is None:
            self._forward_stop(child)
            self._publish_progress()
            self._publish_status()
            self._dead_man_switch.update()
            time.sleep(_TICK_S)
        return code

    def _must_stop(self) -> bool:
        if self._stops > 0 or self._deadline is None:
            return self._stops > 0
        margin_s = self._run_dir.times().window_s(self._config.leave_margin_s)
        return must_leave(self._deadline, margin_s, time.time())

    def _leave_timeout_s(self) -> float:
        try:
            stop_s = seconds_in(self._config.env, "SPOTSUP_STOP_S") or 0.0
        except ValueError:
            stop_s = 0.0  # the launcher says so, and ends
        return max(self._run_dir.times().yield_s, stop_s) + _LEAVE_SLACK_S

    def _forward_stop(self, child: Child) -> None:
        now = time.monotonic()
        wanted = min(2, max(self._stops, 1 if self._must_stop() else 0))
        if self._stops_forwarded < wanted:
            child.ask_to_leave()
            self._stops_forwarded += 1
            self._kill_at = self._kill_at or now + self._leave_timeout_s()
            log.info("asked the launcher to leave")
        if self._kill_at is not None and now >= self._kill_at:
            log.warning("the launcher did not leave within %.0f s; killing it", self._leave_timeout_s())
            child.kill()
            self._kill_at = time.monotonic() + _LEAVE_SLACK_S  # if it hangs, try again then

    def _publish_progress(self, *, last: bool = False) -> None:
        found, now = self._run_dir.progress(), time.monotonic()
        if found is None:
            return
        self._publish_pauses(found.round)
        self._publish_rank_times(found.round)
        if found == self._progress:
            return
        if last or has_changed(self._progress, found) or now >= self._progress_at + _PROGRESS_S:
            self._progress, self._progress_at = found, now
            busy = self._gpu_use.percent() if self._gpu_use else None
            self._outbox.put(self._keys.progress(self._config.job), encode(replace(found, gpu_percent=busy)))

    def _publish_pauses(self, number: int) -> None:
        """Once this node has rank 0: every node measures, and one speaks. `number`: of the round."""
        if self._pauses is not None and self._pauses.pauses[-1].round == number:
            return
        found = self._run_dir.pauses()
        if found is not None and found.pauses and found.pauses[-1].round == number:
            self._pauses = found
            self._outbox.put(self._keys.pauses(self._config.job), encode(found))

    def _publish_rank_times(self, number: int) -> None:
        found = self._run_dir.rank_times(number)
        if found is not None and found != self._rank_times:
            self._rank_times = found
            self._outbox.put(self._keys.rank_times(self._config.job), encode(found))

    def _wait(self, duration_s: float) -> None:
        until = time.monotonic() + duration_s
        while time.monotonic() < until and not self._must_stop():
            time.sleep(_TICK_S)

    def _final_flush(self) -> None:
        """Wait until etcd has the outcome, even through an outage; a second SIGTERM ends this wait, too."""
        until = time.monotonic() + _FINAL_FLUSH_TIMEOUT_S
        while not self._outbox.flush(_TICK_S):
            if time.monotonic() >= until or self._stops > 1:
                log.warning("the outcome of this node could not be written to etcd")
                return


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: the node's part is done, or it left; 1: it failed; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="spotsup-agent", description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE", help="the JSON that bootstrap wrote")
    parser.add_argument("--boot-id", default="", help="for nodes that share one kernel; default: the kernel's")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    try:
        config = decode(AgentConfig, Path(options.config).read_bytes())
        access = read_access(config.etcd_access)
        reader = reader_for(config.metadata)
        boot_id = options.boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, WireError, ValueError) as error:
        sys.stderr.write(f"spotsup-agent: {options.config}: {error}\n")
        return 2
    agent = Agent(config, access, reader, boot_id)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: agent.stop())
    return 1 if agent.run().outcome == "failure" else 0
