"""The messages between daemon and nodes: etcd keys, and the JSON under them. Standard library only.

Values are readable JSON, never pickle: whoever can write a key must not be able to run code with it.
Unknown fields are ignored on reading, so that a newer writer does not break an older reader.
All times are UNIX seconds by the writer's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

DEFAULT_LEASE_TTL_S = 5.0

# waiting: wants to be in the next round.
# running: its workers run in `Member.round`.
# leaving: will not be in the next round (its machine is about to go); all checkpoint, and the others go on.
# done: its workers ended with success.
MemberState: TypeAlias = Literal["waiting", "running", "leaving", "done"]


class WireError(ValueError):
    """A value is not a message of the kind that its key holds."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Who should be in the round, by the daemon. The rendezvous closes the moment all members wait."""

    # Node ids; newcomers get ranks in this order.
    members: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    # For people.
    reason: str = ""
    # Nodes that wait outside the round. The first takes the place of a member that is lost or leaves, at once.
    spares: tuple[str, ...] = ()
    # Pause the job: all nodes checkpoint together, stop, and form no round.
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a node's workers stopped by themselves."""

    round: int
    local_rank: int
    exit_code: int
    message: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """A launcher's own key, under its lease: the key vanishes with the launcher."""

    node: str
    # New for each start of the launcher.
    incarnation: str
    addr: str
    # Bound already: if this node becomes rank 0, the round's TCPStore listens there.
    store_port: int
    state: MemberState
    # The last round that this node took part in.
    round: int = 0
    # Why its workers in that round stopped, where the program itself failed.
    failure: Failure | None = None
    # Its workers in that round have stopped with a complete checkpoint.
    parked: bool = False


@dataclass(frozen=True, slots=True)
class RoundMember:
    """A member as the round fixed it."""

    node: str
    incarnation: str
    addr: str
    store_port: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A node vanished from a round, or its launcher restarted in it."""

    node: str
    at: float


@dataclass(frozen=True)
class Round:
    """One rendezvous. Written by one compare-and-swap, by any member that sees it complete."""

    number: int
    # In rank order.
    members: tuple[RoundMember, ...]
    formed_at: float
    reason: str = ""
    # How many rounds of the job ended because the user's program failed while every member was there.
    app_failures: int = 0
    last_failure: Failure | None = None
    # From rounds of the last minutes, the newest last.
    recent_losses: tuple[Loss, ...] = ()

    def nodes(self) -> tuple[str, ...]:
        """Node ids in rank order."""
        return tuple(member.node for member in self.members)

    @cached_property
    def incarnations(self) -> Mapping[str, str]:
        """Node -> incarnation. Cached: each member looks up every other one at each change, n² times in a round."""
        return {member.node: member.incarnation for member in self.members}


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The node agent's own key, under its lease."""

    node: str
    boot_id: str
    pid: int
    started_at: float
    version: str


@dataclass(frozen=True, slots=True)
class Notice:
    """The provider's announcement that a node will be taken."""

    node: str
    deadline: float
    seen_at: float
    # Which metadata service announced it.
    source: str


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A node is gone, by the daemon: its peers need not wait for a timeout."""

    node: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is, by the agent of the node with rank 0."""

    round: int
    # The last completed step, over all rounds, and when it was completed.
    step: int
    at: float
    # When the first step of this round was completed.
    first_step_at: float
    epoch: int = 0
    samples: int = 0
    loss: float | None = None
    # The step of the newest complete checkpoint.
    checkpoint_step: int = 0
    # Why checkpoints are not being written now, in one sentence; empty while they are.
    checkpoint_problem: str = ""
    # Of a data job: how much is done (0 to 1), and the program's own description of it.
    fraction: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a node's launcher ended."""

    node: str
    # success: the program ended well. left: in order, and others go on.
    outcome: Literal["success", "failure", "left"]
    exit_code: int
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Result:
    """The job's end, written once by the rendezvous: no round is formed after it."""

    outcome: Literal["success", "failure"]
    message: str
    # The last round.
    round: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where a node reads its preemption notice."""

    # The format: a key of spotsup_trainer.agent.notices.READERS, or "none".
    kind: str
    # The metadata service.
    url: str = ""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What bootstrap writes on a node for the agent to read. Paths are absolute, on the node."""

    cluster: str
    job: str
    task_id: str
    node: str
    # The node's address for its peers.
    addr: str
    etcd_endpoints: tuple[str, ...]
    metadata: Metadata
    # The interpreter of the training environment.
    python: str
    code_dir: str
    run_dir: str
    log_dir: str
    checkpoint_dir: str
    # A training script with its arguments; of a data job, one line for bash.
    command: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S
    # How long before the notice's deadline the launcher leaves, if the daemon has not asked it to before.
    leave_margin_s: float = 8.0
    # A folder that outlives the node, for its whole log; "" for none.
    log_mirror: str = ""
    # `python` is in a container, and the launcher ends when its stdin closes.
    container_init: bool = False
    kind: Literal["training", "data"] = "training"


