"""Housekeeping against a real etcd: compaction, defragmentation, backups, retention of the cluster's events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.etcd import Compare, Etcd, EtcdRefusedError, Range
from spotsup_trainer.etcd.mirror import Mirror
from spotsup_trainer.wire import Keys

from supervisor.config import Config
from supervisor.journal.backup import Backups, import_journal
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.journal.maintenance import Compactor, MaintenanceError, defragment
from supervisor.journal.unused_code import UnusedCode
from supervisor.model import ClusterRecord, DaemonPause
from supervisor.new_job import new_job
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.housekeeping import Housekeeping, housekeeping_tasks, leads_and_may_write
from supervisor.runtime.leader import Leadership
from supervisor.spec import parse_spec
from tests.support.etcd_server import etcd_cluster
from tests.support.waiting import until

KEYS = Keys("test")
DAY_S = 86400.0
# 2026-07-31 12:00 UTC
NOON = 1785499200.0


@pytest.fixture
def leader(etcd: Etcd) -> Iterator[Leadership]:
    leader = Leadership(etcd, f"{KEYS.root}leader", "me", 5.0)
    leader.start()
    until(leader.lease_valid)
    yield leader
    leader.stop()


def begin(etcd: Etcd) -> None:
    etcd.put(f"{KEYS.world}cluster", dump(ClusterRecord(1.0, "me")))


def at(etcd: Etcd, revision: int) -> object:
    return etcd.call("/v3/kv/range", {"key": "L2E=", "revision": str(revision)})  # /a


def test_history_is_compacted_one_step_behind_and_a_mirror_does_not_notice(etcd: Etcd) -> None:
    mirror = Mirror(etcd, "/a")
    mirror.start()
    assert mirror.wait_live(10.0)
    compactor = Compactor(etcd)
    first = etcd.put("/a", b"1")
    assert compactor.compact() == "", "it saw nothing before"
    second = etcd.put("/a", b"2")
    assert at(etcd, first)
    assert compactor.compact() == f"compacted etcd's history up to revision {first}"
    third = etcd.put("/a", b"3")
    assert compactor.compact() == f"compacted etcd's history up to revision {second}"
    with pytest.raises(EtcdRefusedError, match="compacted"):
        at(etcd, first)
    assert at(etcd, second)
    assert mirror.wait(lambda view: view.revision >= third, 10.0)
    view = mirror.view()
    assert (view.live, view.outages, view.keys["/a"].value) == (True, 0, b"3")
    mirror.close()


def test_what_etcd_has_compacted_itself_is_no_failure(etcd: Etcd) -> None:
    compactor = Compactor(etcd)
    compactor.compact()
    etcd.compact(etcd.put("/a", b"1"))
    etcd.put("/a", b"2")
    assert compactor.compact() == ""


def size_of(etcd: Etcd, endpoint: str) -> int:
    return int(etcd.call("/v3/maintenance/status", {}, endpoint=endpoint)["dbSize"])


def leave_free_space(etcd: Etcd) -> None:
    for number in range(20):
        etcd.put(f"/junk/{number}", bytes(1_000_000))
    etcd.delete("/junk/", prefix=True)
    etcd.compact(etcd.put("/a", b"1"))

    def is_free() -> bool:
        etcd.put("/a", b"2")  # pages are freed with the commits that follow
        found = [etcd.call("/v3/maintenance/status", {}, endpoint=each) for each in etcd.endpoints]
        return all(int(each["dbSizeInUse"]) < int(each["dbSize"]) / 2 for each in found)

    until(is_free)


@pytest.mark.long
def test_three_healthy_members_are_defragmented_and_two_are_not(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as servers:
        endpoints = [server.endpoint for server in servers]
        with closing(Etcd(endpoints, timeout_s=30.0)) as etcd:
            leave_free_space(etcd)
            assert defragment(etcd) == "", "little to gain"
            with pytest.raises(MaintenanceError, match=r"older than version 99"):
                defragment(etcd, min_size_bytes=1, min_version=(99,))
            before = [size_of(etcd, endpoint) for endpoint in endpoints]
            done = defragment(etcd, min_size_bytes=1, min_version=(3, 4))
            assert done.startswith("defragmented etcd at ")
            assert all(endpoint in done for endpoint in endpoints)
            assert all(size_of(etcd, each) < was / 2 for each, was in zip(endpoints, before, strict=True))
            leave_free_space(etcd)
            servers[0].kill()
            with pytest.raises(MaintenanceError, match=r"1 of its 3 members did not answer"):
                defragment(etcd, min_size_bytes=1, min_version=(3, 4))


def test_a_single_member_is_never_defragmented(etcd: Etcd) -> None:
    assert defragment(etcd, min_size_bytes=0, min_version=(3, 4)) == ""


def test_a_backup_is_made_when_it_is_due_and_the_newest_are_kept(etcd: Etcd, tmp_path: Path) -> None:
    begin(etcd)
    folder = tmp_path / "backups"
    backups = Backups(folder, "0 3 * * *", keep=2)
    assert (
        backups.back_up(etcd, KEYS, NOON) == f"backed up 1 keys of the journal to {folder}/journal-20260731T120000Z.gz"
    )
    assert backups.back_up(etcd, KEYS, NOON + DAY_S / 2) == "", "not due before 3 o'clock"
    (folder / ".journal-20260801T030000Z.gz.17").touch()
    for day in (1, 2, 5):
        assert Backups(folder, "0 3 * * *", keep=2).back_up(etcd, KEYS, NOON + day * DAY_S), "it makes up for it"
    assert sorted(each.name for each in folder.iterdir()) == [
        "journal-20260802T120000Z.gz",
        "journal-20260805T120000Z.gz",
    ]
    assert {each.stat().st_mode & 0o777 for each in (folder, *folder.iterdir())} == {0o700, 0o600}
    etcd.delete("/", prefix=True)
    import_journal(etcd, KEYS, folder / "journal-20260805T120000Z.gz", NOON)
    assert etcd.get(f"{KEYS.world}cluster") is not None


def test_backups_of_a_clock_that_was_ahead_hold_up_nothing_and_stay(etcd: Etcd, tmp_path: Path) -> None:
    begin(etcd)
    backups = Backups(tmp_path, "0 3 * * *", keep=1)
    backups.back_up(etcd, KEYS, NOON + 365 * DAY_S)
    assert backups.back_up(etcd, KEYS, NOON)
    assert backups.back_up(etcd, KEYS, NOON + 60.0) == ""
    assert len(list(tmp_path.iterdir())) == 2


def test_only_the_newest_events_of_the_cluster_are_kept_and_only_a_leader_deletes(
    etcd: Etcd, journal: Journal, leader: Leadership
) -> None:
    for number in range(300):
        etcd.put(f"{KEYS.root}events/-/orphan-{number % 7}-{number}", b"{}")
    etcd.put(f"{KEYS.root}events/job/1", b"{}")
    fenced = [Compare(f"{KEYS.root}leader", "create", 1)]
    assert journal.trim_cluster_events(10, fenced) == 0
    assert journal.trim_cluster_events(10, leader.guard()) == 290
    kept = {kv.key.rpartition("-")[2] for kv in etcd.range(f"{KEYS.root}events/-/").kvs}
    assert kept == {str(number) for number in range(290, 300)}
    assert journal.trim_cluster_events(10, leader.guard()) == 0
    assert etcd.get(f"{KEYS.root}events/job/1") is not None


def test_housekeeping_runs_on_the_leader_only_and_not_in_a_pause(
    etcd: Etcd, journal: Journal, leader: Leadership, tmp_path: Path
) -> None:
    standby = Leadership(etcd, f"{KEYS.root}leader", "you", 5.0)
    assert not leads_and_may_write(leader, journal), "no journal yet"
    begin(etcd)
    until(lambda: leads_and_may_write(leader, journal))
    assert not leads_and_may_write(standby, journal)
    config = Config(state_dir=str(tmp_path))
    tasks = housekeeping_tasks(config, etcd, journal, leader, SystemClock(), compacts_itself=False)
    assert [task.name for task in tasks] == [
        "schedules",
        "event_retention",
        "audit_retention",
        "unused_code",
        "output",
        "ended_jobs",
        "compaction",
        "backup",
        "defragmentation",
    ]
    housekeeping = Housekeeping(tasks, lambda: leads_and_may_write(leader, journal))
    for task in tasks:
        housekeeping.run(task)
    assert housekeeping.counters == {f"housekeeping_{task.name}": 1 for task in tasks}
    assert len(list((tmp_path / "backups").iterdir())) == 1
    journal.set_pause(DaemonPause(1.0, "etcd is being moved"))
    until(lambda: not leads_and_may_write(leader, journal))


def test_code_that_no_job_came_for_goes_after_a_day_and_what_is_used_or_sent_again_stays(
    etcd: Etcd, journal: Journal
) -> None:
    begin(etcd)
    used, sent_again, forgotten, cut_off = (journal.put_blob(each * 700_000) for each in (b"a", b"b", b"c", b"d"))
    etcd.delete(f"{journal.blobs_key}{cut_off}/size")

    def counted() -> set[str]:
        return {kv.key.rpartition("/")[2] for kv in etcd.range(journal.unused_key).kvs}

    assert counted() == {used, sent_again, forgotten, cut_off}
    spec = parse_spec({"name": "one", "nodes": 1, "run": "train.py"})
    etcd.put(f"{KEYS.world}jobs/one", dump(new_job(spec, used, "submission", NOON)))
    until(lambda: journal.read().live and "one" in journal.read().jobs)
    unused = UnusedCode(etcd, journal)

    def left() -> set[str]:
        return {kv.key.removeprefix(journal.blobs_key).partition("/")[0] for kv in etcd.range(journal.blobs_key).kvs}

    assert unused.delete(NOON) == 0
    journal.put_blob(b"b" * 700_000)
    assert unused.delete(NOON + DAY_S - 1) == 0
    etcd.put(f"{KEYS.world}jobs/two", b"of a daemon to come")
    until(lambda: bool(journal.read().refused))
    assert unused.delete(NOON + DAY_S) == 0, "who knows what it uses"
    etcd.delete(f"{KEYS.world}jobs/two")
    until(lambda: not journal.read().refused)
    etcd.put(journal.sweep_key("grid"), b"of a daemon to come")
    assert unused.delete(NOON + DAY_S) == 0
    etcd.delete(journal.sweep_key("grid"))
    assert unused.delete(NOON + DAY_S) == 2
    assert left() == {used, sent_again}
    assert forgotten not in left()
    assert unused.delete(NOON + 2 * DAY_S) == 1
    assert left() == {used}
    assert unused.delete(NOON + 9 * DAY_S) == 0
    assert counted() == {used}, "what names archives goes with them"


def test_code_that_is_sent_again_just_as_it_would_go_stays(etcd: Etcd, journal: Journal) -> None:
    begin(etcd)
    digests = [journal.put_blob(each * 700_000) for each in (b"a", b"b")]
    etcd.delete(f"{journal.blobs_key}{digests[1]}/size")
    until(lambda: journal.read().live)

    class Sending(Etcd):
        """Somebody sends both between a look at the keys and their deletion."""

        def range(self, key: str, **options: Any) -> Range:
            found = super().range(key, **options)
            if key == journal.blobs_key and now[0] > NOON:
                for each in (b"a", b"b"):
                    journal.put_blob(each * 700_000)
            return found

    now = [NOON]
    with closing(Sending(etcd.endpoints, timeout_s=10.0)) as sending:
        unused = UnusedCode(sending, journal)
        for now[0] in (NOON, NOON + DAY_S):
            assert unused.delete(now[0]) == 0
    assert [len(journal.get_blob(each)) for each in digests] == [700_000, 700_000]


def test_an_etcd_that_compacts_itself_is_left_to_it(etcd: Etcd, journal: Journal, leader: Leadership) -> None:
    config = Config.model_validate({"housekeeping": {"backup": "", "defragment": ""}})
    tasks = housekeeping_tasks(config, etcd, journal, leader, SystemClock(), compacts_itself=True)
    assert [task.name for task in tasks] == [
        "schedules",
        "event_retention",
        "audit_retention",
        "unused_code",
        "output",
        "ended_jobs",
    ]
