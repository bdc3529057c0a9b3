"""What bootstrap is asked for, the paths on a node, and the commands that steps are made of. Pure data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from spotsup.archive import Archive

from bootstrap.container.image import Image
from bootstrap.environment.lock import Lock
from bootstrap.log_agent.model import LogAgent
from bootstrap.mounts.model import Mount, check_mounts
from bootstrap.templates import Quoted
from provisioners.host import HostTraits

DEFAULT_ROOT = "~/.spotsup"

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that the cloud was asked for."""

    traits: HostTraits = field(default_factory=HostTraits)
    gpu: str = ""
    """The catalogue's name for its GPUs, "" for none."""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Uv:
    """uv, which builds environments: one program, the same on every Linux of its architecture."""

    machine: str
    """The architecture that it is for, as `uname -m` says it."""
    archive: Archive
    """Has the file `uv` on top."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All that one node needs for its job. Raises ValueError."""

    node: str
    agent_config: bytes = field(repr=False)
    """A JSON object as `spotsup_trainer.wire.encode(AgentConfig(...))` gives it. Bootstrap fills in what only the node
    knows: `python`, `code_dir`, `run_dir`, `log_dir`, and a leading `~/` of `checkpoints`."""
    code: Archive
    trainer: Archive
    """Has the folder `spotsup_trainer` on top."""
    python: str = "python3"
    """A name, an absolute path or `~/…`. Trains, unless `lock` or `image` is set; the agent runs with it."""
    setup: str | None = None
    """One line for bash, run in the folder of the code, once per code."""
    root: str = DEFAULT_ROOT
    """Bootstrap's folder, absolute or `~/…`."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for `setup` and the agent. May hold secrets, and is shown nowhere."""
    setup_timeout_s: float = 1800.0
    stop_grace_s: float = 45.0
    """An agent gives its launcher 30 s to leave the round."""
    host: Host = Host()
    dead_man: bool = False
    """Whether the machine's user data brought the dead-man switch."""
    mounts: tuple[Mount, ...] = ()
    """Mounted before anything else of the job's is done."""
    lock: Lock | None = None
    """The environment that trains is built from it, or found in the cache."""
    uv: Uv | None = None
    """What builds from `lock`; None: the machine has to have uv."""
    cache: str = ""
    """Where environments are kept, "" for a folder below `root`. May be on one of the mounts."""
    log_agent: LogAgent | None = None
    """The cloud's own agent for logs, beside ours."""
    image: Image | None = None
    """The job trains in a container of this image, known by its digest. Excludes `lock` and `setup`."""
    etcd_access: bytes = field(default=b"", repr=False)
    """What the agent and its launcher log in to etcd with: a file of its own, `Paths.etcd_access`. Empty: nothing."""
    torch: bool = True
    """Whether the interpreter that trains has to have torch."""
    machine: str = ""
    """The node that the machine was made for, where that is an earlier one."""

    def __post_init__(self) -> None:
        check_place(self.node, self.root)
        json.loads(self.agent_config)
        if not self.agent_config.lstrip().startswith(b"{"):
            raise ValueError("agent_config is not a JSON object; pass what wire.encode(AgentConfig(...)) returns")
        if "\0" in f"{self.setup}{self.python}{self.root}":
            raise ValueError("setup, python or root contains a NUL character")
        check_mounts(self.mounts)
        if self.image and (self.lock or self.setup or not self.image.digest):
            raise ValueError(f"{self.image}: a container image needs a digest, and excludes `lock` and `setup`")
        _check_folder("cache", self.cache_folder)
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"env: {name!r} is not a variable name; use letters, digits and _, no digit first")
            if "\0" in value:
                raise ValueError(f"env: the value of {name} contains a NUL character")

    @property
    def machine_name(self) -> str:
        """Return the node that the machine was made for."""
        return self.machine or self.node

    @property
    def cache_folder(self) -> str:
        """Return where environments and images are kept."""
        return self.cache or f"{self.root}/environments"


def _check_folder(name: str, path: str) -> None:
    # PYTHONPATH separates by `:`, which cannot be quoted there.
    if not path.startswith(("/", "~/")) or "\n" in path or ":" in path:
        raise ValueError(f"{name} is {path!r}; use an absolute path or one that begins with ~/, without `:`")


def check_place(node: str, root: str) -> None:
    """Raise ValueError unless `node` can be a folder's name and `root` is a path on a machine."""
    if not _NODE.fullmatch(node):
        raise ValueError(f"node is {node!r}; use letters, digits and . _ -, beginning with a letter or digit")
    _check_folder("root", root)


