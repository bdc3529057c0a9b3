"""Bounds are reached, and hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from spotsup_simulator.world import World
from spotsup_trainer.wire import Progress

from bootstrap.errors import STDERR_CHARACTERS, BootstrapError
from provisioners.base import LaunchOutcome, LaunchRequest, Market, NoCapacity, Offer, OfferQuery, Scope, Transient
from supervisor.alerts.batches import MAX_RETRY_S
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.api.app import create_app
from supervisor.api.jobs.changes import Scale
from supervisor.api.jobs.commands import MAX_TRIES
from supervisor.api.journal_copy import CATCH_UP_S
from supervisor.api.quote import MAX_SHOWN, Quotes, quote_row
from supervisor.api.security.gate import MAX_BLOB_BYTES
from supervisor.api.security.unix_socket import PEER
from supervisor.api.submit.checked import MAX_AGE_S, MAX_KEPT, Checked, LastChecked
from supervisor.errors import CommandRefusedError, JournalUnavailableError, UsageError
from supervisor.events import EventKind
from supervisor.features.checkpoints.rule import MAX_PROBLEM_CHARACTERS
from supervisor.market.capacity import MAX_REFUSALS, CapacityMemory
from supervisor.model import JobRecord, JobState, NodeRecord
from supervisor.planner.actions import (
    Terminate,
    TerminateDone,
)
from supervisor.planner.world import MAX_CODES, VolatileState
from supervisor.runtime.actor import CONSOLE_LINES, CONSOLE_TAIL_CHARACTERS
from supervisor.spec import MAX_NODES, MAX_SPARES, parse_spec
from tests.sim.harness import NO_FAULTS, RULES, empty_world, machine_of, record, service, submit, training_world
from tests.sim.promises import events_of, jobs_of
from tests.unit.quoting import Stub

OFFER = Offer("local", "r", "z", "small", Market.SPOT, 0.1)


# -- the loop's surroundings -------------------------------------------------------------------------------


def test_the_end_of_a_long_console_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world()
    lines = [f"line {number}" for number in range(10 * CONSOLE_LINES)]
    monkeypatch.setattr(world.cloud, "console", lambda *_: "\n".join(lines))
    action = Terminate("local", "i-1", "n1", read_console=True)
    done = world.daemon.actor._perform(action)
    assert isinstance(done, TerminateDone)
    assert done.console.splitlines() == lines[-CONSOLE_LINES:]


class Talkative:
    """PreTerminate whose log is one long line."""

    def log_of(self, node: NodeRecord) -> str:
        return "#" * (2 * CONSOLE_TAIL_CHARACTERS) + "the end"

    def unmount(self, node: NodeRecord, job: JobRecord) -> None:
        raise AssertionError("nothing is mounted")


def test_a_console_tail_is_short_however_long_a_line_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world()
    monkeypatch.setattr(world.cloud, "console", lambda *_: "." * (2 * CONSOLE_TAIL_CHARACTERS) + "the end")
    effects = world.daemon.actor._perform.__self__  # type: ignore[attr-defined] # a bound method
    effects._pre_terminate = Talkative()
    node = NodeRecord("n1", "job", "token", OFFER, 0.0)
    done = effects.perform(Terminate("local", "i-1", "n1", read_console=True, read_log_of=node))
    for text in (done.console, done.log):
        assert len(text) == CONSOLE_TAIL_CHARACTERS
        assert text.endswith("the end")


# -- volatile state ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_is_remembered_outside_the_journal_is_bounded() -> None:
    volatile, capacity = VolatileState(), CapacityMemory()
    for number in range(MAX_REFUSALS + 10):
        refused = NoCapacity(Scope.ZONE, 1e9, "full")
        capacity = capacity.remember(replace(OFFER, zone=f"z{number}"), refused, 0.0, spare=False)
        volatile, is_new = volatile.with_unknown_code("aws", f"Code{number}")
        assert is_new
    assert len(capacity.refusals) == MAX_REFUSALS
    assert len(volatile.unknown_codes) == MAX_CODES
    newest = f"{MAX_REFUSALS + 9}"
    assert capacity.refusals[-1].offer.zone == f"z{newest}"
    assert volatile.unknown_codes[-1] == ("aws", f"Code{newest}")


@pytest.mark.long
def test_alerts_wait_until_their_channel_answers_which_is_tried_every_few_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = training_world()
    world.run(30.0)
    tried: list[float] = []
    refuses = True
    deliver = world.send

    def refuse(message: Outgoing) -> Receipt:
        tried.append(world.clock.now())
        return Receipt(error="Slack did not answer") if refuses else deliver(message)

    monkeypatch.setattr(world, "send", refuse)
    world.cloud.preempt(machine_of(world, 1), 60.0)
    world.run(60.0)
    world.run(240.0)
    assert 5 <= len(tried) <= 12
    assert "alerts wait for slack since" in world.daemon.loop.status.headline
    expected = {event.id for event in world.journal.read().alerts}
    assert len(expected) >= 3
    refuses = False
    assert world.run_until(lambda w: not w.journal.read().alerts, 2 * MAX_RETRY_S)
    assert {event.id for event in world.sent} >= expected, "nothing is lost"
    assert "alerts wait" not in world.daemon.loop.status.headline


def test_offers_of_ended_jobs_are_forgotten() -> None:
    world = empty_world()
    for number in range(5):
        submit(world, f"job-{number}", 1, 1, 1)
        assert world.run_until(lambda w, name=f"job-{number}": record(w, name).state is JobState.RUNNING, 60.0)  # type: ignore[misc]
        service(world).commands.cancel(f"job-{number}")
        world.run(30.0)
    submit(world, "last", 1, 1, 1)
    assert world.run_until(lambda w: record(w, "last").state is JobState.RUNNING, 60.0)
    assert set(world.daemon.loop._volatile.offers) == {"last"}


# -- retries -----------------------------------------------------------------------------------------------


def test_a_cloud_that_always_fails_is_asked_a_few_times_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world(replace(RULES, launch_attempts=5))
    asked: list[str] = []

    def launch(request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        asked.append(request.node)
        return Transient("internal error")

    monkeypatch.setattr(world.cloud, "launch", launch)
    submit(world, "job", 1, 1, 1)
    assert world.run_until(lambda _: len(set(asked)) > 1, 300.0)
    assert asked.count(asked[0]) == 5
    assert events_of(world, "job", EventKind.LAUNCH_REFUSED)[0] == asked[0]


class Rival:
    """A clock: each time a command reads it, another user changes the job first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked = 0

    def now(self) -> float:
        """The time, a little too late."""
        self.asked += 1
        service(self._world).commands.scale("job", Scale(spares=self.asked % 2 + 1))
        return self._world.clock.now()


