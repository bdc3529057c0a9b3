"""Code on its way to a job: three tries of a client, and how much a user may leave unused in etcd."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup.archive import Archive
from spotsup.upload import MAX_ASKED_WAIT_S, TRIES, WAITS_S, upload
from spotsup_simulator.world import World

from supervisor.api.security.gate import MAX_BLOB_BYTES
from supervisor.api.service import Service
from supervisor.errors import BusyError, DaemonUnreachableError, SpotsupError, UsageError
from supervisor.unused_archives import MAX_UNUSED, MAX_UNUSED_BYTES, Upload, displaced
from tests.sim.harness import empty_world, service

DATA = b"code"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- a client ----------------------------------------------------------------------------------------------------------


class Line:
    """To the API of a world, without HTTP."""

    def __init__(self, world: World, *failures: SpotsupError) -> None:
        self.world = world
        self.failures = list(failures)
        self.sent: list[str] = []
        self.waits: list[float] = []

    def put(self, path: str, data: bytes, sent: Callable[[int], None]) -> Any:
        self.sent.append(path)
        if self.failures:
            raise self.failures.pop(0)
        for part in (0, len(data) // 2, len(data)):
            sent(part)
        return {"sha256": service(self.world).submissions.put_blob(data)}

    def upload(self, data: bytes = DATA) -> str:
        return upload(Archive.of(data), self, self.waits.append)


def away(retry_after_s: float = 0.0) -> SpotsupError:
    error = DaemonUnreachableError("no spotsupd answers")
    error.retry_after_s = retry_after_s
    return error


def test_an_archive_is_one_request() -> None:
    line = Line(empty_world())
    assert line.upload() == sha256(DATA)
    assert (line.sent, line.waits) == (["/v1/blobs"], [])
    assert line.world.journal.get_blob(sha256(DATA)) == DATA


def test_what_may_pass_is_tried_three_times_and_then_says_what_happened() -> None:
    line = Line(empty_world(), *[away() for _ in range(TRIES)])
    with pytest.raises(DaemonUnreachableError) as failed:
        line.upload(bytes(1_500_000))
    sentence = "no spotsupd answers; 1.5 MB of code were sent 3 times: nothing was submitted"
    assert str(failed.value) == sentence
    assert (len(line.sent), len(line.waits)) == (TRIES, TRIES - 1)
    assert all(most / 2 <= wait_s <= most for wait_s, most in zip(line.waits, WAITS_S, strict=True))
    line = Line(empty_world(), *[away() for _ in range(TRIES - 1)])
    assert line.upload() == sha256(DATA)


def test_a_daemon_that_says_how_long_is_believed_up_to_a_minute() -> None:
    line = Line(empty_world(), away(20.0), away(3600.0))
    line.upload()
    assert line.waits == [20.0, MAX_ASKED_WAIT_S]


def test_what_the_daemon_refuses_is_not_tried_again() -> None:
    line = Line(empty_world())
    with pytest.raises(UsageError, match="at most 33554432 are accepted"):
        line.upload(bytes(MAX_BLOB_BYTES + 1))
    assert (len(line.sent), line.waits) == (1, [])


def test_a_terminal_is_told_of_a_try_that_failed_and_how_much_has_gone(capsys: pytest.CaptureFixture[str]) -> None:
    busy = BusyError("8 archives are being uploaded already")
    busy.retry_after_s = 30.0
    Line(empty_world(), busy).upload(bytes(4_000_000))
    assert capsys.readouterr().err == ""
    busy.retry_after_s = 30.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr.isatty", lambda: True)
        Line(empty_world(), busy).upload()
        told = "sending the code failed (8 archives are being uploaded already): again in 30 s\n"
        assert capsys.readouterr().err == told, "and nothing of an archive that is sent at once"
        Line(empty_world()).upload(bytes(4_000_000))
    shown = [f"\r\033[Kcode: {sent} of 4 MB sent" for sent in (0, 2, 4)]
    assert capsys.readouterr().err == "".join([*shown, "\r\033[K"])


# -- which unused archives are kept ------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, MAX_BLOB_BYTES), max_size=2 * MAX_UNUSED))
def test_the_newest_archives_that_fit_are_kept(sizes: list[int]) -> None:
    stored = [Upload(str(at), size, at) for at, size in enumerate(sizes, 1)]
    over = displaced(stored)
    kept = [each for each in stored if each not in over]
    assert len(kept) <= MAX_UNUSED
    assert sum(each.size_bytes for each in kept) <= MAX_UNUSED_BYTES
    assert kept == stored[len(over) :], "the oldest go"
    if over:  # and no more than have to
        newest = max(over, key=lambda each: each.revision)
        too_large = sum(each.size_bytes for each in (newest, *kept)) > MAX_UNUSED_BYTES
        assert too_large or len(kept) == MAX_UNUSED


def test_two_archives_of_the_largest_size_fit() -> None:
    assert displaced([Upload("a", MAX_BLOB_BYTES, 1), Upload("b", MAX_BLOB_BYTES, 2)]) == []


# -- in etcd -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which a user may leave two archives unused."""
    monkeypatch.setattr("supervisor.unused_archives.MAX_UNUSED", 2)
    return empty_world()


def stored(world: World) -> list[str]:
    """The archives of one byte that are in etcd."""
    letters = [chr(number).encode() for number in range(ord("a"), ord("z") + 1)]
    return [each.decode() for each in letters if world.journal.find_blob(sha256(each))]


def counted(world: World) -> int:
    return sum(key.startswith(world.journal.unused_key) for key in world.etcd.keys)


def submitted(world: World, api: Service, name: str, code: bytes, owner: str) -> None:
    api.submissions.submit({"name": name, "nodes": 1, "run": "t.py"}, sha256(code), f"submission {name}", owner=owner)
    world.run(1.0)


def test_of_a_users_unused_archives_the_oldest_goes_and_others_keep_theirs(few: World) -> None:
    api = service(few)
    for code, owner in ((b"a", "ann"), (b"b", "b/ob"), (b"c", "ann"), (b"d", "ann")):
        api.submissions.put_blob(code, owner)
    assert stored(few) == ["b", "c", "d"]
    api.submissions.put_blob(b"c", "ann")
    api.submissions.put_blob(b"e", "ann")
    assert stored(few) == ["b", "c", "e"], "one that is sent again is new"
    assert counted(few) == 3


def test_an_archive_that_a_job_uses_counts_no_more_and_stays(few: World) -> None:
    api = service(few)
    api.submissions.put_blob(b"a", "ann")
    submitted(few, api, "job", b"a", "ann")
    assert counted(few) == 0
    for code in (b"a", b"b", b"c", b"d"):  # sent again, and displaced
        api.submissions.put_blob(code, "ann")
    assert stored(few) == ["a", "c", "d"]
    assert counted(few) == 2


def test_what_somebody_else_has_sent_since_stays(few: World) -> None:
    api = service(few)
    for code, owner in ((b"a", "ann"), (b"a", "bob"), (b"b", "ann"), (b"c", "ann")):
        api.submissions.put_blob(code, owner)
    assert stored(few) == ["a", "b", "c"]
