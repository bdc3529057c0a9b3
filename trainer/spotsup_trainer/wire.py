"""The messages between daemon and nodes: etcd keys, and the JSON under them. Standard library only.

Values are readable JSON, never pickle: whoever can write a key must not be able to run code with it.
Unknown fields are ignored on reading, so that a newer writer does not break an older reader.
All times are UNIX seconds by the writer's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from spotsup_trainer.decoding import Built, FiniteOrNone, UnixTime, WholeText, build

DEFAULT_LEASE_TTL_S = 5.0
MAX_MESSAGE_BYTES = 1024 * 1024

# waiting: wants to be in the next round.
# running: its workers run in `Member.round`.
# leaving: will not be in the next round (its machine is about to go); all checkpoint, and the others go on.
# done: its workers ended with success.
# stopping: workers of `Member.round` have outlived SIGKILL; until they are gone it is in no round, and holds up none.
MemberState = Literal["waiting", "running", "leaving", "done", "stopping"]


class WireError(ValueError):
    """A value is not a message of the kind that its key holds."""


@dataclass(frozen=True)
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
    # All nodes checkpoint together, stop, and form no round: the job is paused, or too few nodes are left. `reason`
    # says which.
    hold: bool = False
    # How many rounds may end by the program's own failure; None: as on the launchers' command lines.
    app_failures: int | None = None
    # A round has a multiple of so many nodes; the others wait outside.
    multiple_of: int = 1


@dataclass(frozen=True)
class Failure:
    """Why a node's workers stopped by themselves."""

    round: int
    local_rank: int
    exit_code: int
    message: str
    at: UnixTime = 0.0
    # How long after the start of the workers it was; 0: unknown.
    after_s: float = 0.0
    # The workers had completed a step.
    stepped: bool = False


@dataclass(frozen=True)
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
    # Since when no rank of it has given a sign of life, once that is so long that it must hang; 0 before.
    stalled_since: UnixTime = 0.0
    # What people should know of its workers in that round, in one sentence; empty for nothing.
    problem: str = ""
    # Why its GPUs cannot train, as its agent found when its workers had stopped; empty while they can.
    unhealthy: str = ""
    # How many checkpoints it saw completed in that round; only the node with rank 0 sees any.
    checkpoints: int = 0


@dataclass(frozen=True)
class RoundMember:
    """A member as the round fixed it."""

    node: str
    incarnation: str
    addr: str
    store_port: int


@dataclass(frozen=True)
class Loss:
    """A node vanished from a round, or its launcher restarted in it."""

    node: str
    at: UnixTime


@dataclass(frozen=True)
class Round:
    """One rendezvous. Written by one compare-and-swap, by any member that sees it complete."""

    number: int
    # In rank order.
    members: tuple[RoundMember, ...]
    formed_at: UnixTime
    reason: str = ""
    # How many rounds of the job ended because the user's program failed while every member was there. Starts anew after
    # progress.
    app_failures: int = 0
    last_failure: Failure | None = None
    # From rounds of the last minutes, the newest last.
    recent_losses: tuple[Loss, ...] = ()
    # When rounds of the last day ended because their steps hung, the newest last.
    recent_hangs: tuple[UnixTime, ...] = ()
    # How many checkpoints were completed since the program last failed, as far as that matters.
    checkpoints: int = 0
    # How many rounds in a row ended by failures on nodes that call their GPUs unhealthy, and are not believed.
    doubtful_failures: int = 0

    def nodes(self) -> tuple[str, ...]:
        """Node ids in rank order."""
        return tuple(member.node for member in self.members)

    @cached_property
    def incarnations(self) -> Mapping[str, str]:
        """Node -> incarnation. Cached: each member looks up every other one at each change, n² times in a round."""
        return {member.node: member.incarnation for member in self.members}


@dataclass(frozen=True)
class AgentStatus:
    """The node agent's own key, under its lease."""

    node: str
    boot_id: str
    pid: int
    started_at: UnixTime
    version: str
    # What its launcher does before it waits at the rendezvous; "" once that is over.
    preparing: str = ""