def test_a_command_is_retried_a_limited_number_of_times() -> None:
    world = training_world()
    world.run(120.0)
    rival = Rival(world)
    late = replace(service(world).commands, clock=rival)
    with pytest.raises(CommandRefusedError, match="changes too fast"):
        late.scale("job", Scale(desired=4))
    assert rival.asked == MAX_TRIES
    assert record(world).desired_nodes == 3


def test_a_command_waits_a_limited_time_for_what_other_daemons_acknowledged() -> None:
    world = training_world()
    world.run(120.0)
    world.set_fault_rates(replace(NO_FAULTS, mirror_lag_s=60.0))  # the mirror shows new writes much later
    service(world).commands.scale("job", Scale(spares=1))
    with pytest.raises(JournalUnavailableError, match=f"behind etcd for {CATCH_UP_S:g} s"):
        service(world).commands.scale("job", Scale(desired=4))
    assert record(world).desired_nodes == 3


# -- sizes -------------------------------------------------------------------------------------------------


def test_a_long_checkpoint_problem_is_truncated() -> None:
    world = training_world()
    keys = world.nodes.keys
    found = jobs_of(world)["job"].progress
    assert found is not None
    world.nodes.trainings["job"].problem = "no space left on device, " * 100
    assert world.run_until(lambda w: bool(record(w).checkpoints.problem), 60.0)
    assert len(record(world).checkpoints.problem) == MAX_PROBLEM_CHARACTERS
    assert isinstance(found, Progress)
    assert keys.progress("job") in world.etcd.keys


