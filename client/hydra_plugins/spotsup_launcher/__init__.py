"""A launcher for Hydra: `python train.py -m lr=0.1,0.01 hydra/launcher=spotsup`. Each combination is one job.

Hydra finds it here; it needs hydra-core, 1.3 or newer.
"""

# No annotations as texts: Hydra runs this before it is among Python's modules, where dataclasses would look them up.
import logging
import os
import shlex
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional  # noqa: UP035 - read by OmegaConf, on Python 3.9 too

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from spotsup.client import Client
from spotsup.errors import JobFailedError, UsageError
from spotsup.job import Job, Status
from spotsup.launched import name_of, overrides_of_job

log = logging.getLogger(__name__)
POLL_S = 2.0


@dataclass
class SpotsupLauncherConf:
    """`hydra.launcher`. `spec`: any other keys of a job file, as `+hydra.launcher.spec.limits.hours=2`."""

    _target_: str = "hydra_plugins.spotsup_launcher.SpotsupLauncher"
    name: str = ""  # of the jobs, which get a number; by default Hydra's
    nodes: int = 1
    parallel: int = 0  # jobs at a time; 0: all
    code: str = ""  # the folder that is copied to every node; by default where the command was run
    context: str = ""  # a daemon that `spotsupctl login` has made known
    spec: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006


ConfigStore.instance().store(group="hydra/launcher", name="spotsup", node=SpotsupLauncherConf, provider="spotsup")


class SpotsupLauncher(Launcher):
    """Submits each combination as a job, and waits for all. A job's value, for sweepers that minimise, is its loss."""

    def __init__(self, name: str, nodes: int, parallel: int, code: str, context: str, spec: Any) -> None:
        self._name = name
        self._nodes = nodes
        self._parallel = parallel
        self._code = code
        self._context = context
        self._spec: Any = OmegaConf.to_container(spec) if OmegaConf.is_config(spec) else dict(spec)
        self._config: Optional[DictConfig] = None  # noqa: FA100
        self._hydra: Optional[HydraContext] = None  # noqa: FA100

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:  # noqa: ARG002
        """As Hydra has it. The task function is run on the nodes."""
        self._config, self._hydra = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Jobs that failed raise when their values are asked for. Ctrl-C leaves all running."""
        setup_globals()
        config, hydra = self._config, self._hydra
        assert config is not None
        assert hydra is not None
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        folder = Path(self._code or config.hydra.runtime.cwd)
        client = Client(context=self._context)
        prefix = name_of(self._name or config.hydra.job.name, uuid.uuid4().hex[:4])
        begun: list[Job] = []
        ended: dict[str, Status] = {}
        at_once = self._parallel or len(job_overrides)
        while len(ended) < len(job_overrides):
            for job in begun:
                if job.name not in ended and (status := job.status()).ended:
                    ended[job.name] = status
                    log.info("\t%s %s", job.name, status.sentence)
            if len(begun) < len(job_overrides) and len(begun) - len(ended) < at_once:
                number, overrides = initial_job_idx + len(begun), job_overrides[len(begun)]
                run = _run(config, folder, overrides)
                spec = {**self._spec, "run": run, "name": f"{prefix}-{number}", "nodes": self._nodes}
                begun.append(client.submit(spec=spec, code=folder))
                log.info("\t#%d : %s : %s", number, begun[-1].name, " ".join(filter_overrides(overrides)))
            else:
                time.sleep(POLL_S)
        return [
            _returned(hydra, config, overrides, ended[job.name], initial_job_idx + index)
            for index, (job, overrides) in enumerate(zip(begun, job_overrides))
        ]


def _run(config: DictConfig, folder: Path, overrides: Sequence[str]) -> str:
    """Return the same script, with one combination, as Hydra runs it alone. Raises UsageError."""
    script = os.path.relpath(sys.argv[0], folder)
    if script.startswith(".."):
        raise UsageError(f"the script {sys.argv[0]} is not in {folder}: hydra.launcher.code names the folder to ship")
    named = ["--config-name", config.hydra.job.config_name] if config.hydra.job.config_name else []
    return shlex.join([script, *named, *overrides_of_job(overrides)])


def _returned(
    hydra: HydraContext, config: DictConfig, overrides: Sequence[str], status: Status, number: int
) -> JobReturn:
    made = hydra.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(made):
        made.hydra.job.id, made.hydra.job.num = status.name, number
    found = JobReturn(overrides=list(overrides), hydra_cfg=OmegaConf.create({"hydra": made.hydra}))
    with open_dict(made):
        del made["hydra"]
    found.cfg, found.task_name = made, config.hydra.job.name
    found.status = JobStatus.COMPLETED if status.state == "succeeded" else JobStatus.FAILED
    found.return_value = (
        status.loss if status.state == "succeeded" else JobFailedError(f"{status.name} {status.sentence}")
    )
    return found
