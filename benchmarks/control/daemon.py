"""A daemon over a simulated cloud: the real loop, planner, journal, mirror and leadership on a real etcd, measured.

`population` is a busy cluster as etcd holds it. `main` is the daemon's process: it reads one JSON command per line of
stdin and answers each with one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotsup_trainer.etcd import Compare, Delete, Etcd, Put, TxnResult
from spotsup_trainer.wire import AgentStatus, Hint, Keys, Member, Progress, Round, RoundMember, encode

from provisioners.base import (
    Coverage,
    EndCause,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    Market,
    Offer,
    OfferQuery,
    Owner,
    Throttled,
)
from supervisor.api.security.throttle import Throttle
from supervisor.billing import NodeBilling
from supervisor.features.rounds.record import RoundsRecord
from supervisor.identity import Identity
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal, Reading
from supervisor.journal.store import EtcdStore
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState, move_job, move_node
from supervisor.planner.actions import AskDone, BootstrapDone
from supervisor.planner.world import Rules
from supervisor.runtime.actor import Effects, ThreadActor
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.garbage import collect_all_seldom
from supervisor.runtime.leader import Leadership
from supervisor.runtime.loop import Loop, Status, rest_s
from supervisor.spec import parse_spec

CLUSTER = "bench"
KEYS = Keys(CLUSTER)
IDENTITY = Identity(b"s" * 32)
OWNER = IDENTITY.owner(CLUSTER)
OFFER = Offer("local", "local", "zone-a", "small", Market.SPOT, 0.1)
LEADER_TTL_S = 10.0
TICK_S = 1.0  # as supervisor.config has it
PAST_S = 3600.0

_TO_MEMBER = (
    (NodeState.PENDING, "i-0123456789abcdef0 in zone-a"),
    (NodeState.BOOTING, "runs at 127.0.0.1"),
    (NodeState.BOOTSTRAPPING, "bootstrap begins"),
    (NodeState.READY, "its agent answers"),
    (NodeState.MEMBER, "in round 1"),
)


# -- a cluster as etcd holds it ----------------------------------------------------------------------------


def job_name(number: int) -> str:
    """Of the population's jobs."""
    return f"job-{number:03d}"


def population(jobs: int, nodes: int, now: float) -> dict[str, bytes]:
    """Keys and values of `jobs` jobs with `nodes` training nodes each."""
    found: dict[str, bytes] = {}
    for number in range(jobs):
        found |= _job(job_name(number), nodes, now - PAST_S)
    return found


def _job(name: str, nodes: int, at: float) -> dict[str, bytes]:
    wanted, placement = {"min": 1, "desired": nodes, "max": 64}, {"cloud": "local"}
    spec = parse_spec({"name": name, "nodes": wanted, "placement": placement, "run": "train.py --steps 100000"})
    record = JobRecord(
        name,
        "bench",
        spec,
        "0" * 64,
        at,
        1,
        nodes,
        64,
        state_since=at,
        next_node=nodes + 1,
        rounds=RoundsRecord(reported=1),
    )
    record = move_job(move_job(record, JobState.STARTING, at, "nodes are there"), JobState.RUNNING, at, "all are there")
    members = [_node(record, number, at) for number in range(1, nodes + 1)]
    names = tuple(node.id for node in members)
    in_round = tuple(RoundMember(node, "incarnation", "127.0.0.1", 4000) for node in names)
    messages = {
        KEYS.hint(name): Hint(names, 1, 64),
        KEYS.round(name): Round(1, in_round, at, "first round"),
        KEYS.progress(name): Progress(1, 1000, at, at),
    }
    for node in names:
        messages |= node_messages(name, node, 1)
    records = {f"{KEYS.world}jobs/{name}": dump(record)}
    records |= {f"{KEYS.world}nodes/{name}/{node.id}": dump(node) for node in members}
    return records | {key: encode(message) for key, message in messages.items()}


def node_messages(job: str, node: str, number: int) -> dict[str, Any]:
    """The keys in etcd of a node that trains in round `number`."""
    member = Member(node, "incarnation", "127.0.0.1", 4000, "running", number)
    return {KEYS.member(job, node): member, KEYS.agent(job, node): AgentStatus(node, "boot", 1, 0.0, "bench")}


def _node(job: JobRecord, number: int, at: float) -> NodeRecord:
    name = f"{job.task_id}-{number}"
    node = NodeRecord(name, job.name, name, OFFER, at, state_since=at, launch_attempts=1)
    for state, reason in _TO_MEMBER:
        node = move_node(node, state, at, reason)
    return replace(
        node,
        instance_id=f"i-{name}",
        launched_at=at,
        bootstrapped=True,
        has_joined=True,
        ssh_host="127.0.0.1",
        billing=NodeBilling(in_round=True, booked_to=at, round=1),
    )


