"""Builds a bootstrap from the journal's records, and runs it over SSH."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spotsup_trainer import wire
from spotsup_trainer.objects import url as urls

from provisioners.registry import CLOUDS
from provisioners.settings import Section
from supervisor.checkpoints import output_of
from supervisor.config import Config, NodeConfig
from supervisor.errors import CommandRefusedError, JournalUnavailableError, SpotsupError
from supervisor.identity import Identity
from supervisor.journal.journal import Journal
from supervisor.model import JobRecord, NodeRecord
from supervisor.nodes.uv import pack_uv
from supervisor.planner.actions import BootstrapDone
from supervisor.runtime.clock import Clock
from supervisor.sealed import values_of

if TYPE_CHECKING:
    from bootstrap import Archive, BootstrapError, Setup, SshHost
    from bootstrap.environment.lock import Lock
    from bootstrap.log_agent.model import LogAgent
    from bootstrap.model import Uv

# Steps before anything of the job's runs: their failure is the image's fault, or the machine's.
MACHINE_STEPS = frozenset({"login", "facts", "hygiene", "gpu", "network", "reboot"})
# The step `reach` takes at most so long (spotsup_trainer.etcd.reach).
REACH_S = 10.0
TRAINER_LIMIT_BYTES = 8 * 1024 * 1024


class SshPreparer:
    """Bootstraps nodes, the same way on all clouds. Safe to use from several threads."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        journal: Journal,
        endpoints_for: Callable[[NodeRecord], tuple[str, ...]],
        access_for: Callable[[JobRecord], bytes],
        clock: Clock,
        tunnel_problem: Callable[[NodeRecord, float], str] = lambda _node, _carried_s: "",
    ) -> None:
        """`endpoints_for`: etcd as a node reaches it. `access_for`: what a job's nodes log in there with, b"" for
        nothing; its user is made, or JournalUnavailableError is raised. `tunnel_problem`: nodes.tunnels.Keeper's."""
        self._config = config
        self._identity = identity
        self._journal = journal
        self._endpoints_for = endpoints_for
        self._clock = clock
        self._access_for = access_for
        self._tunnel_problem = tunnel_problem
        self._trainer: Archive | None = None

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        """Bootstrap one node within the configured time limit."""
        from bootstrap import BootstrapError, PackError, bootstrap, lock_of

        ssh = ssh_host_of(self._config, self._identity, node)
        try:
            code = self._code(job)
            lock = lock_of(code, job.spec.environment, torch=job.spec.kind != "data")
            trainer, uv = self._trainer_archive(), pack_uv() if lock else None
            setup = setup_of(self._config, node, job, self._endpoints_for(node), code, trainer, lock, uv)
            setup = replace(setup, env={**setup.env, **self._secrets_of(job, node)}, etcd_access=self._access_for(job))
            bootstrap(ssh, setup, clock=self._clock.now, deadline_s=self._config.timing.bootstrap_timeout_s)
        except (BootstrapError, PackError, SpotsupError, ValueError) as error:
            if isinstance(error, BootstrapError) and error.step == "reach":
                tunnel = self._tunnel_problem(node, REACH_S)
                return without_etcd(node.id, error, tunnel, live=self._journal.read().live)
            return outcome_of(node.id, error)
        return BootstrapDone(node.id)

    def _secrets_of(self, job: JobRecord, node: NodeRecord) -> Mapping[str, str]:
        """Return the values of the secrets that a job names, as they are now. Raises BootstrapError, and
        JournalUnavailableError."""
        from bootstrap import BootstrapError

        if not job.spec.secrets:
            return {}
        stored = [each for each, _ in self._journal.secrets(job.owner)]
        key = self._identity.secrets_key()
        try:
            return values_of(key, self._config.cluster, job.owner, job.spec.secrets, stored)
        except CommandRefusedError as error:
            # No machine would have it: as what a job brings that fails alike on each.
            raise BootstrapError(str(error), node=node.id, step="secrets", tried=True) from error

    def _code(self, job: JobRecord) -> Archive:
        from bootstrap import Archive

        return Archive(job.code_sha256, self._journal.get_blob(job.code_sha256))

    def _trainer_archive(self) -> Archive:
        if self._trainer is None:
            self._trainer = pack_trainer()
        return self._trainer


