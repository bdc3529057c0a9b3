"""The day as plain data: four users, their twenty jobs, what they ask for later, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.budget import Budgets
from supervisor.market.admission import Cap, QueueRules

HOUR_S = 3600.0
USERS: Mapping[str, str] = {
    "ann": "speech, large runs on V100",
    "bob": "language models on A100",
    "carla": "a sweep, and what follows from it",
    "dan": "evaluation and demos on L4",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a user."""

    name: str
    owner: str
    hour: float  # of the day, when it is submitted
    cloud: str
    gpu: str
    nodes: tuple[int, int, int]  # min, desired, max
    work_node_h: float  # useful node-hours after which its program ends
    priority: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)  # of its file
    start_after_h: float | None = None  # hours after its submission
    why: str = ""  # for the report


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep of a user: as many jobs as it has values."""

    name: str
    owner: str
    hour: float
    cloud: str
    gpu: str
    values: tuple[str, ...]  # of --lr
    parallel: int
    work_node_h: float


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a user asks for, or that goes wrong."""

    hour: float
    kind: str
    job: str = ""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Story:
    """All of it."""

    hours: float
    jobs: tuple[Job, ...]
    sweep: Sweep | None
    steps: tuple[Step, ...]
    queue: QueueRules
    budgets: Budgets

    @property
    def count(self) -> int:
        """All jobs, those of the sweep too."""
        return len(self.jobs) + (len(self.sweep.values) if self.sweep else 0)


NODES = 64
STORE = {"checkpoints": "s3://lab/checkpoints"}

WHOLE = Story(
    hours=24.0,
    jobs=(
        Job("speech-large", "ann", 0.1, "aws", "V100", (6, 12, 16), 215.0, why="the run that the paper waits for"),
        Job("llm-pretrain", "bob", 0.2, "gcp", "A100", (6, 12, 16), 205.0, why="the longest run of the day"),
        Job(
            "eval-nightly",
            "dan",
            0.3,
            "gcp",
            "L4",
            (1, 2, 2),
            3.0,
            start_after_h=1.7,
            why="starts at 02:00, not before",
        ),
        Job("speech-small", "ann", 0.8, "azure", "V100", (2, 4, 6), 40.0),
        Job(
            "llm-tune",
            "bob",
            1.5,
            "azure",
            "A100",
            (2, 4, 8),
            30.0,
            more={"limits": {"usd": 22}},
            why="stops at $22, until bob raises the limit",
        ),
        Job("segmentation", "carla", 2.0, "aws", "V100", (2, 6, 8), 62.0, why="paused over lunch by its user"),
        Job("typo", "dan", 2.5, "aws", "L4", (1, 1, 1), 9.0, why="cancelled by its user"),
        Job("buggy", "dan", 3.0, "aws", "L4", (1, 2, 2), 9.0, why="its program fails at each start"),
        Job("ranker", "carla", 4.0, "gcp", "L4", (2, 4, 8), 42.0, why="grows from 4 to 8 nodes"),
        Job(
            "thesis",
            "ann",
            6.0,
            "azure",
            "V100",
            (2, 4, 6),
            14.0,
            more={"market": "spot-then-on-demand", "finish_by": "9h", "work": "4h"},
            why="has to finish within 9 h",
        ),
        Job(
            "reviewer-2",
            "bob",
            9.0,
            "gcp",
            "A100",
            (16, 16, 16),
            40.0,
            priority=50,
            why="urgent: others make room for it",
        ),
        Job(
            "backfill",
            "dan",
            8.0,
            "gcp",
            "L4",
            (4, 8, 8),
            30.0,
            priority=-10,
            why="makes room for what is urgent, and stops at dan's budget",
        ),
        Job("llm-ablation", "bob", 12.0, "azure", "A100", (2, 6, 8), 26.0),
        Job("distill", "carla", 15.0, "aws", "V100", (2, 6, 8), 24.0, why="what the sweep was for"),
    ),
    sweep=Sweep("lr", "carla", 5.0, "aws", "L4", ("0.3", "0.1", "0.03", "0.01", "0.003", "0.001"), 3, 2.0),
    steps=(
        Step(3.2, "daemon killed"),
        Step(3.3, "daemon started"),
        Step(3.6, "program fails", "buggy"),
        Step(4.6, "scale", "ranker", 8),
        Step(5.5, "cancel", "typo"),
        Step(7.5, "etcd away", value=240.0),
        Step(9.2, "silence", value=90.0),
        Step(11.0, "zone lost", value=("", 2400.0)),
        Step(12.0, "pause", "segmentation"),
        Step(13.0, "resume", "segmentation"),
        Step(14.2, "daemon frozen", value=60.0),
        Step(16.0, "limit", "llm-tune", 60.0),
        Step(18.0, "scale", "speech-large", 16),
        Step(19.0, "drain", "llm-pretrain"),
        Step(20.5, "cloud unreachable", value=300.0),
    ),
    queue=QueueRules(Cap(nodes=NODES), Cap(nodes=26), users={"bob": Cap(nodes=30)}, preempt=True),
    budgets=Budgets(users={"dan": 7.0}),
)

# The same in little, for a test: a few jobs, a daemon killed, a lost zone.
SHORT = Story(
    hours=2.5,
    jobs=(
        Job("speech", "ann", 0.05, "aws", "V100", (2, 4, 6), 5.0),
        Job("llm", "bob", 0.1, "gcp", "A100", (2, 4, 4), 4.0, more={"limits": {"usd": 4}}, why="stops at its limit"),
        Job("eval", "dan", 0.15, "gcp", "L4", (1, 1, 1), 0.3, start_after_h=0.5),
        Job("urgent", "bob", 1.0, "azure", "A100", (2, 2, 2), 1.0, priority=50),
        Job("typo", "dan", 0.3, "aws", "L4", (1, 1, 1), 9.0),
    ),
    sweep=Sweep("lr", "carla", 0.3, "aws", "L4", ("0.3", "0.1", "0.01"), 2, 0.4),
    steps=(
        Step(0.5, "daemon killed"),
        Step(0.6, "cancel", "typo"),
        Step(0.7, "daemon started"),
        Step(0.9, "scale", "speech", 6),
        Step(1.1, "etcd away", value=120.0),
        Step(1.4, "zone lost", value=("", 1200.0)),
        Step(1.5, "pause", "speech"),
        Step(1.7, "resume", "speech"),
        Step(2.0, "daemon frozen", value=40.0),
    ),
    queue=QueueRules(Cap(nodes=10), Cap(nodes=6), preempt=True),
    budgets=Budgets(users={"dan": 12.0}),
)