# -- the daemon's surroundings -----------------------------------------------------------------------------


class PaperCloud:
    """Grants everything at once; after `be_slow`, as a cloud that is asked for much at once."""

    name = "local"

    def __init__(self, instances: Iterable[Instance]) -> None:
        self._instances = {each.id: each for each in instances}
        self._lock = threading.Lock()
        self._answer_s = 0.0
        self._bucket: Throttle | None = None
        self.asked_at: dict[str, float] = {}  # by node: UNIX seconds of the first request for its machine
        self.granted_at: dict[str, float] = {}  # by node

    def be_slow(self, answer_s: float, per_s: float) -> None:
        """Answer requests for machines after a while, and refuse those beyond so many a second as too many."""
        self._answer_s, self._bucket = answer_s, Throttle(per_s, per_s)

    def end(self, instance_id: str) -> None:
        """Preempt a machine."""
        with self._lock:
            self._instances[instance_id] = replace(
                self._instances[instance_id], state=InstanceState.TERMINATED, end_cause=EndCause.PREEMPTED
            )

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        return [replace(OFFER, market=query.market)]

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        made = instance_of(request.node, time.time())
        with self._lock:
            self.asked_at.setdefault(request.node, time.time())
            too_many = self._bucket is not None and self._bucket.wait_s("", time.monotonic()) > 0.0
        time.sleep(self._answer_s)
        if too_many:
            return Throttled(1.0, "RequestLimitExceeded")
        with self._lock:
            self.granted_at.setdefault(request.node, time.time())
            return Launched(self._instances.setdefault(made.id, made))

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        return self._instances.get(f"i-{token}")

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        with self._lock:
            return list(self._instances.values())

    def coverage(self, timeout_s: float) -> Coverage:
        return Coverage()

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        with self._lock:
            self._instances.pop(instance_id, None)

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        return []

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        raise AssertionError("nothing is left behind")

    def console(self, instance_id: str, timeout_s: float) -> str:
        return ""

    def check(self, timeout_s: float) -> Sequence[Finding]:
        return []


def instance_of(node: str, at: float) -> Instance:
    """The machine of a node."""
    return Instance(
        f"i-{node}", OWNER, node, node, "local", "zone-a", "small", InstanceState.RUNNING, at, "127.0.0.1", 22, node
    )


class PaperNodes:
    """A prepared node is at once in the next round, with all others."""

    def __init__(self, etcd: Etcd, random_s: random.Random) -> None:
        self._etcd = etcd
        self._random_s = random_s
        self._lock = threading.Lock()
        self.prepare_s = (0.2, 1.0)

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        time.sleep(self._random_s.uniform(*self.prepare_s))
        with self._lock:
            puts = [Put(key, encode(message)) for key, message in node_messages(job.name, node.id, 0).items()]
            self._etcd.txn([], puts)
            self._form(job.name, node.id)
        return BootstrapDone(node.id)

    def ask(self, node: NodeRecord) -> AskDone:
        """A silent node is dead."""
        return AskDone(node.id, time.time(), "connection refused")

    def _form(self, job: str, newcomer: str) -> None:
        found = self._etcd.get(KEYS.round(job))
        assert found is not None
        before = json.loads(found.value)
        alive = {kv.key.rpartition("/")[2] for kv in self._etcd.range(KEYS.member(job, ""), keys_only=True).kvs}
        names = [each["node"] for each in before["members"] if each["node"] in alive] + [newcomer]
        number = before["number"] + 1
        members = tuple(RoundMember(name, "incarnation", "127.0.0.1", 4000) for name in names)
        messages: dict[str, Any] = {KEYS.round(job): Round(number, members, time.time(), f"{newcomer} joins")}
        for name in names:
            messages |= node_messages(job, name, number)
        messages[KEYS.progress(job)] = Progress(number, 1000 + number, time.time(), time.time())
        for chunk in chunks([Put(key, encode(message)) for key, message in messages.items()]):
            self._etcd.txn([], chunk)


def chunks(puts: Sequence[Put | Delete]) -> Iterable[Sequence[Put | Delete]]:
    """Batches of as many operations as etcd takes in one transaction."""
    return (puts[start : start + 100] for start in range(0, len(puts), 100))


class CountingStore(EtcdStore):
    """Counts what the daemon writes."""

    writes = 0
    written_bytes = 0

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        self.writes += len(operations)
        self.written_bytes += sum(len(each.key) + len(each.value) for each in operations if isinstance(each, Put))
        return super().txn(guards, operations)


# -- the daemon's process ----------------------------------------------------------------------------------


