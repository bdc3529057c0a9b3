"""torch's elastic agent, changed: membership changes do not count as restarts, and no node waits for a timeout.

supervision.py decides what to do next, and membership.py whether the round stands; this module carries it out.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from string import Template
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousInfo,
)

from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.launcher import examine, memory_kills, processes
from spotsup_trainer.launcher.activity import Idleness
from spotsup_trainer.launcher.failures import message_of
from spotsup_trainer.launcher.forkserver import WorkerServer
from spotsup_trainer.launcher.gpu_check import ask_agent, has_gpus
from spotsup_trainer.launcher.gpu_processes import GpuProcesses
from spotsup_trainer.launcher.pauses import PauseWatch
from spotsup_trainer.launcher.program import Program, environment
from spotsup_trainer.launcher.run_dir import Outcome, RunDir
from spotsup_trainer.launcher.signs import SignsOfLife
from spotsup_trainer.launcher.supervision import (
    Action,
    AnnounceDone,
    AskToEnd,
    AskToYield,
    CheckpointCount,
    EndUnfinished,
    KeepStacks,
    LeaveEarly,
    Limits,
    Local,
    Stop,
    Workers,
    decide,
)
from spotsup_trainer.launcher.torch_versions import OF_PCONTEXT, fields_of
from spotsup_trainer.launcher.worker import WorkerRequest
from spotsup_trainer.launcher.worker_context import ServedContext
from spotsup_trainer.rendezvous.abandonable_call import call_while
from spotsup_trainer.rendezvous.handler import SpotsupRendezvousHandler
from spotsup_trainer.rendezvous.history import may_restart
from spotsup_trainer.rendezvous.membership import Broken, Over, Stay, hangs, has_finished
from spotsup_trainer.wire import Failure, Notice, Result, Round

_POLL_S = 0.02  # workers and their files; keys are noticed at once
_EXCHANGE_TIMEOUT_S = 1.0  # then check whether the round still stands, and try again
_MAX_EXCHANGES = 600
_RESULT_ATTEMPTS = 3
_STOP_GRACE_S = 2.0
_FLUSH_S = 2.0
_GONE_POLL_S = 0.2
_STORE_S = 10.0  # for which a node that has left keeps the round's store for others
_PROGRESS_EVERY_S = 1.0  # look for new checkpoints
_HANDLERS_EVERY_S = 1.0  # look whether workers catch SIGTERM

_WORKERS: dict[Any, Workers] = {
    WorkerState.SUCCEEDED: "succeeded",
    WorkerState.HEALTHY: "running",
    WorkerState.STOPPED: "ended",
}

log = logging.getLogger(__name__)


class _UnhealthyError(Exception):
    """This machine cannot go on."""


class SpotsupElasticAgent(LocalElasticAgent):  # type: ignore[misc]  # mypy does not read torch
    """Runs this node's workers through all rounds: `run()`, then read `outcome`. A signal handler may call
    `leave()`."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        server: WorkerServer,
        run_dir: RunDir,
        program: Program,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        log_line_prefix_template: str | None = None,
    ) -> None:
        super().__init__(spec, logs_specs, log_line_prefix_template=log_line_prefix_template)
        self.outcome = Outcome("failure", "the launcher did not run")
        self._server = server
        self._run_dir = run_dir
        self._program = program
        self._limits = limits
        self._leave_requests = 0
        self._leaves_early = False
        self._look_at_handlers_at = 0.0
        self._memory_kills_before: int | None = None
        self._gpu_processes = GpuProcesses()
        # Processes of this round that may have memory of GPUs.
        self._on_gpus: set[int] = set()
        self._handler: SpotsupRendezvousHandler = spec.rdzv_handler
        self._handler.interrupted = lambda: self._leave_requests > 0
        self._local = Local("running", spec.local_world_size, 0, 0)
        self._signs = SignsOfLife(spec.local_world_size, 0.0)
        # Of workers that run while others have ended well.
        self._idleness: Idleness | None = None
        self._checkpoints, self._look_at = CheckpointCount(), 0.0
        self._pauses = PauseWatch(run_dir, self._handler.client.config.node)

    def leave(self) -> None:
        """Leave in order; when called twice, at once. Only sets a flag."""
        self._leave_requests += 1

    # -- torch's steps -------------------------------------------------------------------------------------

    def _invoke_run(self, role: str = "") -> RunResult:  # noqa: ARG002 - torch's signature
        failure: Failure | None = None
        parked, unhealthy = False, ""
        result = RunResult(WorkerState.FAILED)
        try:
            while True:
                self._begin_round(failure, parked=parked, unhealthy=unhealthy)
                stop, result = self._supervise()
                stopped_at = time.monotonic()
                log.info("round %d: stopping the workers: %s", self._round.number, stop.reason)
                failure, parked = self._failure(result) if stop.blame else None, stop.parked
                self._stop_workers(self._worker_group, stop.grace_s)
                self._pauses.stopped(self._round.number, stopped_at, parked=stop.parked)
                if stop.then == "rejoin":
                    self._await_gone(failure, parked=parked)
                # Before this node is seen to have stopped: no round forms, and nothing is blamed, until then.
                unhealthy = ""
                if stop.check_gpus and stop.then == "rejoin":
                    unhealthy = ask_agent(self._run_dir, self._round.number, lambda: self._leave_requests > 0)
                if stop.then == "end":
                    return self._end(result)
                if stop.then == "leave":
                    self._leave(parked=stop.parked)
                    raise RendezvousGracefulExitError(stop.reason)
        except RendezvousClosedError as error:
            if self._handler.is_closed():
                return self._end(result)
            self.outcome = Outcome("left", str(error))
        except RendezvousGracefulExitError as error:
            self.outcome = Outcome("left", str(error))
        except _UnhealthyError as error:
            self.outcome = Outcome("failure", str(error))
        return RunResult(WorkerState.FAILED)

    def _begin_round(self, failure: Failure | None, *, parked: bool, unhealthy: str) -> None:
        group = self._worker_group
        self._count_checkpoints(now=True)
        while True:
            self._server.check()
            info = self._handler.join(
                failure=failure, parked=parked, unhealthy=unhealthy, checkpoints=self._checkpoints.count
            )
            workers = self._ranks(info)
            if workers is not None:
                break
            log.warning("round %d broke before its workers started", self._round.number)
            failure, parked, self._checkpoints = None, False, CheckpointCount()
        self._pauses.agreed(self._round.number, time.monotonic(), self._handler.lost_at)
        group.workers = workers
        group.store = self._store = info.store
        group.group_rank, group.group_world_size = info.rank, info.world_size
        group.master_addr = info.bootstrap_store_info.master_addr
        group.master_port = info.bootstrap_store_info.master_port
        self._local = Local("running", group.spec.local_world_size, 0, 0, hosts_store=info.rank == 0)
        self._signs, self._idleness = SignsOfLife(self._local.ranks, time.monotonic()), None
        self._look_at_handlers_at = 0.0
        self._run_dir.begin(self._round.number)
        self._memory_kills_before = memory_kills.count()
        self._checkpoints = CheckpointCount()
        log.info(
            "round %d: rank %d of %d (%s): %s",
            self._round.number,
            info.rank,
            info.world_size,
            ", ".join(self._round.nodes()),
            self._round.reason,
        )
        for local_rank, pid in self._start_workers(group).items():
            workers[local_rank].id = pid
        group.state = WorkerState.HEALTHY

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        envs = {worker.local_rank: self._worker_env(worker_group, worker) for worker in worker_group.workers}
        self._setup_local_watchdog(envs=envs)
        self._setup_healthcheck()
        self._pcontext = ServedContext(
            self._server,
            self._request,
            whole_groups=not self._program.python,
            name=worker_group.spec.role,
            entrypoint=self._program.name,
            args=dict.fromkeys(envs, ()),
            envs=envs,
            logs_specs=self._logs_specs,
            log_line_prefixes=self._log_line_prefixes(worker_group),
            **fields_of(worker_group.spec, OF_PCONTEXT),
        )
        self._remove_old_logs()
        self._pcontext.start()
        return self._pcontext.pids()

    def _request(self, rank: int, env: Mapping[str, str], stdout: str, stderr: str) -> WorkerRequest:
        request = self._program.request(rank, dict(os.environ) | dict(env), stdout, stderr)
        number = self._round.number
        return replace(
            request, stacks=str(self._run_dir.stacks(number, rank)), over=str(self._run_dir.over(number, rank))
        )

    def _stop_workers(self, worker_group: WorkerGroup, grace_s: float = _STOP_GRACE_S) -> None:
        self._stop_watching()
        if self._pcontext is not None:
            if has_gpus():
                below = processes.descendants(self._server.pid, processes.snapshot())
                self._on_gpus = {*self._pcontext.pids().values(), *below}
            self._pcontext.close(signal.SIGTERM if grace_s > 0 else signal.SIGKILL, grace_s)
        worker_group.state = WorkerState.STOPPED

    def _shutdown(self, *_: object, **__: object) -> None:
        """torch calls it at the end. Its own has other arguments in each version, a grace of 30 s, and up to 2.7 closes
        the rendezvous for all."""
        self._stop_workers(self._worker_group)

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _round(self) -> Round:
        assert self._handler.current is not None
        return self._handler.current

    def _ranks(self, info: RendezvousInfo) -> list[Any] | None:
        """Return the local workers with their ranks, agreed through the store. None if the round broke meanwhile."""
        assign = partial(self._assign_worker_ranks, info.store, info.rank, info.world_size, self._worker_group.spec)
        usual = info.store.timeout
        info.store.set_timeout(timedelta(seconds=_EXCHANGE_TIMEOUT_S))
        for _ in range(_MAX_EXCHANGES):
            try:
                workers: list[Any] | None = call_while(assign, self._may_begin)
            except DistError as error:
                log.warning("round %d: waiting for all nodes to exchange their ranks: %s", self._round.number, error)
                if not self._may_begin():
                    return None
            else:
                if workers is not None:
                    info.store.set_timeout(usual)
                return workers
        return None

    def _may_begin(self) -> bool:
        return not self._leave_requests and isinstance(self._handler.standing(), Stay)

    def _supervise(self) -> tuple[Stop, RunResult]:
        """Watch the running workers until they have to be stopped."""
        while True:
            result = self._look()
            self._count_checkpoints()
            self._pauses.look(time.monotonic())
            standing = self._handler.standing()
            self._update_local(result, broken=isinstance(standing, Broken))
            action = decide(self._local, standing, time.monotonic(), self._limits_now())
            if isinstance(action, Stop):
                if isinstance(standing, Over):
                    self._write_result(standing.result)
                return action, result
            self._carry_out(action)
            self._handler.client.wait_change(_POLL_S)

    def _look(self) -> RunResult:
        """Return how the workers are. Each of those that are asked to end has the time for it, whatever becomes of
        others."""
        if self._local.ending_since is None:
            return self._monitor_workers(self._worker_group)
        return RunResult(WorkerState.HEALTHY if self._pcontext.left() else WorkerState.STOPPED)

    def _leave(self, *, parked: bool) -> None:
        done = self._local.done_since is not None
        if done and not self._local.hosts_store:
            self._handler.client.flush(_FLUSH_S)  # that its part is done, which outlives it; nobody waits for it
            return
        self._handler.leave(parked=parked or done, store_s=self._time_for_others())

    def _time_for_others(self) -> float:
        """Return how long this node may stay for those that have not ended their workers yet."""
        deadline, now = self._local.deadline, time.monotonic()
        if self._local.force:
            return 0.0
        return _STORE_S if deadline is None else min(_STORE_S, max(0.0, deadline - self._limits.margin_s - now))

    def _limits_now(self) -> Limits:
        """Return the limits with the measured time to park, where it is needed."""
        if self._local.yielding_since is None and self._local.leaving_since is None:
            return self._limits
        return replace(self._limits, yield_s=self._run_dir.times().yield_s)

    def _await_gone(self, failure: Failure | None, *, parked: bool) -> None:
        """Wait for workers that outlive SIGKILL: they hang in the kernel, or free much memory, also that of GPUs. The
        others go on.

        Raises _UnhealthyError if they are not gone in time.
        """
        began, limit_s = time.monotonic(), self._limits.outlive_s
        while stuck := self._outliving():
            if time.monotonic() >= began + limit_s:
                raise _UnhealthyError(f"unhealthy: workers have outlived SIGKILL for {limit_s:.0f} s: {stuck}")
            if self._leave_requests or not self._handler.may_rejoin():
                return
            if self._handler.client.member.state != "stopping":
                log.warning("workers outlive SIGKILL, and this node waits for them: %s", stuck)
                self._handler.client.announce(
                    state="stopping",
                    round=self._round.number,
                    failure=failure,
                    parked=parked,
                    problem=f"workers outlive SIGKILL: {stuck}",
                )
            self._handler.client.wait_change(_GONE_POLL_S)

    def _outliving(self) -> str:
        """Return what is left of workers that were sent SIGKILL, "" for nothing."""
        if left := self._pcontext.left():
            return examine.states(left)
        if not self._server.sweep(_GONE_POLL_S):
            return "what they had started in sessions of their own"
        held = self._gpu_processes.held_by(self._on_gpus)
        return f"the driver still has them on GPUs: pid {', '.join(map(str, held))}" if held else ""

    def _update_local(self, result: RunResult, *, broken: bool) -> None:
        now, number, ranks = time.monotonic(), self._round.number, self._local.ranks
        snapshot = self._handler.client.snapshot()
        notice, view = snapshot.notice, snapshot.view
        self._watch_signs(now)
        finished = result.state == WorkerState.HEALTHY and (self._pcontext.ended() or has_finished(view, self._round))
        hung = hangs(view, self._round)
        asked_now = (self._leave_requests > 0 or self._leaves_early) and self._local.leaving_since is None
        if asked_now and self._local.workers == "running":
            self._handler.client.announce(state="leaving")
        elif asked_now and self._local.done_since is not None:
            self._announce_leaving_done()
        if notice is not None and self._local.deadline is None and self._local.workers == "running":
            self._run_dir.ask_to_save(number)  # if the last checkpoint fails, this one is there
        self._local = replace(
            self._local,
            workers=_WORKERS.get(result.state, "failed"),
            sessions=self._run_dir.sessions(number, ranks),
            parked=self._run_dir.parked(number, ranks),
            catches=self._local.catches or self._catches_sigterm(notice, now),
            broken_since=(self._local.broken_since or now) if broken else None,
            leaving_since=now if asked_now else self._local.leaving_since,
            finished_since=(self._local.finished_since or now) if finished else None,
            idle_since=self._idle_since(now) if finished else None,
            hung_since=(self._local.hung_since or now) if hung else None,
            stacks_at=self._local.stacks_at if hung or finished else None,
            may_restart=may_restart(self._round, time.time()),
            deadline=None if notice is None else now + notice.deadline - time.time(),
            force=self._leave_requests > 1,
        )

    def _catches_sigterm(self, notice: Notice | None, now: float) -> bool:
        """True if a worker does, where it matters how they end: looked up once a second, since a notice may be long."""
        may_end_soon = notice is not None or self._local.yielding_since is not None
        if self._local.ending_since is not None or not may_end_soon or now < self._look_at_handlers_at:
            return False
        self._look_at_handlers_at = now + _HANDLERS_EVERY_S
        return self._pcontext.catches_sigterm()

    def _count_checkpoints(self, *, now: bool = False) -> None:
        if self._handler.current is not None and (now or time.monotonic() >= self._look_at):
            self._look_at = time.monotonic() + _PROGRESS_EVERY_S
            self._checkpoints = self._checkpoints.after(self._run_dir.progress(), self._round.number)

    def _watch_signs(self, now: float) -> None:
        """Announce that no rank of this node gives a sign of life, and that one does again."""
        if not self._signs.is_due(now):
            return
        silent_since = self._signs.silent_since(self._run_dir.signs(self._round.number, self._local.ranks), now)
        stalled = self._handler.client.member.stalled_since > 0
        if silent_since is not None and stalled != (silent_since > 0):
            since = round(time.time() - now + silent_since) if silent_since else 0
            self._handler.client.announce(stalled_since=float(since))

    def _idle_since(self, now: float) -> float | None:
        if self._idleness is None:
            self._idleness = Idleness(list(self._pcontext.left().values()), now)
        self._idleness.update(now)
        return self._idleness.since

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, KeepStacks):
            who = self._keep_stacks(action.why)
            if action.tell:
                self._handler.client.announce(problem=f"{who} {action.why}; its stack is in the node's log")
            self._local = replace(self._local, stacks_at=time.monotonic())
        elif isinstance(action, EndUnfinished):
            who = self._keep_stacks(f"had not ended {action.since}")
            lost = self._what_is_lost()
            problem = f"{who} had not ended {action.since}, and was killed: {lost}; its stack is in the node's log"
            self._handler.client.announce(problem=problem)
            self._pcontext.end_left()
        elif isinstance(action, AskToYield):
            if self._local.sessions == self._local.ranks:  # the others are sent SIGTERM next
                log.info("round %d: asking the workers to checkpoint: %s", self._round.number, action.reason)
            self._run_dir.ask_to_yield(self._round.number)
            self._local = replace(self._local, yielding_since=time.monotonic())
        elif isinstance(action, LeaveEarly):
            log.info("round %d: leaving as its machine is taken: the workers catch SIGTERM", self._round.number)
            self._leaves_early = True
        elif isinstance(action, AskToEnd):
            log.info(
                "round %d: sending the workers SIGTERM, as they have no Session that checkpoints: %s",
                self._round.number,
                action.reason,
            )
            self._pcontext.ask_to_end()
            self._local = replace(self._local, ending_since=time.monotonic())
        elif isinstance(action, AnnounceDone) and self._local.done_since is None:
            log.info("round %d: the workers ended well; waiting for the other nodes", self._round.number)
            self._handler.client.announce_done(self._round.number)
            self._local = replace(self._local, done_since=time.monotonic())
            if self._local.leaving_since is not None:
                self._announce_leaving_done()

    def _announce_leaving_done(self) -> None:
        """Announce it: the others checkpoint before the round's store goes with this node. It has nothing to save
        itself."""
        if self._local.hosts_store:
            self._handler.client.announce(state="leaving", parked=True)

    def _what_is_lost(self) -> str:
        """Return how far the workers have come that are ended as unfinished."""
        if self._pcontext.left_behind():
            return "what it had left in the background stood still"
        if all(self._run_dir.over(self._round.number, rank).exists() for rank in self._pcontext.left()):
            return "its last line had run"
        return "what its program had not written by then is lost"

    def _keep_stacks(self, why: str) -> str:
        """Log the stacks of the workers that run; which these are."""
        left, number = self._pcontext.left(), self._round.number
        who = f"local rank{'' if len(left) == 1 else 's'} {', '.join(map(str, sorted(left)))}"
        files = {rank: self._run_dir.stacks(number, rank) for rank in left}
        log.warning("round %d: %s: %s\n%s", number, who, why, examine.stacks(left, files, self._server.kill))
        return who

    def _write_result(self, result: Result) -> None:
        """Write the result: every member of the round tries this."""
        for _ in range(_RESULT_ATTEMPTS):
            try:
                self._handler.client.finish(result)
            except EtcdError as error:
                log.warning("the job's result is not written yet: %s", error)
            else:
                return

    def _end(self, result: RunResult) -> RunResult:
        """End the job: it is over: by its result, or because all workers of the round are done."""
        found = self._handler.client.snapshot().view.result
        success = found.outcome == "success" if found else result.state == WorkerState.SUCCEEDED
        self.outcome = Outcome(
            "success" if success else "failure", found.message if found else "the program ended well"
        )
        if not success:
            return RunResult(WorkerState.FAILED, failures=result.failures)
        return RunResult(
            WorkerState.SUCCEEDED, return_values={worker.global_rank: None for worker in self._worker_group.workers}
        )

    def _failure(self, result: RunResult) -> Failure | None:
        """Return why workers failed, as far as their program may be to blame. It is not while etcd is away, or has only
        just come back: it cannot be known then whether a peer was lost, for which its collectives waited."""
        if not result.failures or not self._handler.client.snapshot().shows_losses(time.monotonic()):
            return None
        first: ProcessFailure = min(result.failures.values(), key=lambda failure: failure.timestamp)
        return Failure(
            self._round.number,
            first.local_rank,
            first.exitcode,
            message_of(first, self._memory_kills()),
            time.time(),
            after_s=round(self._pcontext.failed_after_s, 1),
            stepped=bool(self._run_dir.signs(self._round.number, self._local.ranks)),
        )

    def _memory_kills(self) -> int | None:
        """Return how many of our processes the kernel has ended for memory since the round began."""
        before, now = self._memory_kills_before, memory_kills.count()
        return None if before is None or now is None else max(0, now - before)

    def _worker_env(self, group: WorkerGroup, worker: Any) -> dict[str, str]:
        env = environment(group, worker, self._handler.client.config, self._round)
        if hasattr(self, "_set_local_rank_env"):
            self._set_local_rank_env(env, worker.local_rank, group.spec)
        else:
            env["LOCAL_RANK"] = str(worker.local_rank)
        return env | self._run_dir.worker_env(self._round.number, worker.local_rank)

    def _stop_watching(self) -> None:
        """Stop what torch starts beside the workers of a round."""
        for name in ("_worker_watchdog", "_health_check_server"):
            server: Any = getattr(self, name)
            if server is not None:
                server.stop()
            setattr(self, name, None)

    def _log_line_prefixes(self, group: WorkerGroup) -> dict[int, str] | None:
        if not self._log_line_prefix_template:
            return None
        template = Template(self._log_line_prefix_template)
        return {
            worker.local_rank: template.safe_substitute(
                role_name=group.spec.role, rank=worker.global_rank, local_rank=worker.local_rank
            )
            for worker in group.workers
        }

    def _remove_old_logs(self) -> None:
        """torch makes a folder per attempt. In the run folder, where the user did not ask for them, they are
        removed."""
        current = f"attempt_{self._round.number - 1}"
        for folder in (self._run_dir.path / "torch").glob("*/attempt_*"):
            if folder.name != current:
                shutil.rmtree(folder, ignore_errors=True)
