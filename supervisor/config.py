"""The daemon's configuration: one TOML file, read once, frozen and strict."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from provisioners.settings import AwsSettings, AzureSettings, CloudSettings, GcpSettings
from supervisor.errors import UsageError
from supervisor.planner.world import Rules
from supervisor.spec import first_complaint

SLACK_WEBHOOK_VARIABLE = "SPOTSUP_SLACK_WEBHOOK"
# sockaddr_un holds 108 bytes with the closing zero: man 7 unix
MAX_SOCKET_PATH_BYTES = 107

Seconds = Annotated[float, Field(gt=0, le=86400)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EtcdConfig(_Strict):
    """Where etcd is, and how long to wait for it at start. The password is read from a file, never from here.

    `node_endpoints`: where nodes find it, if they have to go another way than the daemon.
    """

    endpoints: tuple[str, ...] = ("http://127.0.0.1:2379",)
    node_endpoints: tuple[str, ...] = ()
    user: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    wait_s: Seconds = 30.0


class ApiConfig(_Strict):
    """Where `spotsupctl` finds the daemon. `targets`: "host:port" where Prometheus finds the nodes, "" for nowhere."""

    socket: str = ""
    targets: Annotated[str, Field(pattern=r"^((\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):\d{1,5})?$")] = ""


class LocalConfig(_Strict):
    """The local cloud. `dir` is the folder of its server; empty: below the state folder.

    `image`: the folder of a machine image, as `make acceptance` builds it: machines are then virtual ones.
    """

    enabled: bool = True
    dir: str = ""
    image: str = ""


class NodeConfig(_Strict):
    """What every node is prepared with. `python`: the interpreter on the node that trains, or builds environments.

    `cache`: the folder on the node in which environments are kept, "" for one below `root`. On shared storage or a
    machine's scratch, replacements find there what was built before them.
    """

    python: str = sys.executable
    root: str = "~/.spotsup"
    cache: Annotated[str, Field(pattern=r"^(~?/[^:\n]*)?$")] = ""
    lease_ttl_s: Annotated[float, Field(ge=2, le=60)] = 5.0
    env: dict[str, str] = {}


class SlackConfig(_Strict):
    """Alerts. The webhook's URL is a secret: from the environment (SPOTSUP_SLACK_WEBHOOK) or this file."""

    webhook_file: str = ""


class TimingConfig(_Strict):
    """Time limits, all in seconds; see supervisor.planner.world.Rules."""

    tick_s: Seconds = 1.0
    leader_ttl_s: Annotated[float, Field(ge=2, le=60)] = 6.0
    listing_s: Seconds = 5.0
    unclear_listing_s: Seconds = 0.5
    suspect_s: Seconds = 20.0
    consistency_s: Seconds = 300.0
    orphan_grace_s: Seconds = 60.0
    leftovers_s: Annotated[float, Field(ge=1, le=86400)] = 300.0
    gather_s: Seconds = 20.0
    leave_margin_s: Seconds = 12.0
    launch_timeout_s: Seconds = 300.0
    bootstrap_timeout_s: Seconds = 900.0
    ready_timeout_s: Seconds = 180.0
    drain_timeout_s: Seconds = 150.0

    @model_validator(mode="after")
    def _ordered(self) -> TimingConfig:
        _smaller(self, "tick_s", "leader_ttl_s")
        _smaller(self, "listing_s", "orphan_grace_s")
        _smaller(self, "leave_margin_s", "drain_timeout_s")
        return self


def _smaller(timing: TimingConfig, small: str, large: str) -> None:
    if not getattr(timing, small) < getattr(timing, large):
        raise ValueError(
            f"{small} ({getattr(timing, small):g} s) must be smaller than {large} ({getattr(timing, large):g} s)"
        )


class Config(_Strict):
    """Everything that is set from outside. A cloud without its section is not used."""

    cluster: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")] = "default"
    state_dir: str = ""
    etcd: EtcdConfig = EtcdConfig()
    api: ApiConfig = ApiConfig()
    local: LocalConfig = LocalConfig()
    aws: AwsSettings | None = None
    gcp: GcpSettings | None = None
    azure: AzureSettings | None = None
    node: NodeConfig = NodeConfig()
    slack: SlackConfig = SlackConfig()
    timing: TimingConfig = TimingConfig()

    @property
    def state(self) -> Path:
        """The folder for the secret, sockets and, where it is embedded, etcd."""
        return Path(self.state_dir) if self.state_dir else default_state_dir()

    @property
    def socket(self) -> Path:
        """The API's Unix socket."""
        return Path(self.api.socket) if self.api.socket else self.state / "spotsupd.sock"

    @property
    def local_dir(self) -> Path:
        """The local cloud's folder."""
        return Path(self.local.dir) if self.local.dir else self.state / "localcloud"

    def cloud(self, name: str) -> CloudSettings | None:
        """What is set about a cloud; None for the local one, and for one that is not set up."""
        found: CloudSettings | None = {"aws": self.aws, "gcp": self.gcp, "azure": self.azure}.get(name)
        return found

    def rules(self, *, alerts: bool) -> Rules:
        """The planner's numbers."""
        timing = self.timing.model_dump(exclude={"tick_s", "leader_ttl_s"})
        return Rules(**timing, alerts=alerts)

    def slack_webhook(self) -> str:
        """The webhook's URL, or "" where alerts go to the log only."""
        if self.slack.webhook_file:
            return _secret_file(self.slack.webhook_file, "slack.webhook_file")
        return os.environ.get(SLACK_WEBHOOK_VARIABLE, "")

    def etcd_password(self) -> str:
        """etcd's password, or ""."""
        return _secret_file(self.etcd.password_file, "etcd.password_file") if self.etcd.password_file else ""


def default_state_dir() -> Path:
    """/var/lib/spotsup for root, else below the home folder (XDG base directories)."""
    if os.geteuid() == 0:
        return Path("/var/lib/spotsup")
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "spotsup"


def load_config(path: Path | None) -> Config:
    """The configuration of a file, or the defaults. Raises UsageError with one sentence."""
    if path is None:
        return check_paths(Config())
    try:
        parsed = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    return check_paths(parse_config(parsed, str(path)))


def parse_config(parsed: dict[str, object], what: str) -> Config:
    """A configuration from parsed TOML."""
    try:
        return Config.model_validate(_tuples(parsed))
    except ValidationError as error:
        raise UsageError(first_complaint(error, what, Config)) from error


def check_paths(config: Config) -> Config:
    """Raises UsageError where the socket's path cannot be bound."""
    length = len(os.fsencode(config.socket.absolute()))
    if length > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"the socket path {config.socket} has {length} bytes, and Unix sockets take {MAX_SOCKET_PATH_BYTES}: "
            "set api.socket (or --socket) to a shorter one"
        )
    return config


def _tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _secret_file(path: str, key: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"{key} names {path}, which cannot be read: {error.strerror}") from error
