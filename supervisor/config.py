"""The daemon's configuration: one TOML file, read once, frozen and strict.

The text below each key is its entry in docs/reference/spotsupd-toml.md.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator
from spotsup_trainer.wire import DEFAULT_LEASE_TTL_S

from provisioners.registry import CLOUDS
from provisioners.settings import Section
from supervisor.alerts.routes import Channel
from supervisor.alerts.settings import AlertSettings
from supervisor.budget import Budgets
from supervisor.cron import next_run
from supervisor.errors import UsageError
from supervisor.features.retention.record import MAX_ENDED_JOBS, RetentionRules
from supervisor.features.silence.record import SilenceRules
from supervisor.features.waits.record import WaitsRules
from supervisor.market.admission import Cap, QueueRules
from supervisor.market.prices import PRICE_KEY
from supervisor.market.warm import WarmRules
from supervisor.planner.world import Rules
from supervisor.validation import first_error

SLACK_WEBHOOK_VARIABLE = "SPOTSUP_SLACK_WEBHOOK"
SLACK_CHANNEL = "slack"  # what the channel of [slack] is called
# sockaddr_un holds 108 bytes with the closing zero: man 7 unix
MAX_SOCKET_PATH_BYTES = 107

PriceKey = Annotated[str, Field(pattern=PRICE_KEY)]
UsdPerHour = Annotated[float, Field(gt=0, le=10_000)]
Usd = Annotated[float, Field(gt=0, le=1e9)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class EtcdConfig(_Strict):
    """Where etcd is. With `--embedded-etcd` only `node_endpoints`, `secure` and `listen` are used."""

    endpoints: tuple[str, ...] = ("http://127.0.0.1:2379",)
    """URLs of the etcd cluster's members, as the daemon reaches them."""
    node_endpoints: tuple[str, ...] = ()
    """The same members as nodes reach them, where that differs. Empty: nodes use `endpoints`."""
    secure: bool = False
    """With `--embedded-etcd`: TLS and users, all made by the daemon in its state folder. Not to be changed while jobs
    run. Without it, etcd is for machines of this computer only."""
    listen: Annotated[str, Field(pattern=r"^((\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):\d{1,5})?$")] = ""
    """With `--embedded-etcd` and `secure`: `host:port` on which etcd also listens, for nodes: this host's address in
    their network. Empty: loopback only."""
    user: str = ""
    """etcd user, with the role root: it makes a user for each job, and deletes it when the job has ended. Empty: no
    authentication."""
    password_file: str = ""
    """File that holds the user's password."""
    ca: str = ""
    """File with the CA certificate to verify etcd with; nodes get it, too. Empty: the system's."""
    cert: str = ""
    """File with the client certificate, where etcd asks for one."""
    key: str = ""
    """File with the client certificate's private key."""
    wait_s: Seconds = 30.0
    """How long the daemon waits for etcd when it starts, in seconds."""

    @model_validator(mode="after")
    def _listens_securely(self) -> EtcdConfig:
        if self.listen and not self.secure:
            raise ValueError("listen needs secure = true: an etcd without TLS and users is for loopback only")
        return self


ApiName = Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$")]


class ApiConfig(_Strict):
    """Where the daemon listens."""

    socket: str = ""
    """Path of the Unix socket that `spotsupctl` connects to. Empty: `spotsupd.sock` in the state folder."""
    group: Annotated[str, Field(pattern=r"^([A-Za-z_][\w.-]{0,31})?$")] = ""
    """Group of this computer whose members may use the socket (mode 660), and so all of `spotsupctl` but `ssh`. Empty:
    only root and the daemon's user may (mode 600)."""
    targets: Annotated[str, Field(pattern=r"^((\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):\d{1,5})?$")] = ""
    """`host:port` on which Prometheus finds the list of nodes to scrape (HTTP service discovery). Empty: no such
    port."""
    listen: Annotated[str, Field(pattern=r"^((\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):\d{1,5})?$")] = ""
    """`host:port` on which the API answers over HTTPS to the users of `spotsupd user add`, for instance `0.0.0.0:8443`.
    Empty: no such port."""
    names: tuple[ApiName, ...] = ()
    """DNS names and addresses under which users reach `listen`, for the daemon's own certificate. It also has this
    host's name and the host of `listen`."""
    cert: str = ""
    """File with the certificate for `listen`, and those between it and its CA. Empty: the daemon makes one, and a CA of
    its own, in its state folder. A renewed one is taken within a minute."""
    key: str = ""
    """File with the private key of `cert`."""

    @model_validator(mode="after")
    def _has_both(self) -> ApiConfig:
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key belong together: set both, or neither")
        return self