def expand(path: str, home: str) -> str:
    """`path` with a leading `~` replaced by `home`."""
    if path == "~":
        return home
    return f"{home.rstrip('/')}/{path[2:]}" if path.startswith("~/") else path


def shell_path(path: str) -> Quoted:
    """`path` for a script, a leading `~/` as "$HOME"."""
    return Quoted(f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path))


def folder_of(path: str) -> str:
    """Return the folder of a file with an absolute path."""
    return path.rpartition("/")[0] or "/"


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths on a node: code and trainer by content, the rest by node. `root` is absolute or begins with `~/`."""

    root: str
    node: str

    def code(self, archive: Archive) -> str:
        """Return the job's code; the working directory of `setup` and of the training program."""
        return f"{self.root}/code/{archive.name}"

    def trainer(self, archive: Archive) -> str:
        """Return the folder for PYTHONPATH."""
        return f"{self.root}/trainer/{archive.name}"

    @property
    def prepared(self) -> str:
        """Return one empty file per `setup` that succeeded."""
        return f"{self.root}/prepared"

    @property
    def own(self) -> str:
        """Return all that belongs to this node's agent."""
        return f"{self.root}/nodes/{self.node}"

    @property
    def agent_config(self) -> str:
        """Return the agent's configuration."""
        return f"{self.own}/agent.json"

    @property
    def etcd_access(self) -> str:
        """etcd's CA, the job's user and its password."""
        return f"{self.own}/etcd.json"

    @property
    def agent_start(self) -> str:
        """Return a script that becomes the agent."""
        return f"{self.own}/agent.sh"

    @property
    def agent_unit(self) -> str:
        """Return the agent's unit, if systemd runs it."""
        return f"{self.own}/agent.service"

    @property
    def agent_log(self) -> str:
        """Return the agent's stdout and stderr."""
        return f"{self.own}/agent.log"

    @property
    def launcher_log(self) -> str:
        """Return the launcher's and the workers' stdout and stderr, by the agent."""
        return f"{self.log}/{self.node}.log"

    @property
    def agent_pid(self) -> str:
        """Return the agent's process id."""
        return f"{self.own}/agent.pid"

    @property
    def env(self) -> str:
        """`Setup.env` as a shell script."""
        return f"{self.own}/env.sh"

    @property
    def containers(self) -> str:
        """Return one folder per interpreter in a container, named by the content of its script."""
        return f"{self.own}/containers"

    @property
    def end_container(self) -> str:
        """Return a script that ends the launcher's container, if Docker runs it. Called before an agent starts or
        ends."""
        return f"{self.own}/end-container"

    @property
    def proof(self) -> str:
        """Say for which mounts it was proven that checkpoints can be written."""
        return f"{self.own}/mounts"

    @property
    def run(self) -> str:
        """Return the agent's and the workers' scratch files."""
        return f"{self.own}/run"

    @property
    def log(self) -> str:
        """Return the workers' logs."""
        return f"{self.own}/log"


@dataclass(frozen=True, slots=True)
class Upload:
    """Put `data` at `path`: the file appears complete, its sha256 checked on the node. `what`: for people."""

    what: str
    path: str
    mode: int
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"upload {self.what} ({len(self.data)} bytes) to {self.path}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run `script` by sh; its status must be 0. No secret is in `what` or `script`."""

    what: str
    """For people."""
    script: str
    timeout_s: float
    as_root: bool = False
    """It changes the machine itself (packages, units, mounts). It is planned, and run, only on a machine that was made
    for this node: `connect.as_root`."""
    stdin: bytes = field(default=b"", repr=False)
    of_job: bool = False
    """It tries what the job brings, which may be at fault where it fails."""

    def __str__(self) -> str:
        first, *more = self.what.splitlines() or [""]
        return f"{first} ..." if more else first


@dataclass(frozen=True, slots=True)
class Reboot:
    """Reboot the machine and wait, `timeout_s` at most, until it is back; then gather facts and plan again.

    Planned only where `Run.as_root` is, and never where an agent runs. `what`: why, for people.
    """

    what: str
    timeout_s: float

    def __str__(self) -> str:
        return f"reboot: {self.what}"


@dataclass(frozen=True, slots=True)
class Again:
    """Gather facts and plan again, because earlier commands change what later steps find. `what`: for people."""

    what: str

    def __str__(self) -> str:
        return f"gather facts again: {self.what}"


Command: TypeAlias = Upload | Run | Reboot | Again


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to do. `reason`: why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The machine cannot do this job. `reason`: what is missing, and what to do. `of_job`: what the job or its image
    should have brought."""

    reason: str
    of_job: bool = False
