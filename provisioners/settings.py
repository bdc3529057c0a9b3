"""What a cloud's section of the configuration says: strict, frozen, and without any SDK.

Each cloud's own model is in its folder (settings.py). The rest of spotsup asks the properties of `Section` and never
looks at a cloud's own fields.

The text below each key is its entry in docs/reference/spotsupd-toml.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

OWN_TAG_PREFIX = "spotsup-"

Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
DiskGb = Annotated[int, Field(ge=30, le=16384)]

LogAgentKind: TypeAlias = Literal["cloudwatch", "ops"]
Reach: TypeAlias = Literal["direct", "ssh"]


class Section(BaseModel):
    """What every cloud answers about its machines."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    def in_use(self, *, alone: bool) -> bool:  # noqa: ARG002 - for other models
        """True if the daemon uses this cloud. `alone`: no rented cloud is configured."""
        return True

    @classmethod
    def written(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section as the configuration has it, of what was given to `spotsupd init`. Raises ValueError."""
        return dict(section)

    @property
    def login_user(self) -> str:
        """Return the user that the daemon logs in as over SSH."""
        raise NotImplementedError

    def user_in(self, region: str) -> str:  # noqa: ARG002 - for other models
        """Return the user that the daemon logs in as to machines of a region."""
        return self.login_user

    @property
    def etcd_by_ssh(self) -> bool:
        """True if machines use etcd through the daemon's SSH connection: they have no route to it."""
        return False

    @property
    def dead_man_after_s(self) -> float:
        """Return after how long a machine that hears nothing from its cluster ends its own billing; 0 where none
        does."""
        return 0.0

    @property
    def log_agent(self) -> tuple[LogAgentKind, str] | None:
        """Return the cloud's own agent that ships nodes' logs, and the log group it writes to; None for no such
        agent."""
        return None

    @property
    def node_env(self) -> dict[str, str]:
        """Variables that every node's agent and workers get; a job's own override them."""
        return {}

    @property
    def node_role(self) -> tuple[str, str, str] | None:
        """Return the key that gives nodes a role of their own, its value, and the file with what that role needs for
        checkpoints in object stores; None where there are no roles."""
        return None

    @property
    def on_this_host(self) -> bool:
        """True if machines are processes of the daemon's own computer, with its folders and its users."""
        return False

    @property
    def shares_folder(self) -> bool:
        """True if all machines have one folder, `shared_folder`, which outlives them."""
        return self.on_this_host

    @property
    def away(self) -> bool:
        """True if machines are other computers: what is bound to this one's loopback does not exist for them."""
        return not self.on_this_host

    def shared_folder(self, state: Path) -> Path:
        """Return where a job's checkpoints go that names neither storage nor a folder. `state`: the daemon's state
        folder."""
        return state / "shared"


class CloudSettings(Section):
    """The keys that all rented clouds share."""

    regions: Annotated[tuple[Name, ...], Field(min_length=1, max_length=32)]
    """Regions in which jobs may run."""
    ssh_user: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "ubuntu"
    """The user that the daemon logs in as. Need not be the image's own (`ec2-user`, `admin`): cloud-init makes it."""
    ssh_port: Annotated[int, Field(ge=1, le=65535)] = 22
    """The TCP port of the machines' SSH server."""
    public_address: bool = True
    """Whether machines get a public IP address. With false, the daemon must reach their private addresses."""
    reach: Reach = "direct"
    """How nodes reach etcd: `direct` over the network, or `ssh`: through the daemon's SSH connection to a node, where
    it has no route to etcd (a laptop behind NAT, another cloud). While no daemon leads, such nodes are without it."""
    disk_gb: DiskGb = 100
    """Size of the boot disk, in GB."""
    dead_man_s: Annotated[float, Field(ge=0, le=7 * 86400)] = 3600.0
    """Dead-man switch: a machine that hears nothing from etcd and makes no progress for this long, in seconds, ends its
    own billing. At least 1800; 0: never."""
    tags: Annotated[dict[str, str], Field(max_length=20)] = {}
    """Further tags (labels) for everything that is created. Keys that begin with `spotsup-` are reserved."""
    catalog: str = ""
    """A TOML file that adds instance types and prices to the built-in catalog."""
    endpoint: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """URL to use in place of the cloud's own API, for tests and private endpoints."""
    endpoint_ca: str = ""
    """File with the CA certificate to trust at `endpoint`."""

    @field_validator("dead_man_s")
    @classmethod
    def _patient(cls, value: float) -> float:
        # A bootstrap alone may take 15 minutes, and an outage of etcd must not cost a machine.
        if 0 < value < 1800:
            raise ValueError("a dead-man switch needs at least 1800 s, or 0 for none")
        return value

    @field_validator("tags")
    @classmethod
    def _not_ours(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if key.startswith(OWN_TAG_PREFIX):
                raise ValueError(f"tag {key!r}: tags that begin with {OWN_TAG_PREFIX!r} are spotsup's own")
        return value

    @property
    def login_user(self) -> str:
        """As `Section` says."""
        return self.ssh_user

    @property
    def etcd_by_ssh(self) -> bool:
        """As `Section` says."""
        return self.reach == "ssh"

    @property
    def away(self) -> bool:
        """As `Section` says. A cloud whose API is on this computer is a test cloud, and so are its machines."""
        host = urlsplit(self.endpoint).hostname or ""
        return not (host == "localhost" or host.startswith("127.") or host == "::1")

    @property
    def dead_man_after_s(self) -> float:
        """As `Section` says."""
        return self.dead_man_s
