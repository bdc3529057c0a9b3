"""What is fuzzed: the real reader, journal, planner and loop, with two jobs. All that is broken belongs to the job
`bad`; the decision about the other job must be what it is without.

Clouds' descriptions are read as their provisioners read them, and what comes of it is the listing of that tick.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

from spotsup_trainer.etcd import Compare, Delete, KeyValue, Put, Range, TxnResult
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.wire import Ended, Failure, Loss, Notice, Pause, Pauses, Progress, Result, Tombstone, encode

from provisioners.aws import describe as aws
from provisioners.aws.settings import AwsSettings
from provisioners.azure import describe as azure
from provisioners.azure.settings import AzureSettings
from provisioners.base import Instance, InstanceState
from provisioners.gcp import describe as gcp
from provisioners.gcp import names
from provisioners.gcp.settings import GcpSettings
from provisioners.local import read_machine
from provisioners.readings import read_each
from supervisor.api.jobs.views import cost_row, job_detail, node_rows
from supervisor.events import EventKind
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.model import ClusterRecord, Event
from supervisor.planner.actions import Action, FetchOffers, ListDone, ListInstances, OffersDone, Outcome
from supervisor.planner.world import Rules
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.loop import Loop
from tests.fuzz.inputs import ODD, broken
from tests.unit.scene import KEYS, NOW, OFFER, N, as_job, job, machine, member, name, node, round_of
from tests.unit.scene import view as view_of

BATCH = 32  # broken values of one tick; of two of the same key the last counts
CONTAINED = ("undecided", "outcomes_dropped", "commits_refused", "ticks_failed")
BAD, GOOD = "bad", "job"
_AWS = {
    "InstanceId": "i-1",
    "State": {"Name": "running"},
    "Tags": [{"Key": "spotsup-cluster", "Value": "c"}, {"Key": "spotsup-node", "Value": "bad-u-1"}],
    "LaunchTime": 1000.0,
    "PrivateIpAddress": "10.0.0.1",
    "Placement": {"AvailabilityZone": "us-east-1a"},
    "InstanceType": "p3.2xlarge",
    "StateReason": {"Code": "Server.InternalError"},
}
_AZURE = {
    "name": "spotsup-c-bad-u-1",
    "location": "eastus",
    "zones": ["1"],
    "tags": {"spotsup-cluster": "c", "spotsup-node": "bad-u-1"},
    "properties": {
        "provisioningState": "Succeeded",
        "timeCreated": "2026-01-01T00:00:00Z",
        "hardwareProfile": {"vmSize": "Standard_NC6s_v3"},
    },
}
_GCP = {
    "name": "spotsup-bad-u-1",
    "status": "RUNNING",
    "creation_timestamp": "2026-01-01T00:00:00Z",
    "labels": {"spotsup-cluster": "c", "spotsup-node": "bad-u-1"},
    "metadata": {"items": [{"key": "spotsup-node", "value": "bad-u-1"}]},
    "network_interfaces": [{"network_i_p": "10.0.0.1", "access_configs": [{"nat_i_p": "1.2.3.4"}]}],
    "machine_type": "zones/us-central1-a/machineTypes/n1-standard-4",
}
_LOCAL = {
    "id": "m-77",
    "cluster": "c",
    "key_mark": "m",
    "node": "bad-u-1",
    "token": "bad-u-1",
    "region": "r",
    "zone": "z",
    "instance_type": "small",
    "state": "running",
    "launched_at": 5.0,
    "ssh_host": "127.0.0.2",
    "ssh_port": 22,
    "private_address": "127.0.0.2",
    "metadata_url": "http://127.0.0.2",
    "end_cause": None,
    "preempt_at": None,
    "market": "spot",
    "frozen": False,
    "message": "",
}


def _namespace(raw: Any) -> Any:
    """As Google's library has it: attributes; labels are a mapping."""
    if isinstance(raw, dict):
        inside = {key: value if key == "labels" else _namespace(value) for key, value in raw.items()}
        return SimpleNamespace(**inside)
    return [_namespace(each) for each in raw] if isinstance(raw, list) else raw


def _aws(raw: Any) -> Instance:
    if isinstance(raw.get("LaunchTime"), float):
        raw = raw | {"LaunchTime": datetime.fromtimestamp(raw["LaunchTime"], UTC)}
    return aws.instance(raw, "us-east-1", AwsSettings(regions=("us-east-1",)), None)


def _gcp(raw: Any) -> Instance:
    return gcp.instance(_namespace(raw), "us-central1-a", GcpSettings(project="p", regions=("us-central1",)), (), NOW)


def _azure(raw: Any) -> Instance:
    settings = AzureSettings(subscription="s", resource_group="g", identity="", regions=("eastus",))
    return azure.instance(raw, settings, "running")


# By cloud: a description, how it is read, and where its id is.
CLOUDS: Mapping[str, tuple[Mapping[str, Any], Callable[[Any], Instance], Callable[[Any], Any]]] = {
    "EC2's machine": (_AWS, _aws, lambda raw: aws.id_of("us-east-1", raw["InstanceId"])),
    "Azure's machine": (_AZURE, _azure, lambda raw: raw["name"]),
    "Compute Engine's machine": (_GCP, _gcp, lambda raw: names.id_of("us-central1-a", raw["name"])),
    "the local cloud's machine": (_LOCAL, read_machine, lambda raw: raw["id"]),
}


