"""Nothing spreads (P11): each function of the planner and the market raises in turn while one job is decided, and the
decision about the other job is what it was. Around it: commits that etcd refuses, outcomes that do not fit, texts."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType, MappingProxyType
from typing import Any

import pytest
from spotsup_trainer.etcd import Compare, TxnResult
from spotsup_trainer.wire import Ended, Pause, Pauses, Progress, Result

from provisioners.base import Fatal, InstanceState, Launched, Market, NoCapacity, Scope, Throttled, Transient, Unknown
from supervisor.alerts.batches import ChannelState
from supervisor.alerts.routes import Channel
from supervisor.alerts.stories import Thread
from supervisor.billing import Booking, NodeBilling, Purpose, RoundTimes
from supervisor.budget import Budgets
from supervisor.errors import JournalRefusedError, ThreadFailedError, UsageError
from supervisor.events import EventKind
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal, Reading
from supervisor.market.journaled import CapacityRecord
from supervisor.market.warm import WarmRules
from supervisor.model import ClusterRecord, Event, NoticeRecord
from supervisor.planner.actions import (
    MAX_COMMIT_BYTES,
    Action,
    BootstrapDone,
    CleanDone,
    Commit,
    FetchOffers,
    FindDone,
    Launch,
    LaunchDone,
    ListDone,
    ListInstances,
    NodeOutcome,
    OffersDone,
    Outcome,
    Plan,
    TerminateDone,
)
from supervisor.planner.boundary import MAX_NAMED, unreadable
from supervisor.planner.plan import plan
from supervisor.planner.throttling import RequestLimit
from supervisor.planner.world import JobView, Rules, Sighting, VolatileState, World
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.loop import Loop
from supervisor.runtime.supervision import Supervision
from supervisor.spec import MAX_SPEC_BYTES, parse_spec
from tests.mutation.run import code_of, function_of, source_of, targets
from tests.unit.scene import (
    KEYS,
    MISSED,
    NOW,
    OFFER,
    J,
    N,
    as_job,
    hint_of,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    node,
    offering,
    round_of,
    scene,
    spec,
    view,
    world_of,
)

# The boundary itself, what the loop calls by itself, and what people's commands call.
TRUSTED = {"plan", "Boundary.within", "Boundary.__init__", "fault", "report", "unreadable", "absorb", "init_journal"}
COMMANDS = "supervisor.planner.adoption"
# Where a limit of the operator cannot be decided, nothing is requested: tests/unit/test_queue.py.
QUEUE = ("supervisor.features.queue.rule", "supervisor.market.admission")
# Most functions are called in all of them, in the same way.
SCENES_PER_FUNCTION = 8


@dataclass(frozen=True)
class Scene:
    """One job in some trouble."""

    view: JobView
    outcomes: tuple[NodeOutcome, ...] = ()
    machines: tuple[Any, ...] = ()


def scenes() -> list[Scene]:
    """Together they reach nearly all of the planner."""
    full, last = NoCapacity(Scope.ZONE, 60.0, "full"), NoticeRecord(NOW + 5, NOW - 50, "metadata")
    odd, lost = Transient("odd", unknown_code="Odd"), node(2, N.LOST, has_joined=True, needs_replacement=True)
    ended, gone = job(2, J.SUCCEEDED, ended_at=NOW - 90), [node(n, N.GONE, ended_at=NOW - 99) for n in range(1, 120)]
    unhealthy = [BootstrapDone(name(n), "no GPU", unhealthy=True, foreign=n == 1) for n in (1, 2, 3)]
    done = TerminateDone(name(3), "i-3", "not now", "panic", "no\nmodule")
    stopped = {name(n): launcher(n, "waiting", parked=True) for n in (1, 2)}
    trained = RoundTimes(400.0, phase=Purpose.USEFUL, since=NOW - 90, round=1, first_step=1, step=90, step_at=NOW - 40)
    spent = NodeBilling(Purpose.IDLE, booked_to=NOW - 9, round=1, left_at=NOW - 9,
                        bookings=(Booking("1970-01", Purpose.USEFUL, 400.0, 1.0),))  # fmt: skip
    left = node(2, N.TERMINATING, billing=spent)
    running = (machine(1), machine(2))
    answers = ((2, Throttled(1.0, "slow")), (3, Launched(machine(3))), (4, Fatal("no image")))
    either = spec(market="spot-then-on-demand")
    dear = member(1, offer=replace(OFFER, market=Market.ON_DEMAND, usd_per_hour=1.5), state_since=NOW - 999)
    return [
        Scene(view(job(4), [member(1), node(2, N.REQUESTED), node(7, N.REQUESTED, launch_unknown=True),
                            node(4, N.REQUESTED), node(5, N.REQUESTED)]),
              tuple(LaunchDone(name(n), OFFER, each) for n, each in ((2, full), (4, odd), (5, Unknown("?")))), running),
        Scene(view(job(2), [member(1), member(2, notice=last)]), machines=running),
        Scene(view(job(3), [member(1), lost, node(3, N.TERMINATING)],
                   exits={name(3): Ended(name(3), "failure", 1, "", 1.0)}), (done,), running),
        Scene(view(job(2), [member(1), node(2, N.SUSPECT)], members={}, agents={}), machines=running),
        Scene(view(job(2), [member(1), member(2)], members={}, agents={}), machines=running),
        Scene(view(ended, [member(1), node(2, N.TERMINATING), *gone[3:]], result=Result("success", "", 1))),
        Scene(view(job(2), [member(1), member(2)], result=Result("failure", "it failed", 1)), machines=running),
        Scene(view(job(2, J.RUNNING, pause={"at": NOW - 9}), [member(1), member(2)], members=stopped,
                   hint=hint_of(1, 2, hold=True)), machines=running),
        Scene(view(job(2, J.PAUSED, pause={"at": 0.0}), [])),
        Scene(view(job(1, J.QUEUED, spare_nodes=1), [])),
        Scene(view(job(3, J.STARTING), [node(n, N.BOOTSTRAPPING) for n in (1, 2, 3)]), tuple(unhealthy),
              (machine(1), machine(2), machine(3))),
        Scene(view(job(2), [member(1), member(2), member(3, drain_requested=True), node(4, N.READY)],
                   progress=Progress(1, 9, 1.0, 1.0, checkpoint_problem="disk full")), machines=running),
        Scene(view(job(1), [member(1), member(2), node(3, N.PENDING), node(4, N.DRAINING)]),
              machines=(machine(1), machine(2, InstanceState.TERMINATED), machine(3), machine(4))),
        Scene(view(job(2), [node(1, N.REQUESTED, launch_unknown=True), node(2, N.BOOTING), node(3, N.FAILED)]),
              (FindDone(name(1), machine(1)),)),
        Scene(view(job(2, spare_nodes=1), [member(1), member(2, state_since=NOW + 500), node(3, N.READY)],
                   hint=hint_of(1, 2, spares=(3,)), tombstones=frozenset({name(9)})), machines=running),
        Scene(view(job(2), [member(1), member(2)], round=round_of(1, 2, number=2),
                   pauses=Pauses(name(1), (Pause(2, NOW, 1.5, 0.5),))), machines=running),
        Scene(view(job(2, billing={"rounds": trained}), [member(1), left, member(3)], round=round_of(1, 3, number=2),
                   progress=Progress(1, 90, NOW - 40, NOW - 90)), machines=running),
        Scene(view(job(2, billing={"rounds": replace(trained, phase=Purpose.PAUSE)}), [member(1), left, member(3)],
                   round=round_of(1, 3, number=2), progress=Progress(2, 60, NOW, NOW - 9, first_step=50)),
              machines=running),
        Scene(view(job(4, J.DEGRADED, state_since=NOW - 1800), [member(n, state_since=NOW - 999) for n in (1, 2)]),
              machines=running),
        Scene(view(job(2, spec=either, moves={"since": NOW - 9}), [dear, node(2, N.READY, ahead=True)]),
              machines=running),
        Scene(view(job(2, moves={"since": NOW - 9}), [member(1), node(2, N.READY, ahead=True)]), machines=running),
        Scene(view(job(2, J.SUCCEEDED, ended_at=NOW - 20), [member(1), member(2), node(3, N.WARM), node(4, N.CLEANING)],
                   result=Result("success", "", 1)), (CleanDone(name(4)),), machines=running),
        Scene(view(job(2), [member(1), node(2, N.WARM, state_since=NOW - 9)]), machines=running),
        Scene(view(job(2, J.CANCELLED, ended_at=NOW - 20), [node(1, N.WARM), node(2, N.CLEANING)]),
              (CleanDone(name(2), "a process does not end"),), machines=running),
        Scene(view(job(4), [member(1), node(2, N.REQUESTED), node(3, N.REQUESTED), node(4, N.REQUESTED)]),
              tuple(LaunchDone(name(n), OFFER, each) for n, each in answers), running),
    ]  # fmt: skip


CHANNELS = (Channel("bot", threads=True), Channel("ops"), Channel("away"))
# What they have: one has an event that the others lack, one has failed for long.
CHANNEL_STATES = {
    "ops": ChannelState(delivered=frozenset({"e-1"})),
    "away": ChannelState(error="no answer", failing_since=NOW - 999),
}


def world_with(scene: Scene) -> tuple[World, dict[str, list[NodeOutcome]]]:
    """The same job twice, under two names."""
    known, volatile = world_of(scene.view), VolatileState()
    views = {called: as_job(scene.view, called) for called in ("bad", "job")}
    machines = [as_job(replace(each, id=f"{called}{each.id}"), called) for called in views for each in scene.machines]
    machines += [machine(77, node="job-u-77", id="stray"), *scene.machines]
    offers = {called: offering(OFFER, replace(OFFER, zone="zone-b"))["offers"]["job"] for called in views}
    clouds = {"local": listing(*machines, missed_at={"job-u-1": MISSED, "bad-u-1": MISSED})}
    volatile = replace(volatile, clouds=clouds, offers=offers, sightings={"stray": Sighting(NOW - 999, 3)})
    volatile = replace(volatile, alert_channels=CHANNEL_STATES)
    volatile = replace(volatile, request_limits={"local": RequestLimit(0.01, 0.0, NOW, NOW - 9)})
    outcomes: dict[str, list[NodeOutcome]] = {}
    for outcome in (as_job(each, called) for called in views for each in scene.outcomes):
        outcomes.setdefault(outcome.node, []).append(outcome)
    return replace(
        known,
        jobs=views,
        volatile=volatile,
        alerts=(
            Event("job-u-1", NOW, "job", EventKind.NOTICE, "text"),
            Event("e-1", NOW, "", EventKind.ORPHAN, "text"),
        ),
        threads={"bot": {"job-u": Thread("C1", "1.5"), "old-u": Thread("C1", "1.2")}},
        rules=Rules(
            gone_kept=2,
            alerts=True,
            channels=CHANNELS,
            budgets=Budgets(usd_per_month=1e9),
            warm=WarmRules(50.0, 9, 99.0),
        ),
    ), outcomes


SCENES = [world_with(each) for each in scenes()]


class Planned(Exception):
    """What a function raises here."""


_reached: list[bool] = []


def fail_here() -> None:
    """Raise, unless it is the other job that is decided."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_qualname != "_decide":
        frame = frame.f_back
    if frame is None or frame.f_locals["view"].record.name == "bad":
        _reached.append(frame is not None)
        raise Planned("raised on purpose")


