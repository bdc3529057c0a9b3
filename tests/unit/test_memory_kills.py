"""Whether the kernel ended a worker for memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsup_trainer.launcher import memory_kills
from spotsup_trainer.launcher.failures import message_of
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
VMSTAT = "pgmajfault 5\noom_kill 7\nnuma_hit 1\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # A unit of systemd with cgroups of version 2, in a container, and of version 1.
        ({"proc/self/cgroup": "0::/spotsup.slice/a.service\n", "sys/fs/cgroup/spotsup.slice/a.service": EVENTS}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup": EVENTS, "proc/vmstat": VMSTAT}, 2),
        ({"proc/self/cgroup": "4:memory:/x\n0::/\n", "proc/vmstat": VMSTAT}, 7),
        ({"proc/vmstat": VMSTAT}, 7),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup": "max 12\n"}, None),
        ({"proc/vmstat": "pgmajfault 5\n"}, None),
        ({}, None),
    ],
)
def test_the_kernels_count_is_the_units_own_or_the_machines(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        file = tmp_path / name / "memory.events" if name.startswith("sys") else tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_kills.count(tmp_path) == expected


@pytest.mark.parametrize(
    ("code", "kills", "expected"),
    [
        (-9, 1, "killed by SIGKILL, as memory ran out: the kernel has ended processes for it here (1)"),
        (-9, 0, "killed by SIGKILL, and not by the kernel for memory"),
        (-9, None, "killed by SIGKILL"),
        (-11, 1, "killed by SIGSEGV"),
    ],
)
def test_a_worker_that_was_killed_for_memory_is_said_to_have_been(
    tmp_path: Path, code: int, kills: int | None, expected: str
) -> None:
    assert message_of(ProcessFailure(0, 4711, code, str(tmp_path / "no-file")), kills) == expected
