"""Users of etcd: what happens to them, and what is promised: nodes of a live job can log in, of an ended one not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spotsup_simulator.daemon import Daemon, DiedError
from spotsup_simulator.etcd import CLUSTER
from spotsup_simulator.world import World

from supervisor.journal.journal import USES_ETCD
from supervisor.planner.world import JobView
from tests.sim.scenario import Injection

# How long, while etcd is up and a daemon leads, a node of a live job may be without access, and a user without a job. A
# daemon sweeps once a minute, ticks as seldom where nothing happens, and a sweep may fail.
ACCESS_S = 300.0
OUTLIVES_S = 300.0
_PREFIX = f"spotsup/{CLUSTER}/"


def user_of(task_id: str) -> str:
    """Its name in etcd."""
    return f"{_PREFIX}{task_id}"


class AccessCheck:
    """Counts for how long something is wrong that a daemon could make good."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at = world.clock.now()
        self._seen = (-1, -1)
        # By node, and by user: for how long.
        self._barred_s: dict[str, float] = {}
        self._left_s: dict[str, float] = {}

    def check(self, jobs: Mapping[str, JobView]) -> str:
        """What is not as promised, or nothing. Call it after every event."""
        etcd, now = self._world.etcd, self._world.clock.now()
        passed_s, self._at = now - self._at, now
        if etcd.refused:
            return f"access: {etcd.refused[0]}"
        if (self._barred_s or self._left_s) and self._can_mend():
            self._barred_s = {node: seconds + passed_s for node, seconds in self._barred_s.items()}
            self._left_s = {user: seconds + passed_s for user, seconds in self._left_s.items()}
        if self._seen != (seen := (etcd.mirrored_revision, etcd.auth.version)) or self._barred_s:
            self._seen = seen
            self._barred_s = {node: self._barred_s.get(node, 0.0) for node in self._barred(jobs)}
            self._left_s = {user: self._left_s.get(user, 0.0) for user in self._left(jobs)}
        for node, seconds in self._barred_s.items():
            if seconds > ACCESS_S:
                return f"access: {node} has been without access to etcd for {seconds:.0f} s"
        for user, seconds in self._left_s.items():
            if seconds > OUTLIVES_S:
                return f"access: {user} has outlived its job by {seconds:.0f} s"
        return ""

    def _can_mend(self) -> bool:
        """Whether etcd is up, and a daemon leads that reads what is in it."""
        world = self._world
        if world.etcd.down or world.etcd.full or world.no_daemon_acts:
            return False
        leading = [d for d in world.daemons if d.runs and d.leader.leading and d.client.view().live]
        return any(d.journal.read().cluster is not None for d in leading)  # else an operator decides first

    def _barred(self, jobs: Mapping[str, JobView]) -> list[str]:
        """Nodes of live jobs whose agents run and cannot log in."""
        now, agents = self._world.clock.now(), self._world.nodes.agents
        return [
            node.id
            for job in jobs.values()
            for node in job.nodes.values()
            if not job.record.ended and node.state in USES_ETCD and (agent := agents.get(node.id)) is not None
            if agent.machine.barred and agent.machine.alive and not agent.exited and now >= agent.starts_at
        ]

    def _left(self, jobs: Mapping[str, JobView]) -> list[str]:
        """Users whose jobs have ended, and their nodes, too."""
        wanted = {
            user_of(job.record.task_id)
            for job in jobs.values()
            if not job.record.ended or any(node.state in USES_ETCD for node in job.nodes.values())
        }
        return [name for name in self._world.etcd.auth.state.users if name not in wanted]


class AccessFaults:
    """What scenarios inject. Those that wait for the next calls about users end with the other faults."""

    def __init__(
        self, world: World, restore: Callable[[int], None] = lambda _: None, restart: Callable[[], None] | None = None
    ) -> None:
        """`restore`: etcd loses its last writes. `restart`: a daemon is started again."""
        self._restart = restart
        self._world = world
        self._restore = restore
        self._calls = 0
        self._dies_at = self._lost_at = 0
        world.hooks.step.append(self._watch)

    def on_world(self, injection: Injection) -> None:
        """Faults of etcd's users and of those who manage them."""
        auth = self._world.etcd.auth
        match injection.kind:
            case "user deleted":
                self.delete_user(injection.number)
            case "tokens expire":
                auth.forget_tokens()
            case "users change elsewhere":
                auth.stale_requests = 1 + injection.number % 12
            case "daemon dies among users":
                self.die_in(1 + injection.number % 12)
            case "users' reply lost":
                self._lost_at = self._calls + 1 + injection.number % 8
            case "writes about users lost":
                self._lose_writes(injection)

    def delete_user(self, number: int = 0) -> None:
        """An operator's mistake."""
        etcd = self._world.etcd
        names = sorted(etcd.auth.state.users)
        if names:
            gone = names[number % len(names)]
            users = {name: user for name, user in etcd.auth.state.users.items() if name != gone}
            etcd.auth.change(etcd.revision, users=users)

    def die_in(self, calls: int) -> None:
        """The daemon that makes so many more calls about users dies there: before it, or with its reply."""
        self._dies_at = self._calls + calls

    def stop(self) -> None:
        """Nothing happens to later calls."""
        self._dies_at = self._lost_at = 0
        self._world.etcd.auth.stale_requests = 0

    def _lose_writes(self, injection: Injection) -> None:
        """As soon as a user is made or deleted, or within ten minutes."""
        version, until = self._world.etcd.auth.version, self._world.clock.now() + 600.0

        def look() -> None:
            if self._world.etcd.down or self._world.clock.now() > until:
                return
            if self._world.etcd.auth.version != version:
                self._restore(1 + injection.number % 4)
            else:
                self._world.schedule(self._world.clock.now() + 5.0, look)

        look()

    def _watch(self) -> None:
        for daemon in self._world.daemons:
            if daemon.gateway.before.__name__ == "_nothing":
                daemon.gateway.before, daemon.gateway.after = self._before(daemon), self._after(daemon)

    def _die(self, daemon: Daemon) -> None:
        self._world.note(f"{daemon.name} dies in the middle of users")
        self._world.schedule(self._world.clock.now() + 0.5, self._start)
        raise DiedError

    def _start(self) -> None:
        if self._restart is None:
            self._world.daemon = self._world.start_daemon()
        else:
            self._restart()

    def _before(self, daemon: Daemon) -> Callable[[], None]:
        def before() -> None:
            self._calls += 1
            if self._calls == self._dies_at and self._calls % 2 and daemon.runs:
                self._die(daemon)

        return before

    def _after(self, daemon: Daemon) -> Callable[[], None]:
        def after() -> None:
            if self._calls == self._dies_at and not self._calls % 2 and daemon.runs:
                self._die(daemon)
            if self._calls == self._lost_at:
                raise ConnectionResetError("the reply is lost")

        return after
