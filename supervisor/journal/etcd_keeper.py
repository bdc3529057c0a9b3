"""Keeps the embedded etcd at work: starts it again when it has died, and makes room when its space quota is used up."""

from __future__ import annotations

import threading
import time

import structlog
from spotsup_trainer.etcd import Etcd, EtcdError
from spotsup_trainer.vitals import Pulse, Vitals

from supervisor.errors import SpotsupError
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.journal.maintenance import make_room, refuses_writes

POLL_S = 0.5
# Pauses after the first, second, … start in a row. There is no last one: a full disk has room again some day.
RESTART_S = (1.0, 2.0, 5.0, 10.0, 30.0)
# One that ran for so long was well.
WELL_AFTER_S = 60.0
# How often it is asked whether it is full; to make room takes its whole file, so it is tried seldom.
SPACE_CHECK_S = 5.0
SPACE_RETRY_S = 300.0
# One step may defragment, which takes up to the client's time limit.
STUCK_S = 600.0

log = structlog.get_logger("spotsupd")


class EtcdKeeper:
    """One thread. `etcd`: a client with time for maintenance."""

    def __init__(self, server: EmbeddedEtcd, etcd: Etcd) -> None:
        self._server = server
        self._etcd = etcd
        self._starts = 0
        self._start_at = self._space_at = 0.0
        self._problem = ""
        self._pulse = Pulse()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedded etcd", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Do nothing from now on; returns within seconds."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)

    def vitals(self) -> Vitals:
        """Return how its thread is."""
        return self._pulse.vitals(STUCK_S, self._thread)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            try:
                self._step(time.monotonic())
            except (EtcdError, SpotsupError) as error:
                self._report(str(error))
            except Exception as error:  # noqa: BLE001 - whatever it is: the next step looks again
                self._pulse.fault(error)
            self._pulse.beat()

    def _step(self, now: float) -> None:
        if not self._server.alive:
            if now >= self._start_at:
                self._start_again(now)
            return
        if now - self._start_at > WELL_AFTER_S:
            self._starts = 0
        if now >= self._space_at:
            self._space_at = now + SPACE_CHECK_S
            if refuses_writes(self._etcd):
                self._space_at = now + SPACE_RETRY_S
                log.warning(make_room(self._etcd, self._server.quota_bytes))
                self._space_at = now + SPACE_CHECK_S
            self._problem = ""

    def _start_again(self, now: float) -> None:
        if not self._starts:
            log.error("the embedded etcd has died; starting it again", last_log_line=self._server.last_log_line())
        self._start_at = now + RESTART_S[min(self._starts, len(RESTART_S) - 1)]
        self._starts += 1
        self._server.launch()

    def _report(self, problem: str) -> None:
        """Report each problem once, not at every step."""
        if problem != self._problem:
            self._problem = problem
            log.warning("the embedded etcd is not well; will retry", error=problem)
