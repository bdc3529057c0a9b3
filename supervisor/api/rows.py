"""The fields of the API's answers, as its OpenAPI document has them. Times in UNIX seconds, money in US dollars."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from supervisor.access import Role
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState


class CountRow(TypedDict):
    """A job's nodes, in numbers."""

    min: int
    desired: int
    max: int
    spares: int
    training: int
    spares_ready: int
    active: int


class DeadlineRow(TypedDict):
    """By when a job has to have finished. None: not known yet."""

    finish_by: float
    work: str
    left_s: float | None
    slack_s: float | None
    missed: bool
    text: str


class LimitRow(TypedDict):
    """One of a job's limits; None for none."""

    limit: float | None
    used: float


class JobRow(TypedDict):
    """A job without its nodes."""

    name: str
    kind: str
    owner: str
    priority: int
    state: JobState
    reason: str
    sentence: str
    task_id: str
    nodes: CountRow
    round: int
    step: int
    loss: float | None
    metrics: dict[str, float | None]
    checkpoint_step: int
    checkpoint_problem: str
    progress_fraction: float | None
    done_fraction: float | None
    progress_text: str
    progress_round: int
    progress_at: float | None
    submitted_at: float
    starts_at: float | None
    deadline: DeadlineRow | None
    ended_at: float | None
    trained_s: float
    usd: float
    limits: dict[str, LimitRow]


class DeletedRow(TypedDict):
    """A job that was deleted. `checkpoints`: the folder or URL where they stay, "" for none that outlive its machines.
    `usd`: what it has cost; `month_usd`: what still counts this month, of it and of earlier runs of its name."""

    name: str
    task_id: str
    checkpoints: str
    usd: float
    month_usd: float


class NodeRow(TypedDict):
    """A node."""

    id: str
    job: str
    state: NodeState
    since: float
    spare: bool
    rank: int | None
    cloud: str
    zone: str
    instance_type: str
    market: str
    instance_id: str | None
    address: str | None
    replaces: str | None
    notice_deadline: float | None
    slow_factor: float | None
    usd: float
    error: str | None
    reason: str


class PauseRow(TypedDict):
    """A pause of training. None: not known."""

    round: int
    ended_at: float
    pause_s: float | None
    parts: dict[str, float | None]
    restored_from: dict[str, int | None]
    steps_again: int | None
    text: str


class AlternativeRow(TypedDict):
    """What a job may run on, and how many of its nodes are of it."""

    name: str
    nodes: int


class RankRow(TypedDict):
    """How long a rank works in a step by itself, and how much of that all others wait for it. Seconds, medians."""

    rank: int
    node: str
    step_s: float
    waited_s: float


class JobDetail(JobRow):
    """A job with its nodes."""

    node_list: list[NodeRow]
    ranks: list[RankRow]
    pauses: list[PauseRow]
    command: list[str]
    resume_from: list[str]
    market: str
    cloud: str
    prefer: str
    alternatives: list[AlternativeRow]


class MonthRow(TypedDict):
    """US dollars by purpose, in a month."""

    month: str
    purposes: dict[str, float]


class NodeCostRow(TypedDict):
    """What a node has cost."""

    id: str
    state: NodeState
    market: str
    instance_type: str
    hours: float
    usd_per_hour: float | None
    usd: float
    purposes: dict[str, float]


class CostRow(TypedDict):
    """What a job has cost."""

    name: str
    state: JobState
    usd: float
    purposes: dict[str, float]
    months: list[MonthRow]
    usd_per_hour: float
    nodes_billed: int
    nodes_unpriced: int
    limit_usd: float | None
    limit_usd_per_hour: float | None
    dropped_nodes_usd: float
    owner: str
    node_list: list[NodeCostRow]


class EventRow(TypedDict):
    """What happened."""

    id: str
    at: float
    job: str
    kind: EventKind
    node: str | None
    text: str
    data: dict[str, Any]


