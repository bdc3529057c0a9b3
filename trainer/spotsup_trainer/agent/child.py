"""The launcher as the agent's child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from spotsup_trainer.etcd.access import ACCESS_VARIABLE
from spotsup_trainer.objects import url as urls
from spotsup_trainer.wire import AgentConfig

# Only the daemon ends a job, not a node that waits for capacity; bounded nevertheless.
_JOIN_TIMEOUT_S = 7 * 24 * 3600
# As the interpreter's -P, which came with Python 3.11: the launcher is started in the code's folder, whose modules must
# not shadow those that torch, or anything else, imports. `sys` alone cannot be shadowed.
_RUN = 'import sys; "" in sys.path[:1] and sys.path.pop(0); from spotsup_trainer.launcher import {0}; {0}.run()'
_KILL_WAIT_S = 5.0  # a process that survives SIGKILL for longer hangs in the kernel, probably on a file server


def own_program(python: str, module: str) -> list[str]:
    """Return the start of a command line that runs one of the launcher's modules. Its arguments follow."""
    return [python, "-c", _RUN.format(module)]


def launcher_command(config: AgentConfig) -> list[str]:
    """Return the launcher's command line."""
    if config.kind == "data":
        return [
            *own_program(config.python, "data_job"),
            *("--etcd", ",".join(config.etcd_endpoints)),
            *("--addr", config.addr),
            *("--lease-ttl", f"{config.lease_ttl_s:g}"),
            *("--", *config.command),
        ]
    settings = [f"lease_ttl={config.lease_ttl_s:g}", f"join_timeout={_JOIN_TIMEOUT_S}"]
    settings += [f"multiple_of={config.multiple_of}"] if config.multiple_of > 1 else []
    return [
        *own_program(config.python, "main"),
        *("--nnodes", f"{config.min_nodes}:{config.max_nodes}"),
        *("--nproc-per-node", str(config.nproc_per_node)),
        *("--rdzv-backend", "spotsup"),
        *("--rdzv-endpoint", ",".join(config.etcd_endpoints)),
        *("--rdzv-id", config.job),
        *("--rdzv-conf", ",".join(settings)),
        *("--local-addr", config.addr),
        *config.command,
    ]


def launcher_env(config: AgentConfig) -> dict[str, str]:
    """Return the launcher's environment. The user's `env` overrides the agent's; spotsup's own variables override
    both."""
    ours = {
        "SPOTSUP_AGENT_PID": str(os.getpid()),
        "SPOTSUP_CLUSTER": config.cluster,
        "SPOTSUP_JOB": config.job,
        "SPOTSUP_TASK_ID": config.task_id,
        "SPOTSUP_NODE_ID": config.node,
        "SPOTSUP_RUN_DIR": config.run_dir,
        "SPOTSUP_RESUME_FROM": os.pathsep.join(config.resume_from),
        "SPOTSUP_LOG_DIR": config.log_dir,
        # Two variables: a program that takes an address for a folder would write to the node's own disk.
        "SPOTSUP_CHECKPOINT_DIR": "" if urls.is_url(config.checkpoints) else config.checkpoints,
        "SPOTSUP_CHECKPOINT_URL": config.checkpoints if urls.is_url(config.checkpoints) else "",
        "SPOTSUP_OUTPUT_DIR": config.output,
        "SPOTSUP_GPU_CHECK": "1" if config.gpus else "",
        ACCESS_VARIABLE: config.etcd_access,
    }
    # libc reads it once, at the first name lookup: handler_from, which explains it, may be too late.
    lookups = {"RES_OPTIONS": "timeout:1 attempts:3"}
    return lookups | dict(os.environ) | dict(config.env) | {name: value for name, value in ours.items() if value}


class Child:
    """A running launcher, in its own session. Start it from the main thread: when that ends, so does the launcher."""

    def __init__(self, config: AgentConfig, log_file: Path) -> None:
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                launcher_command(config),
                bufsize=0,
                cwd=config.code_dir,
                env=launcher_env(config),
                # For a launcher in a container, the end of stdin is the only sign that the agent has ended.
                stdin=subprocess.PIPE if config.container_init else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Return the launcher's process id, and that of its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; a signal is negative."""
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def ask_to_leave(self) -> None:
        """SIGTERM: leave the round in order; the second time, at once."""
        if self.exit_code() is not None:
            return
        if self._process.stdin is None:
            self._process.terminate()
            return
        with contextlib.suppress(OSError, ValueError):  # it has just ended, or was killed
            self._process.stdin.write(b"leave\n")

    def kill(self) -> None:
        """Kill the launcher, and its workers with it, and wait for a few seconds.

        If it hangs it has no exit code yet: no other launcher may start while this one may still write.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_WAIT_S)
