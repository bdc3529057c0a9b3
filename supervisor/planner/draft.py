"""One job's decision in progress: it starts as what is known, and ends as a Commit.

It lives within one call of plan(). Inputs stay frozen, and a record that was not changed is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from pydantic_core import to_json
from spotsup_trainer.decoding import printable
from spotsup_trainer.wire import Keys

from provisioners.base import Instance
from supervisor.alerts.routes import is_wanted
from supervisor.billing import merged
from supervisor.budget import BudgetUse
from supervisor.events import ALERT_KINDS, EventKind
from supervisor.features.billing.bookings import bookings_of_node
from supervisor.features.unhealthy.reports import too_many_unhealthy
from supervisor.market.admission import Admission
from supervisor.market.capacity import CapacityMemory
from supervisor.model import (
    MAX_TEXT_CHARACTERS,
    Event,
    JobPart,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    move_job,
    move_node,
    with_part,
)
from supervisor.planner.actions import MAX_COMMIT_BYTES, MAX_OPERATIONS, Action, Commit, NodeOutcome, Read
from supervisor.planner.throttling import limits
from supervisor.planner.world import CloudView, Hold, JobView, Rules, World

# A step adds at most four operations, and what comes once per plan (the hint, a round, an end) must fit after the last.
FULL = MAX_OPERATIONS - 24
FULL_BYTES = MAX_COMMIT_BYTES // 2


# Events that are the end of a console or a log, which the actor has cut.
TAILS = frozenset({EventKind.CONSOLE_TAIL, EventKind.LOG_TAIL})
MAX_TAIL_CHARACTERS = 6000


@dataclass
class HandOvers:
    """What jobs have decided about warm machines in this plan: those after them see it."""

    taken: set[str] = field(default_factory=set)  # ids of nodes that wait no longer
    kept: list[NodeRecord] = field(default_factory=list)  # nodes that wait from now on


class Draft:
    """One job's records, changed step by step.

    `view` is the job as it was read and stays so; `job` and `nodes` are as decided so far.
    """

    def __init__(
        self,
        world: World,
        view: JobView,
        outcomes: Mapping[str, Sequence[NodeOutcome]],
        keys: Keys,
        now: float,
        hand_overs: HandOvers | None = None,
    ) -> None:
        self.view = view
        self.now = now
        self.volatile = world.volatile  # handed on from job to job within one plan
        self.outcomes = outcomes  # by node id
        self.job: JobRecord = view.record
        self.nodes: dict[str, NodeRecord] = dict(view.nodes)
        self._billed = {node.id: node for node in view.billed}
        self.keys = keys
        self.hand_overs = hand_overs or HandOvers()
        self.reads: list[Read] = []
        self._world = world
        self._events: list[Event] = []
        self._actions: dict[str, Action] = {}
        self._put_keys: dict[str, bytes] = {}
        self._delete_keys: list[str] = []
        self._delete_nodes: list[str] = []
        self._changed_nodes: set[str] = set()
        self._ended_of_others: list[tuple[NodeRecord, int]] = []
        self._event_operations = 0
        self._event_bytes = 0
        self._node_bytes: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """True if the rest has to wait for the next plan, which follows as soon as this one is in the journal."""
        written = self._event_bytes + sum(self._node_bytes.values())
        return self._operations() >= FULL or written >= FULL_BYTES

    @property
    def changes(self) -> bool:
        """True if the job or one of its nodes is written already."""
        return bool(self._changed_nodes) or self.job is not self.view.record

    def _operations(self) -> int:
        keys = len(self._put_keys) + len(self._delete_keys)
        nodes = len(self._changed_nodes) + len(self._delete_nodes) + len(self._ended_of_others)
        return 1 + nodes + keys + self._event_operations

    def _alerts(self, event: Event) -> bool:
        return event.kind in ALERT_KINDS and is_wanted(self.rules.channels_used, event)

    @property
    def rules(self) -> Rules:
        """Return the planner's numbers."""
        return self._world.rules

    @cached_property
    def unhealthy_at_once(self) -> int:
        """More nodes than is credible (`too_many_unhealthy`); 0 while reports of unhealthy GPUs are believed."""
        return too_many_unhealthy(self._world, self.job.owner, self.now)

    @property
    def timers_paused_until(self) -> float:
        """No timeout counts time before this (World.timers_paused_until)."""
        return self._world.timers_paused_until

    def elapsed_s(self, since: float) -> float:
        """Return for how long something has been waited for, without the time in which timers were paused."""
        return self.now - max(since, self._world.timers_paused_until)

    @property
    def needs_prices(self) -> bool:
        """True if the job has a limit of money, or there are budgets: no machine without a price is asked for (P13)."""
        return self.job.spec.limits.of_money or self.rules.budgets.any

    @property
    def budget_uses(self) -> Mapping[str, BudgetUse] | None:
        """Return what is spent of each budget, by scope; None: that could not be found out."""
        return self._world.budget_uses

    @property
    def hold(self) -> Hold:
        """Return the silent nodes that are not given up, because they are too many."""
        return self._world.hold

    @property
    def admission(self) -> Admission | None:
        """Return what the operator's limits leave for this job; None where there are none."""
        return self._world.admissions.get(self.job.name)

    @property
    def admissions(self) -> Mapping[str, Admission]:
        """Return the same of all jobs."""
        return self._world.admissions

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """Return all jobs, as they were read."""
        return self._world.jobs

    @property
    def lacks_records(self) -> bool:
        """True if nodes work that the journal does not know: what it has as waiting may be theirs."""
        return self._world.doubted or bool(self._world.lost_nodes)

    @property
    def cloud(self) -> CloudView:
        """Return the last listing of the job's cloud."""
        return self.volatile.cloud(self.job.spec.placement.cloud)

    @property
    def doubts_listing(self) -> bool:
        """True if the listing lacks machines of the job whose nodes are heard, or were when it first did: it may be of
        another account, project or set of regions, so that absence proves nothing, and a launch goes elsewhere (9c)."""
        return not self.cloud.doubted.isdisjoint(node.id for node in self.billed)

    @property
    def doubted(self) -> bool:
        """True while the journal may be older than what it says of this job: its machines may be at work for another
        one (continuity.py)."""
        cluster = self._world.cluster
        return cluster is not None and self._world.doubted and self.job.submitted_at <= cluster.doubted_at

    @property
    def why_no_launch(self) -> str:
        """Return why no machine is asked for now, whatever the job lacks: what it has is not known. "" if it may."""
        cloud = self.job.spec.placement.cloud
        if self.cloud.foreign:
            return f"{cloud} answers for another account than that of its machines: nothing is launched there"
        if self.doubts_listing:
            return f"{cloud} does not list machines that work: nothing is launched there"
        if self.doubted:
            return "etcd's journal is not believed, so nothing is launched: `spotsupd adopt`"
        return "" if self.cloud.listed_at else f"waits for a listing of {cloud}"

    def new_node_id(self) -> str:
        """Return an id, and so a token, that no node of the job has had: neither by its record nor, where etcd was
        restored and the record is older than they, by what clouds list and nodes publish (P2)."""
        number, task_id = self.job.next_node, self.job.task_id
        known = (*(cloud.tags for cloud in self.volatile.clouds.values()), self._world.unjournaled)
        while any(f"{task_id}-{number}" in ids for ids in known):
            number += 1
        self.set_job(replace(self.job, next_node=number + 1))
        return f"{task_id}-{number}"

    @property
    def capacity(self) -> CapacityMemory:
        """Return the capacity memory, as of this step of the plan."""
        return self.volatile.capacity

    @capacity.setter
    def capacity(self, memory: CapacityMemory) -> None:
        self.volatile = replace(self.volatile, capacity=memory)

    def forget_offers(self) -> None:
        """Forget the offers. The job is elsewhere: what was offered to it was of another place."""
        others = {name: known for name, known in self.volatile.offers.items() if name != self.job.name}
        self.volatile = replace(self.volatile, offers=MappingProxyType(others))

    def in_turn(self, node: NodeRecord) -> bool:
        """True unless its cloud refuses requests as too many, and others ask first."""
        known = self.volatile.request_limits.get(node.offer.cloud)
        return not limits(known, self.now) or node.id in self._world.turns

    def busy(self, key: str) -> bool:
        """True if an action with this key is under way, or was decided just now."""
        return key in self._world.busy or key in self._actions

    def others_fail_to_bootstrap(self) -> bool:
        """True if another job that has trained cannot bootstrap its nodes now."""
        others = (view.record for name, view in self._world.jobs.items() if name != self.job.name)
        return any(
            each.bootstraps.failures and each.rounds.reported and not (each.ended or each.pause.at) for each in others
        )

    def instance(self, node: NodeRecord) -> Instance | None:
        """Return the node's machine as last listed."""
        return self.cloud.of_node(node)

    @property
    def billed(self) -> ValuesView[NodeRecord]:
        """Return nodes whose machines may still bill: all but those that are gone."""
        return self._billed.values()

    def open_nodes(self) -> list[NodeRecord]:
        """Return all nodes but those that are gone, about which there is nothing to decide unless an outcome came
        late."""
        return [node for node in self.nodes.values() if node.state is not NodeState.GONE or node.id in self.outcomes]

    def in_states(self, *states: NodeState) -> list[NodeRecord]:
        """Return nodes in these states, oldest first."""
        nodes = self.nodes.values() if NodeState.GONE in states else self.billed
        found = [node for node in nodes if node.state in states]
        return found if len(found) < 2 else sorted(found, key=lambda node: (node.created_at, node.id))

    def set_node(self, node: NodeRecord) -> NodeRecord:
        """Change a node, as it is returned."""
        error = printable(node.error, MAX_TEXT_CHARACTERS)
        changed = node if error == node.error else replace(node, error=error)
        self.add(changed)
        return changed

    def move(self, node: NodeRecord, after: NodeState, reason: str) -> NodeRecord:
        """Move a node along its table, and return it."""
        return self.set_node(move_node(node, after, self.now, reason))

    def is_written(self, node: NodeRecord) -> bool:
        """True if the commit has its record already: a further change of it is no further operation."""
        return node.id in self._changed_nodes

    def add(self, node: NodeRecord) -> None:
        """Add or replace a node; a new node's record is its intent."""
        self.nodes[node.id] = node
        if node.state is NodeState.GONE:
            self._billed.pop(node.id, None)
        else:
            self._billed[node.id] = node
        self._changed_nodes.add(node.id)
        self._node_bytes[node.id] = len(to_json(node))

    def end_record_of_other(self, ended: NodeRecord, revision: int) -> None:
        """Write the last record of another job's node, whose machine this job takes over. `revision`: of its record."""
        self._ended_of_others.append((ended, revision))
        self._node_bytes[ended.id] = len(to_json(ended))

    def delete_node(self, node: NodeRecord) -> None:
        """Delete the record of a node that is gone, and its output; what it cost stays with the job."""
        assert node.state is NodeState.GONE
        del self.nodes[node.id]
        self._changed_nodes.discard(node.id)
        self._delete_nodes.append(node.id)
        self.delete_key(self.keys.logs(self.job.name, node.id))
        before = self.job.billing
        dropped = merged((*before.dropped, *bookings_of_node(self.job, node, self.now)))
        self.set_part(replace(before, dropped_usd=before.dropped_usd + node.usd(self.now), dropped=dropped))

    def set_job(self, job: JobRecord) -> None:
        """Change the job's own fields."""
        if job != self.job:
            self.job = job

    def set_part(self, part: JobPart) -> None:
        """Change what a feature keeps of the job."""
        self.job = with_part(self.job, part)

    def move_job(self, after: JobState, reason: str) -> None:
        """Move the job along its table, if it is not there already."""
        if self.job.state is not after:
            self.job = move_job(self.job, after, self.now, reason)

    def request_action(self, action: Action) -> None:
        """Decide an action; it starts once this draft is in the journal."""
        self._actions[action.key] = action

    def request_read(self, read: Read) -> None:
        """Decide to read something: that needs no intent in the journal."""
        if not self.busy(read.key) and read not in self.reads:
            self.reads.append(read)

    def put_key(self, key: str, message: bytes) -> None:
        """Write a message for the nodes."""
        self._put_keys[key] = message

    def delete_key(self, key: str) -> None:
        """Delete a key, or all below it where it ends in a slash."""
        self._delete_keys.append(key)

    def add_event(self, kind: EventKind, text: str, node: str = "", **data: float | str) -> None:
        """Add an event to the job's history."""
        number = self.job.next_event
        self.set_job(replace(self.job, next_event=number + 1))
        event_id = f"{self.job.task_id}-{number:06d}"
        limit = MAX_TAIL_CHARACTERS if kind in TAILS else MAX_TEXT_CHARACTERS
        data = {name: printable(each, 200) if isinstance(each, str) else each for name, each in data.items()}
        event = Event(event_id, self.now, self.job.name, kind, printable(text, limit), node, data)
        self._events.append(event)
        times = 2 if self._alerts(event) else 1
        self._event_operations += times
        self._event_bytes += times * len(to_json(event))

    def commit(self) -> Commit:
        """Return what was decided, with the guards that make it all or nothing."""
        dropped = self._drop_old_events()
        guarded = [*sorted(self._changed_nodes), *self._delete_nodes]
        return Commit(
            job=self.job.name,
            guards={self.job.name: self.view.revision} | {node: self.view.revisions.get(node, 0) for node in guarded},
            job_record=self.job if self.job != self.view.record else None,
            nodes=[self.nodes[node] for node in sorted(self._changed_nodes)],
            delete_nodes=self._delete_nodes,
            ended_of_others=self._ended_of_others,
            put_keys=self._put_keys,
            delete_keys=self._delete_keys,
            events=self._events,
            alerts=[event for event in self._events if self._alerts(event)],
            delete_events=dropped,
            actions=list(self._actions.values()),
        )

    def _drop_old_events(self) -> list[str]:
        """Ids of the events beyond those that are kept, including those that commands have added since."""
        first = self.job.first_event
        oldest = min(self.job.next_event - self.rules.events_kept, self.view.record.next_event)
        end = max(first, min(oldest, first + MAX_OPERATIONS - self._operations()))
        if end > first:
            self.set_job(replace(self.job, first_event=end))
        return [f"{self.job.task_id}-{number:06d}" for number in range(first, end)]
