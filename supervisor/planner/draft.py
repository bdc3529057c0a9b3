"""The sheet that one job's decision is written on: it starts as what is known and ends as a Commit.

It lives within one call of plan(): inputs stay frozen, and what was not touched is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spotsup_trainer.wire import Keys

from provisioners.base import Instance
from supervisor.model import (
    ALERT_KINDS,
    COUNTED_NODE_STATES,
    Event,
    EventKind,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    move_job,
    move_node,
)
from supervisor.planner.actions import MAX_OPERATIONS, Action, Commit, NodeOutcome, Read
from supervisor.planner.world import CloudView, JobView, Rules, World

# A step adds at most four operations, and what comes once per plan (the hint, a round, an end) must fit after the last.
FULL = MAX_OPERATIONS - 24


class Draft:
    """One job's records, changed step by step."""

    def __init__(
        self,
        world: World,
        view: JobView,
        outcomes: Mapping[str, Sequence[NodeOutcome]],
        keys: Keys,
        now: float,
    ) -> None:
        self.view = view
        self.now = now
        self.volatile = world.volatile
        self.outcomes = outcomes
        self.job: JobRecord = view.record
        self.nodes: dict[str, NodeRecord] = dict(view.nodes)
        self.keys = keys
        self.reads: list[Read] = []
        self._world = world
        self._events: list[Event] = []
        self._actions: dict[str, Action] = {}
        self._words: dict[str, bytes] = {}
        self._delete_keys: list[str] = []
        self._delete_nodes: list[str] = []
        self._touched: set[str] = set()
        self._told = 0

    @property
    def full(self) -> bool:
        """Whether the rest has to wait for the next plan, which follows as soon as this one is in the journal."""
        return self._operations() >= FULL

    def _operations(self) -> int:
        words = len(self._words) + len(self._delete_keys)
        return 1 + len(self._touched) + len(self._delete_nodes) + words + self._told

    def _alerts(self, event: Event) -> bool:
        return self.rules.alerts and event.kind in ALERT_KINDS

    @property
    def rules(self) -> Rules:
        """The planner's numbers."""
        return self._world.rules

    @property
    def timers_paused_until(self) -> float:
        """Until when nothing counts as waited for (World.timers_paused_until)."""
        return self._world.timers_paused_until

    def elapsed_s(self, since: float) -> float:
        """For how long something has been waited for that can have come meanwhile, by a clock that has not jumped."""
        return self.now - max(since, self._world.timers_paused_until)

    @property
    def cloud(self) -> CloudView:
        """The last listing of the job's cloud."""
        return self.volatile.clouds.get(self.job.spec.placement.cloud, CloudView())

    def busy(self, key: str) -> bool:
        """Whether an action with this key is under way, or was decided just now."""
        return key in self._world.busy or key in self._actions

    def instance(self, node: NodeRecord) -> Instance | None:
        """The node's machine as last listed."""
        return self.cloud.of_node(node)

    def in_states(self, *states: NodeState) -> list[NodeRecord]:
        """Nodes in these states, oldest first."""
        found = [node for node in self.nodes.values() if node.state in states]
        return sorted(found, key=lambda node: (node.created_at, node.id))

    def counted(self) -> list[NodeRecord]:
        """Nodes that the job has or will have: not doomed, not leaving."""
        return [node for node in self.nodes.values() if node.state in COUNTED_NODE_STATES and not node.doomed]

    def complete(self) -> bool:
        """Whether all desired nodes are there, healthy: what is more than that is spare."""
        there = [node for node in self.in_states(NodeState.READY, NodeState.MEMBER) if not node.doomed]
        return len(there) >= self.job.desired_nodes

    def set_node(self, node: NodeRecord, **changes: Any) -> NodeRecord:
        """Change fields of a node."""
        changed = replace(node, **changes)
        self.add(changed)
        return changed

    def move(self, node: NodeRecord, after: NodeState, reason: str, **changes: Any) -> NodeRecord:
        """Move a node along its table."""
        return self.set_node(move_node(node, after, self.now, reason), **changes)

    def add(self, node: NodeRecord) -> None:
        """A new node: its record is its intent."""
        self.nodes[node.id] = node
        self._touched.add(node.id)

    def forget(self, node: NodeRecord) -> None:
        """Drop the record of a node that is long gone, and its output; what it cost stays with the job."""
        assert node.state is NodeState.GONE
        del self.nodes[node.id]
        self._touched.discard(node.id)
        self._delete_nodes.append(node.id)
        self.delete_key(self.keys.logs(self.job.name, node.id))
        self.set_job(dropped_nodes_usd=self.job.dropped_nodes_usd + node.usd(self.now))

    def set_job(self, **changes: Any) -> None:
        """Change fields of the job."""
        if any(getattr(self.job, name) != value for name, value in changes.items()):
            self.job = replace(self.job, **changes)

    def move_job(self, after: JobState, reason: str) -> None:
        """Move the job along its table, if it is not there already."""
        if self.job.state is not after:
            self.job = move_job(self.job, after, self.now, reason)

    def request_action(self, action: Action) -> None:
        """Decide an action; it starts once this draft is in the journal."""
        self._actions[action.key] = action

    def request_read(self, read: Read) -> None:
        """Decide to read something: that needs no intent in the journal."""
        if not self.busy(read.key):
            self.reads.append(read)

    def put_key(self, key: str, word: bytes) -> None:
        """Write a word for the nodes."""
        self._words[key] = word

    def delete_key(self, key: str) -> None:
        """Delete a word, or all that begin with it where it ends in a slash."""
        self._delete_keys.append(key)

    def add_event(self, kind: EventKind, text: str, node: str = "", **data: float | str) -> None:
        """Add an event to the job's story."""
        number = self.job.next_event
        self.set_job(next_event=number + 1)
        event_id = f"{self.job.task_id}-{number:06d}"
        event = Event(event_id, self.now, self.job.name, kind, text, node, data)
        self._events.append(event)
        self._told += 2 if self._alerts(event) else 1

    def commit(self) -> Commit:
        """What was decided, with the guards that make it all or nothing."""
        dropped = self._drop_old_events()
        touched = [*sorted(self._touched), *self._delete_nodes]
        return Commit(
            job=self.job.name,
            guards={self.job.name: self.view.revision} | {node: self.view.revisions.get(node, 0) for node in touched},
            job_record=self.job if self.job != self.view.record else None,
            nodes=[self.nodes[node] for node in sorted(self._touched)],
            delete_nodes=self._delete_nodes,
            put_keys=self._words,
            delete_keys=self._delete_keys,
            events=self._events,
            alerts=[event for event in self._events if self._alerts(event)],
            delete_events=dropped,
            actions=list(self._actions.values()),
        )

    def _drop_old_events(self) -> list[str]:
        """Ids of the events that are beyond what is kept: also those that commands have added meanwhile."""
        first = self.job.first_event
        oldest = min(self.job.next_event - self.rules.events_kept, self.view.record.next_event)
        end = min(oldest, first + MAX_OPERATIONS - self._operations())
        if end <= first:
            return []
        self.set_job(first_event=end)
        return [f"{self.job.task_id}-{number:06d}" for number in range(first, end)]