@dataclass(frozen=True, slots=True)
class Keys:
    """All etcd keys of one cluster. What a node may write lies below `run(job)` and `logs(job)` only."""

    cluster: str

    @property
    def root(self) -> str:
        """Everything of this cluster."""
        return f"/spotsup/{self.cluster}/"

    @property
    def world(self) -> str:
        """What the daemon mirrors: its records, and the messages of all jobs."""
        return f"{self.root}world/"

    def run(self, job: str) -> str:
        """The messages between the daemon and the nodes of one job."""
        return f"{self.world}run/{job}/"

    def hint(self, job: str) -> str:
        """`Hint`, by the daemon."""
        return f"{self.run(job)}hint"

    def round(self, job: str) -> str:
        """`Round`, by the rendezvous."""
        return f"{self.run(job)}round"

    def result(self, job: str) -> str:
        """`Result`, by the rendezvous."""
        return f"{self.run(job)}result"

    def progress(self, job: str) -> str:
        """`Progress`, by the agent with rank 0."""
        return f"{self.run(job)}progress"

    def member(self, job: str, node: str) -> str:
        """`Member`, by the launcher, under its lease."""
        return f"{self.run(job)}member/{node}"

    def agent(self, job: str, node: str) -> str:
        """`AgentStatus`, by the agent, under its lease."""
        return f"{self.run(job)}agent/{node}"

    def notice(self, job: str, node: str) -> str:
        """`Notice`, by the agent."""
        return f"{self.run(job)}notice/{node}"

    def tombstone(self, job: str, node: str) -> str:
        """`Tombstone`, by the daemon."""
        return f"{self.run(job)}tombstone/{node}"

    def ended(self, job: str, node: str) -> str:
        """`Ended`, by the agent."""
        return f"{self.run(job)}ended/{node}"

    def logs(self, job: str, node: str = "") -> str:
        """Log chunks, raw bytes, by the agent: `<prefix><node>/<8 digits>`; the last few of each node are kept."""
        return f"{self.root}logs/{job}/{node}/" if node else f"{self.root}logs/{job}/"


Message = TypeVar("Message")

_NESTED: dict[tuple[str, str], type] = {
    ("Member", "failure"): Failure,
    ("Round", "last_failure"): Failure,
    ("AgentConfig", "metadata"): Metadata,
}
_LISTS: dict[tuple[str, str], type] = {("Round", "members"): RoundMember, ("Round", "recent_losses"): Loss}


def encode(message: Any) -> bytes:
    """A message as JSON."""
    return json.dumps(asdict(message), separators=(",", ":"), sort_keys=True).encode()


def decode(kind: type[Message], raw: bytes | str) -> Message:
    """JSON as a message of `kind`. Raises WireError when it is not one."""
    try:
        parsed = json.loads(raw.decode() if isinstance(raw, bytes) else raw)
        if not isinstance(parsed, dict):
            raise TypeError("not an object")
        return _build(kind, parsed)
    except (ValueError, TypeError) as error:
        raise WireError(f"not a {kind.__name__}: {error} in {raw[:200]!r}") from error


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    required: bool
    # The dataclass of its value, or of each item of its value.
    nested: type | None
    item: type | None


_fields_of: dict[type, tuple[_Field, ...]] = {}


def _fields(kind: type) -> tuple[_Field, ...]:
    """Cached: a member of a large round decodes hundreds of messages at the moment when all others do."""
    if kind not in _fields_of:
        _fields_of[kind] = tuple(
            _Field(
                spec.name,
                spec.default is MISSING and spec.default_factory is MISSING,
                _NESTED.get((kind.__name__, spec.name)),
                _LISTS.get((kind.__name__, spec.name)),
            )
            for spec in fields(kind)
        )
    return _fields_of[kind]


def _build(kind: type[Message], parsed: dict[str, Any]) -> Message:
    values: dict[str, Any] = {}
    for spec in _fields(kind):
        if spec.name not in parsed:
            if spec.required:
                raise TypeError(f"{spec.name} is missing")
            continue
        value = parsed[spec.name]
        if spec.nested is not None and value is not None:
            value = _build(spec.nested, value)
        elif spec.item is not None:
            value = tuple(_build(spec.item, item) for item in value)
        elif isinstance(value, list):
            value = tuple(value)
        values[spec.name] = value
    return kind(**values)
