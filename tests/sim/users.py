"""Users: what they ask the daemons for, and what must be in the journal because it was acknowledged (P6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from provisioners.base import EndCause
from supervisor.api.adoption import Adoption
from supervisor.api.service import Scale, Service, uid_of
from supervisor.errors import CommandRefusedError, JournalUnavailableError, NotFoundError, SpotsupError
from supervisor.journal.journal import Reading
from supervisor.model import COUNTED_NODE_STATES, JobState
from supervisor.planner.world import JobView
from tests.sim.daemon import Daemon
from tests.sim.promises import Violation, truth
from tests.sim.store import at_once
from tests.sim.world import CLUSTER, World


@dataclass
class Wanted:
    """What a job may look like by all that was answered: more than one value while an answer is open or was lost."""

    uids: set[str]
    nodes: set[tuple[int, int]] = field(default_factory=set)
    cancelled: set[bool] = field(default_factory=lambda: {False})
    paused: set[bool] = field(default_factory=lambda: {False})
    drained: set[str] = field(default_factory=set)
    under_way: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)

    def or_another(self, uid: str, numbers: tuple[int, int]) -> Wanted:
        """Until a submission of the same name is answered, it is the old job or the new one."""
        nodes = self.nodes | {numbers} if self.nodes else set()
        return Wanted(self.uids | {uid}, nodes, self.cancelled | {False}, self.paused | {False}, set(self.drained))


def waiter(world: World, daemon: Daemon) -> Callable[[Callable[[Reading], bool], float], bool]:
    """How one daemon's API waits, as far away as its process is."""

    def wait_for(predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
        found = world.run_until(lambda _: predicate(daemon.journal.read()), timeout_s)
        if not daemon.runs:
            raise JournalUnavailableError(f"{daemon.name} does not answer any more")
        return found

    return wait_for


def service_of(world: World, daemon: Daemon) -> Service:
    """The API of one daemon."""
    return Service(daemon.journal, daemon.leader, daemon.clock, ["local"], waiter(world, daemon))


class Users:
    """All of them. Their commands are counted; what was acknowledged is asked after every event.

    `hesitates_s`: how long the next command's daemon waits between its look at the job and its write.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._wanted: dict[str, Wanted] = {}
        self._seen = 0
        self._submissions = 0
        self._answered = False
        self.hesitates_s = 0.0
        self.acknowledged = self.refused = self.unanswered = 0
        self.program_failures: dict[str, int] = {}
        world.checks.append(lambda _: self.check())

    def submit(self, name: str, **spec: Any) -> bool:
        """As spotsupctl does: where no answer comes, the same submission is sent again, some times."""
        self._submissions += 1
        submission = f"submission {self._submissions}"
        value = {"name": name, "run": "train.py", **spec}
        for _ in range(4):
            daemon = self._daemon()
            if daemon is None:
                return False
            answer = self._submit_once(daemon, value, submission)
            if answer is not None:
                return answer
            self._world.run(5.0)
        return False

    def _submit_once(self, daemon: Daemon, value: dict[str, Any], submission: str) -> bool | None:
        service, name = service_of(self._world, daemon), value["name"]
        uid, numbers = uid_of(submission), (value["nodes"]["desired"], value["nodes"].get("spares", 0))
        before = self._wanted.get(name)
        self._wanted[name] = Wanted({uid, ""}) if before is None else before.or_another(uid, numbers)
        try:
            service.submit(value, service.put_blob(b"code"), submission)
        except (CommandRefusedError, NotFoundError):
            self.refused += 1
            if before is not None:
                self._wanted[name] = before
            return False
        except SpotsupError:
            self.unanswered += 1
            return None
        self.acknowledged += 1
        self._world.say(f"a user submitted {name}")
        self._wanted[name] = Wanted({uid}, {numbers})
        return True

    def scale(self, name: str, desired: int, spares: int) -> None:
        """Ask for other numbers."""
        wanted = self._wanted.get(name)
        if wanted is not None and wanted.nodes:
            numbers = (desired, spares)
            self._ask(wanted, "scale", wanted.nodes, numbers, lambda s: s.scale(name, Scale(desired, spares=spares)))

    def cancel(self, name: str) -> None:
        """Ask for the end."""
        wanted = self._wanted.get(name)
        if wanted is not None and wanted.nodes:
            self._ask(wanted, "cancel", wanted.cancelled, True, lambda service: service.cancel(name))

    def pause(self, name: str, on: bool) -> None:
        """Ask for a pause, or for its end."""
        wanted = self._wanted.get(name)
        if wanted is not None and wanted.nodes:
            self._ask(wanted, "pause", wanted.paused, on, lambda s: s.pause(name) if on else s.resume(name))

    def drain(self, name: str, node: str) -> None:
        """Ask that a node leaves."""
        wanted = self._wanted.get(name)
        if wanted is not None and wanted.nodes:
            told: set[str] = set()
            self._ask(wanted, "drain", told, node, lambda service: service.drain(node))
            if told and self._answered:
                wanted.drained.add(node)

    def _ask(
        self, wanted: Wanted, kind: str, values: set[Any], value: Any, command: Callable[[Service], object]
    ) -> None:
        """While one of its kind is under way, either may come last. One of another kind changes nothing of it."""
        daemon = self._daemon()
        if daemon is None:
            return
        hesitates_s, self.hesitates_s = self.hesitates_s, 0.0
        if hesitates_s:
            daemon.client.hesitate = lambda: self._hesitate(daemon, hesitates_s)
        was_there = value in values
        values.add(value)
        wanted.under_way[kind] += 1
        wanted.commands[kind] += 1
        mine, alone, self._answered = wanted.commands[kind], wanted.under_way[kind] == 1, False
        try:
            command(service_of(self._world, daemon))
        except (CommandRefusedError, NotFoundError):
            self.refused += 1
            if not was_there and alone and mine == wanted.commands[kind]:
                values.discard(value)
        except SpotsupError:
            self.unanswered += 1
        else:
            self.acknowledged += 1
            self._answered = True
            self._world.say(f"a user was told: {value}")
            if alone and mine == wanted.commands[kind]:
                values.intersection_update({value})
        finally:
            wanted.under_way[kind] -= 1
            daemon.client.hesitate = at_once

    def _hesitate(self, daemon: Daemon, seconds: float) -> None:
        self._world.run(seconds)
        if not daemon.runs:
            raise JournalUnavailableError(f"{daemon.name} does not answer any more")

    def _daemon(self) -> Daemon | None:
        """Any daemon takes commands."""
        running = [daemon for daemon in self._world.daemons if daemon.runs]
        return self._world.dice.rng.choice(running) if running else None

    def names(self) -> list[str]:
        """Jobs that were acknowledged."""
        return sorted(name for name, wanted in self._wanted.items() if wanted.nodes)

    def restored(self) -> None:
        """etcd is as it was a while ago: so is what was acknowledged."""
        jobs = truth(self._world)
        for name, wanted in self._wanted.items():
            job = jobs.get(name)
            wanted.uids.add(job.record.uid if job else "")
            if job is not None:
                wanted.nodes.add((job.record.desired_nodes, job.record.spare_nodes))
                wanted.cancelled.add(job.record.cancel_requested)
                wanted.paused.add(bool(job.record.pause_requested_at))
            wanted.drained.clear()

    def adopt(self) -> bool:
        """A person looks whether machines run that the journal does not know, and has them taken in. Those of jobs that
        are not there any more are let go; what has our tag and is no node is ended by hand. True where all is well."""
        daemon, reading = self._daemon(), self._world.journal.read()
        if daemon is None or (not reading.unjournaled and reading.cluster is not None):
            return daemon is not None
        jobs = truth(self._world)
        mine = {(name, job.record.uid) for name, job in jobs.items() if not job.record.ended}
        known = {node for job in jobs.values() for node in job.nodes}
        stray = set()
        for machine in [each for each in self._world.cloud.machines.values() if each.billed]:
            name, uid, number = (*machine.instance.node.rsplit("-", 2), "", "")[:3]
            if not number:
                self._world.cloud.end(machine, EndCause.USER)
            elif machine.instance.node not in known and (name, uid) not in mine:
                stray.add(name)
        adoption = Adoption(
            daemon.journal, {"local": self._world.cloud}, CLUSTER, daemon.clock, waiter(self._world, daemon)
        )
        try:
            adoption.adopt(sorted(stray))
        except SpotsupError as error:
            self._world.say(f"nothing is adopted: {error}")
        else:
            self._world.say(f"a user had machines adopted, but for those of {sorted(stray)}")
        self.restored()
        return False

    def check(self) -> None:
        """P6: nothing acknowledged is lost. P5: a job fails only by failures of its own."""
        if self._world.store.revision == self._seen:
            return
        self._seen = self._world.store.revision
        jobs = truth(self._world)
        for name, wanted in self._wanted.items():
            job = jobs.get(name)
            uid = job.record.uid if job else ""
            if uid not in wanted.uids:
                raise Violation(f"P6: {name} is {uid or 'not there'}, and {sorted(wanted.uids)} was acknowledged")
            if job is not None and wanted.nodes:
                self._check_job(job, wanted)

    def _check_job(self, job: JobView, wanted: Wanted) -> None:
        record = job.record
        numbers = (record.desired_nodes, record.spare_nodes)
        if numbers not in wanted.nodes:
            raise Violation(f"P6: {record.name} wants {numbers}, and {sorted(wanted.nodes)} was acknowledged")
        if record.cancel_requested not in wanted.cancelled:
            raise Violation(f"P6: {record.name}: its cancellation was acknowledged, and is lost")
        if bool(record.pause_requested_at) not in wanted.paused and not record.ended:
            raise Violation(
                f"P6: {record.name}: {sorted(wanted.paused)} was acknowledged, and it is {record.pause_requested_at}"
            )
        for node in wanted.drained & job.nodes.keys():
            if not job.nodes[node].drain_requested and job.nodes[node].state in COUNTED_NODE_STATES:
                raise Violation(f"P6: the drain of {node} was acknowledged, and is lost")
        if record.state is JobState.FAILED and not self._may_fail(job):
            raise Violation(f"P5: {record.name} failed: {record.reason}")

    def _may_fail(self, job: JobView) -> bool:
        allowed = job.record.spec.limits.app_failures
        return self.program_failures.get(job.record.name, 0) > allowed