def test_the_kept_output_of_a_failed_command_is_short_however_long_a_line_is() -> None:
    error = BootstrapError("it failed", node="n1", stderr="#" * (2 * STDERR_CHARACTERS) + "the end")
    assert len(error.stderr) == STDERR_CHARACTERS
    assert error.stderr.endswith("the end")


def test_code_that_is_too_large_is_refused() -> None:
    world = empty_world()
    with pytest.raises(UsageError, match=f"at most {MAX_BLOB_BYTES} are accepted"):
        service(world).submissions.put_blob(bytes(MAX_BLOB_BYTES + 1))


def test_a_request_that_is_too_large_is_not_read() -> None:
    world = empty_world()
    app = create_app(service(world), lambda: world.daemon.loop.status, world.clock, "0")

    read: list[bytes] = []

    async def sent(**given: Any) -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=(PEER, 0)), base_url="http://spotsupd"
        ) as client:
            return await client.put("/v1/blobs", **given)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(b".")
            yield b"."

    answer = asyncio.run(sent(content=endless(), headers={"Content-Length": str(MAX_BLOB_BYTES + 1)}))
    assert answer.status_code == 413
    too_large = f"the request has {MAX_BLOB_BYTES + 1} bytes; at most {MAX_BLOB_BYTES} are accepted: send less"
    assert answer.json()["error"] == f"{too_large}, list what is not code in .spotsupignore"
    answer = asyncio.run(sent(content=endless()))
    assert answer.status_code == 413
    assert "the request has no Content-Length" in answer.json()["error"]
    assert read == []


@pytest.mark.parametrize(
    "nodes",
    [{"min": 1, "desired": 1, "max": MAX_NODES + 1}, {"min": 1, "desired": 1, "max": 1, "spares": MAX_SPARES + 1}],
)
def test_a_job_has_a_maximum_of_nodes_and_spares(nodes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{MAX_NODES}|{MAX_SPARES}"):
        parse_spec({"name": "job", "nodes": nodes, "run": "t.py"})
    world = training_world()
    with pytest.raises(CommandRefusedError, match="cannot scale"):
        service(world).commands.scale("job", Scale(max_nodes=MAX_NODES + 1))


def test_a_plan_shows_a_maximum_of_offers() -> None:
    many = [replace(OFFER, zone=f"z{number}") for number in range(3 * MAX_SHOWN)]

    def answer(_query: OfferQuery) -> Sequence[Offer]:
        return many

    spec = parse_spec({"name": "job", "nodes": 2, "run": "t.py", "placement": {"cloud": "local"}})
    row = quote_row(Quotes({"local": Stub(answer)}).quote(spec))
    assert (len(row["offers"]), row["offers_total"]) == (MAX_SHOWN, 3 * MAX_SHOWN)


def test_of_submissions_that_were_checked_the_last_are_known_for_a_minute() -> None:
    jobs = [{"name": f"job-{number}", "nodes": 2, "run": "t.py"} for number in range(MAX_KEPT + 1)]
    found = [Checked("ann", each, parse_spec(each), None, 100.0) for each in jobs]
    last = LastChecked()
    for each in found:
        last.keep(each)
    assert [last.find("ann", each, 101.0) for each in jobs] == [None, *found[1:]]
    assert last.find("bob", jobs[-1], 101.0) is None
    assert last.find("ann", jobs[-1], 99.0 + MAX_AGE_S) is found[-1]
    assert last.find("ann", jobs[-1], 100.0 + MAX_AGE_S) is None, "prices of a minute ago"