class MetricsConfig(_Strict):
    """Metrics for Prometheus. The API's socket serves them always, at `/metrics`."""

    listen: Annotated[str, Field(pattern=r"^((\[::1\]|127(\.\d{1,3}){3}|localhost):\d{1,5})?$")] = ""
    """`host:port` of this computer on which they are served, too, without a password: the loopback interface only.
    Empty: no such port."""


class NodeConfig(_Strict):
    """How every node is prepared."""

    python: str = ""
    """The Python interpreter on the node, 3.9 or newer: it trains, or environments are built from it; a name, an
    absolute path or `~/…`. Empty: `python3`; on the local cloud, whose machines are this computer, the daemon's own."""
    index_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$", repr=False)] = ""
    """Package index for environments and `setup`, in place of PyPI. Nodes behind a proxy: set HTTPS_PROXY in `env`."""
    wheelhouse: Annotated[str, Field(pattern=r"^((~?/|https?://)\S+)?$", repr=False)] = ""
    """Folder on the node, or URL of a page, with wheels, as `pip download` fills it: for nodes without a package index
    it may be on shared storage. Unless `index_url` is set too, packages come from there alone."""
    root: str = "~/.spotsup"
    """Folder on the node for spotsup's own files."""
    cache: Annotated[str, Field(pattern=r"^(~?/[^:\n]*)?$")] = ""
    """Folder on the node that keeps built environments. On shared storage or a scratch disk, replacements find there
    what earlier nodes built. Empty: below `root`."""
    lease_ttl_s: Annotated[float, Field(ge=2, le=60)] = DEFAULT_LEASE_TTL_S
    """Time to live of a node's lease in etcd, in seconds: how soon peers notice that a node vanished."""
    env: dict[str, str] = Field(default={}, repr=False)
    """Environment variables of every job on every node; a job's own `env` wins."""


class SlackConfig(_Strict):
    """Alerts to one channel of Slack, all of them. `[alerts]` has more channels, and choices."""

    webhook_file: str = ""
    """File that holds the incoming webhook's URL, which is a secret. Empty: the variable SPOTSUP_SLACK_WEBHOOK; without
    either, alerts go to the log only."""


class WarmConfig(_Strict):
    """Machines of jobs that have ended may wait for the next job, which then starts without asking a cloud for them.

    What they cost, who gets them, and how they are cleaned: docs/operations.md, "Machines that wait for the next job".
    """

    keep_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """How long it waits at most, in seconds. 0: no machine waits."""
    max_nodes: Annotated[int, Field(ge=0)] | None = None
    """At most so many wait at once. By default any number."""
    usd_per_hour: Annotated[float, Field(gt=0)] | None = None
    """Those that wait cost at most so many US dollars per hour together; one without a known price does not wait then.
    By default any amount."""
    other_users: bool = False
    """Whether a job may get a machine of another user's job. Jobs may become root on their machines: only among users
    who trust each other."""

    def rules(self) -> WarmRules:
        """Return the rules as the planner takes it."""
        return WarmRules(**self.model_dump())


class BudgetConfig(_Strict):
    """How many US dollars may be spent per month, in UTC. People are warned at 50 %, 80 % and 100 %; then the jobs that
    draw on the budget checkpoint and are paused, until the next month begins or the budget is raised. With a budget, no
    machine without a known price is asked for."""

    usd_per_month: Usd | None = None
    """Of all jobs together."""
    user_usd_per_month: Usd | None = None
    """Of the jobs of each user. Jobs whose owner is not known count as one user's."""
    users: Annotated[dict[str, Usd], Field(max_length=1000)] = {}
    """Of these users, in place of `user_usd_per_month`: `{ann = 500}`."""


