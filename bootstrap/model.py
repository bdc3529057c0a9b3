"""What bootstrap is asked for, where things lie on a node, and the commands that steps are made of. Pure data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from bootstrap.archive import Archive
from bootstrap.container.image import Image
from bootstrap.environment.lock import Lock
from bootstrap.log_agent.model import LogAgent
from bootstrap.mounts.model import Mount, check_mounts
from provisioners.host import HostTraits

DEFAULT_ROOT = "~/.spotsup"

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Host:
    """What was asked of the cloud."""

    traits: HostTraits = field(default_factory=HostTraits)
    # By the catalogue's name; "" and 0 for a machine without GPUs.
    gpu: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """All that one node needs for its job. `log_agent`: what ships its logs beside us.

    `agent_config`: JSON object as `spotsup_trainer.wire.encode(AgentConfig(...))` gives it. Bootstrap fills in what
    only the node knows: `python`, `code_dir`, `run_dir`, `log_dir`, and a leading `~/` of `checkpoint_dir`.
    `trainer`: an archive with the folder `spotsup_trainer` on top. `python`: name, absolute path or `~/...`.
    `setup`: one line for bash, run in the code's folder, once per code. `env`: what `setup` and the agent find in
    their environment; it may hold secrets and is shown nowhere. `root`: bootstrap's folder, absolute or `~/...`.
    `host`: the machine as it was asked for. `dead_man`: its user data brought the dead-man switch.
    `mounts`: what is mounted before anything else of the job's. `lock`: an environment is built from it, or found in
    the folder `cache` ("": below `root`), which may be on one of the mounts; else `python` trains. `image`: the job
    trains in a container of it, and `python` is the agent's alone; it has a digest, and neither `lock` nor `setup` is
    there. `torch`: whether the interpreter has to have it. Raises ValueError.
    """

    node: str
    agent_config: bytes = field(repr=False)
    code: Archive
    trainer: Archive
    python: str = "python3"
    setup: str | None = None
    root: str = DEFAULT_ROOT
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    setup_timeout_s: float = 1800.0
    stop_grace_s: float = 45.0  # an agent gives its launcher 30 s to leave the round
    host: Host = Host()
    dead_man: bool = False
    mounts: tuple[Mount, ...] = ()
    lock: Lock | None = None
    cache: str = ""
    log_agent: LogAgent | None = None
    image: Image | None = None
    torch: bool = True

    def __post_init__(self) -> None:
        check_place(self.node, self.root)
        json.loads(self.agent_config)
        if not self.agent_config.lstrip().startswith(b"{"):
            raise ValueError("agent_config is no JSON object; give what wire.encode(AgentConfig(...)) returns")
        if "\0" in f"{self.setup}{self.python}{self.root}":
            raise ValueError("setup, python or root contains a NUL character")
        check_mounts(self.mounts)
        if self.image and (self.lock or self.setup or not self.image.digest):
            raise ValueError(f"{self.image}: a container image has its digest, and nothing is set up beside it")
        _check_folder("cache", self.cache_folder)
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"env: {name!r} is no variable name; use letters, digits and _, no digit first")
            if "\0" in value:
                raise ValueError(f"env: the value of {name} contains a NUL character")

    @property
    def cache_folder(self) -> str:
        """Where environments are kept."""
        return self.cache or f"{self.root}/environments"


def _check_folder(name: str, path: str) -> None:
    # PYTHONPATH separates by `:`, and knows no way to quote it.
    if not path.startswith(("/", "~/")) or "\n" in path or ":" in path:
        raise ValueError(f"{name} is {path!r}; use an absolute path or one that begins with ~/, without `:`")


def check_place(node: str, root: str) -> None:
    """Raises ValueError unless `node` can be a folder's name and `root` is a place on a machine."""
    if not _NODE.fullmatch(node):
        raise ValueError(f"node is {node!r}; use letters, digits and . _ -, beginning with a letter or digit")
    _check_folder("root", root)


