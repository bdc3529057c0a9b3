"""Periodic work for the installation as a whole, beside the loop: on the leader only, and only while it may write.

What concerns jobs is planned by the loop. This is what keeps etcd small and the journal safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

import structlog
from spotsup_trainer.etcd import Etcd, EtcdError
from spotsup_trainer.vitals import Pulse, Vitals

from supervisor.config import Config
from supervisor.cron import cron_trigger
from supervisor.errors import SpotsupError
from supervisor.events import EventKind
from supervisor.journal.backup import Backups
from supervisor.journal.etcd_trust import EtcdTrust
from supervisor.journal.journal import Journal
from supervisor.journal.maintenance import Compactor, defragment
from supervisor.journal.output_sizes import OutputSizes
from supervisor.journal.unused_code import UnusedCode
from supervisor.journal.users import JobUsers
from supervisor.planner.world import Problem
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock
from supervisor.runtime.daily import DailySummary
from supervisor.runtime.leader import Leadership
from supervisor.runtime.renewals import Renewals
from supervisor.runtime.retention import Retention
from supervisor.starting_time import moment

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

SCHEDULES_CRON = "* * * * *"
COMPACTION_CRON = "*/5 * * * *"
USERS_CRON = "* * * * *"
CERTIFICATES_CRON = "41 * * * *"
ENDS_CRON = "47 * * * *"
BACKUP_CHECK_CRON = "*/10 * * * *"
EVENT_RETENTION_CRON = "17 * * * *"
AUDIT_RETENTION_CRON = "*/10 * * * *"
OUTPUT_CRON = "* * * * *"
UNUSED_CODE_CRON = "*/5 * * * *"
RETENTION_CRON = "*/10 * * * *"
# For one task, and for one call of etcd: a member copies its whole file when it is defragmented.
TASK_LIMIT_S = 120.0
BACKUP_LIMIT_S = 600.0
# A task that is later than this, because this daemon did not lead when it was due, waits for its next time.
GRACE_S = 3600
CLUSTER_EVENTS_KEPT = 1000
# Entries of the audit log, a few hundred bytes each.
AUDIT_KEPT = 10_000
# The clock may be slewed by this much without new times for all tasks.
BACKWARDS_S = 60.0
FAILING_S = 3600.0  # people are told of a task that fails for so long

log = structlog.get_logger("spotsupd")


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of housekeeping."""

    name: str
    cron: str
    # Returns what it did, or "".
    run: Callable[[], str]
    limit_s: float = TASK_LIMIT_S


class Housekeeping:
    """Runs tasks one at a time, each with a time limit. A task that fails is logged, counted, and run again later."""

    def __init__(self, tasks: Sequence[Task], may_run: Callable[[], bool]) -> None:
        """`may_run`: whether this daemon leads and may change etcd; asked after each tick, and before each task."""
        logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a task that is skipped is no news
        self._tasks = tasks
        self._may_run = may_run
        self._counters: dict[str, int] = {}
        self._errors: dict[str, tuple[float, str]] = {}  # of tasks that fail: since when, and how they did last
        self._followed_at = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._pulse = Pulse()
        self._scheduler = self._new_scheduler()

    def _new_scheduler(self) -> BackgroundScheduler:
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        made = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(max_workers=1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": GRACE_S},
        )
        for task in self._tasks:
            made.add_job(self.run, cron_trigger(task.cron), args=[task], id=task.name)
        return made

    @property
    def counters(self) -> Mapping[str, int]:
        """Return how often each task ran and failed."""
        return dict(self._counters)

    def problems(self) -> tuple[Problem, ...]:
        """Return the tasks that fail: people are told of those that do for long."""
        return tuple(
            Problem(
                EventKind.TASK_FAILING,
                name,
                since,
                f"housekeeping fails since {moment(since)} ({name.replace('_', ' ')}): {error}",
                FAILING_S,
                over=f"housekeeping works again ({name.replace('_', ' ')})",
            )
            for name, (since, error) in list(self._errors.items())
        )

    def start(self) -> None:
        """Start, without running anything before `follow` says so."""
        self._scheduler.start(paused=True)

    def follow(self, now: float) -> None:
        """Let tasks run, or not, as leadership is now. Returns at once.

        A scheduler whose thread has ended is replaced; a task that ran goes on.
        """
        thread = self._scheduler._thread  # noqa: SLF001 - it exposes it nowhere else
        if thread is not None and not thread.is_alive():
            self._pulse.fault(RuntimeError("the scheduler's thread has ended"))
            self._scheduler.shutdown(wait=False)
            self._scheduler = self._new_scheduler()
            self.start()
        if self._may_run():
            self._scheduler.resume()
        else:
            self._scheduler.pause()
            self._errors.clear()  # another daemon may do it meanwhile
        if now < self._followed_at - BACKWARDS_S:
            # The clock went back: the next times, which follow from the last ones, may be days ahead.
            for task in self._tasks:
                self._scheduler.reschedule_job(task.name, trigger=cron_trigger(task.cron))
        self._followed_at = now

    def vitals(self) -> Vitals:
        """Return how its thread is, as of the last `follow`."""
        return self._pulse.vitals(0.0, idle=True)

    def stop(self) -> None:
        """Stop, without waiting for a task that runs."""
        self._stopping.set()
        self._wake.set()
        self._scheduler.shutdown(wait=False)

    def run(self, task: Task) -> None:
        """Run one task within its limit. Never raises."""
        wake = self._wake = threading.Event()  # its own: an earlier task that was given up may end meanwhile
        if not self._may_run() or self._stopping.is_set():
            return
        future = in_background(task.run, f"housekeeping-{task.name}")
        future.add_done_callback(lambda _: wake.set())
        wake.wait(task.limit_s)
        if self._stopping.is_set():
            return
        try:
            done = future.result(0)
        except (EtcdError, SpotsupError) as error:
            self._failed(task, str(error))
        except TimeoutError:
            self._failed(task, f"it did not end within {task.limit_s:g} s")
        except Exception as error:
            log.exception("housekeeping failed unexpectedly", task=task.name)
            self._failed(task, repr(error))
        else:
            self._count(f"housekeeping_{task.name}")
            self._errors.pop(task.name, None)
            if done:
                log.info(done)

    def _failed(self, task: Task, error: str) -> None:
        self._count(f"housekeeping_{task.name}_failed")
        since, before = self._errors.get(task.name, (self._followed_at, ""))
        if before != error:
            log.warning("housekeeping failed; will retry", task=task.name, error=error)
        self._errors[task.name] = since, error

    def _count(self, name: str) -> None:
        self._counters[name] = self._counters.get(name, 0) + 1


