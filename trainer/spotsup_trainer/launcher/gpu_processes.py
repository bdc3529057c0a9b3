"""Which processes the driver still has on this machine's GPUs. No torch.

A killed process may show as ended a moment before the driver has freed its memory, where that waits for a lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol

from spotsup_trainer.nvml import Nvml, NvmlError
from spotsup_trainer.rendezvous.abandonable_call import call_while

ANSWER_S = 10.0
# The inode of the first namespace of pids (the kernel's PROC_PID_INIT_INO), whose pids the driver lists.
MACHINES_PIDS = 0xEFFFFFFC

log = logging.getLogger("spotsup_trainer")


class Lists(Protocol):
    """The driver's library."""

    def processes(self) -> frozenset[int] | None:
        """Return the pids on any GPU, None if they are not known."""
        ...


class GpuProcesses:
    """The driver's list. What is not known is logged once, and not waited for. `namespace`: of this process's pids."""

    def __init__(
        self, open_nvml: Callable[[], Lists] = Nvml, *, namespace: int | None = None, answer_s: float = ANSWER_S
    ) -> None:
        self._open_nvml = open_nvml
        self._namespace = namespace
        self._answer_s = answer_s
        self._nvml: Lists | None = None
        self._unknown = ""

    def held_by(self, pids: AbstractSet[int]) -> list[int]:
        """Return those of `pids` that the driver lists. Waits for it for a limited time."""
        if not pids or self._unknown:
            return []
        try:
            return sorted(pids & self._listed())
        except (NvmlError, OSError) as error:
            self._unknown = str(error)
            log.info("which processes hold memory of the GPUs is not known: %s", error)
            return []

    def _listed(self) -> frozenset[int]:
        namespace = Path("/proc/self/ns/pid").stat().st_ino if self._namespace is None else self._namespace
        if namespace != MACHINES_PIDS:
            raise NvmlError("this is a container, whose pids are not those that the driver lists")
        until = time.monotonic() + self._answer_s
        found = call_while(self._ask, lambda: time.monotonic() < until)
        if found is None:
            raise NvmlError(f"the driver lists none, or has not answered within {self._answer_s:g} s")
        return found

    def _ask(self) -> frozenset[int] | None:
        self._nvml = self._nvml or self._open_nvml()
        return self._nvml.processes()
