"""The scripts that start, stop and look at a node's agent."""

from __future__ import annotations

from spotsup.archive import Archive

from bootstrap.agent.unit import UNIT_FOLDER, unit_name
from bootstrap.errors import STDERR_LINES
from bootstrap.model import Paths, folder_of, shell_path
from bootstrap.templates import Value, fill

KILL_WAIT_S = 5.0
LOCK_WAIT_S = 30
BEGIN_WAIT_S = 15.0  # until a unit has written its pid
STOP_PREFIX = "spotsup-agent "
ADVANCE_PREFIX = "spotsup-advance "


def stop_agent(paths: Paths, grace_s: float) -> str:
    """SIGTERM to the agent, SIGKILL after `grace_s` to it and all that descends from it. Prints the outcome."""
    grace_tenths = max(0, round(grace_s * 10))
    return fill("agent/stop.sh", **_processes(paths), grace_tenths=grace_tenths, prefix=STOP_PREFIX)


def become_agent(paths: Paths, python: str, trainer: Archive, key: str, container: str) -> str:
    """Return what `Paths.agent_start` holds: it becomes the agent. `container`: the name of its launcher's, "" for
    none."""
    return fill(
        "agent/become.sh",
        own=paths.own,
        run=paths.run,
        log=paths.log,
        env=paths.env,
        key=key,
        container=container,
        bin=folder_of(python),
        trainer=paths.trainer(trainer),
        python=python,
    )


def start_agent(paths: Paths, key: str) -> str:
    """Start the agent in a session of its own. Fails when it ends at once."""
    return fill("agent/start.sh", **_begin(paths, key, f"{paths.own}/lock"))


def start_agent_unit(paths: Paths, key: str) -> str:
    """Start the agent as a unit of systemd. As root. Fails when it ends at once."""
    unit = unit_name(paths.node)
    return fill(
        "agent/start_unit.sh",
        **_begin(paths, key, f"/run/{unit}.lock"),
        unit=unit,
        folder=UNIT_FOLDER,
        begin_tenths=round(BEGIN_WAIT_S * 10),
    )


def collect(paths: Paths, lines: int) -> str:
    """Print the end of the agent's log and of its launcher's, nothing for a log that is missing."""
    return fill("agent/collect.sh", logs=[shell_path(paths.agent_log), shell_path(paths.launcher_log)], lines=lines)


def advance(paths: Paths) -> str:
    """Print whether the agent runs, and how long ago its workers wrote anything."""
    run, log = shell_path(paths.run), shell_path(paths.launcher_log)
    return fill("agent/advance.sh", **_processes(paths), run=run, log=log, prefix=ADVANCE_PREFIX)


def _processes(paths: Paths) -> dict[str, Value]:
    return {
        "own": shell_path(paths.own),
        "end_container": shell_path(paths.end_container),
        "kill_tenths": round(KILL_WAIT_S * 10),
    }


def _begin(paths: Paths, key: str, lock: str) -> dict[str, Value]:
    return {**_processes(paths), "key": key, "lock": lock, "wait_s": LOCK_WAIT_S, "lines": STDERR_LINES}
