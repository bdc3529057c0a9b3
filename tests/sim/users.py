"""Users: the commands they give, and what the journal must hold because it was acknowledged (P6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotsup_simulator.cloud import OWNER
from spotsup_simulator.daemon import Daemon
from spotsup_simulator.etcd_clients import no_delay
from spotsup_simulator.training import Training
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.daemon.adoption import Adoption
from supervisor.api.jobs.changes import Scale
from supervisor.api.jobs.commands import Commands
from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, JournalUnavailableError, NotFoundError, SpotsupError
from supervisor.journal.journal import Reading
from supervisor.market.admission import QueueRules
from supervisor.model import COUNTED_NODE_STATES, JobState
from supervisor.new_job import uid_of
from supervisor.planner.orphans import ADOPT
from supervisor.planner.world import JobView
from supervisor.spec_limits import LimitChanges
from tests.sim.promises import Violation, jobs_of

# So many checkpoints between two failures of the program are progress: the first of them does not count any more.
PROGRESS_CHECKPOINTS = 3


@dataclass
class Expected:
    """What a job's record may hold: more than one value while a reply is outstanding or was lost."""

    uids: set[str]
    nodes: set[tuple[int, int]] = field(default_factory=set)
    cancelled: set[bool] = field(default_factory=lambda: {False})
    paused: set[bool] = field(default_factory=lambda: {False})
    drained: set[str] = field(default_factory=set)
    hours: set[float | None] = field(default_factory=set)
    under_way: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)

    def or_new(self, uid: str, numbers: tuple[int, int], hours: float | None) -> Expected:
        """Until a submission of the same name is answered, it may be the old job or the new one."""
        nodes = self.nodes | {numbers} if self.nodes else set()
        flags = self.cancelled | {False}, self.paused | {False}
        return Expected(self.uids | {uid}, nodes, *flags, set(self.drained), self.hours | {hours})


