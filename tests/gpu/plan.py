"""The checks in their order, and the time that each gets. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS = 540.0  # a machine is often lent for one command of ten minutes


@dataclass(frozen=True)
class Check:
    """One check."""

    function: str  # module:function, below tests.gpu
    share_s: float


# What decides most comes first: the machine may be taken back at any moment. The shares add up to SECONDS.
CHECKS: Mapping[str, Check] = {
    "machine": Check("hardware:machine", 10),
    "ends": Check("workers:ends", 40),
    "memory": Check("workers:memory", 55),
    "fork-server": Check("workers:fork_server", 20),
    "nccl": Check("ranks:nccl", 25),
    "kill-and-re-form": Check("reform:reform", 100),
    "imports": Check("workers:imports", 30),
    "staging": Check("copying:staging", 40),
    "saving": Check("copying:saving", 20),
    "agree": Check("ranks:agree", 25),
    "fsdp": Check("ranks:fsdp", 40),
    "compile": Check("workers:compiled", 40),
    "loss": Check("training:loss_reading", 15),
    "mixed-precision": Check("training:mixed_precision", 15),
    "nvml": Check("hardware:nvml", 10),
    "gpu-check": Check("hardware:gpu_check", 10),
    "xid": Check("hardware:xid", 5),
    "examples": Check("training:examples", 40),
}


def limit_s(left_s: float, names: Sequence[str]) -> float | None:
    """Return the seconds for the first of `names` where `left_s` are left for all of them; None if they are too few.

    Its share, and whatever the shares of the others leave over.
    """
    share_s = CHECKS[names[0]].share_s
    if left_s < share_s:
        return None
    return max(share_s, left_s - sum(CHECKS[name].share_s for name in names[1:]))