class HousekeepingConfig(_Strict):
    """Periodic work of the leader for the installation as a whole. Times are cron expressions, in UTC."""

    backup: str = "0 3 * * *"
    """When the journal is exported to `backups` in the state folder. A leader that was down then makes up for it.
    Empty: never."""
    backups_kept: Annotated[int, Field(ge=1, le=1000)] = 7
    """How many of these exports are kept."""
    defragment: str = "30 3 * * *"
    """When etcd's members are defragmented, one after another: those of at least 100 MiB of which 45 % is free,
    and only where etcd has three or more members, all of them healthy and of version 3.5 or newer. Empty: never."""

    @field_validator("backup", "defragment")
    @classmethod
    def _is_cron(cls, cron: str) -> str:
        if cron:
            next_run(cron, 0.0)
        return cron


class RetentionConfig(_Strict):
    """For how long ended jobs are kept; `spotsupctl delete` deletes single ones. The oldest are deleted first, each
    with its events, output and curves. Never deleted are checkpoints, jobs whose schedule submits them again, and jobs
    of a sweep that goes on; what a deleted job has spent still counts for the budgets of the month."""

    ended_jobs_days: Annotated[float, Field(ge=0, le=36500)] = 0.0
    """So many days after its end. 0: for ever, so that nobody misses what a run cost and how it went."""
    ended_jobs: Annotated[int, Field(ge=0)] = MAX_ENDED_JOBS
    """At most so many: each takes 15 KB of etcd and of every daemon's memory, and up to 16 MiB of etcd for what it has
    printed. 0: any number."""

    def rules(self) -> RetentionRules:
        """Return the rules as the leader takes them."""
        return RetentionRules(self.ended_jobs_days, self.ended_jobs)