def leads_and_may_write(leader: Leadership, journal: Journal) -> bool:
    """True if housekeeping may run: this daemon leads, etcd answers and holds the journal, and no user paused it."""
    reading = journal.read()
    return leader.lease_valid() and reading.live and reading.cluster is not None and reading.pause is None


def housekeeping_tasks(
    config: Config, etcd: Etcd, journal: Journal, leader: Leadership, clock: Clock, *, compacts_itself: bool
) -> list[Task]:
    """Return all tasks of an installation. `compacts_itself`: etcd runs with auto-compaction."""
    settings = config.housekeeping
    backups = Backups(config.state / "backups", settings.backup, settings.backups_kept)

    def back_up() -> str:
        return backups.back_up(etcd, journal.keys, clock.now())

    def trim_events() -> str:
        count = journal.trim_cluster_events(CLUSTER_EVENTS_KEPT, leader.guard())
        return f"deleted the oldest {count} events of the cluster" if count else ""

    def trim_audit() -> str:
        count = journal.trim_audit(AUDIT_KEPT, leader.guard())
        return f"deleted the oldest {count} entries of the audit log" if count else ""

    unused = UnusedCode(etcd, journal)

    def delete_unused() -> str:
        count = unused.delete(clock.now())
        return f"deleted {count} archives of code that no job came for" if count else ""

    tasks = [
        Task("schedules", SCHEDULES_CRON, Renewals(journal, clock).run),
        Task("event_retention", EVENT_RETENTION_CRON, trim_events),
        Task("audit_retention", AUDIT_RETENTION_CRON, trim_audit),
        Task("unused_code", UNUSED_CODE_CRON, delete_unused),
        Task("output", OUTPUT_CRON, OutputSizes(etcd, journal, leader.guard).run),
        Task("ended_jobs", RETENTION_CRON, Retention(journal, clock, leader.guard, config.retention.rules()).run),
    ]
    if not compacts_itself:
        tasks.append(Task("compaction", COMPACTION_CRON, Compactor(etcd).compact))
    if settings.backup:
        tasks.append(Task("backup", BACKUP_CHECK_CRON, back_up, BACKUP_LIMIT_S))
    if settings.defragment:
        limit_s = len(etcd.endpoints) * TASK_LIMIT_S
        tasks.append(Task("defragmentation", settings.defragment, lambda: defragment(etcd), limit_s))
    return tasks


def daily_tasks(cron: str, summary: DailySummary) -> list[Task]:
    """Return the daily summary, unless it is off, or nobody would get it."""
    return [Task("daily_summary", cron, summary.run)] if cron and summary.channels else []


def etcd_security_tasks(
    users: JobUsers | None, renew: Callable[[], str] | None, trust: EtcdTrust | None = None
) -> list[Task]:
    """Return what an etcd with users, with certificates of ours, and with TLS needs."""
    tasks = [Task("etcd_users", USERS_CRON, users.prune)] if users else []
    tasks += [Task("etcd_certificates", CERTIFICATES_CRON, renew)] if renew else []
    if trust:
        tasks += [Task("etcd_ca", USERS_CRON, trust.publish), Task("certificate_ends", ENDS_CRON, trust.warn)]
    return tasks
