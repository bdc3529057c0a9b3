"""How busy this node's GPUs are, for status and the dashboard: read every few seconds, on a thread of its own.

An unhealthy driver may hold the thread up for ever: what was read last is then too old, and nothing is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from spotsup_trainer.nvml import GpuReading, Nvml, NvmlError

EVERY_S = 2.0
KEPT = 5  # readings that the mean is of

log = logging.getLogger(__name__)


class Reads(Protocol):
    """The driver's library."""

    def read(self) -> Sequence[GpuReading]:
        """Return all GPUs."""
        ...


class GpuUse:
    """The mean over all GPUs and the last readings. `start` it; it ends with the process."""

    def __init__(
        self,
        open_nvml: Callable[[], Reads] = Nvml,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_nvml = open_nvml
        self._every_s = every_s
        self._clock = clock
        self._found: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when, and percent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-use", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. A call of the driver is not waited for."""
        self._stopping.set()

    def percent(self) -> float | None:
        """Over the last seconds; None where it is not known."""
        now = self._clock()
        recent = [value for at, value in tuple(self._found) if at >= now - 2 * KEPT * self._every_s]
        return round(sum(recent) / len(recent), 1) if recent else None

    def _watch(self) -> None:
        try:
            nvml = self._open_nvml()
        except NvmlError as error:
            log.info("how busy the GPUs are is not known: %s", error)
            return
        while not self._stopping.wait(self._every_s):
            known = [gpu.utilisation_percent for gpu in nvml.read()]
            values = [value for value in known if value is not None]
            if values:
                self._found.append((self._clock(), sum(values) / len(values)))