class CapConfig(_Strict):
    """What may be in use at once. A key that is left out limits nothing.

    Whatever bills counts until its cloud says that it ends, also a node that is about to leave, beside its replacement.
    """

    nodes: Annotated[int, Field(ge=0)] | None = None
    """At most so many nodes."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """At most so many GPUs."""
    usd_per_hour: Annotated[float, Field(gt=0)] | None = None
    """At most so many US dollars per hour. A machine without a known price is not asked for then. A spot price that
    rises later ends no machine."""

    def cap(self) -> Cap:
        """Return the cap as the planner takes it."""
        return Cap(self.nodes, self.gpus, self.usd_per_hour)


UserName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]{0,63}$")]


class QueueConfig(_Strict):
    """What jobs may use together. A job for which too little is left waits: `spotsupctl queue` says for what.

    Lower limits than what is in use end nothing. The order: docs/operations.md, "Who waits for what".
    """

    cluster: CapConfig = CapConfig()
    """Limits of all jobs together."""
    user: CapConfig = CapConfig()
    """Limits of the jobs of each user together."""
    users: dict[UserName, CapConfig] = Field(default_factory=dict, max_length=1000)
    """Limits of single users, in place of `user`, by name."""
    job: CapConfig = CapConfig()
    """Limits of each job."""
    preempt: bool = False
    """Whether jobs are paused, with a checkpoint, when one of a higher priority needs their room. Jobs without
    checkpoints are not."""
    max_priority: Annotated[int, Field(ge=-100, le=100)] = 100
    """The highest `priority` that a job may have."""

    def rules(self) -> QueueRules:
        """Return the rules as the planner takes it."""
        users = MappingProxyType({name: each.cap() for name, each in self.users.items()})
        return QueueRules(self.cluster.cap(), self.user.cap(), users, self.job.cap(), self.preempt, self.max_priority)


RULES = Rules()  # each number has its default there


class TimingConfig(_Strict):
    """Time limits, all in seconds."""

    tick_s: Seconds = 1.0
    """The daemon decides at least this often."""
    leader_ttl_s: Annotated[float, Field(ge=2, le=60)] = 6.0
    """Time to live of the leader's lease: a standby takes over within about this time. Larger than `tick_s`."""
    listing_s: Seconds = RULES.listing_s
    """How often each cloud is asked which machines run."""
    unclear_listing_s: Seconds = RULES.unclear_listing_s
    """How often it is asked while a launch or an end is not confirmed yet."""
    suspect_s: Seconds = RULES.silence.suspect_s
    """A silent node that its cloud reports as running is given up after this time."""
    consistency_s: Seconds = RULES.consistency_s
    """How long a new machine may be missing from its cloud's listing before it counts as lost."""
    orphan_grace_s: Seconds = RULES.orphan_grace_s
    """A machine with our tags that appears and that the journal does not know is terminated after this time. People are
    told of one that may be older than what etcd shows. Larger than `listing_s`."""
    leftovers_s: Annotated[float, Field(ge=1, le=86400)] = RULES.leftovers_s
    """How often clouds are searched for what machines left behind: disks, network interfaces, addresses."""
    gather_s: Seconds = RULES.gather_s
    """How long a change of the round waits for further nodes that are nearly ready, so that there is one pause."""
    leave_margin_s: Seconds = RULES.leave_margin_s
    """A node with a preemption notice leaves the round this long before its deadline, and twice what a checkpoint of
    its job takes earlier, once that is measured. Smaller than `drain_timeout_s`."""
    launch_timeout_s: Seconds = RULES.launch_timeout_s
    """A machine that does not run after this time is given up; one with 8 GPUs or more, after three times as long."""
    bootstrap_timeout_s: Seconds = RULES.bootstrap_timeout_s
    """Preparing a node over SSH may take this long."""
    ready_timeout_s: Seconds = RULES.ready_timeout_s
    """A prepared node must appear at the rendezvous within this time."""
    drain_timeout_s: Seconds = RULES.drain_timeout_s
    """A node that drains is terminated after this time, even if it has not left the round. Where the job's checkpoints
    are measured, and four of them take longer, after that; at most after two hours."""

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


if TYPE_CHECKING:
    _CloudTables = _Strict
else:
    # One key per cloud, of the cloud's own model: `aws: AwsSettings | None = None`.
    _tables = {
        name: (cloud.settings | None, Field(cloud.default, description=cloud.settings.__doc__))
        for name, cloud in CLOUDS.items()
    }
    _CloudTables = create_model("_CloudTables", __base__=_Strict, **_tables)


