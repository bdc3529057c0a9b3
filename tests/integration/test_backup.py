"""The journal as a file, against a real etcd: whole, never written over another, repeatable when cut short."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Hint, Keys, Member, Progress, encode

from supervisor.errors import CommandRefusedError, JournalUnavailableError, SpotsupError, UsageError
from supervisor.events import EventKind
from supervisor.journal.backup import CopyCounts, export_journal, import_journal
from supervisor.journal.codec import dump
from supervisor.model import SCHEMA_VERSION, ClusterRecord, Event, JobRecord, PastRun
from supervisor.planner.continuity import IMPORTED, doubted
from supervisor.spec import parse_spec

pytestmark = pytest.mark.long

KEYS = Keys("test")
SPEC = parse_spec({"name": "job", "nodes": 2, "run": "train.py"})
JOB = JobRecord("job", "abcde", SPEC, "0" * 64, 1.0, 2, 2, 2)
WORLD = {
    f"{KEYS.world}cluster": dump(ClusterRecord(1.0, "me")),
    f"{KEYS.world}jobs/job": dump(JOB),
    f"{KEYS.world}nodes/job/job-abcde-1": b"{}",
    f"{KEYS.root}past/job/000001": dump(PastRun(JOB, (), None)),
    f"{KEYS.root}curves/job/job-abcde": b"{}",
    f"{KEYS.root}events/job/1": dump(Event("1", 1.0, "job", EventKind.SUBMITTED, "submitted")),
    KEYS.progress("job"): encode(Progress(1, 2, 3.0, 3.0)),
    **{f"{KEYS.root}blobs/abc/{number:05d}": bytes([number]) * 500_000 for number in range(4)},
    **{f"{KEYS.root}events/job/{number:03d}": b"{}" for number in range(100, 350)},
}
# What is imported is older than the machines may be.
RESTORED = {**WORLD, f"{KEYS.world}cluster": dump(doubted(ClusterRecord(1.0, "me"), IMPORTED, 7.0))}
LEFT_OUT = {KEYS.hint("job"): encode(Hint((), 1, 1)), f"{KEYS.logs('job', 'n')}00000001": b"output"}


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    etcd = Etcd([etcd_endpoint], timeout_s=10.0)
    yield etcd
    etcd.close()


@pytest.fixture
def file(etcd: Etcd, tmp_path: Path) -> Path:
    """A journal that was exported, and is gone since."""
    file = tmp_path / "journal.gz"
    fill(etcd)
    copied = export_journal(etcd, KEYS, file, 9.0)
    assert copied == CopyCounts(jobs=1, nodes=1, keys=len(WORLD))
    etcd.delete("/", prefix=True)
    return file


def fill(etcd: Etcd) -> None:
    for key, value in {**WORLD, **LEFT_OUT}.items():
        etcd.put(key, value)
    lease = etcd.grant(60.0)
    etcd.put(KEYS.member("job", "n"), encode(Member("n", "n/1", "10.0.0.1", 1, "waiting")), lease)
    etcd.put(f"{KEYS.root}leader", b"{}", lease)


def holds(etcd: Etcd) -> dict[str, bytes]:
    return {kv.key: kv.value for kv in etcd.range("/").kvs}


def test_an_import_restores_what_was_exported(etcd: Etcd, file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    assert import_journal(etcd, KEYS, file, 7.0).keys == len(WORLD)
    assert holds(etcd) == RESTORED


def test_nothing_is_overwritten(etcd: Etcd, file: Path) -> None:
    import_journal(etcd, KEYS, file, 7.0)
    etcd.put(f"{KEYS.world}jobs/job", b"newer")
    before = holds(etcd)
    with pytest.raises(CommandRefusedError, match="already has a journal of cluster test: nothing was imported"):
        import_journal(etcd, KEYS, file, 7.0)
    etcd.delete(f"{KEYS.world}cluster")
    with pytest.raises(CommandRefusedError, match=r"holds /spotsup/test/world/jobs/job, which differs from the file"):
        import_journal(etcd, KEYS, file, 7.0)
    etcd.put(f"{KEYS.root}leader", b"{}")
    with pytest.raises(CommandRefusedError, match=r"a daemon of cluster test leads on .*: stop all of them first"):
        import_journal(etcd, KEYS, file, 7.0)
    etcd.delete(f"{KEYS.root}leader")
    assert {**holds(etcd), f"{KEYS.world}cluster": RESTORED[f"{KEYS.world}cluster"]} == before


def test_what_nodes_published_since_the_export_is_kept(etcd: Etcd, file: Path) -> None:
    newer = encode(Progress(7, 8, 9.0, 9.0))
    etcd.put(KEYS.progress("job"), newer)
    import_journal(etcd, KEYS, file, 7.0)
    assert holds(etcd) == {**RESTORED, KEYS.progress("job"): newer}


def test_an_interrupted_import_is_no_journal_yet_and_may_be_repeated(etcd: Etcd, file: Path) -> None:
    for key in list(WORLD)[1:4]:
        etcd.put(key, WORLD[key])
    assert import_journal(etcd, KEYS, file, 7.0).keys == len(WORLD)
    assert holds(etcd) == RESTORED


def written(path: Path, *lines: object) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def test_a_file_that_is_no_export_is_refused_before_anything_is_written(etcd: Etcd, file: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    other = tmp_path / "other"
    cases: list[tuple[Path, str]] = [
        (tmp_path / "missing", "cannot read .*missing: No such file"),
        (written(other, *lines[:-1]), "other is not a journal exported by spotsupd"),
        (written(tmp_path / "short", *lines[:3], lines[-1]), "truncated"),
        (written(tmp_path / "format", {**lines[0], "format": 2}, *lines[1:]), "has another format"),
        (written(tmp_path / "cluster", {**lines[0], "cluster": "b"}, *lines[1:]), "is of cluster b, but the config"),
    ]
    (tmp_path / "plain").write_text("hello")
    cases.append((tmp_path / "plain", "cannot read .*plain: Not a gzipped file"))
    (tmp_path / "half").write_bytes(file.read_bytes()[:-2000])
    cases.append((tmp_path / "half", "half is not a journal"))
    for path, message in cases:
        with pytest.raises(UsageError, match=message):
            import_journal(etcd, KEYS, path, 7.0)
    assert holds(etcd) == {}
    assert base64.b64decode(lines[1]["value"])


@pytest.mark.parametrize("schema", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_an_export_of_another_schema_is_refused_in_one_sentence(etcd: Etcd, tmp_path: Path, schema: int) -> None:
    etcd.put(f"{KEYS.world}cluster", WORLD[f"{KEYS.world}cluster"])
    etcd.put(f"{KEYS.world}jobs/job", json.dumps({**json.loads(dump(JOB)), "schema": schema}).encode())
    export_journal(etcd, KEYS, tmp_path / "old.gz", 9.0)
    etcd.delete("/", prefix=True)
    message = rf"old.gz was exported by another version of spotsupd \(.*jobs/job has schema {schema}, this one reads"
    with pytest.raises(UsageError, match=message):
        import_journal(etcd, KEYS, tmp_path / "old.gz", 7.0)
    assert holds(etcd) == {}


def test_an_etcd_without_a_journal_or_an_answer_is_reported_in_one_sentence(etcd: Etcd, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no journal of cluster test"):
        export_journal(etcd, KEYS, tmp_path / "a", 0.0)
    with pytest.raises(JournalUnavailableError):
        export_journal(Etcd(["http://127.0.0.1:9"], timeout_s=0.2), KEYS, tmp_path / "a", 0.0)
    fill(etcd)
    with pytest.raises(SpotsupError, match=r"cannot write .*nowhere/a: No such file"):
        export_journal(etcd, KEYS, tmp_path / "nowhere" / "a", 0.0)
    assert list(tmp_path.iterdir()) == []