def without_etcd(node: str, error: BootstrapError, tunnel: str, *, live: bool) -> BootstrapDone:
    """Return the outcome where a node did not reach etcd. `tunnel`: why its tunnel carried nothing meanwhile. `live`:
    whether this daemon reaches etcd. If it is the daemon's connection that is missing, that says nothing about the node
    (P5).
    """
    if tunnel:
        return BootstrapDone(
            node, f"etcd is not carried to the node, whose bootstrap waits: {tunnel}", unreachable=True
        )
    return replace(outcome_of(node, error), unreachable=True) if not live else outcome_of(node, error)


def outcome_of(node: str, error: Exception) -> BootstrapDone:
    """Return the outcome of a bootstrap that ended in `error`: the message, and whose fault it was."""
    from bootstrap import BootstrapError, HostKeyMismatchError, UnreachableError

    # If etcd did not return the code, nothing was tried on the machine, and it has not failed (P5).
    unreachable = isinstance(error, UnreachableError | JournalUnavailableError)
    of_job = error.of_job if isinstance(error, BootstrapError) else ""
    return BootstrapDone(
        node,
        str(error),
        unreachable=unreachable,
        unhealthy=not (unreachable or of_job) and isinstance(error, BootstrapError) and error.step in MACHINE_STEPS,
        of_job=of_job,
        foreign=isinstance(error, HostKeyMismatchError),
    )


def ssh_host_of(config: Config, identity: Identity, node: NodeRecord) -> SshHost:
    """Return how to reach a node over SSH."""
    from bootstrap import SshHost

    return SshHost(
        host=node.ssh_host,
        port=node.ssh_port,
        user=user_of(config, node),
        host_key_public=identity.host_key(node.machine_name).public,
        client_key_openssh=identity.client_key().private_openssh,
        machine=node.machine_name,
    )


def pack_trainer() -> Archive:
    """This daemon's own copy of the trainer package, so that nodes use the same messages. Raises PackError."""
    from bootstrap import pack_directory

    folder = Path(wire.__file__).parent
    return pack_directory(folder, limit_bytes=TRAINER_LIMIT_BYTES, prefix=folder.name)


def setup_of(
    config: Config,
    node: NodeRecord,
    job: JobRecord,
    etcd_endpoints: tuple[str, ...],
    code: Archive,
    trainer: Archive,
    lock: Lock | None,
    uv: Uv | None = None,
) -> Setup:
    """Return the bootstrap of a node. Raises ValueError for a setup that no machine can have."""
    from bootstrap import Setup
    from bootstrap.model import Host

    data = job.spec.kind == "data"
    traits = CLOUDS[node.offer.cloud].host
    # An instance type that is missing from the catalog has as many GPUs as its job asks for.
    gpus = max(node.offer.gpus, job.spec.resources_of(node.offer).gpus_per_node)
    return Setup(
        node=node.id,
        agent_config=wire.encode(_agent_config(config, node, job, etcd_endpoints)),
        code=code,
        trainer=trainer,
        python=python_on(config, node.offer.cloud),
        setup=job.spec.setup or None,
        root=config.node.root,
        env=_environment(config, node, job),
        host=Host(traits) if data else Host(traits, node.offer.gpu, gpus),
        dead_man=has_dead_man(config, node),
        mounts=tuple(storage.as_mount() for storage in job.spec.mounted),
        lock=lock,
        uv=uv,
        cache=config.node.cache,
        log_agent=log_agent_of(config, node),
        image=job.spec.image,
        torch=not data,
        machine=node.launched_as,
    )


