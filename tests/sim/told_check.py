"""P15: people are told of what costs money without progress, in time and again, and get what is written for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotsup_simulator.clock import NEVER
from spotsup_simulator.daemon import Daemon
from spotsup_simulator.world import World

from provisioners.base import InstanceState
from supervisor.alerts.batches import MAX_RETRY_S, MAX_URGENT, URGENT_S
from supervisor.alerts.routes import GATHER_S
from supervisor.events import EventKind, Level
from supervisor.model import Event, NodeState
from supervisor.planner.actions import Commit
from supervisor.planner.cloud_problems import UNENDED_S, UNLISTED_S
from supervisor.planner.problems import REMINDER_S
from supervisor.planner.world import JobView

LOOK_S = 30.0
# Beside what a rule waits for: some looks and ticks, a takeover, a commit that waits its turn.
SLACK_S = 300.0
# A channel that is tried seldom, after it was away for long, and loses messages.
SENT_S, URGENT_SENT_S = GATHER_S + 4 * MAX_RETRY_S, 4 * MAX_RETRY_S


@dataclass
class _State:
    """Something that people have to be told of."""

    seconds: float = 0.0  # in which it lasted, and a daemon could tell
    told_at: list[float] = field(default_factory=list)  # by these seconds


class ToldCheck:
    """Counts the time in which something lasts that a person should know, and one daemon leads and may write."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at = world.clock.now()
        self._states: dict[str, _State] = {}
        self._leader = ""
        self._unsent: dict[str, float] = {}  # by id: seconds in which it could have been sent
        self._criticals: dict[tuple[str, str], list[float]] = {}  # by job and kind: when they were written
        self._told_why: dict[str, Event] = {}  # by job: what was told last of why it may make no step
        world.hooks.commit.append(self._on_commit)

    def check(self, jobs: Mapping[str, JobView]) -> str:
        """What is wrong, or "". Call it after every event."""
        world, now = self._world, self._world.clock.now()
        passed_s = now - self._at
        if passed_s < LOOK_S:
            return ""
        self._at = now
        leader = next((d.name for d in world.daemons if d.runs and d.leader.leading and d.client.connected), "")
        if not leader or world.etcd.full or world.etcd.down or world.journal.read().cluster is None:
            # What a new leader has not seen lasts from now on: its timeouts begin anew. Without a journal nothing is
            # decided, and an operator is needed to begin one.
            self._states.clear()
            return ""
        if leader != self._leader:  # so does what it has to find out of clouds; of jobs, the journal knows since when
            self._leader = leader
            self._states = {key: each for key, each in self._states.items() if key.startswith("job ")}
        found = dict(self._lasting(jobs))
        self._states = {key: self._states.get(key) or self._begun(key, jobs) for key in found}
        for key, (limit_s, what) in found.items():
            state = self._states[key]
            state.seconds += passed_s
            if wrong := _late(state, limit_s + SLACK_S):
                return f"P15: {what} for {state.seconds:.0f} s, and {wrong}"
        return self._check_outbox(passed_s)

    def _lasting(self, jobs: Mapping[str, JobView]) -> list[tuple[str, tuple[float, str]]]:
        """What lasts now, by what tells of it: after how long, and what it is."""
        world, found = self._world, []
        billed = [machine for machine in world.cloud.machines.values() if machine.billed]
        names = {machine.node for machine in billed}
        for job in jobs.values():
            record = job.record
            training = world.nodes.trainings.get(record.name)
            steps = training is not None and training.task_id == record.task_id and training.steps.since < NEVER
            costs = any(node.machine_name in names for node in job.nodes.values())
            if costs and not steps and not (record.ended or record.pause.at or job.result):
                what = f"{record.name} costs money without a step"
                found.append((f"job {record.name} {record.uid}", (world.rules.waits.alert_s, what)))
            for node in job.nodes.values():
                machine = world.cloud.machines.get(node.instance_id)
                runs = machine is not None and machine.billed and machine.instance.state is InstanceState.RUNNING
                if runs and node.state is NodeState.TERMINATING:
                    found.append((f"end {node.id}", (2 * UNENDED_S, f"{node.id} does not end")))
        silent = sorted(world.cloud.silent_regions)
        found += [(f"region {region}", (UNLISTED_S, f"{region} does not answer")) for region in silent]
        if world.fault_rates.unreachable >= 1.0 or world.cloud.is_silent:
            found.append(("cloud", (UNLISTED_S, "no cloud answers")))
        return found

    def _begun(self, key: str, jobs: Mapping[str, JobView]) -> _State:
        """A state that begins. Of its cause people may have been told just before; of nodes that are silent, as long as
        they are."""
        name = key.split()[1] if key.startswith("job ") else ""
        why, job = self._told_why.get(name), jobs.get(name)
        if why is None or job is None:
            return _State()
        is_new = self._world.clock.now() - why.at <= 2 * LOOK_S
        silent = any(node.state is NodeState.SUSPECT for node in job.nodes.values())
        return _State(told_at=[0.0] if is_new or (why.kind is EventKind.SILENCE and silent) else [])

    def _on_commit(self, _: Daemon, commit: Commit) -> None:
        for event in commit.alerts:
            if event.kind.level >= Level.CRITICAL:
                self._criticals.setdefault((event.job, str(event.kind)), []).append(self._world.clock.now())
            if event.kind.level >= Level.WARNING:
                self._tell(event)

    def _tell(self, event: Event) -> None:
        if event.kind in {EventKind.NODE_UNHEALTHY, EventKind.SILENCE}:
            self._told_why[event.job] = event
        of_cloud = event.kind in {EventKind.NOT_LISTED, EventKind.ACCESS_DENIED, EventKind.NOT_ENDED}
        for key, state in self._states.items():
            of_job = bool(event.job) and key.startswith(f"job {event.job} ")
            if of_job or of_cloud or event.kind in {EventKind.UNJOURNALED, EventKind.LISTING_DOUBTED}:
                state.told_at.append(state.seconds)

    def _is_urgent(self, event: Event) -> bool:
        """True if it is critical, and people did not have the same often enough by then."""
        written = self._criticals.get((event.job, str(event.kind)), [])
        before = [at for at in written if event.at - URGENT_S - URGENT_SENT_S < at <= event.at]
        return event.kind.level >= Level.CRITICAL and len(before) <= MAX_URGENT

    def _check_outbox(self, passed_s: float) -> str:
        """What is written for people reaches them while the channel takes it."""
        if self._world.fault_rates.unreachable >= 1.0:
            return ""
        waiting = {event.id: event for event in self._world.journal.read().alerts}
        self._unsent = {each: self._unsent.get(each, 0.0) + passed_s for each in waiting}
        for each, seconds in self._unsent.items():
            limit_s = URGENT_SENT_S if self._is_urgent(waiting[each]) else SENT_S
            if seconds > limit_s:
                return f"P15: {each} has not been sent for {seconds:.0f} s: {waiting[each].text}"
        return ""


def _late(state: _State, limit_s: float) -> str:
    """Why it was not told in time, and again at intervals that grow no faster than twice; "" if it was."""
    if not state.told_at:
        return "nobody was told" if state.seconds > limit_s else ""
    first, last = state.told_at[0], state.told_at[-1]
    if state.seconds - last > max(REMINDER_S, 2 * (last - first)) + limit_s:
        return f"nobody was told again after {last:.0f} s"
    return ""