class PauseOfDaemons(TypedDict):
    """Since when, and why."""

    at: float
    reason: str


class HealthRow(TypedDict):
    """A daemon. `leader`: another one that leads."""

    version: str
    at: float
    headline: str
    leading: bool
    leader: str | None
    paused: PauseOfDaemons | None
    counters: dict[str, int]
    etcd_away_since: float | None


class CallerRow(TypedDict):
    """Who asks. `token`: its id; None on the Unix socket."""

    name: str
    role: Role
    token: str | None


class ChunkRow(TypedDict):
    """What a node has printed."""

    node: str
    chunk: str
    text: str


class OutputRow(TypedDict):
    """Chunks after a position. `more`: there are more after this one's."""

    chunks: list[ChunkRow]
    position: int
    more: bool


class BeginRow(TypedDict):
    """The chunk, and the character in it, where a node's output since a time begins."""

    node: str
    chunk: str
    at: int


class BeginsRow(TypedDict):
    """By node."""

    begins: list[BeginRow]


class CaRow(TypedDict):
    """As PEM text."""

    ca: str


class AuditRow(TypedDict):
    """What a caller of the API did, and the status of the answer."""

    at: float
    request: str
    user: str
    token: str
    address: str
    action: str
    target: str
    status: int
    count: int


class TargetRow(TypedDict):
    """Of Prometheus' HTTP service discovery."""

    targets: list[str]
    labels: dict[str, str]


class AdoptedRow(TypedDict):
    """A job whose machines have records again."""

    job: str
    state: JobState
    text: str
    nodes: dict[str, NodeState]


class LoginRow(TypedDict):
    """How to log in to a node."""

    host: str
    port: int
    user: str
    known_hosts: str
    certificate: str
    expires_at: float
    agent_config: str


class Dated(TypedDict):
    """Since when what is shown may be out of date, as etcd does not answer; None while it does."""

    etcd_away_since: float | None


class DatedJob(JobRow, Dated):
    """The same."""


class DatedDetail(JobDetail, Dated):
    """The same."""


class DatedNode(NodeRow, Dated):
    """The same."""


class DatedCost(CostRow, Dated):
    """The same."""


class OnDemandRow(TypedDict):
    """What the same machine hours would have cost on demand; None where that is not known."""

    usd: float | None
    saved: float | None
    estimated: bool
    problem: str


class DatedCostOfJob(DatedCost):
    """`on_demand`: None where it was not asked for."""

    on_demand: OnDemandRow | None


class OfferRow(TypedDict):
    """What a cloud offers. `usd_per_hour`: None where no price is known. `above_limit`: the job does not pay that."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    gpu: str | None
    gpus: int
    market: str
    usd_per_hour: float | None
    price_source: str | None
    above_limit: bool


class QuoteRow(TypedDict):
    """What a job's cloud would be asked for, in order."""

    offers_known: bool
    nodes: int
    usd_per_hour: float | None
    offers: list[OfferRow]
    offers_total: int
    warnings: list[str]


class PlanRow(QuoteRow):
    """`rented`: its machines cost money."""

    rented: bool


class CheckedRow(TypedDict):
    """A job that may be submitted. `plan`: None where this daemon asks no cloud for offers."""

    name: str
    warnings: list[str]
    plan: PlanRow | None


class MemberRow(TypedDict):
    """A job of a sweep. `value`: of the sweep's metric, if that is not the loss."""

    name: str
    state: str
    parameters: dict[str, Any]
    step: int
    loss: float | None
    usd: float
    trained_s: float
    value: float | None


class SweepRow(TypedDict):
    """A sweep with its jobs."""

    name: str
    owner: str
    submitted_at: float
    state: str
    parallel: int
    metric: str
    mode: str
    problem: str | None
    usd: float
    best: str | None
    members: list[MemberRow]


class SpecRow(TypedDict):
    """A job's file without defaults and secrets, the hash of its code, and the job."""

    spec: dict[str, Any]
    code_sha256: str
    row: JobRow