@dataclass
class Meter:
    """The cost of one phase."""

    began: float
    cpu_began_s: float
    ticks_s: list[float]
    writes: int
    written_bytes: int


class Bench:
    """The daemon, and its meter."""

    def __init__(self, endpoint: str, changed: Callable[[], None] = lambda: None) -> None:
        """`changed`: called after each change of the mirror."""
        began = time.monotonic()
        self._wake = threading.Event()

        def wake() -> None:
            self._wake.set()
            changed()

        etcd = Etcd([endpoint])
        self._store = CountingStore(etcd, KEYS.world, wake)
        self._store.start(60.0)
        self._journal = Journal(self._store, KEYS)
        self._leader = Leadership(etcd, f"{KEYS.root}leader", "bench", LEADER_TTL_S, self._wake.set)
        nodes = [node for job in self._journal.read().jobs.values() for node in job.nodes.values()]
        self._cloud = PaperCloud(instance_of(node.id, node.launched_at) for node in nodes)
        self._nodes = PaperNodes(Etcd([endpoint]), random.Random(1))
        clock = SystemClock()
        effects = Effects(
            owner=OWNER,
            provisioners={"local": self._cloud},
            identity=IDENTITY,
            preparer=self._nodes,
            evidence=self._nodes,
            senders={},
            clock=clock,
        )
        actor = ThreadActor(effects.perform, self._wake.set)
        self._loop = Loop(self._journal, self._leader, actor, clock, Rules(), ("local",))
        self._leader.start()
        self._stop = threading.Event()
        self._meter = self._new_meter()
        self._began = began
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def journal(self) -> Journal:
        """What it reads and writes."""
        return self._journal

    @property
    def leader(self) -> Leadership:
        """It leads, once it has started."""
        return self._leader

    def status(self) -> Status:
        """What its last tick did."""
        return self._loop.status

    def wait_for(self, predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
        """Whether its mirror shows something in time."""
        end = time.monotonic() + timeout_s
        while not predicate(self._journal.read()):
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def started(self) -> dict[str, float]:
        """Seconds from the start to the first decision about all jobs."""
        while not self._loop.status.sentences:
            time.sleep(0.005)
        return {"start_s": self._loop.status.at - (time.time() - (time.monotonic() - self._began))}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """One command: begin a phase, end a machine, or report on the phase."""
        match order:
            case {"end": instances}:
                for each in instances:
                    self._cloud.end(each)
                return {}
            case {"begin": _}:
                self._meter = self._new_meter()
                return {}
            case {"report": _}:
                return self._report()
            case {"slow": {"answer_s": answer_s, "per_s": per_s, "prepare_s": prepare_s}}:
                self._cloud.be_slow(answer_s, per_s)
                self._nodes.prepare_s = (prepare_s, prepare_s)
                return {}
            case {"replacements": job}:
                return self._replacements(job)
            case {"sentences": _}:
                return dict(self._loop.status.sentences)
            case {"stop": _}:
                self._stop.set()
                self._wake.set()
                self._thread.join()
                self._leader.stop()
                self._store.close()
                return {}
        raise ValueError(f"no order: {order}")

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            began = time.perf_counter()
            self._loop.tick()
            took_s = time.perf_counter() - began
            self._meter.ticks_s.append(took_s)
            self._stop.wait(rest_s(took_s))
            self._wake.wait(TICK_S)

    def _new_meter(self) -> Meter:
        return Meter(time.monotonic(), time.process_time(), [], self._store.writes, self._store.written_bytes)

    def _replacements(self, job: str) -> dict[str, list[float]]:
        """By replacement, when it was first requested, and granted; 0 where it was not."""
        cloud, nodes = self._cloud, self._journal.read().jobs[job].nodes.values()
        found = [node.id for node in nodes if node.replaces and node.id in cloud.asked_at]
        return {node: [cloud.asked_at[node], cloud.granted_at.get(node, 0.0)] for node in found}

    def _report(self) -> dict[str, Any]:
        meter = self._meter
        return {
            "ticks_s": meter.ticks_s,
            "cpu": (time.process_time() - meter.cpu_began_s) / (time.monotonic() - meter.began),
            "rss_mib": _rss_mib(),
            "writes": self._store.writes - meter.writes,
            "written_bytes": self._store.written_bytes - meter.written_bytes,
        }


def _rss_mib() -> float:
    pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """The daemon's process; see the module's docstring."""
    collect_all_seldom()
    # Answers have the pipe for themselves: the daemon's threads log to standard output, too.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    bench = Bench(sys.argv[1])
    print(json.dumps(bench.started()), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(bench.obey(order)), file=answers, flush=True)
        if "stop" in order:
            return


if __name__ == "__main__":
    main()