def _keys_of(called: str) -> dict[str, bytes]:
    """All keys of one job in the middle of much. Only the bad one has a silent node: where many fall silent, a silent
    node of another job is held with them, and rightly so (P4)."""
    suspect = node(7, N.SUSPECT if called == BAD else N.DRAINING)
    nodes = [
        *(member(1), member(2), node(3, N.READY), node(4, N.BOOTSTRAPPING, bootstrapped=True, ready_by=NOW + 60)),
        *(node(5, N.REQUESTED), node(6, N.TERMINATING), suspect, node(8, N.PENDING), member(9)),
    ]
    record = job(8, spare_nodes=1)
    known = view_of(record, nodes, round=round_of(1, 2, 9, recent_losses=(Loss(name(4), 5.0),)))
    world, run = KEYS.world, KEYS.run(called)
    records: dict[str, Any] = {f"{world}jobs/{called}": record}
    records |= {f"{world}nodes/{called}/{as_job(each.id, called)}": each for each in nodes}
    failed = replace(known.members[name(3)], failure=Failure(1, 0, 1, "it failed", 5.0))
    messages: dict[str, Any] = {
        "ctl/hint": known.hint,
        "round": known.round,
        "progress": Progress(1, 5, NOW, NOW, loss=0.5, checkpoint_problem="disk full", fraction=0.5, text="half"),
        "pauses": Pauses(name(1), (Pause(2, NOW - 9, 5.0, 4.0, 0.0, 1.0), Pause(1, NOW, None))),
        f"notice/{name(2)}": Notice(name(2), NOW + 50, NOW - 5, "aws"),
        f"ended/{name(8)}": Ended(name(8), "failure", 1, "no module", 5.0),
        f"ctl/tombstone/{name(6)}": Tombstone(name(6), "lost", 5.0),
        **{f"member/{each}": message for each, message in ({**known.members, name(3): failed}).items()},
        **{f"agent/{each}": message for each, message in known.agents.items()},
    }
    return {key: dump(as_job(each, called)) for key, each in records.items()} | {
        f"{run}{key.replace('/job-', f'/{called}-')}": encode(as_job(each, called)) for key, each in messages.items()
    }


def kind_of(key: str) -> str:
    """For the table."""
    section, _, rest = key.removeprefix(KEYS.world).partition("/")
    kind = rest.partition("/")[2].removeprefix("ctl/").partition("/")[0]
    return {"jobs": "job record", "nodes": "node record", "alerts": "alert"}.get(section, kind)


class _Store:
    """A store whose keys are set, and that takes every write."""

    def __init__(self) -> None:
        self.keys: Mapping[str, KeyValue] = {}
        self.written: list[tuple[Any, Any]] = []
        self.revision = 1

    def view(self) -> MirrorView:
        return MirrorView(self.keys, self.revision, live=True)

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        self.written.append((tuple(guards), tuple(operations)))
        return TxnResult(True, 1)

    def put_all(self, puts: Sequence[Put]) -> None:
        for put in puts:
            self.txn((), (put,))

    def range(self, prefix: str) -> Sequence[KeyValue]:
        return ()

    def changes(self, prefix: str, after: int) -> Range:
        return Range((), self.revision)

    def get(self, key: str) -> KeyValue | None:
        return None


class _Daemon:
    """Leads; each cloud has answered."""

    leading, leader = True, "daemon"

    def __init__(self, machines: Sequence[Instance]) -> None:
        offers: list[tuple[Action, Outcome]] = [
            (FetchOffers(each, "local", ()), OffersDone(each, NOW, (OFFER,))) for each in (BAD, GOOD)
        ]
        self._done = [(ListInstances("local"), ListDone("local", NOW - 1, tuple(machines))), *offers]

    def guard(self) -> Sequence[Compare]:
        return ()

    def start(self, action: Action) -> None:
        pass

    def collect(self) -> list[tuple[Action, Outcome]]:
        done, self._done = self._done, []
        return done