def _agent_config(
    config: Config, node: NodeRecord, job: JobRecord, etcd_endpoints: tuple[str, ...]
) -> wire.AgentConfig:
    return wire.AgentConfig(
        cluster=config.cluster,
        job=job.name,
        task_id=job.task_id,
        node=node.id,
        addr=node.private_address or node.ssh_host,
        etcd_endpoints=etcd_endpoints,
        metadata=metadata_of(node),
        python="",
        code_dir="",
        run_dir="",
        log_dir="",
        checkpoints=folder_on(config, node.offer.cloud, job.checkpoint_path),
        output=folder_on(
            config,
            node.offer.cloud,
            output_of(job.spec, job.task_id, rented=not (config.cloud(node.offer.cloud) or Section()).shares_folder),
        ),
        resume_from=tuple(folder_on(config, node.offer.cloud, path) for path in job.resume_from),
        command=job.spec.command,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        nproc_per_node=job.spec.nproc_on(node.offer),
        lease_ttl_s=config.node.lease_ttl_s,
        leave_margin_s=config.timing.leave_margin_s / 2,
        log_mirror=f"{job.spec.shared}/spotsup/{job.task_id}/logs" if job.spec.shared else "",
        kind=job.spec.kind,
        multiple_of=job.spec.nodes.multiple_of,
    )


def _environment(config: Config, node: NodeRecord, job: JobRecord) -> dict[str, str]:
    settings = config.cloud(node.offer.cloud)
    of_cloud = settings.node_env if settings else {}
    limits = job.spec.limits
    ours = {
        "SPOTSUP_APP_FAILURES": str(limits.app_failures),
        "SPOTSUP_FINISH_S": f"{60 * limits.finish_minutes:g}",
        "SPOTSUP_HANG": limits.hang,
    }
    if limits.stop_seconds is not None:
        ours["SPOTSUP_STOP_S"] = f"{limits.stop_seconds:g}"
    if job.spec.preload is not None:
        ours["SPOTSUP_PRELOAD"] = ",".join(job.spec.preload)
    return {**of_cloud, **ours, **package_variables(config.node), **config.node.env, **job.spec.env}


def package_variables(node: NodeConfig) -> dict[str, str]:
    """Return where pip and uv find packages. (uv has no variable for --no-index: build_uv.sh reads pip's.)"""
    found: dict[str, str] = {}
    if node.index_url:
        found |= {"PIP_INDEX_URL": node.index_url, "UV_DEFAULT_INDEX": node.index_url}
    if node.wheelhouse:
        found |= {"PIP_FIND_LINKS": node.wheelhouse, "UV_FIND_LINKS": node.wheelhouse}
        if not node.index_url:
            found["PIP_NO_INDEX"] = "1"
    return found


def metadata_of(node: NodeRecord) -> wire.Metadata:
    """Return where this node reads its preemption notice."""
    return wire.Metadata(CLOUDS[node.offer.cloud].metadata, node.metadata_url)


def user_of(config: Config, node: NodeRecord) -> str:
    """Return the user that the daemon logs in as; its own user if the node's cloud is no longer configured."""
    settings = config.cloud(node.offer.cloud)
    return settings.user_in(node.offer.region) if settings else getpass.getuser()


def python_on(config: Config, cloud: str) -> str:
    """Return the interpreter on a cloud's machines: the daemon's own only where they are its own computer."""
    settings = config.cloud(cloud)
    return config.node.python or (sys.executable if settings is not None and settings.on_this_host else "python3")


def has_dead_man(config: Config, node: NodeRecord) -> bool:
    """True if its user data brought the dead-man switch."""
    settings = config.cloud(node.offer.cloud)
    return settings is not None and settings.dead_man_after_s > 0


def log_agent_of(config: Config, node: NodeRecord) -> LogAgent | None:
    """Return the cloud's own log agent, if its settings ask for one."""
    from bootstrap.log_agent.model import LogAgent

    settings = config.cloud(node.offer.cloud)
    return LogAgent(*settings.log_agent) if settings and settings.log_agent else None


def folder_on(config: Config, cloud: str, path: str) -> str:
    """Return a `checkpoint_path` on the machines of a cloud."""
    if not path or path.startswith(("/", "~")) or urls.is_url(path):
        return path
    settings = config.cloud(cloud) or Section()
    return str(settings.shared_folder(config.state.absolute()) / path)
