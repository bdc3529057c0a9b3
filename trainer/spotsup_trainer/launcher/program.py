"""What the workers run, and the environment in which they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.distributed.elastic.utils import macros

from spotsup_trainer.launcher.worker import WorkerRequest
from spotsup_trainer.rendezvous.client import RendezvousConfig
from spotsup_trainer.wire import Round


@dataclass(frozen=True)
class Program:
    """What the workers run."""

    name: str
    arguments: tuple[str, ...]
    # `name` is a module.
    module: bool
    # The interpreter; "" if the program is not Python.
    python: str
    # Run it in a process forked from the launcher, which has torch imported.
    warm: bool
    # A torch.numa affinity mode, "" for none.
    numa: str = ""

    def request(self, local_rank: int, env: Mapping[str, str], stdout: str, stderr: str) -> WorkerRequest:
        """Return the worker of one local rank."""
        arguments = tuple(macros.substitute(list(self.arguments), str(local_rank)))
        if self.warm:
            kind: Literal["module", "script"] = "module" if self.module else "script"
            return WorkerRequest(kind, (self.name, *arguments), env, local_rank, stdout, stderr, self.numa)
        python = (self.python, "-u", *(["-m"] if self.module else [])) if self.python else ()
        return WorkerRequest("exec", (*python, self.name, *arguments), env, local_rank, stdout, stderr)


def environment(group: Any, worker: Any, config: RendezvousConfig, formed: Round) -> dict[str, str]:
    """Return what torchrun gives its workers, but for the local rank, and the variables of docs/training/workers.md.

    `group`, `worker`: torch's WorkerGroup and Worker.
    """
    spec = group.spec
    return {
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": group.master_addr,
        "MASTER_PORT": str(group.master_port),
        # How often the job was re-formed: the same on all nodes, where torchrun's differs from node to node.
        "TORCHELASTIC_RESTART_COUNT": str(formed.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": config.job,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "SPOTSUP_ROUND": str(formed.number),
        "SPOTSUP_JOB": config.job,
        "SPOTSUP_NODE_ID": config.node,
        "SPOTSUP_TASK_ID": os.environ.get("SPOTSUP_TASK_ID", config.job),
        "SPOTSUP_NODE_ADDRS": ",".join(member.addr for member in formed.members),
    }


def python_of(environ: Mapping[str, str]) -> str:
    """Return the interpreter for workers, chosen as torchrun does."""
    return environ.get("PYTHON_EXEC", sys.executable)


def own_logs(run_dir: Path) -> str:
    """Return the default folder for torch's own log files."""
    return str(run_dir / "torch")
