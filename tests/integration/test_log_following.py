"""`spotsupctl logs -f`: each answer has what is new, and no line is lost or printed twice, whatever happens between."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner
from spotsup.transport import Transport
from spotsup_trainer.etcd import Etcd, KeyValue
from spotsup_trainer.wire import Keys

from provisioners.base import Market, Offer
from supervisor.api.app import create_app
from supervisor.api.jobs.routes import MAX_POSITION
from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.service import Service
from supervisor.api.serving import ApiServer
from supervisor.cli import ctl, status
from supervisor.cli.logs import LogPrinter
from supervisor.errors import DaemonUnreachableError, UsageError
from supervisor.events import EventKind
from supervisor.journal import output
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from supervisor.model import Event, JobRecord, JobState, NodeRecord, NodeState
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.loop import Status
from supervisor.spec import parse_spec
from tests.support.machines import wait_for

KEYS = Keys("test")
SPEC = parse_spec({"name": "job", "nodes": 2, "run": "train.py"})
JOB = JobRecord("job", "abcde", SPEC, "0" * 64, 1.0, 1, 2, 2)
OFFER = Offer("local", "local", "local-a", "small", Market.SPOT, 0.1)
EVENT = Event("job-abcde-000001", 1.0, "job", EventKind.SUBMITTED, "submitted")
ONE, TWO, THREE = ("job-abcde-1", "job-abcde-2", "job-abcde-3")


class Idle:
    """A leader that does nothing."""

    leading, leader = True, "me"

    def guard(self) -> tuple[()]:
        return ()


@dataclass
class Daemon:
    """The API over an etcd, which the nodes' agents write to."""

    etcd: Etcd
    socket: Path

    def start(self) -> None:
        self.store = EtcdStore(self.etcd, KEYS.world)
        self.store.start(10.0)
        journal = Journal(self.store, KEYS)
        journal.create_job(JOB, EVENT, None)
        for node in (ONE, TWO):
            self.move(node, NodeState.REQUESTED)
        wait_for(lambda: "job" in (found := journal.read().jobs) and len(found["job"].nodes) == 2, "the job's records")
        service = Service(journal, Idle(), SystemClock(), ("local",), lambda *_: True)
        app = create_app(service, lambda: Status(0.0, "", {}, {}), SystemClock(), "0")
        self.server = ApiServer(app, bind_socket(self.socket))
        self.server.start()

    def stop(self) -> None:
        self.server.stop()
        self.store.close()

    def move(self, node: str, state: NodeState) -> None:
        record = NodeRecord(node, "job", "token", OFFER, 2.0, state=state)
        self.etcd.put(f"{KEYS.world}nodes/job/{node}", dump(record))

    def write(self, node: str, chunk: int, text: str) -> None:
        self.etcd.put(f"{KEYS.logs('job', node)}{chunk:08d}", text.encode())

    def forget(self, node: str, chunk: int) -> None:
        self.etcd.delete(f"{KEYS.logs('job', node)}{chunk:08d}")

    def end(self) -> None:
        journal = Journal(self.store, KEYS)
        found = journal.read().jobs["job"]
        assert journal.update_job(found, replace(found.record, state=JobState.SUCCEEDED), EVENT)


@pytest.fixture
def daemon(etcd_endpoint: str, tmp_path: Path) -> Iterator[Daemon]:
    with closing(Etcd([etcd_endpoint], timeout_s=10.0)) as etcd:
        daemon = Daemon(etcd, tmp_path / "s")
        daemon.start()
        yield daemon
        daemon.stop()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Transport]:
    with closing(Transport(daemon.socket)) as client:
        yield client


def part(client: Transport, after: int = 0, node: str = "") -> tuple[list[str], int, bool]:
    found = client.get("/v1/jobs/job/logs", after=str(after), node=node)
    return [f"{each['node'][-1]}:{each['text']}" for each in found["chunks"]], found["position"], found["more"]


# -- the API -----------------------------------------------------------------------------------------------


def test_an_answer_has_only_what_was_written_since_the_last_one(daemon: Daemon, client: Transport) -> None:
    daemon.write(ONE, 0, "a")
    daemon.write(TWO, 0, "b")
    chunks, position, more = part(client)
    assert (chunks, more) == (["1:a", "2:b"], False)
    assert part(client, position)[0] == []
    daemon.write(ONE, 0, "ac")
    daemon.write(ONE, 1, "d")
    assert part(client, position)[0] == ["1:ac", "1:d"], "a chunk that has grown is sent again, others are not"
    assert part(client, position, TWO)[0] == []