class Target:
    """One installation; `tick` shows what it does with some broken inputs."""

    def __init__(self) -> None:
        self._store = _Store()
        self._journal = Journal(self._store, KEYS)
        event = Event("bad-u-000001", NOW, BAD, EventKind.NOTICE, "text")
        self.bad = {
            **_keys_of(BAD),
            f"{KEYS.world}alerts/{event.id}": dump(event),
        }
        self._messages = [key for key in self.bad if not kind_of(key).endswith("record")]
        self.rare = {f"{KEYS.run(BAD)}result": encode(Result("success", "", 1))}
        whole = {**_keys_of(GOOD), **self.bad, f"{KEYS.world}cluster": dump(ClusterRecord(1.0, "daemon"))}
        self._whole = {key: KeyValue(key, value, 1, 1) for key, value in whole.items()}
        self._values = [*whole.values(), *self.rare.values()]
        self._clock = SystemClock(lambda: NOW, lambda: 0.0)
        self._machines = [machine(number) for number in (1, 2, 3, 4, 6, 7, 8, 9)]
        assert all(read(dict(raw)).id for raw, read, _ in CLOUDS.values())
        self._expected = self._tick({}, ())[0]
        assert self._expected[0], "the other job has something to do"
        assert set(self._journal.read().jobs) == {BAD, GOOD}
        self.inputs: Counter[str] = Counter()
        self.decoded: Counter[str] = Counter()
        self.contained: Counter[str] = Counter()

    def fuzz(self, rng: Random) -> str:
        """One tick with BATCH broken inputs. Returns what was wrong, or ""."""
        values: dict[str, bytes] = {}
        # A record that cannot be read hides its whole job: in most ticks there is none, and few values are broken.
        keys = list(self.bad) if rng.random() < 0.2 else self._messages
        if rng.random() < 0.1:
            keys = [*keys, *self.rare]
        ours = {**self.bad, **self.rare}
        raws: list[tuple[str, Any]] = []
        for _ in range(BATCH):
            kind = rng.random()
            if kind < 0.2:
                cloud = rng.choice(list(CLOUDS))
                raw = broken(json.dumps(CLOUDS[cloud][0]).encode(), rng, self._values)
                try:
                    raws.append((cloud, json.loads(raw)))
                except (ValueError, RecursionError):
                    continue  # the SDK's own parser refuses it, for the whole call
                self.inputs[cloud] += 1
            elif kind < 0.25:
                values[_odd_key(rng, list(self.bad))] = rng.choice(self._values)
            else:
                key = rng.choice(keys)
                values[key] = broken(ours[key], rng, self._values)
        self.inputs.update(kind_of(key) if key in ours else "name of a key" for key in values)
        machines = [read_each([raw], CLOUDS[cloud][1], CLOUDS[cloud][2])[0] for cloud, raw in raws]
        self.decoded.update(
            cloud for (cloud, _), each in zip(raws, machines, strict=True) if each.state is not InstanceState.UNREADABLE
        )
        try:
            found, faults = self._tick(values, machines)
        except Exception as error:  # noqa: BLE001 - the finding
            return f"escaped: {type(error).__name__}: {error}; {values!r:.3000} {raws!r:.1000}"
        reading = self._journal.read()
        if BAD in reading.jobs:
            known = (key for key in values if key in self.bad or key in self.rare)
            self.decoded.update(kind_of(key) for key in known if key not in reading.unreadable)
        records = any(kind_of(key).endswith("record") for key in values)
        for fault in faults:
            self.contained[fault] += 1
        if faults and not records:
            return f"contained, without a broken record: {faults}; {values!r:.3000} {raws!r:.1000}"
        if found != self._expected:
            return f"another decision about the other job: {found[1]}; {list(values)}; {values!r:.3000} {raws!r:.1000}"
        return ""

    def _tick(self, values: Mapping[str, bytes], machines: Sequence[Instance]) -> tuple[Any, list[str]]:
        store = self._store
        store.revision += 1
        store.written = []
        changed = {key: KeyValue(key, value, 1, store.revision) for key, value in values.items()}
        store.keys = MappingProxyType({**self._whole, **changed})
        daemon = _Daemon([*self._machines, *machines])
        loop = Loop(self._journal, daemon, daemon, self._clock, Rules(alerts=True), ("local",))
        loop.tick()  # a new leader writes first
        loop.tick()
        mine = (f"{KEYS.world}jobs/{GOOD}", f"{KEYS.world}nodes/{GOOD}/", KEYS.run(GOOD))
        found = [each for each in store.written if any(op.key.startswith(mine) for op in each[1])]
        view = self._journal.read().jobs.get(BAD)
        if view is not None:
            sentence = loop.status.about(BAD)
            rows = [job_detail(view, sentence, NOW), cost_row(view, NOW)]
            json.dumps([*rows, *node_rows(view, NOW)])
        causes = [text for text in loop.status.sentences.values() if "is left as it is" in text]
        if any(name in loop.status.counters for name in CONTAINED):
            return (found, loop.status.sentences[GOOD]), causes or [loop.status.headline]
        return (found, loop.status.sentences.get(GOOD, loop.status.headline)), []


def _odd_key(rng: Random, keys: Sequence[str]) -> str:
    """A key below the bad job, or of no job at all."""
    text = str(rng.choice([each for each in ODD if isinstance(each, str)]))[:200]
    run = KEYS.run(BAD)
    return rng.choice(
        (
            *(
                f"{rng.choice(keys)}/{text}",
                f"{run}{text}",
                f"{run}member/{text}",
                f"{run}agent/{text}",
                f"{run}ended/",
            ),
            *(
                f"{KEYS.world}{text}",
                f"{KEYS.world}x{text}/{BAD}",
                f"{KEYS.world}jobs/{BAD}/{text}",
                f"{KEYS.world}run/",
            ),
            *(
                f"{KEYS.world}run/x{text}/member/job-u-77",
                f"{run}agent/job-u-77",
                f"{run}notice/job-u-1",
                f"{run}\udcff",
            ),
        )
    )
