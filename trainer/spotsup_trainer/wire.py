"""The words between daemon and nodes: etcd keys, and the JSON under them. Standard library only.

Everything is readable JSON, never pickle: who can write a key must not be able to run code.
Unknown fields are ignored on reading, so that a newer writer does not break an older reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

DEFAULT_LEASE_TTL_S = 5.0

MemberState: TypeAlias = Literal["waiting", "running", "leaving", "done"]


class WireError(ValueError):
    """A value under a key is not what its word says."""


@dataclass(frozen=True, slots=True)
class Hint:
    """The daemon's word on who should be in the round. Rendezvous closes the moment all of them wait.

    `members`: node ids, in the order in which newcomers get ranks. `spares`: who waits outside the round, and takes the
    place of a member that is lost or leaves, without another word of the daemon; the first one first. `hold`: nobody is
    to train; all checkpoint together, stop, and form no round. `reason`: for people.
    """

    members: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    reason: str = ""
    spares: tuple[str, ...] = ()
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a node's workers stopped by themselves. `at`: UNIX seconds, by the node's clock."""

    round: int
    local_rank: int
    exit_code: int
    message: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """A launcher's own key, under its lease: the key vanishes with the launcher.

    waiting: wants to be in the next round. running: its workers run in `round`. leaving: will not be in the next
    round (its machine is about to go): everyone checkpoints, the others go on. done: its workers ended with success.
    `round` is the last round that it took up; `parked`: its workers in it have stopped with a complete checkpoint.
    `incarnation` is new for each start of the launcher. `store_port` is bound already: should this node become rank 0,
    the round's TCPStore listens there.
    """

    node: str
    incarnation: str
    addr: str
    store_port: int
    state: MemberState
    round: int = 0
    failure: Failure | None = None
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
    """A node vanished from a round, or its launcher started anew in it. `at`: UNIX seconds."""

    node: str
    at: float


@dataclass(frozen=True)
class Round:
    """One rendezvous: members in rank order. Written by one compare-and-swap, by whichever member sees it complete.

    `app_failures` counts the rounds that ended because the user's program failed while every member was there;
    it belongs to the job, not to a node. `formed_at`: UNIX seconds, by the clock of the member that wrote it. `lost`:
    from rounds of the last minutes, the newest last.
    """

    number: int
    members: tuple[RoundMember, ...]
    formed_at: float
    reason: str = ""
    app_failures: int = 0
    last_failure: Failure | None = None
    lost: tuple[Loss, ...] = ()

    def nodes(self) -> tuple[str, ...]:
        """Node ids in rank order."""
        return tuple(member.node for member in self.members)

    @cached_property
    def incarnations(self) -> Mapping[str, str]:
        """Node -> incarnation. Kept: each member asks for each other one at each change, n² times in a round."""
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
    """The provider's word that a node will be taken. Times are UNIX seconds."""

    node: str
    deadline: float
    seen_at: float
    source: str


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The daemon's word that a node is gone, so that nobody waits for a timeout."""

    node: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is; written by the agent of the node with rank 0. Times are UNIX seconds.

    `problem`: why checkpoints are not being written just now, in one sentence; empty while all is well. `fraction`,
    `text`: of a data job, how much of it is done (0 to 1), and what it says itself.
    """

    round: int
    step: int
    at: float
    first_step_at: float
    epoch: int = 0
    samples: int = 0
    loss: float | None = None
    checkpoint_step: int = 0
    problem: str = ""
    fraction: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a node's launcher ended. success: the program ended well. left: in order, others go on."""

    node: str
    outcome: Literal["success", "failure", "left"]
    exit_code: int
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Result:
    """The job's end, written once by the rendezvous: after it nobody forms a round."""

    outcome: Literal["success", "failure"]
    message: str
    round: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where a node reads its preemption notice: `kind` names the provider's format, `url` its service."""

    kind: Literal["local", "aws", "gcp", "azure", "none"]
    url: str = ""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What bootstrap writes on a node for the agent to read. Paths are absolute, on the node.

    `log_mirror`: a folder that outlives the node, for its whole log; "" for none.
    `container_init`: `python` is in a container, and the launcher ends when its stdin closes. `kind`: what `command`
    is, a training script with its arguments or, of a data job, one line for bash.
    """

    cluster: str
    job: str
    task_id: str
    node: str
    addr: str
    etcd_endpoints: tuple[str, ...]
    metadata: Metadata
    python: str
    code_dir: str
    run_dir: str
    log_dir: str
    checkpoint_dir: str
    command: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S
    leave_margin_s: float = 8.0
    log_mirror: str = ""
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
        """What the daemon mirrors: its records, and the words of all jobs."""
        return f"{self.root}world/"

    def run(self, job: str) -> str:
        """The words between the daemon and the nodes of one job."""
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

    def gone(self, job: str, node: str) -> str:
        """`Tombstone`, by the daemon."""
        return f"{self.run(job)}gone/{node}"

    def ended(self, job: str, node: str) -> str:
        """`Ended`, by the agent."""
        return f"{self.run(job)}ended/{node}"

    def logs(self, job: str, node: str = "") -> str:
        """Log chunks, raw bytes, by the agent: `<prefix><node>/<8 digits>`; the last few of each node are kept."""
        return f"{self.root}logs/{job}/{node}/" if node else f"{self.root}logs/{job}/"


Word = TypeVar("Word")

_NESTED: dict[tuple[str, str], type] = {
    ("Member", "failure"): Failure,
    ("Round", "last_failure"): Failure,
    ("AgentConfig", "metadata"): Metadata,
}
_LISTS: dict[tuple[str, str], type] = {("Round", "members"): RoundMember, ("Round", "lost"): Loss}


def encode(word: Any) -> bytes:
    """A word as JSON."""
    return json.dumps(asdict(word), separators=(",", ":"), sort_keys=True).encode()


def decode(kind: type[Word], raw: bytes | str) -> Word:
    """JSON as a word of `kind`. Raises WireError when it is not one."""
    try:
        parsed = json.loads(raw.decode() if isinstance(raw, bytes) else raw)
        if not isinstance(parsed, dict):
            raise TypeError("not an object")
        return _build(kind, parsed)
    except (ValueError, TypeError) as error:
        raise WireError(f"not a {kind.__name__}: {error} in {raw[:200]!r}") from error


@dataclass(frozen=True, slots=True)
class _Field:
    """`nested`: the word that it is, where it is one; `item`: the words that it is a list of."""

    name: str
    required: bool
    nested: type | None
    item: type | None


_KNOWN: dict[type, tuple[_Field, ...]] = {}


def _fields(kind: type) -> tuple[_Field, ...]:
    """Found out once: a member of a large round reads hundreds of words in a moment in which all do."""
    if kind not in _KNOWN:
        _KNOWN[kind] = _found_out(kind)
    return _KNOWN[kind]


def _found_out(kind: type) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            spec.name,
            spec.default is MISSING and spec.default_factory is MISSING,
            _NESTED.get((kind.__name__, spec.name)),
            _LISTS.get((kind.__name__, spec.name)),
        )
        for spec in fields(kind)
    )


def _build(kind: type[Word], parsed: dict[str, Any]) -> Word:
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