def test_an_answer_is_bounded_and_the_next_begins_where_it_ended(
    daemon: Daemon, client: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_ANSWER_BYTES", 25)
    for number in range(6):
        daemon.write(ONE, number, str(number) * 10)
    daemon.write(TWO, 0, "x" * 100)
    found: list[list[str]] = []
    position, more = 0, True
    while more:
        chunks, position, more = part(client, position)
        found.append([each[:3] for each in chunks])
    assert found == [["1:0", "1:1"], ["1:2", "1:3"], ["1:4", "1:5"], ["2:x"]]


def test_chunks_of_one_revision_are_in_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position between them would lose the second."""
    monkeypatch.setattr(output, "MAX_ANSWER_BYTES", 1)
    found = [(f"n/{number:08d}", KeyValue("", b"xx", 1, number // 2, 0)) for number in range(2, 6)]
    first = output.part_of(found, 9)
    assert ([each.number[-1] for each in first.chunks], first.position, first.more) == (["2", "3"], 1, True)


def test_other_runs_and_what_no_agent_writes_are_left_out(daemon: Daemon, client: Transport) -> None:
    daemon.write("job-other-1", 0, "an earlier run")
    for name in (
        "x",
        "1/2/00000000",
        f"{ONE}/x",
        f"{ONE}/\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660",
        f"{ONE}/000000000",
    ):
        daemon.etcd.put(f"{KEYS.logs('job')}{name}", b"nonsense")
    daemon.write(ONE, 0, "a")
    assert part(client)[0] == ["1:a"]


def test_after_etcd_was_set_back_all_is_read_again(daemon: Daemon, client: Transport) -> None:
    daemon.write(ONE, 0, "a")
    revision = daemon.etcd.range(KEYS.root).revision
    assert part(client, revision + 1000) == (["1:a"], revision, False)


@pytest.mark.parametrize("position", ["-1", "x", str(MAX_POSITION + 1)])
def test_a_position_that_is_none_is_refused(client: Transport, position: str) -> None:
    with pytest.raises(UsageError, match=r"the request is wrong at query\.after"):
        client.get("/v1/jobs/job/logs", after=position)


# -- the command -------------------------------------------------------------------------------------------


@dataclass
class Follower:
    """`logs -f`, on a thread; `lines`: what it has printed."""

    daemon: Daemon
    capsys: pytest.CaptureFixture[str]
    printed: str = ""
    errors: str = ""
    received: list[Any] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._client = Transport(self.daemon.socket)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        self._client.close()
        self.lines()

    def _run(self) -> None:
        printer = LogPrinter(named=True)
        show = printer.show

        def count(chunks: Any) -> None:
            self.received.extend(chunks)
            show(chunks)

        printer.show = count  # type: ignore[method-assign]  # what it was given is looked at, too
        status._follow(self._client, "job", "", printer, 0)

    def lines(self) -> list[str]:
        out, errors = self.capsys.readouterr()
        self.printed += out
        self.errors += errors
        return self.printed.splitlines()

    def until(self, line: str) -> None:
        wait_for(lambda: line in self.lines(), line)


# httpcore leaves it to the garbage collection to close a Unix socket on which no one listens.
UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@UNCLOSED
@pytest.mark.usefixtures("collected_garbage")
def test_following_prints_each_line_once_through_rotation_a_replaced_node_and_a_restarted_daemon(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "FOLLOW_S", 0.02)
    daemon.write(ONE, 0, "1\n2\n")
    with Follower(daemon, capsys) as follower:
        follower.until("job-abcde-1 | 2")
        # A line in two chunks; the first chunk grows, and is deleted later.
        daemon.write(ONE, 0, "1\n2\nth")
        daemon.write(ONE, 1, "ree\n")
        follower.until("job-abcde-1 | three")
        daemon.forget(ONE, 0)
        daemon.write(TWO, 0, "other\n")
        follower.until("job-abcde-2 | other")
        # While no daemon answers, a chunk grows, another begins, and a new node takes the place of the first.
        daemon.stop()
        daemon.write(ONE, 1, "ree\n4\n")
        daemon.write(ONE, 2, "5\n")
        daemon.write(THREE, 0, "new\n")
        wait_for(lambda: follower.lines() and "no spotsupd answers" in follower.errors, "the daemon to be missed")
        daemon.start()
        follower.until("job-abcde-3 | new")
        daemon.write(THREE, 0, "new\nlast\n")
        daemon.end()
    assert [line for line in follower.lines() if line.startswith(ONE)] == [
        f"{ONE} | {x}" for x in (1, 2, "three", 4, 5)
    ]
    assert follower.lines()[-2:] == [f"{THREE} | new", f"{THREE} | last"]
    assert len(follower.lines()) == 8
    assert len(follower.received) < 15, "only what has changed was sent"


def test_the_end_of_the_log_is_printed_although_the_job_has_ended_before(
    daemon: Daemon, client: Transport, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "FOLLOW_S", 0.02)
    daemon.move(ONE, NodeState.MEMBER)
    daemon.write(ONE, 0, "first\n")
    with Follower(daemon, capsys) as follower:
        follower.until("job-abcde-1 | first")
        daemon.end()
        wait_for(lambda: client.get("/v1/jobs/job")["state"] == "succeeded", "the job's end")
        daemon.write(ONE, 0, "first\nlast\n")
        daemon.move(ONE, NodeState.TERMINATING)
    assert follower.lines() == ["job-abcde-1 | first", "job-abcde-1 | last"]


@UNCLOSED
@pytest.mark.usefixtures("collected_garbage")
def test_a_daemon_that_stays_away_ends_it(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "FOLLOW_S", 0.02)
    monkeypatch.setattr(status, "AWAY_S", 0.1)
    with closing(Transport(Path("/nonexistent/socket"))) as client, pytest.raises(DaemonUnreachableError):
        status._follow(client, "job", "", LogPrinter(named=True), 0)
    assert capsys.readouterr().err.count("no spotsupd answers") == 1


def test_the_whole_log_is_printed_in_as_many_answers_as_it_takes(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_ANSWER_BYTES", 30)
    for number in range(9):
        daemon.write(ONE, number, f"line {number}\n")
    for more, expected in (
        ([], [f"{ONE} | line {n}" for n in range(9)]),
        (["--node", ONE], [f"line {n}" for n in range(9)]),
    ):
        done = CliRunner().invoke(ctl.main, ["--socket", str(daemon.socket), "logs", "job", *more])
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == expected
    done = CliRunner().invoke(ctl.main, ["--socket", str(daemon.socket), "logs", "job", "-o", "json"])
    assert [each["chunk"] for each in json.loads(done.stdout)] == [f"{n:08d}" for n in range(9)]


def test_since_a_time_only_what_was_printed_then_is_shown_and_all_of_a_node_without_times(
    daemon: Daemon,
) -> None:
    daemon.write(ONE, 0, "old\nnew\n")
    daemon.write(TWO, 0, "unknown\n")
    now = time.time()
    sections = [[now - 7200, now - 7100, 0, 0], [now - 60, now - 50, 0, 4]]
    daemon.etcd.put(f"{KEYS.logs('job', ONE)}times", json.dumps(sections).encode())
    for more, expected in (
        (["--since", "10m"], [f"{ONE} | new", f"{TWO} | unknown"]),
        (["--since", "10m", "--node", ONE], ["new"]),
        (["--since", "5s", "--node", ONE], []),
        (["--since", "3h", "--tail", "2", "--node", ONE], ["old", "new"]),
        (["--since", "1970-01-02T00:00Z", "--grep", "old"], [f"{ONE} | old"]),
    ):
        done = CliRunner().invoke(ctl.main, ["--socket", str(daemon.socket), "logs", "job", *more])
        assert (done.exit_code, done.stdout.splitlines()) == (0, expected), done.output
    for wrong, sentence in (
        (["--since", "soon"], "'soon' is no time"),
        (["--since", "1h", "-o", "json"], "leave --since"),
    ):
        done = CliRunner().invoke(ctl.main, ["--socket", str(daemon.socket), "logs", "job", *wrong])
        assert (done.exit_code, sentence in done.stderr) == (2, True)
