"""Code in chunks: what is cut where, what is kept and for how long, and what is refused."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bootstrap.archive import Archive, pack_directory
from supervisor.api.gate import MAX_BLOB_BYTES
from supervisor.cli import upload as command
from supervisor.cli.upload import CHUNK_BYTES, MAX_FAILURES, MAX_ROUNDS, chunks_of, upload
from supervisor.errors import BusyError, DaemonUnreachableError, SpotsupError, UsageError
from supervisor.journal import uploads as stored_uploads
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.simulation.world import World
from supervisor.uploads import (
    KEPT_S,
    MAX_ALL_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_USER_BYTES,
    Chunk,
    UploadRecord,
    added,
    named,
    outdated,
)
from tests.sim.harness import empty_world, service

FULL = MAX_USER_BYTES // MAX_CHUNK_BYTES


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- which are kept ----------------------------------------------------------------------------------------------------


def test_what_an_upload_names_stays_and_what_is_missing_is_said_once() -> None:
    record = UploadRecord("ann", {"a": Chunk(1, 0.0), "b": Chunk(1, 0.0)})
    found, missing = named(record, ["c", "a", "c", "a"], 5.0)
    assert missing == ["c"]
    assert found.chunks == {"a": Chunk(1, 5.0), "b": Chunk(1, 0.0)}


def test_beyond_the_bounds_of_a_user_those_that_were_named_longest_ago_go() -> None:
    record = UploadRecord("ann", {str(each): Chunk(MAX_CHUNK_BYTES, each) for each in range(FULL)})
    found, over = added(record, "new", MAX_CHUNK_BYTES, 1e6)
    assert (over, found.size_bytes, "new" in found.chunks) == (["0"], MAX_USER_BYTES, True)
    assert added(record, "7", MAX_CHUNK_BYTES, 1e6)[1] == [], "it is there"
    small = UploadRecord("ann", {str(each): Chunk(1, -each) for each in range(MAX_CHUNKS)})
    assert added(small, "new", 1, 1e6)[1] == [str(MAX_CHUNKS - 1)]


def test_chunks_that_nobody_names_for_a_day_go_and_those_of_a_clock_that_was_wrong() -> None:
    now = 10 * KEPT_S
    chunks = {"old": Chunk(1, now - KEPT_S - 1), "new": Chunk(1, now - KEPT_S + 1), "ahead": Chunk(1, now + 2 * KEPT_S)}
    assert outdated([UploadRecord("ann", chunks)], now) == {"ann": ["old", "ahead"]}


def test_of_very_many_users_those_go_that_were_named_longest_ago() -> None:
    users = MAX_ALL_BYTES // MAX_USER_BYTES + 1
    chunks = [{f"{n}": Chunk(MAX_CHUNK_BYTES, 1000.0 * user + n) for n in range(FULL)} for user in range(users)]
    found = outdated([UploadRecord(str(user), each) for user, each in enumerate(chunks)], 1e4)
    assert found == {"0": [str(each) for each in range(FULL)]}


# -- how an archive is cut ---------------------------------------------------------------------------------------------


def test_chunks_are_the_whole_archive_and_none_is_too_large() -> None:
    for size, ends in ((0, ()), (10, (3, 10)), (3 * CHUNK_BYTES + 1, (5, CHUNK_BYTES)), (2000, tuple(range(1, 2000)))):
        data = random.Random(size).randbytes(size)
        cut = chunks_of(data, ends)
        assert b"".join(cut) == data
        assert all(0 < len(each) <= CHUNK_BYTES for each in cut)
        assert len(cut) <= MAX_CHUNKS
    assert [len(each) for each in chunks_of(b"x" * 10, (3, 10))] == [3, 7]
    assert (CHUNK_BYTES, command.MAX_CHUNKS) == (MAX_CHUNK_BYTES, MAX_CHUNKS), "as the daemon takes them"


def test_a_changed_file_changes_the_chunks_that_it_is_in_alone(tmp_path: Path) -> None:
    """By packing it, not by what upload sends: tests/integration/test_uploads.py."""
    draw = random.Random(1)
    for _ in range(400):
        (tmp_path / f"module_{draw.randrange(10**9)}.py").write_bytes(draw.randbytes(3000))
    for name in ("a.bin", "n.bin", "z.bin"):
        (tmp_path / name).write_bytes(draw.randbytes(700_000))

    def chunks() -> dict[str, bytes]:
        found = pack_directory(tmp_path, limit_bytes=MAX_BLOB_BYTES)
        return {sha256(each): each for each in chunks_of(found.data, found.ends)}

    before = chunks()
    (tmp_path / "n.bin").write_bytes(draw.randbytes(700_001))
    changed = {key: each for key, each in chunks().items() if key not in before}
    assert len(changed) == 2, "of the one file"
    before = chunks()
    (tmp_path / "module_0000.py").write_text("print()")
    new = sum(len(each) for key, each in chunks().items() if key not in before)
    assert 0 < new < 400_000, "of 3.3 MB: the files that are packed beside it"


# -- an upload ---------------------------------------------------------------------------------------------------------


class Line:
    """To the API of a world, without HTTP; notes what is sent."""

    def __init__(self, world: World, user: str = "ann") -> None:
        self.world = world
        self.user = user
        self.over_network = True
        self.sent: list[str] = []
        self.fails: Callable[[str, str], bool] = lambda _method, _path: False
        self.waits: list[float] = []

    def send(self, method: str, path: str, body: Any) -> Any:
        if self.fails(method, path):
            error = DaemonUnreachableError("no spotsupd answers")
            error.retry_after_s = 0.0
            raise error
        self.sent.append(f"{method} {path}")
        api, last = service(self.world), path.rpartition("/")[2]
        if method == "POST":
            return {"missing": api.missing_chunks(self.user, last, body["chunks"])}
        if path == "/v1/blobs":
            return {"sha256": api.put_blob(body)}
        api.put_chunk(self.user, last, body)
        return {}

    def upload(self, data: bytes) -> str:
        return upload(Archive.of(data), self, self.waits.append)

    @property
    def chunks(self) -> int:
        """How many were sent."""
        return sum("/v1/chunks/" in each for each in self.sent)


def test_only_what_is_missing_is_sent_and_a_small_archive_in_one_request() -> None:
    line = Line(empty_world())
    data = random.Random(2).randbytes(3 * CHUNK_BYTES + 5)
    assert line.upload(data) == sha256(data)
    assert line.chunks == 4
    assert line.world.journal.get_blob(sha256(data)) == data
    assert (line.upload(data), line.chunks) == (sha256(data), 4)
    assert (line.upload(data[: 3 * CHUNK_BYTES] + b"other"), line.chunks) == (sha256(data[:-5] + b"other"), 5)
    line.sent.clear()
    line.upload(b"small")
    line.over_network = False
    line.upload(data)
    assert line.sent == ["PUT /v1/blobs"] * 2, "nor are there chunks on this computer's socket"


def test_an_archive_of_equal_chunks_sends_one_of_them() -> None:
    line = Line(empty_world())
    data = bytes(4 * CHUNK_BYTES)
    assert line.upload(data) == sha256(data)
    assert line.chunks == 1
    assert line.world.journal.get_blob(sha256(data)) == data


def test_a_user_does_not_learn_what_others_have() -> None:
    world = empty_world()
    data = random.Random(3).randbytes(2 * CHUNK_BYTES)
    ann, bob = Line(world), Line(world, "bob")
    ann.upload(data)
    assert world.journal.uploads.missing("bob", [sha256(data[:CHUNK_BYTES])], 0.0) == [sha256(data[:CHUNK_BYTES])]
    bob.upload(data)
    assert (ann.chunks, bob.chunks) == (2, 2)


def test_it_is_tried_again_later_and_later_and_then_says_how_to_go_on() -> None:
    line = Line(empty_world())
    data = random.Random(4).randbytes(3 * CHUNK_BYTES)
    line.fails = lambda _method, _path: line.chunks == 1
    with pytest.raises(DaemonUnreachableError, match=r"0\.5 of 1\.6 MB are there: the same again sends only the rest"):
        line.upload(data)
    assert len(line.waits) == MAX_FAILURES - 1
    assert all(later > sooner / 2 for sooner, later in pairwise(line.waits))
    assert sum(line.waits) < 60.0
    line.fails = lambda _method, _path: False
    line.upload(data)
    assert line.chunks == 3, "the first one was there"


def test_what_the_daemon_refuses_is_not_tried_again() -> None:
    line = Line(empty_world())
    with pytest.raises(UsageError, match="at most 33554432 are accepted"):
        line.upload(bytes(MAX_BLOB_BYTES + 1))
    assert not line.waits


def test_a_daemon_that_forgets_chunks_is_asked_a_few_times() -> None:
    line = Line(empty_world())

    def forget(_method: str, _path: str) -> bool:
        line.world.journal.uploads.trim(line.world.clock.now() + 2 * KEPT_S, line.world.daemon.leader.guard())
        return False

    line.fails = forget
    with pytest.raises(SpotsupError, match="submit again"):
        line.upload(random.Random(6).randbytes(2 * CHUNK_BYTES))
    assert sum(each.startswith("POST") for each in line.sent) == MAX_ROUNDS


@pytest.mark.parametrize("at", range(4))
def test_another_daemon_goes_on_with_it(at: int) -> None:
    world = empty_world()
    line = Line(world)
    data = random.Random(5).randbytes(3 * CHUNK_BYTES)

    def dies(method: str, path: str) -> bool:
        if line.chunks == at and world.daemon is first:
            world.crash_daemon()
            world.run(60.0)
        return False

    first, line.fails = world.daemon, dies
    assert line.upload(data) == sha256(data)
    assert world.daemon is not first
    assert line.chunks == 3
    assert world.journal.get_blob(sha256(data)) == data


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_chunk_that_is_another_one_and_an_archive_that_is_another_one_are_refused() -> None:
    world = empty_world()
    api, one, two = service(world), b"1" * 10, b"2" * 10
    with pytest.raises(UsageError, match="send it again"):
        api.put_chunk("ann", sha256(one), two)
    for each in (one, two):
        api.put_chunk("ann", sha256(each), each)
    order = [sha256(one), sha256(two)]
    for wrong in (order[::-1], order[:1], [*order, order[0]]):
        with pytest.raises(UsageError, match="cut and hash the archive again"):
            api.missing_chunks("ann", sha256(one + two), wrong)
    assert world.journal.find_blob(sha256(one + two)) is None
    assert api.missing_chunks("ann", sha256(one + two), order) == []


def test_chunks_that_are_too_large_together_are_not_read() -> None:
    world = empty_world()
    chunk = bytes(MAX_CHUNK_BYTES)
    service(world).put_chunk("ann", sha256(chunk), chunk)
    times = MAX_BLOB_BYTES // MAX_CHUNK_BYTES + 1
    with pytest.raises(UsageError, match="at most 33554432 are accepted"):
        service(world).missing_chunks("ann", sha256(chunk * times), [sha256(chunk)] * times)


# -- in etcd -----------------------------------------------------------------------------------------------------------


def below(world: World, prefix: str) -> list[str]:
    return [key for key in world.etcd.keys if key.startswith(f"{world.journal.keys.root}uploads/{prefix}")]


def put(journal: Journal, user: str, data: bytes, now: float) -> str:
    journal.uploads.put(user, sha256(data), data, now)
    return sha256(data)


def test_what_goes_for_a_new_chunk_is_deleted_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world()
    journal = world.journal
    for number in range(200):
        put(journal, "ann", b"%d" % number, number)
    monkeypatch.setattr("supervisor.uploads.MAX_CHUNKS", 50)
    new = put(journal, "ann", b"new", 1000.0)
    assert len(below(world, "chunks/")) == 50
    assert journal.uploads.missing("ann", [new, sha256(b"199"), sha256(b"0")], 0.0) == [sha256(b"0")]


def test_the_leader_deletes_what_is_old_and_a_user_without_chunks_is_forgotten() -> None:
    world = empty_world()
    journal, now = world.journal, 2 * KEPT_S
    for number in range(150):
        put(journal, "ann", b"%d" % number, 0.0)
    put(journal, "b/ob", b"new", now)
    assert journal.uploads.trim(now, world.daemon.leader.guard()) == 150
    assert [key.rpartition("uploads/")[2] for key in sorted(below(world, ""))] == [
        f"chunks/b%2Fob/{sha256(b'new')}",
        "users/b%2Fob",
    ]
    assert journal.uploads.trim(now, world.daemon.leader.guard()) == 0


def test_a_record_that_cannot_be_read_is_deleted_with_its_chunks() -> None:
    world = empty_world()
    journal = world.journal
    for user in ("ann", "bob"):
        put(journal, user, b"x", 0.0)
        world.etcd.put(f"{journal.keys.root}uploads/users/{user}", b"no record")
    assert journal.uploads.missing("ann", [sha256(b"x")], 0.0) == [sha256(b"x")]
    journal.uploads.trim(0.0, world.daemon.leader.guard())
    assert below(world, "") == []


def test_two_clients_with_the_same_chunk_and_one_that_is_always_slower() -> None:
    world = empty_world()
    journal, client = world.daemon.journal, world.daemon.client

    def same() -> None:
        put(journal, "ann", b"x", 1.0)

    client.before_txn = same
    put(journal, "ann", b"x", 2.0)
    assert journal.uploads.missing("ann", [sha256(b"x")], 3.0) == []
    count = 0

    def faster() -> None:
        nonlocal count
        count += 1
        other = UploadRecord("ann", {str(count): Chunk(1, 0.0)})
        world.etcd.put(f"{journal.keys.root}uploads/users/ann", dump(other))
        client.before_txn = faster

    client.before_txn = faster
    with pytest.raises(BusyError, match="try again in a moment"):
        put(journal, "ann", b"y", 4.0)
    assert count == stored_uploads.MAX_TRIES