def functions() -> Iterator[tuple[str, CodeType]]:
    """Each function and method of the planner and the market, with code that fails at its begin."""
    for module, path in targets("supervisor.planner,supervisor.market").items():
        importlib.import_module(module)
        tree, found = ast.parse(source_of(path)), []
        holders: list[tuple[str, ast.AST]] = [("", tree)]
        for prefix, holder in holders:
            for each in ast.iter_child_nodes(holder):
                if isinstance(each, ast.ClassDef):
                    holders.append((f"{prefix}{each.name}.", each))
                elif isinstance(each, ast.FunctionDef):
                    each.body.insert(0, ast.parse("_fail_here()").body[0])
                    found.append((f"{prefix}{each.name}", each.lineno))
        code = compile(ast.fix_missing_locations(tree), str(path), "exec")
        for each_name, line in found:
            if (
                each_name not in TRUSTED
                and module not in {COMMANDS, *QUEUE}
                and (changed := code_of(code, each_name, line)) is not None
            ):
                yield module, changed


FUNCTIONS = [*functions()]


def decided(of: Plan) -> tuple[Any, ...]:
    """What is decided about the good job."""
    commits = [each for each in of.commits if each.job == "job"]
    return commits, of.sentences["job"], "job" in of.steady_jobs


def planned(of: tuple[World, dict[str, list[NodeOutcome]]]) -> tuple[Plan, set[str]]:
    """What is decided in one scene, and which functions that calls."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")

    world, outcomes = of
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        return plan(world, outcomes, KEYS, NOW)[0], called
    finally:
        sys.setprofile(before)


EXPECTED, CALLED = zip(*map(planned, SCENES), strict=True)
# What the bad job has learned about its cloud is not known then, either; that its nodes are silent, too, is.
ALONE = [plan(replace(world, jobs={"job": world.jobs["job"]}), outcomes, KEYS, NOW)[0] for world, outcomes in SCENES]


def test_the_scenes_fail_by_themselves_nowhere() -> None:
    for expected in EXPECTED:
        assert expected.undecided == {}
        assert set(expected.sentences) == {"bad", "job"}


def test_a_function_that_raises_for_one_job_changes_nothing_of_another() -> None:
    never = []
    for module, code in FUNCTIONS:
        called, target = f"{module}.{code.co_qualname}", function_of(module, code)
        if not hasattr(target, "__code__") or target.__code__.co_freevars != code.co_freevars:
            continue  # wrapped by a cache, or with a closure
        before, target.__globals__["_fail_here"] = target.__code__, fail_here
        reached, tried = False, 0
        try:
            target.__code__ = code
            for (world, outcomes), expected, alone, calls in zip(SCENES, EXPECTED, ALONE, CALLED, strict=True):
                if called not in calls or tried == SCENES_PER_FUNCTION:
                    continue
                tried += 1
                _reached.clear()
                found, volatile = plan(world, outcomes, KEYS, NOW)
                reached = reached or bool(_reached)
                wanted = [decided(expected), *([decided(alone)] if "bad" in found.undecided else [])]
                assert decided(found) in wanted, called
                assert ("bad" in found.undecided) is any(_reached), called
                if any(_reached):
                    fault, bad = found.undecided["bad"], world.jobs["bad"].record
                    assert f"in {code.co_name}" in fault.traceback
                    assert "Planned: raised on purpose" in fault.sentence
                    if found.sentences["bad"] == fault.sentence:
                        assert not [each for each in found.commits if each.job == "bad"]
                    else:
                        assert bad.ended or bad.cancel_requested, "it is decided without its messages"
                elif _reached:
                    assert any(part.startswith("(") for part in found.undecided), called
                    assert any("raised on purpose" in text for text in found.warnings), called
                assert isinstance(volatile, VolatileState)
        finally:
            target.__code__ = before
        if not reached:
            never.append(called)
    assert len(never) < len(FUNCTIONS) / 4, never


# -- the loop ----------------------------------------------------------------------------------------------


class FakeJournal:
    """A journal of two jobs that never changes; `refuses` are jobs of which etcd refuses every commit."""

    def __init__(self, jobs: Mapping[str, JobView], **more: Any) -> None:
        self.keys = KEYS
        known: dict[str, Any] = {"alerts": (), "revision": 1, "live": True, "unreadable": {}}
        known["cluster"] = ClusterRecord(1.0, "d")
        self.reading = Reading(MappingProxyType(dict(jobs)), **(known | more))
        self.refuses: Mapping[str, Exception] = {}
        self.revision = 1
        self.commits: list[Commit] = []

    def read(self) -> Reading:
        return self.reading

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        if commit.job in self.refuses:
            raise self.refuses[commit.job]
        self.commits.append(commit)
        return self.revision

    def alerts(self, kind: EventKind) -> list[str]:
        return [each.text for commit in self.commits for each in commit.alerts if each.kind is kind]


class FakeActor:
    leading, leader = True, "d"

    def __init__(self) -> None:
        self.started: list[Action] = []
        self.done: list[tuple[Action, Outcome]] = []

    def guard(self) -> Sequence[Compare]:
        return ()

    def start(self, action: Action) -> None:
        self.started.append(action)

    def collect(self) -> list[tuple[Action, Outcome]]:
        done, self.done = self.done, []
        return done


def loop_with(journal: FakeJournal) -> tuple[Loop, FakeActor]:
    """One that leads, and has seen what it wrote to begin with."""
    actor = FakeActor()
    clock = SystemClock(lambda: NOW, lambda: 0.0)
    loop = Loop(journal, actor, actor, clock, Rules(alerts=True), ("local",))
    loop.tick()
    assert [commit.capacity for commit in journal.commits] == [CapacityRecord(NOW)]
    journal.commits.clear()
    return loop, actor


def tick_with_offers(loop: Loop, actor: FakeActor) -> None:
    """A tick, after which each job that asked for its offers has them."""
    loop.tick()
    for action in actor.started:
        if isinstance(action, FetchOffers):
            actor.done.append((action, OffersDone(action.job, NOW, (OFFER,))))
        if isinstance(action, ListInstances):
            actor.done.append((action, ListDone(action.cloud, NOW)))
    actor.started.clear()


LIVE = SCENES[9][0].jobs  # they request their first nodes


@pytest.mark.parametrize(
    "error",
    [JournalRefusedError("request is too large"), AssertionError("odd"), UnicodeEncodeError("a", "b", 0, 1, "")],
)
def test_a_commit_that_etcd_refuses_or_that_cannot_be_encoded_stays_with_its_job(error: Exception) -> None:
    journal = FakeJournal(LIVE)
    journal.refuses = {"bad": error}
    loop, actor = loop_with(journal)
    for _ in range(3):
        tick_with_offers(loop, actor)
    assert {each.job for each in journal.commits} == {"", "job"}
    assert loop.status.counters["commits_refused"] >= 1
    assert type(error).__name__ in loop.status.sentences["bad"]
    (alert,) = journal.alerts(EventKind.UNDECIDED)
    assert alert == loop.status.sentences["bad"]


def test_a_new_leader_decides_once_the_mirror_shows_what_it_wrote_first() -> None:
    """What the leader before it has written last may not be shown yet: by its requests a limit may be reached."""
    journal = FakeJournal({"job": view(job(2), [member(1)])})
    loop, actor = loop_with(journal)
    assert (journal.commits, actor.started) == ([], [])
    loop.tick()
    assert actor.started != []

    actor.leading = False
    loop.tick()
    actor.leading, journal.revision = True, 7  # of what it writes; its reading has 1
    actor.started.clear()
    journal.commits.clear()
    for _ in range(3):
        loop.tick()
    assert (len(journal.commits), actor.started) == (1, [])
    assert loop.status.headline.startswith("begins to lead: waits until etcd has taken a write")
    journal.reading = replace(journal.reading, revision=7)
    loop.tick()
    assert loop.status.headline == "watching 1 job"


def test_of_many_jobs_that_fail_at_once_twenty_are_reported_in_each_tick() -> None:
    views = {f"job-{number}": as_job(LIVE["job"], f"job-{number}") for number in range(25)}
    journal = FakeJournal(views)
    journal.refuses = dict.fromkeys(views, JournalRefusedError("request is too large"))
    loop, actor = loop_with(journal)
    reported = []
    for _ in range(3):
        tick_with_offers(loop, actor)
        reported.append(len(journal.alerts(EventKind.UNDECIDED)))
    assert (reported, loop.status.counters["commits_refused"]) == ([0, 20, 25], 50)


def test_an_answer_that_does_not_fit_is_dropped_and_asked_for_again_when_it_is_due() -> None:
    journal = FakeJournal(LIVE)
    loop, actor = loop_with(journal)
    loop.tick()
    (asked,) = [each for each in actor.started if isinstance(each, ListInstances)]
    actor.started.clear()
    actor.done.append((asked, ListDone("local", NOW, (object(),))))  # type: ignore[arg-type]
    loop.tick()
    assert loop.status.counters["outcomes_dropped"] == 1
    assert asked not in actor.started
    (alert,) = journal.alerts(EventKind.UNDECIDED)
    assert alert.startswith("the outcome of list:local is dropped (AttributeError: ")


def test_an_outcome_that_a_job_cannot_take_is_dropped() -> None:
    journal = FakeJournal({"job": view(job(2), [node(1, N.REQUESTED)])})
    loop, actor = loop_with(journal)
    actor.done.append((Launch(node(1, N.REQUESTED)), LaunchDone(name(1), OFFER, Launched(None))))  # type: ignore[arg-type]
    loop.tick()
    assert loop.status.counters["undecided"] == loop.status.counters["outcomes_dropped"] == 1
    loop.tick()
    assert loop.status.counters["undecided"] == 1
    assert "is left as it is" not in loop.status.sentences["job"]


def test_each_key_that_cannot_be_read_is_counted_and_alerted_once() -> None:
    few = {f"/run/a{number}/progress": "no JSON" for number in range(3)}
    journal = FakeJournal(LIVE, unreadable=few, refused={"old": "schema 3"})
    loop, _ = loop_with(journal)
    for _ in range(3):
        loop.tick()
    assert loop.status.counters["messages_unreadable"] == 3
    assert journal.alerts(EventKind.UNREADABLE) == [
        f"cannot be read, and is left alone: {key}: {why}" for key, why in ({"old": "schema 3"} | few).items()
    ]
    many = few | {f"/run/b{number}/progress": "no JSON" for number in range(1000)}
    journal.reading = replace(journal.reading, unreadable=many)
    loop.tick()
    loop.tick()
    assert len(journal.alerts(EventKind.UNREADABLE)) == 4 + MAX_NAMED
    assert journal.alerts(EventKind.UNREADABLE)[-1].endswith("(and 995 more; the log has them)")
    assert len(unreadable(many)) == MAX_NAMED
    journal.reading = replace(journal.reading, unreadable={"/run/c/progress": "no JSON"})
    loop.tick()
    assert len(journal.alerts(EventKind.UNREADABLE)) == 4 + MAX_NAMED + 1, "another job's is named all the same"


def test_a_tick_that_fails_as_a_whole_leaves_all_as_it_is_until_the_next() -> None:
    journal = FakeJournal(LIVE)
    loop, actor = loop_with(journal)
    good, journal.reading = journal.reading, None  # type: ignore[assignment]
    loop.tick()
    assert loop.status.headline.startswith("nothing is decided: the daemon itself failed (AttributeError: ")
    assert loop.status.counters["ticks_failed"] == 1
    journal.reading = good
    loop.tick()
    assert loop.status.headline == "watching 2 jobs"
    assert actor.started


def test_a_daemon_of_which_each_tick_fails_for_a_minute_ends() -> None:
    journal = FakeJournal(LIVE)
    loop, _ = loop_with(journal)
    now = 0.0
    supervision = Supervision({"loop": loop.vitals}, lambda: now)

    def tick_for(seconds: int) -> None:
        nonlocal now
        for _ in range(seconds):
            now += 1.0
            loop.tick()
            supervision.check()

    good, journal.reading = journal.reading, None  # type: ignore[assignment]
    tick_for(50)
    broken, journal.reading = journal.reading, good
    tick_for(200)
    journal.reading = broken
    with pytest.raises(ThreadFailedError, match=r"loop: it has made no progress for 61 s\. This daemon ends"):
        tick_for(70)


# -- sizes -------------------------------------------------------------------------------------------------

NOISE = "".join(chr(number % 32) for number in range(10_000))


def bytes_of(commit: Commit) -> int:
    records = [commit.job_record, *commit.nodes, *commit.events, *commit.alerts]
    return sum(len(dump(each)) for each in records if each) + sum(len(each) for each in commit.put_keys.values())


@pytest.mark.parametrize("text", [NOISE, '"' * 10_000, "é\n" * 5000, "\U0001f600" * 10_000, "\ud800" * 10_000])
def test_64_nodes_that_fail_with_kilobytes_of_anything_fit_into_one_commit(text: str) -> None:
    nodes = [node(number, N.BOOTSTRAPPING) for number in range(1, 65)]
    outcomes = [BootstrapDone(name(number), text) for number in range(1, 65)]
    commit = scene(
        *nodes, record=job(64, J.STARTING), outcomes=outcomes, rules=Rules(alerts=True, leftovers_s=1e9)
    ).commit
    assert len(commit.nodes) >= 16
    assert bytes_of(commit) <= MAX_COMMIT_BYTES


class Etcd:
    def txn(self, guards: Sequence[Compare], operations: Sequence[Any]) -> TxnResult:
        return TxnResult(True, 2)


def test_a_commit_that_is_too_large_is_refused_before_it_is_sent() -> None:
    journal = Journal(Etcd(), KEYS)  # type: ignore[arg-type]
    assert journal.commit(Commit("job", {}, put_keys={"k": b"x" * 1000}), ()) == 2
    for commit in (
        Commit("job", {}, put_keys={"k": b"x" * MAX_COMMIT_BYTES}),
        Commit("job", {}, put_keys={f"k{number}": b"" for number in range(129)}),
    ):
        with pytest.raises(JournalRefusedError, match="too many for one transaction"):
            journal.commit(commit, ())


BASE = {"name": "job", "nodes": 1, "run": "train.py"}
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
LAUGHS: list[Any] = ["ha"] * 10
for _ in range(9):
    LAUGHS = [LAUGHS] * 10


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"env": {"BIG": "x" * MAX_SPEC_BYTES, "A": "b"}}, r"`env\.BIG` alone has 65538: put it into a file"),
        ({"setup": "x" * MAX_SPEC_BYTES}, "`setup` alone has 65538"),
        ({"env": CYCLE}, "nested too deeply: at most 20 levels"),
        ({"env": LAUGHS}, "too many values"),
        ({"limits": {"hours": float("inf")}}, "should be a finite number"),
    ],
)
def test_a_job_file_that_is_too_large_or_too_deep_is_refused_by_name(more: Mapping[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_spec(BASE | dict(more))
    assert parse_spec(BASE | {"env": {"BIG": "x" * 60_000}}).name == "job"