def waiter(world: World, daemon: Daemon) -> Callable[[Callable[[Reading], bool], float], bool]:
    """How a daemon's API waits: in virtual time, until the daemon dies."""

    def wait_for(predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
        found = world.run_until(lambda _: predicate(daemon.journal.read()), timeout_s)
        if not daemon.runs:
            raise JournalUnavailableError(f"{daemon.name} no longer answers")
        return found

    return wait_for


@dataclass(frozen=True, slots=True)
class Terms:
    """What an installation's API knows from its configuration."""

    clouds: Sequence[str] = ("local",)
    hosted: Sequence[str] = ("local",)
    queue: QueueRules = field(default_factory=QueueRules)
    budgeted: bool = False


LOCAL = Terms()


def service_of(world: World, daemon: Daemon, terms: Terms = LOCAL) -> Service:
    """The API of one daemon."""
    return Service(
        daemon.journal,
        daemon.leader,
        daemon.clock,
        terms.clouds,
        waiter(world, daemon),
        hosted=terms.hosted,
        queue=terms.queue,
        budgeted=terms.budgeted,
    )


class Users:
    """All users. What was acknowledged is checked after every event."""

    def __init__(self, world: World, terms: Terms = LOCAL) -> None:
        self._world = world
        self.terms = terms
        self._expected: dict[str, Expected] = {}
        self._seen = 0
        self._submissions = 0
        self._answered = False
        # How long the next command's daemon waits between its read of the job and its write.
        self.delay_s = 0.0
        self.acknowledged = self.refused = self.unanswered = 0
        self.program_failures: Counter[str] = Counter()
        # By job: the rounds that ended by an early failure.
        self._early: dict[str, list[int]] = {}
        # Jobs of which a cloud has refused a request for good.
        self.refused_jobs: set[str] = set()
        # Runs that have failed, and might: a backup of etcd may bring one of them back.
        self._failed: set[str] = set()
        world.hooks.step.append(self.check)

    def submit(self, name: str, owner: str = "", **spec: Any) -> bool:
        """As spotsupctl does: if no reply arrives, send the same submission again, up to three times."""
        self._submissions += 1
        submission = f"submission {self._submissions}"
        value = {"name": name, "run": "train.py", **spec}
        for _ in range(4):
            daemon = self._daemon()
            if daemon is None:
                return False
            answer = self._submit_once(daemon, value, submission, owner)
            if answer is not None:
                return answer
            self._world.run(5.0)
        return False

    def _submit_once(self, daemon: Daemon, value: dict[str, Any], submission: str, owner: str) -> bool | None:
        service, name = service_of(self._world, daemon, self.terms), value["name"]
        uid, numbers = uid_of(submission), (value["nodes"]["desired"], value["nodes"].get("spares", 0))
        before, hours = self._expected.get(name), value.get("limits", {}).get("hours")
        self._expected[name] = Expected({uid, ""}) if before is None else before.or_new(uid, numbers, hours)
        try:
            service.submissions.submit(value, service.submissions.put_blob(b"code"), submission, owner=owner)
        except (CommandRefusedError, NotFoundError):
            self.refused += 1
            if before is not None:
                self._expected[name] = before
            return False
        except SpotsupError:
            self.unanswered += 1
            return None
        self.acknowledged += 1
        self._world.note(f"a user submitted {name}")
        self._check_past(name, before.uids if before else set(), uid)
        during = self._expected[name]
        # Commands that were given meanwhile were to this job, or to the one before.
        given = during if during.commands else Expected(set())
        self._expected[name] = Expected(
            {uid}, {numbers} | given.nodes, given.cancelled, given.paused, hours={hours} | given.hours
        )
        return True

    def _check_past(self, name: str, uids: set[str], uid: str) -> None:
        """P12: the run whose name was used again is kept."""
        kept = {run.job.uid for run in self._world.journal.past_runs(name)}
        if len(uids) == 1 and not uids <= {uid, "", *kept}:
            raise Violation(f"P12: {name} was used again, and its old run {uids} is lost")

    def scale(self, name: str, desired: int, spares: int) -> None:
        """Set the numbers of nodes and spares."""
        expected = self._expected.get(name)
        if expected is not None and expected.nodes:
            numbers = (desired, spares)
            self._ask(
                expected, "scale", expected.nodes, numbers, lambda s: s.scale(name, Scale(desired, spares=spares))
            )

    def limit(self, name: str, hours: float) -> None:
        """Set the limit of hours."""
        expected = self._expected.get(name)
        if expected is not None and expected.nodes:
            self._ask(expected, "limit", expected.hours, hours, lambda s: s.limits(name, LimitChanges(hours=hours)))

    def limit_usd(self, name: str, usd: float) -> None:
        """Set the limit of dollars."""
        expected = self._expected.get(name)
        if expected is not None and expected.nodes:
            self._ask(expected, "limit of dollars", set(), usd, lambda s: s.limits(name, LimitChanges(usd=usd)))

    def cancel(self, name: str) -> None:
        """Cancel a job."""
        expected = self._expected.get(name)
        if expected is not None and expected.nodes:
            self._ask(expected, "cancel", expected.cancelled, True, lambda commands: commands.cancel(name))

    def pause(self, name: str, on: bool) -> None:
        """Pause a job, or resume it."""
        expected = self._expected.get(name)
        if expected is not None and expected.nodes:
            self._ask(expected, "pause", expected.paused, on, lambda s: s.pause(name) if on else s.resume(name))

    def drain(self, name: str, node: str) -> None:
        """Drain a node."""
        expected = self._expected.get(name)
        if expected is not None and expected.nodes:
            acknowledged: set[str] = set()
            self._ask(expected, "drain", acknowledged, node, lambda commands: commands.drain(node))
            if acknowledged and self._answered:
                expected.drained.add(node)

    def _ask(
        self, expected: Expected, kind: str, values: set[Any], value: Any, command: Callable[[Commands], object]
    ) -> None:
        """Give a command. While two of one kind are under way, either may take effect last."""
        daemon = self._daemon()
        if daemon is None:
            return
        delay_s, self.delay_s = self.delay_s, 0.0
        if delay_s:
            daemon.client.before_txn = lambda: self._delay(daemon, delay_s)
        known = value in values
        values.add(value)
        expected.under_way[kind] += 1
        expected.commands[kind] += 1
        mine, alone, self._answered = expected.commands[kind], expected.under_way[kind] == 1, False
        try:
            command(service_of(self._world, daemon, self.terms).commands)
        except (CommandRefusedError, NotFoundError):
            self.refused += 1
            if not known and alone and mine == expected.commands[kind]:
                values.discard(value)
        except SpotsupError:
            self.unanswered += 1
        else:
            self.acknowledged += 1
            self._answered = True
            self._world.note(f"acknowledged: {kind} {value}")
            if alone and mine == expected.commands[kind]:
                values.intersection_update({value})
        finally:
            expected.under_way[kind] -= 1
            daemon.client.before_txn = no_delay

    def _delay(self, daemon: Daemon, seconds: float) -> None:
        self._world.run(seconds)
        if not daemon.runs:
            raise JournalUnavailableError(f"{daemon.name} no longer answers")

    def _daemon(self) -> Daemon | None:
        """Any running daemon takes commands."""
        running = [daemon for daemon in self._world.daemons if daemon.runs]
        return self._world.rng.random.choice(running) if running else None

    def names(self) -> list[str]:
        """Jobs that were acknowledged."""
        return sorted(name for name, expected in self._expected.items() if expected.nodes)

    def etcd_rolled_back(self) -> None:
        """etcd has lost its last writes: what it holds now is acceptable, too."""
        jobs = jobs_of(self._world)
        for name, expected in self._expected.items():
            job = jobs.get(name)
            expected.uids.add(job.record.uid if job else "")
            if job is not None:
                expected.nodes.add((job.record.desired_nodes, job.record.spare_nodes))
                expected.cancelled.add(job.record.cancel_requested)
                expected.paused.add(_is_paused(job))
                expected.hours.add(job.record.spec.limits.hours)
            expected.drained.clear()

    def adopt(self) -> bool:
        """An operator has unjournaled machines adopted, where the daemon says that it leaves some alone: those of jobs
        that no longer exist are released, and machines with our tag that are no node are ended by hand. True if there
        was nothing to adopt."""
        daemon, reading = self._daemon(), self._world.journal.read()
        asked = any(ADOPT in each.loop.status.headline for each in self._world.daemons if each.runs)
        if daemon is None or (not reading.unjournaled and reading.cluster is not None and not asked):
            return daemon is not None
        jobs = jobs_of(self._world)
        mine = {(name, job.record.uid) for name, job in jobs.items() if not job.record.ended}
        known = {node.machine_name for job in jobs.values() for node in job.nodes.values()}
        stray = set()
        for machine in [each for each in self._world.cloud.machines.values() if each.billed]:
            name, uid, number = (*machine.instance.node.rsplit("-", 2), "", "")[:3]
            if not number:
                self._world.cloud.end(machine, EndCause.USER)
            elif machine.instance.node not in known and (name, uid) not in mine:
                stray.add(name)
        adoption = Adoption(
            daemon.journal, {"local": self._world.cloud}, OWNER, daemon.clock, waiter(self._world, daemon)
        )
        try:
            adoption.adopt(sorted(stray))
        except SpotsupError as error:
            self._world.note(f"nothing is adopted: {error}")
        else:
            self._world.note(f"an operator adopted machines, except those of {sorted(stray)}")
        self.etcd_rolled_back()
        return False

    def check(self) -> None:
        """P6: nothing acknowledged is lost. P5: a job fails only by failures of its own."""
        if self._world.etcd.mirrored_revision == self._seen:
            return
        self._seen = self._world.etcd.mirrored_revision
        jobs = jobs_of(self._world)
        for name, expected in self._expected.items():
            job = jobs.get(name)
            uid = job.record.uid if job else ""
            if uid not in expected.uids:
                raise Violation(f"P6: {name} is {uid or 'missing'}; acknowledged: {sorted(expected.uids)}")
            if job is not None and expected.nodes:
                self._check_job(job, expected)

    def _check_job(self, job: JobView, expected: Expected) -> None:
        record = job.record
        numbers = (record.desired_nodes, record.spare_nodes)
        if numbers not in expected.nodes:
            raise Violation(
                f"P6: {record.name} has (nodes, spares) = {numbers}; acknowledged: {sorted(expected.nodes)}"
            )
        if record.cancel_requested not in expected.cancelled:
            raise Violation(f"P6: the cancellation of {record.name} was acknowledged and is lost")
        if _is_paused(job) not in expected.paused and not record.ended:
            paused = _is_paused(job)
            raise Violation(f"P6: {record.name} has paused = {paused}; acknowledged: {sorted(expected.paused)}")
        if record.spec.limits.hours not in expected.hours:
            raise Violation(f"P6: {record.name} has {record.spec.limits.hours} h; acknowledged: {expected.hours}")
        for node in expected.drained & job.nodes.keys():
            if not job.nodes[node].drain_requested and job.nodes[node].state in COUNTED_NODE_STATES:
                raise Violation(f"P6: the drain of {node} was acknowledged and is lost")
        if record.state is JobState.FAILED and not self._may_fail(job):
            raise Violation(f"P5: {record.name} failed: {record.reason}")

    def _may_fail(self, job: JobView) -> bool:
        if job.record.uid in self._failed or self._fails_by_itself(job):
            self._failed.add(job.record.uid)
            return True
        return False

    def _fails_by_itself(self, job: JobView) -> bool:
        allowed = job.record.spec.limits.app_failures
        rounds = self._early.get(job.record.name, [])
        twice = any(number + 1 in rounds for number in rounds)
        # Of what is not its program's fault, only one that never trained fails (P12).
        refused = job.record.name in self.refused_jobs or job.record.bootstraps.failures
        never_trained = not job.record.rounds.reported and refused
        return twice or self.program_failures[job.record.name] > allowed or bool(never_trained)

    def program_fails(self, job: str, training: Training) -> None:
        """Failures before enough progress do not count any more; what was progress, a backup of etcd may lack."""
        injected = self._world.rng.injected
        if training.steps.saved_since_failure >= PROGRESS_CHECKPOINTS and not (
            injected["writes lost"] or injected["backup restored"]
        ):
            self.program_failures[job] = 0
        training.steps.saved_since_failure = 0
        self.program_failures[job] += 1

    def fails_early(self, job: str, number: int) -> bool:
        """The program has failed right after its start in this round; whether for the first time."""
        rounds = self._early.setdefault(job, [])
        rounds.append(number)
        return len(rounds) == 1


def _is_paused(job: JobView) -> bool:
    """Whether a user has paused it: a pause for a limit is the planner's."""
    return bool(job.record.pause.at) and not job.record.pause.by