@dataclass(frozen=True)
class Notice:
    """The provider's announcement that a node will be taken."""

    node: str
    deadline: UnixTime
    seen_at: UnixTime
    # Which metadata service announced it.
    source: str


@dataclass(frozen=True)
class Health:
    """Whether a node's GPUs can train. Published when that changes: without it, they can."""

    node: str
    healthy: bool
    at: UnixTime
    reason: str = ""
    # The error that the driver reported, 0 without one.
    xid: int = 0
    # A GPU is gone: no training is possible on this node, and none is under way.
    fatal: bool = False


@dataclass(frozen=True)
class Done:
    """A node's workers have ended well in a round, by its launcher. It outlives the node: the round goes on without."""

    node: str
    incarnation: str
    round: int
    at: UnixTime


@dataclass(frozen=True)
class Tombstone:
    """A node is gone, by the daemon: its peers need not wait for a timeout."""

    node: str
    reason: str
    at: UnixTime


@dataclass(frozen=True)
class CaBundle:
    """By which CAs nodes trust etcd from now on. While the CA is replaced, these are two."""

    # As PEM text.
    ca: WholeText


@dataclass(frozen=True)
class Progress:
    """How far the job is, by the agent of the node with rank 0."""

    round: int
    # The last completed step, over all rounds, and when it was completed.
    step: int
    at: UnixTime
    # When the first step of this round was completed.
    first_step_at: UnixTime
    epoch: int = 0
    samples: int = 0
    loss: FiniteOrNone = None
    # The step of the newest complete checkpoint.
    checkpoint_step: int = 0
    # Why checkpoints are not being written now, in one sentence; empty while they are.
    checkpoint_problem: str = ""
    # How much is done (0 to 1): of a data job as it says, of training by the epochs of its loader; None: not known. And
    # a data job's own description of it.
    fraction: float | None = None
    text: str = ""
    # How long its last checkpoints took, and its longest recent step, in seconds; 0: not known yet.
    checkpoint_p50_s: float = 0.0
    checkpoint_p95_s: float = 0.0
    step_s: float = 0.0
    # How often a checkpoint begins: the most training that a loss without a checkpoint costs; 0: not known.
    checkpoint_every_s: float = 0.0
    # The first step that this round completed: what earlier rounds made from it on is made again. 0: not known.
    first_step: int = 0
    # What the program has reported last by `Session.report`, by name; None: not a finite number.
    metrics: Mapping[str, FiniteOrNone] = field(default_factory=dict)
    # How busy the GPUs of this node were over the last seconds, their mean in percent; by its agent. None: not known.
    gpu_percent: FiniteOrNone = None


@dataclass(frozen=True)
class RankTimes:
    """How long each rank works in a step by itself, without waiting for others, by the agent of the node with rank 0.

    Medians over the steps of the last half minute or more, in seconds, in rank order; 0: not known.
    """

    round: int
    at: UnixTime
    step_s: tuple[float, ...]
    # For each of the rank's samples: parts of a batch may differ by one.
    sample_s: tuple[float, ...]


# The parts of a pause, in order. docs/glossary.md has their definitions.
PAUSE_PARTS = ("detect", "checkpoint", "agree", "start", "connect", "restore", "first_step")
# Where a restored state came from: the memory of each rank's own node, other ranks, storage.
PAUSE_SOURCES = ("own", "peers", "storage")


