"""On-demand prices for the pages, asked for in the background: no page waits for a cloud."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import structlog

from supervisor.api.jobs.report import OnDemand
from supervisor.planner.world import JobView
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock

KEPT_S = 3600.0
MAX_JOBS = 500
# Clouds are asked for one job at a time.
log = structlog.get_logger("spotsupd")


class PriceBook:
    """What was last answered for each job. For any thread."""

    def __init__(
        self,
        ask: Callable[[JobView], OnDemand],
        clock: Clock,
        start: Callable[[Callable[[], Any], str], Future[Any]] = in_background,
    ) -> None:
        """`ask`: asks the job's cloud, and may take long. `start`: starts a call on a thread."""
        self._ask = ask
        self._clock = clock
        self._start = start
        self._known: dict[str, tuple[OnDemand, float]] = {}
        self._asking = False
        self._lock = threading.Lock()

    def of(self, view: JobView) -> OnDemand | None:
        """Return a job's prices, an hour old at most; None while they are not known, and are asked for now."""
        task, now = view.record.task_id, self._clock.now()
        with self._lock:
            found, at = self._known.get(task, (None, 0.0))
            if (found is not None and 0 <= now - at < KEPT_S) or self._asking:
                return found
            self._asking = True
        self._start(lambda: self._find(task, view), "prices")
        return found

    def _find(self, task: str, view: JobView) -> None:
        found = OnDemand({}, "they could not be asked for")
        try:
            found = self._ask(view)
        except Exception as error:  # noqa: BLE001 - it is shown as unknown
            log.warning("on-demand prices are not known", job=view.name, error=str(error))
        finally:
            with self._lock:
                self._asking = False
                self._known[task] = (found, self._clock.now())
                while len(self._known) > MAX_JOBS:
                    self._known.pop(next(iter(self._known)))