class Config(_CloudTables):
    """The keys outside of any table come first in the file. Every key is optional but for those of a rented cloud."""

    cluster: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")] = "default"
    """The cluster's name: part of every key in etcd and, with a mark of `cluster.key`, of every tag in a cloud account.
    The daemons of one cluster share both."""
    state_dir: str = ""
    """Folder for the cluster's key, the socket and the embedded etcd. Empty: `/var/lib/spotsup` for root, otherwise
    `$XDG_STATE_HOME/spotsup`."""
    etcd: EtcdConfig = EtcdConfig()
    """Where etcd is."""
    api: ApiConfig = ApiConfig()
    """Where the daemon listens."""
    metrics: MetricsConfig = MetricsConfig()
    """Metrics for Prometheus."""
    node: NodeConfig = NodeConfig()
    """How every node is prepared."""
    slack: SlackConfig = SlackConfig()
    """Alerts to one channel of Slack."""
    alerts: AlertSettings = AlertSettings()
    """Alerts to further channels."""
    timing: TimingConfig = TimingConfig()
    """Time limits."""
    queue: QueueConfig = QueueConfig()
    """What jobs may use together."""
    warm: WarmConfig = WarmConfig()
    """Machines of ended jobs that wait for the next job."""
    budget: BudgetConfig = BudgetConfig()
    """Budgets per month."""
    retention: RetentionConfig = RetentionConfig()
    """For how long ended jobs are kept."""
    housekeeping: HousekeepingConfig = HousekeepingConfig()
    """Backups and the maintenance of etcd."""
    prices: dict[PriceKey, UsdPerHour] = Field(default_factory=dict, max_length=1000)
    """US dollars per hour of machines whose price no cloud says, or that are billed at another one:
    `"CLOUD/PLACE/TYPE/MARKET" = 0.28`. The place is a zone, a region, or `*`, and the most exact one counts; the market
    is `spot` or `on-demand`."""

    @property
    def state(self) -> Path:
        """Return the folder for the cluster's key, the socket and the embedded etcd."""
        return Path(self.state_dir) if self.state_dir else default_state_dir()

    @property
    def socket(self) -> Path:
        """Return the API's Unix socket."""
        return Path(self.api.socket) if self.api.socket else self.state / "spotsupd.sock"

    def cloud(self, name: str) -> Section | None:
        """Return a cloud's table; None where it is not used."""
        section: Section | None = getattr(self, name) if name in CLOUDS else None
        alone = all(getattr(self, each) is None for each, cloud in CLOUDS.items() if cloud.default is None)
        return section if section is not None and section.in_use(alone=alone) else None

    def rules(self, channels: tuple[Channel, ...] = ()) -> Rules:
        """Return the planner's numbers. `channels`: where alerts go."""
        timing = self.timing.model_dump(exclude={"tick_s", "leader_ttl_s", "suspect_s"})
        notice_s = MappingProxyType({name: found.notice_s for name, found in CLOUDS.items() if found.notice_s})
        budgets = Budgets(**self.budget.model_dump())
        return Rules(
            **timing,
            alerts=bool(channels),
            channels=channels,
            silence=SilenceRules(self.timing.suspect_s),
            waits=WaitsRules(self.alerts.waits_s),
            notice_s=notice_s,
            max_notice_s=MappingProxyType({name: found.max_notice_s for name, found in CLOUDS.items()}),
            queue=self.queue.rules(),
            budgets=budgets,
            warm=self.warm.rules(),
        )

    def slack_webhook(self) -> str:
        """Return the webhook's URL, or "" where alerts go to the log only."""
        if self.slack.webhook_file:
            return secret_file(self.slack.webhook_file, "slack.webhook_file")
        return os.environ.get(SLACK_WEBHOOK_VARIABLE, "")

    def etcd_password(self) -> str:
        """etcd's password, or ""."""
        return secret_file(self.etcd.password_file, "etcd.password_file") if self.etcd.password_file else ""


def default_state_dir() -> Path:
    """/var/lib/spotsup for root, else below the home folder (XDG base directories)."""
    if os.geteuid() == 0:
        return Path("/var/lib/spotsup")
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "spotsup"


def load_config(path: Path | None) -> Config:
    """Return the configuration of a file, or the defaults. Raises UsageError with one sentence."""
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
    """Return a configuration from parsed TOML."""
    try:
        return Config.model_validate(_tuples(parsed))
    except ValidationError as error:
        raise UsageError(first_error(error, what, Config)) from error


def check_paths(config: Config) -> Config:
    """Raise UsageError for a path that depends on the current folder, or a socket's that cannot be bound."""
    named = {
        "state_dir": config.state_dir,
        "api.socket": config.api.socket,
        "api.cert": config.api.cert,
        "api.key": config.api.key,
        "etcd.ca": config.etcd.ca,
        "etcd.cert": config.etcd.cert,
        "etcd.key": config.etcd.key,
        "etcd.password_file": config.etcd.password_file,
        "slack.webhook_file": config.slack.webhook_file,
        **config.alerts.files(),
    }
    for key, value in named.items():
        if value and not Path(value).is_absolute():
            raise UsageError(
                f"{key} is {value!r}, which depends on the folder in which spotsupd starts: write an absolute path"
            )
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
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def secret_file(path: str, key: str) -> str:
    """Return what a file with a secret holds. Raises UsageError."""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"{key} names {path}, which cannot be read: {error.strerror}") from error