@dataclass(frozen=True)
class Pause:
    """For how long training stood still before a round, as one node measured it, in seconds; None: not known.

    The parts add up to `pause_s`, where that is known: the time of one that is not known is in the next one that is.
    """

    round: int
    # When the first step of that round was completed.
    at: UnixTime
    # From the last step before it; None where this node was in no round before.
    pause_s: FiniteOrNone = None
    detect_s: FiniteOrNone = None
    checkpoint_s: FiniteOrNone = None
    agree_s: FiniteOrNone = None
    start_s: FiniteOrNone = None
    connect_s: FiniteOrNone = None
    restore_s: FiniteOrNone = None
    first_step_s: FiniteOrNone = None
    # What all ranks together got for the restored state, by where from. What one rank read from storage for others is
    # in both `storage` and `peers`.
    own_bytes: int | None = None
    peers_bytes: int | None = None
    storage_bytes: int | None = None
    # How many steps of the rounds before are made again, for no checkpoint had them.
    steps_again: int | None = None

    def parts(self) -> dict[str, float | None]:
        """Return the parts by the names in PAUSE_PARTS, in order."""
        return {name: getattr(self, f"{name}_s") for name in PAUSE_PARTS}

    def sources(self) -> dict[str, int | None]:
        """Return the sources by the names in PAUSE_SOURCES, in order."""
        return {name: getattr(self, f"{name}_bytes") for name in PAUSE_SOURCES}


@dataclass(frozen=True)
class Pauses:
    """The last pauses of a job, the newest last, by the agent of the node with rank 0."""

    node: str
    pauses: tuple[Pause, ...]


@dataclass(frozen=True)
class Ended:
    """How a node's launcher ended."""

    node: str
    # success: the program ended well. left: in order, and others go on.
    outcome: Literal["success", "failure", "left"]
    exit_code: int
    message: str
    at: UnixTime


@dataclass(frozen=True)
class Result:
    """The job's end, written once by the rendezvous: no round is formed after it."""

    outcome: Literal["success", "failure"]
    message: str
    # The last round.
    round: int
    # What people should know of how it ended, in one sentence; empty for nothing.
    problem: str = ""


@dataclass(frozen=True)
class Metadata:
    """Where a node reads its preemption notice."""

    # The format: a key of spotsup_trainer.agent.notices.READERS, or "none".
    kind: WholeText
    # The metadata service.
    url: WholeText = ""


@dataclass(frozen=True)
class AgentConfig:
    """What bootstrap writes on a node for the agent to read. Paths are absolute, on the node."""

    cluster: WholeText
    job: WholeText
    task_id: WholeText
    node: WholeText
    # The node's address for its peers.
    addr: WholeText
    etcd_endpoints: tuple[WholeText, ...]
    metadata: Metadata
    # The interpreter of the training environment.
    python: WholeText
    code_dir: WholeText
    run_dir: WholeText
    log_dir: WholeText
    # A folder, or an address in an object store; "" for none.
    checkpoints: WholeText
    # A training script with its arguments; of a data job, one line for bash.
    command: tuple[WholeText, ...]
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    env: Mapping[WholeText, WholeText] = field(default_factory=dict, repr=False)
    # Places, as above, of earlier jobs: while this job has no checkpoint, it resumes from the first that has any.
    resume_from: tuple[WholeText, ...] = ()
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S
    # How long before the notice's deadline the launcher leaves, if the daemon has not asked it to before.
    leave_margin_s: float = 8.0
    # A folder that outlives the node, for its whole log; "" for none.
    log_mirror: WholeText = ""
    # `python` is in a container, and the launcher ends when its stdin closes.
    container_init: bool = False
    kind: Literal["training", "data"] = "training"
    # How many GPUs bootstrap found, and the agent watches.
    gpus: int = 0
    multiple_of: int = 1
    # A file with `EtcdAccess` (etcd/access.py); "" where etcd needs none.
    etcd_access: WholeText = ""
    # A folder for what the program writes besides checkpoints, the same on all nodes and kept; "" for none.
    output: WholeText = ""


def after(prefix: str) -> str:
    """Return the first key after all that begin with `prefix`, which ends with a slash."""
    return prefix[:-1] + chr(ord("/") + 1)


@dataclass(frozen=True)
class Grant:
    """A permission on the keys from `begin` to before `end`."""

    kind: Literal["READ", "READWRITE"]
    begin: str
    end: str


