"""Asks the agent whether GPUs are why workers stopped, before anything is blamed for it. No torch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from spotsup_trainer.launcher.run_dir import RunDir

GPU_CHECK_TIMEOUT_S = 30.0
_POLL_S = 0.02

log = logging.getLogger(__name__)


def has_gpus() -> bool:
    """Return whether this node has GPUs, and an agent that checks them."""
    return bool(os.environ.get("SPOTSUP_GPU_CHECK"))


def ask_agent(run_dir: RunDir, number: int, leaving: Callable[[], bool], timeout_s: float = GPU_CHECK_TIMEOUT_S) -> str:
    """Return why this node's GPUs cannot train, after round `number`; "" where they can, or where the agent does not
    say so in time. `leaving`: the answer is no longer waited for."""
    if not has_gpus():
        return ""
    until = time.monotonic() + timeout_s
    run_dir.ask_for_gpu_check(number)
    while time.monotonic() < until and not leaving():
        if (unhealthy := run_dir.gpu_verdict(number)) is not None:
            if unhealthy:
                log.error("round %d: this node's GPUs cannot train: %s", number, unhealthy)
            return unhealthy
        time.sleep(_POLL_S)
    log.warning("round %d: the agent has not checked the GPUs within %g s", number, timeout_s)
    return ""
