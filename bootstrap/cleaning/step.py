"""The commands that remove what a job left on its machine."""

from __future__ import annotations

from collections.abc import Sequence

from bootstrap.agent.scripts import KILL_WAIT_S
from bootstrap.agent.unit import UNIT_FOLDER, unit_name
from bootstrap.model import Paths, Run, shell_path
from bootstrap.mounts.facts import SCRATCH_LABEL
from bootstrap.mounts.model import Mount
from bootstrap.system.facts import BORN_FILE, HEARD_FILE
from bootstrap.templates import fill

END_TIMEOUT_S = 60.0
WIPE_TIMEOUT_S = 180.0
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its content is deleted
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - as above
CALL_LIMIT_S = 20  # of docker, and of one unmount


def end(paths: Paths) -> Run:
    """End as the user that jobs run as: the agent, all that descends from it, and its folder."""
    script = fill(
        "cleaning/end.sh",
        own=shell_path(paths.own),
        end_container=shell_path(paths.end_container),
        kill_tenths=round(KILL_WAIT_S * 10),
        root=shell_path(paths.root),
        home="true" if paths.root.startswith("~/") else "false",
    )
    return Run("end what the job left running, and remove its folder", script, END_TIMEOUT_S)


def wipe(paths: Paths, cache: str, mounts: Sequence[Mount]) -> Run:
    """Wipe as root, on a machine of our own: everything else, but for `cache`, which keeps environments."""
    script = fill(
        "cleaning/wipe.sh",
        unit=unit_name(paths.node),
        units=UNIT_FOLDER,
        root=paths.root,
        cache=cache,
        born=BORN_FILE,
        heard=HEARD_FILE,
        label=SCRATCH_LABEL,
        limit_s=CALL_LIMIT_S,
        shared=SHARED_MEMORY,
        temporary=TEMPORARY,
        places=sorted((mount.mountpoint for mount in mounts), reverse=True),
    )
    return Run("remove all that the job left on the machine", script, WIPE_TIMEOUT_S, as_root=True)