def expand(path: str, home: str) -> str:
    """`path` with a leading `~` replaced by `home`."""
    if path == "~":
        return home
    return f"{home.rstrip('/')}/{path[2:]}" if path.startswith("~/") else path


def shell_path(path: str) -> str:
    """`path` as one word for sh, a leading `~/` as "$HOME"."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things lie on a node, for any spelling of `root`: code and trainer by content, the rest by node."""

    root: str
    node: str

    def code(self, archive: Archive) -> str:
        """The job's code; the working directory of `setup` and of the training program."""
        return f"{self.root}/code/{archive.name}"

    def trainer(self, archive: Archive) -> str:
        """What goes on PYTHONPATH."""
        return f"{self.root}/trainer/{archive.name}"

    @property
    def prepared(self) -> str:
        """One empty file per `setup` that succeeded."""
        return f"{self.root}/prepared"

    @property
    def own(self) -> str:
        """All that belongs to this node's agent."""
        return f"{self.root}/nodes/{self.node}"

    @property
    def agent_config(self) -> str:
        """What the agent reads."""
        return f"{self.own}/agent.json"

    @property
    def agent_start(self) -> str:
        """A script that becomes the agent."""
        return f"{self.own}/agent.sh"

    @property
    def agent_unit(self) -> str:
        """The agent's unit, where systemd runs it."""
        return f"{self.own}/agent.service"

    @property
    def agent_log(self) -> str:
        """The agent's stdout and stderr."""
        return f"{self.own}/agent.log"

    @property
    def launcher_log(self) -> str:
        """The launcher's and the workers' stdout and stderr, by the agent."""
        return f"{self.log}/{self.node}.log"

    @property
    def agent_pid(self) -> str:
        """The agent's process id."""
        return f"{self.own}/agent.pid"

    @property
    def env(self) -> str:
        """`Setup.env` as a shell script."""
        return f"{self.own}/env.sh"

    @property
    def containers(self) -> str:
        """One folder per interpreter in a container, named by its content."""
        return f"{self.own}/containers"

    @property
    def end_container(self) -> str:
        """A script that ends the launcher's container, where Docker runs it; called before an agent starts or ends."""
        return f"{self.own}/end-container"

    @property
    def proof(self) -> str:
        """Says of which mounts it was proven that checkpoints can be written."""
        return f"{self.own}/mounts"

    @property
    def run(self) -> str:
        """The agent's and the workers' scratch files."""
        return f"{self.own}/run"

    @property
    def log(self) -> str:
        """The workers' logs."""
        return f"{self.own}/log"


@dataclass(frozen=True, slots=True)
class Upload:
    """Put `data` at `path`, all at once, its sha256 checked on the node. `what`: for people."""

    what: str
    path: str
    mode: int
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"upload {self.what} ({len(self.data)} bytes) to {self.path}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run `script` by sh; its status must be 0. `what`: for people; no secret is in either. `stdin`: what it reads.

    `as_root`: it changes the machine itself (packages, units, mounts). It is planned, and run, only on a machine that
    was made for this node: `scripts.as_root`.
    """

    what: str
    script: str
    timeout_s: float
    as_root: bool = False
    stdin: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        first, *more = self.what.splitlines() or [""]
        return f"{first} ..." if more else first


@dataclass(frozen=True, slots=True)
class Reboot:
    """Start the machine anew and wait, `timeout_s` at most, until it is back; then gather facts and plan again.

    As bound to a machine of our own as `Run.as_root`, and never planned where an agent runs. `what`: what it is for.
    """

    what: str
    timeout_s: float

    def __str__(self) -> str:
        return f"reboot: {self.what}"


@dataclass(frozen=True, slots=True)
class Again:
    """Gather facts and plan again: what was done so far changes what later steps find. `what`: for people."""

    what: str

    def __str__(self) -> str:
        return f"gather facts again: {self.what}"


Command: TypeAlias = Upload | Run | Reboot | Again


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to do, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """It cannot be done on this machine; what is missing, and what would be right."""

    reason: str