@dataclass(frozen=True)
class Keys:
    """All etcd keys of one cluster.

    A job's nodes read what lies below `run(job)`, and write there and below `logs(job)`, but never below `ctl(job)`:
    that is the daemon's. etcd enforces it where it has users (`grants`).
    """

    cluster: str

    @property
    def root(self) -> str:
        """Everything of this cluster."""
        return f"/spotsup/{self.cluster}/"

    @property
    def world(self) -> str:
        """Return what the daemon mirrors: its records, and the messages of all jobs."""
        return f"{self.root}world/"

    def run(self, job: str) -> str:
        """Return the messages between the daemon and the nodes of one job. One prefix: nodes watch them in one
        order."""
        return f"{self.world}run/{job}/"

    def ctl(self, job: str) -> str:
        """Return the daemon's own messages among them."""
        return f"{self.run(job)}ctl/"

    def hint(self, job: str) -> str:
        """`Hint`, by the daemon."""
        return f"{self.ctl(job)}hint"

    def ca(self, job: str) -> str:
        """`CaBundle`, by the daemon."""
        return f"{self.ctl(job)}ca"

    def round(self, job: str) -> str:
        """`Round`, by the rendezvous."""
        return f"{self.run(job)}round"

    def result(self, job: str) -> str:
        """`Result`, by the rendezvous."""
        return f"{self.run(job)}result"

    def progress(self, job: str) -> str:
        """`Progress`, by the agent with rank 0."""
        return f"{self.run(job)}progress"

    def pauses(self, job: str) -> str:
        """`Pauses`, by the agent with rank 0."""
        return f"{self.run(job)}pauses"

    def rank_times(self, job: str) -> str:
        """`RankTimes`, by the agent with rank 0."""
        return f"{self.run(job)}ranktimes"

    def member(self, job: str, node: str) -> str:
        """`Member`, by the launcher, under its lease."""
        return f"{self.run(job)}member/{node}"

    def done(self, job: str, node: str) -> str:
        """`Done`, by the launcher."""
        return f"{self.run(job)}done/{node}"

    def agent(self, job: str, node: str) -> str:
        """`AgentStatus`, by the agent, under its lease."""
        return f"{self.run(job)}agent/{node}"

    def notice(self, job: str, node: str) -> str:
        """`Notice`, by the agent."""
        return f"{self.run(job)}notice/{node}"

    def health(self, job: str, node: str) -> str:
        """`Health`, by the agent."""
        return f"{self.run(job)}health/{node}"

    def tombstone(self, job: str, node: str) -> str:
        """`Tombstone`, by the daemon."""
        return f"{self.ctl(job)}tombstone/{node}"

    def ended(self, job: str, node: str) -> str:
        """`Ended`, by the agent."""
        return f"{self.run(job)}ended/{node}"

    def logs(self, job: str, node: str = "") -> str:
        """Log chunks, raw bytes, by the agent: `<prefix><node>/<8 digits>`; the last few of each node are kept."""
        return f"{self.root}logs/{job}/{node}/" if node else f"{self.root}logs/{job}/"

    def grants(self, job: str) -> tuple[Grant, ...]:
        """Return all that the nodes of a job may do in etcd. It has no rule that denies: they may write what is before
        and behind `ctl(job)`."""
        run, ctl, logs = self.run(job), self.ctl(job), self.logs(job)
        return (
            Grant("READ", run, after(run)),
            Grant("READWRITE", run, ctl),
            Grant("READWRITE", after(ctl), after(run)),
            Grant("READWRITE", logs, after(logs)),
        )


def encode(message: Any) -> bytes:
    """Return a message as JSON."""
    return json.dumps(asdict(message), separators=(",", ":"), sort_keys=True).encode()


def decode(kind: type[Built], raw: bytes | str) -> Built:
    """JSON as a message of `kind`, each field of its declared type and bounded. Raises WireError when it is not one.

    Texts are cut, and what cannot be printed is replaced; numbers are finite (a `loss` that is not becomes None).
    """
    try:
        if len(raw) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(raw)} bytes; at most {MAX_MESSAGE_BYTES} are read")
        return build(kind, json.loads(raw.decode() if isinstance(raw, bytes) else raw))
    except RecursionError:
        problem = "nested too deeply"
    except (ValueError, TypeError) as error:
        problem = str(error)
    raise WireError(f"not a {kind.__name__}: {problem} in {raw[:200]!r}")
