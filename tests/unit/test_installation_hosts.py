"""Installations of several hosts: who may begin as a member of etcd, and which CA counts. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.errors import StartError
from supervisor.installation.answers import CA_FILE
from supervisor.installation.joining import CA_FILES, outdated
from supervisor.installation.layout import KEY_FILE, TLS
from supervisor.installation.members import Answer, Member, Rejoining, has_formed, refusal, rejoining
from supervisor.installation.plan import Absent, Delete, Facts, File, Found, Make, plan
from supervisor.journal.ca_rotation import begin, finish, sign
from supervisor.journal.certificates import TlsFiles, ensure_certificates

PEER = "https://10.0.0.6:2380"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([{"ID": "1", "name": "10.0.0.6", "peerURLs": [PEER]}], Rejoining()),
        (
            [{"ID": "1", "name": "10.0.0.6", "peerURLs": [PEER], "clientURLs": ["https://10.0.0.6:2379"]}],
            Rejoining(remove="1", add=True, existing=True),
        ),
        # Interrupted after the removal, and after the addition.
        ([{"ID": "2", "name": "10.0.0.5", "peerURLs": ["https://10.0.0.5:2380"]}], Rejoining(add=True, existing=True)),
        ([{"ID": "3", "peerURLs": [PEER]}], Rejoining(existing=True)),
    ],
)
def test_a_host_that_comes_back_empty_is_a_new_member(listed: list[dict[str, object]], expected: Rejoining) -> None:
    assert rejoining([Member.of(each) for each in listed], PEER) == expected


ME = Member("1", "10.0.0.6", (PEER,), started=False)
ANOTHER = Member("2", "10.0.0.5", ("https://10.0.0.5:2380",), started=False)
SILENT = [Answer("10.0.0.5", None, "Connection refused"), Answer("10.0.0.7", None, "timed out")]


def test_silence_does_not_say_that_a_host_was_never_a_member() -> None:
    waiting = Answer("10.0.0.5", (ME, ANOTHER))
    assert refusal(SILENT, first=True) == ""
    assert "10.0.0.5: Connection refused; 10.0.0.7: timed out" in refusal(SILENT, first=False)
    assert refusal([waiting, SILENT[1]], first=False) == ""
    foreign = Answer("10.0.0.7", None, "CERTIFICATE_VERIFY_FAILED", foreign=True)
    assert "10.0.0.7 has an etcd of another installation" in refusal([waiting, foreign], first=True)


@pytest.mark.parametrize("started", [ME, ANOTHER])
def test_an_etcd_that_has_had_a_leader_is_asked_for_its_members(started: Member) -> None:
    known = [Answer("10.0.0.5", (ME, ANOTHER)), *SILENT]
    assert not has_formed(known)
    assert has_formed([*known, Answer("10.0.0.7", (replace(started, started=True),))])


# -- a CA that is replaced meanwhile ---------------------------------------------------------------------------


def ca_states(folder: Path) -> list[dict[Path, bytes]]:
    """All that a host has of its CA: before a rotation, after each of its steps, and after another one."""
    files, now = TlsFiles(folder), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    ensure_certificates(files, (), now)
    found = []

    def note() -> None:
        paths = (path for path in CA_FILES if (folder / path.name).exists())
        found.append({KEY_FILE: b"key"} | {path: (folder / path.name).read_bytes() for path in paths})

    note()
    for month in (3, 6):
        later = now + dt.timedelta(days=30 * month)
        begin(files, later)
        note()
        sign(files, later)
        note()
        finish(files)
        note()
    return found


def test_a_host_that_was_away_takes_over_a_later_ca_and_gives_no_earlier_one(tmp_path: Path) -> None:
    states = ca_states(tmp_path / "tls")
    next_ca = {TLS / "next-ca.crt", TLS / "next-ca.key"}
    for number, there in enumerate(states):
        for other, given in enumerate(states):
            if other < number:
                with pytest.raises(StartError, match="is newer than that of the other one"):
                    outdated(given, there)
            else:
                expected = {path for path in next_ca if path in there and path not in given}
                assert outdated(given, there) == expected, (number, other)


def test_a_ca_of_another_installation_is_not_taken_over(tmp_path: Path) -> None:
    ours, theirs = ca_states(tmp_path / "a")[0], ca_states(tmp_path / "b")[0]
    for key in ({KEY_FILE: b"other"}, {}):
        there = {path: data for path, data in ours.items() if path != KEY_FILE} | key
        with pytest.raises(StartError, match="belongs to another installation"):
            outdated(theirs, there)
        assert key or outdated(ours, there) == frozenset(), "its key is lost, and its CA is not"
    assert outdated(theirs, {}) == frozenset()
    with pytest.raises(StartError, match="is damaged"):
        outdated({KEY_FILE: b"k", Path(CA_FILE): b"?"}, {KEY_FILE: b"k", Path(CA_FILE): b"?"})


def test_what_is_renewed_is_written_without_a_copy_and_what_is_over_is_deleted() -> None:
    file = File(TLS / "ca.key", b"new", 0o600, "spotsup", "spotsup", seed=True, secret=True, renew=True)
    there = Found(0o600, "spotsup", "spotsup", is_folder=False, data=b"old")
    gone = Absent(TLS / "next-ca.key")
    facts = Facts(paths={file.path: there, gone.path: there})
    assert plan([file, gone], facts) == ([Make(file), Delete(gone)], [])
    assert plan([file, gone], Facts(paths={file.path: replace(there, data=b"new")})) == ([], [])
