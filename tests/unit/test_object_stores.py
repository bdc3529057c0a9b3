"""Object stores without any: what an error says, and what two or more processes can do to each other's checkpoints."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsup_trainer.objects.store import (
    MAX_RETRIES,
    REQUEST_TIMEOUT_S,
    RETRY_FOR_S,
    ChangedError,
    Object,
    ObstoreStore,
    Store,
    StoreError,
    client_options,
    sentence_of,
)
from spotsup_trainer.session.checkpoint_bucket import CheckpointBucket, bucket_checkpoints
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Owner, Position, SupersededError
from spotsup_trainer.session.retention import Best, Retention

ERROR = "Error performing PUT https://b.s3.amazonaws.com/k in 3ms - Server returned non-2xx status code: "

NO_KEY = (
    "User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to perform: kms:GenerateDataKey on this resource "
    "because the resource does not exist in this Region"
)
NO_CLOUD_KEY = (
    "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has been authorized to "
    "use this key."
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"{ERROR}403 Forbidden: <Error><Code>AccessDenied</Code>\n<Message>x</Message></Error>",
            "access is denied: give",
        ),
        (
            f"{ERROR}301 Moved Permanently: <Error><Code>PermanentRedirect</Code></Error>",
            "the bucket is in another region",
        ),
        (
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            "the bucket is in another region",
        ),
        (
            f"{ERROR}400 Bad Request: <Error><Code>AuthorizationHeaderMalformed</Code></Error>",
            "the bucket is in another",
        ),
        (
            f"{ERROR}403 Forbidden: <Error><Code>AccessDenied</Code><Message>{NO_KEY}</Message></Error>",
            "the key that encrypts the bucket refuses: let the machine's role use it",
        ),
        (
            f"{ERROR}400 Bad Request: <Error><Code>KMS.DisabledException</Code><Message>x</Message></Error>",
            "the key that encrypts the bucket cannot be used: enable it, or give the bucket another one (400 KMS.Dis",
        ),
        (
            f"{ERROR}403 Forbidden: <Error><Code>AccessDenied</Code><Details>{NO_CLOUD_KEY}</Details></Error>",
            "the key that encrypts the bucket refuses: give Cloud Storage's service agent",
        ),
        (
            f"{ERROR}403 Forbidden: <Error><Code>KeyVaultEncryptionKeyNotFound</Code></Error>",
            "the key that encrypts the storage account cannot be used",
        ),
        (f"{ERROR}503 Slow Down: <Error><Code>SlowDown</Code></Error>", "the store asks for fewer requests"),
        (
            f"{ERROR}501 Not Implemented: <Error><Code>NotImplemented</Code></Error>",
            "this store has no conditional writes",
        ),
        (f"{ERROR}503 x: <Error><Code>ServerBusy</Code></Error>", "the store asks for fewer requests"),
        (f"{ERROR}400 Bad Request: <Error><Code>ExpiredToken</Code></Error>", "the credentials have expired"),
        (f"{ERROR}401 x: <Error><Code>InvalidAuthenticationInfo</Code></Error>", "the credentials have expired"),
        ("Bulk delete request failed for key k: Not authorized (code: 403)", "access is denied: give"),
        (f"{ERROR}404 Not Found: <Error><Code>NoSuchBucket</Code></Error>", "there is no such bucket: make it"),
        (f"{ERROR}418 I'm a teapot: ", "the store answered 418"),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 9s",
            "there are no credentials",
        ),
        ("error sending request: connection refused", "error sending request: connection refused"),
        ("", "no reason given"),
    ],
)
def test_a_refusal_is_one_sentence_with_its_remedy(text: str, says: str) -> None:
    found = sentence_of(text)
    assert found.startswith(says)
    assert "\n" not in found


def test_plain_http_is_only_for_an_endpoint_that_a_person_has_named() -> None:
    assert not client_options({})["allow_http"]
    assert not client_options({"AWS_ENDPOINT_URL": "https://minio"})["allow_http"]
    assert client_options({"AWS_ENDPOINT_URL_S3": "http://minio:9000"})["allow_http"]
    assert client_options({"GOOGLE_BASE_URL": "http://gcs:4443"})["allow_http"]
    assert client_options({"AZURE_STORAGE_ENDPOINT": "http://blobs:10000"})["allow_http"]


def test_requests_are_bounded() -> None:
    options = client_options({})
    assert options["timeout"].total_seconds() == REQUEST_TIMEOUT_S
    assert options["connect_timeout"].total_seconds() < REQUEST_TIMEOUT_S
    open_ = ObstoreStore("s3://bucket/prefix", {"AWS_REGION": "us-east-1"})
    retries = open_._store.retry_config
    assert (retries["max_retries"], retries["retry_timeout"].total_seconds()) == (MAX_RETRIES, RETRY_FOR_S)


# -- several processes at one place ------------------------------------------------------------------------


class Turns:
    """Runs threads one request at a time, in an order that a test gives."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: dict[str, bool] = {}
        self._turn = ""

    def take(self, who: str) -> None:
        with self._condition:
            self._waiting[who] = True
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._turn == who, 30.0)
            self._turn = ""
            self._waiting[who] = False

    def over(self, who: str) -> None:
        with self._condition:
            del self._waiting[who]
            self._condition.notify_all()

    def run(self, programs: dict[str, Callable[[], None]], order: Sequence[int]) -> None:
        def program(who: str) -> None:
            try:
                programs[who]()
            finally:
                self.over(who)

        self._waiting = dict.fromkeys(programs, False)
        threads = [threading.Thread(target=program, args=(who,)) for who in programs]
        for thread in threads:
            thread.start()
        turns = iter(order)
        while True:
            with self._condition:
                assert self._condition.wait_for(lambda: all(self._waiting.values()) and not self._turn, 30.0)
                if not self._waiting:
                    break
                ready = sorted(self._waiting)
                self._turn = ready[next(turns, 0) % len(ready)]
                self._waiting[self._turn] = False
                self._condition.notify_all()
        for thread in threads:
            thread.join()


@dataclass
class Bucket:
    """The objects, and how often each was written."""

    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    writes: int = 0
    # Writes whose sender was told that they had failed, and that take effect later.
    late: list[Callable[[], None]] = field(default_factory=list)


class MemoryStore:
    """`bucket` as `who` sees it. `luck` gives what becomes of each write of the index: 0 well, 1 carried out but
    reported as failed, 2 failed, 3 reported as failed and carried out later, if its condition holds then, 4 carried out
    twice."""

    url = "memory://bucket"

    def __init__(self, bucket: Bucket, who: str, turns: Turns | None, luck: Sequence[int] = ()) -> None:
        self.bucket, self.who, self.turns, self.luck = bucket, who, turns, iter(luck)

    def _turn(self) -> None:
        if self.turns:
            self.turns.take(self.who)

    def _write(self, name: str, data: Any) -> None:
        self.bucket.writes += 1
        self.bucket.objects[name] = (bytes(data), str(self.bucket.writes))

    def put(self, name: str, data: Any) -> None:
        self._turn()
        self._write(name, data)

    def swap(self, name: str, data: bytes, etag: str) -> None:
        self._turn()
        luck = next(self.luck, 0)

        def carry_out() -> None:
            if self.bucket.objects.get(name, (b"", ""))[1] != etag:
                raise ChangedError("it was changed")
            self._write(name, data)

        if luck in {0, 1, 4}:
            carry_out()
        if luck == 4:
            raise ChangedError("it was changed: by this very call, which was sent twice")
        if luck == 3:
            self.bucket.late.append(carry_out)
        if luck:
            raise StoreError("no answer")

    def get(self, name: str) -> tuple[bytes, str] | None:
        self._turn()
        return self.bucket.objects.get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self.bucket.objects[name][0][start : start + length]

    def listed(self, below: str = "") -> list[Object]:
        self._turn()
        prefix = f"{below}/" if below else ""
        found = (Object(name, len(data), tag) for name, (data, tag) in self.bucket.objects.items())
        return sorted((each for each in found if each.name.startswith(prefix)), key=lambda each: each.name)

    def folders(self) -> list[str]:
        self._turn()
        return sorted({name.partition("/")[0] for name in self.bucket.objects if "/" in name})

    def delete(self, names: Sequence[str]) -> None:
        self._turn()
        for name in names:
            self.bucket.objects.pop(name, None)


class Process:
    """Resumes, claims, and makes checkpoints until it is superseded or has made them all. Each has two data objects
    that say who wrote them, and from which step of whose history it went on."""

    def __init__(self, store: MemoryStore, number: int, checkpoints: int, keep: int) -> None:
        self.place = CheckpointBucket(store, Owner(number, f"{number:02x}"), Retention(keep))
        self.store, self.number, self.wanted = store, number, checkpoints
        self.history: tuple[tuple[int, int], ...] = ()
        # Those of its checkpoints that it was told to be complete, as histories.
        self.acknowledged: list[tuple[tuple[int, int], ...]] = []
        self.superseded = False

    def __call__(self) -> None:
        try:
            with contextlib.suppress(StoreError):
                self._train()
        except SupersededError:
            self.superseded = True

    def _train(self) -> None:
        self.place.remember_owner()
        for checkpoint in bucket_checkpoints(self.store):
            with contextlib.suppress(CheckpointError):
                checkpoint.path.checked_objects()
                self.history = history_of(checkpoint, self.store.bucket)
                break
        step = self.history[-1][1] if self.history else 0
        restored = step
        for _ in range(self.wanted):
            step += 1
            self.place.begin()
            folder = self.place.staging(step)
            self.history = (*self.history, (self.number, step))
            for part in range(2):
                self.store.put(f"{folder.name}/data.{part}", repr(self.history).encode())
            try:
                self.place.claim(restored)
                self.place.complete(Position(step))
                self.acknowledged.append(self.history)
            except SupersededError:
                self.place.discard(step)
                raise
            except StoreError:
                self.place.discard(step)


def history_of(checkpoint: Any, bucket: Bucket) -> tuple[tuple[int, int], ...]:
    """Whose steps led to a checkpoint; both of its objects have to say the same."""
    texts = {bucket.objects[f"{checkpoint.path.name}/data.{part}"][0] for part in range(2)}
    assert len(texts) == 1, "a mixed checkpoint"
    found: tuple[tuple[int, int], ...] = eval(texts.pop().decode())  # noqa: S307  # written above
    return found


def owner_in(bucket: Bucket) -> int:
    """The round of the index's owner; 0 without an index."""
    found = bucket.objects.get("index.json")
    return int(json.loads(found[0])["owner"].split()[0]) if found else 0


luck = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4]), max_size=6)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(order=st.lists(st.integers(0, 2), max_size=120), fates=st.tuples(luck, luck, luck), keep=st.integers(1, 2))
def test_of_several_processes_no_checkpoint_is_lost_or_mixed(
    order: list[int], fates: tuple[list[int], ...], keep: int
) -> None:
    bucket, turns = Bucket(), Turns()
    processes = [Process(MemoryStore(bucket, f"p{n}", turns, fates[n]), n + 1, 3, keep) for n in range(3)]
    turns.run({each.store.who: each for each in processes}, order)
    for late in bucket.late:  # long after all have ended
        with contextlib.suppress(ChangedError):
            late()
    quiet: Store = MemoryStore(bucket, "", None)
    found = bucket_checkpoints(quiet)
    histories = []
    for checkpoint in found:
        checkpoint.path.checked_objects()  # all of it is there, as it was written
        assert checkpoint.position() == Position(checkpoint.step)
        histories.append(history_of(checkpoint, bucket))
    assert len(found) <= keep
    # One history: each older checkpoint is a beginning of the newest.
    for history in histories[1:]:
        assert histories[0][: len(history)] == history
    if any(each.acknowledged for each in processes):
        assert histories, "all checkpoints were lost"
    # Who owns the place in the end finds what it was told to be complete, or something of its own after it.
    owner = next((each for each in processes if each.number == owner_in(bucket)), None)
    if owner is not None and owner.acknowledged:
        newest = owner.acknowledged[-1]
        assert histories[0][: len(newest)] == newest


def test_a_process_that_is_delayed_between_its_look_and_its_write_completes_nothing() -> None:
    bucket = Bucket()
    old, new = (Process(MemoryStore(bucket, f"p{n}", None), n, 1, 2) for n in (1, 2))
    old()
    stale = MemoryStore(bucket, "p1", None)
    original = stale.swap

    def late_swap(name: str, data: bytes, etag: str) -> None:
        stale.swap = original  # type: ignore[method-assign]
        new()
        original(name, data, etag)

    stale.swap = late_swap  # type: ignore[method-assign]
    old.place._store = stale
    old.place.begin()
    stale.put(f"{old.place.staging(2).name}/data.0", b"x")
    with pytest.raises(SupersededError):
        old.place.complete(Position(2))
    assert [each.path.name.split(".")[1] for each in bucket_checkpoints(stale)] == ["r2-02", "r1-01"]


def test_a_claim_leaves_another_history_rather_than_none() -> None:
    bucket = Bucket()
    old, new = (Process(MemoryStore(bucket, f"p{n}", None), n, 1, 1) for n in (1, 2))
    old()
    new.place.remember_owner()  # and it has read step 1, which is removed meanwhile
    for step in (2, 3):
        old.place.begin()
        old.store.put(f"{old.place.staging(step).name}/data.0", b"x")
        old.place.complete(Position(step))
    new.place.claim(1)
    assert [each.step for each in bucket_checkpoints(new.store)] == [3]
    new.place.begin()
    new.store.put(f"{new.place.staging(2).name}/data.0", b"x")
    new.place.complete(Position(2))
    assert [each.path.name for each in bucket_checkpoints(new.store)] == ["step_00000002.r2-02.1"]


def test_what_a_newer_process_has_begun_to_write_is_not_deleted() -> None:
    bucket = Bucket()
    for number, token in ((1, "aa"), (2, "bb"), (2, "cc"), (3, "dd")):
        bucket.objects[f"step_00000001.r{number}-{token}.1/data.0"] = (b"x", "1")
    place = CheckpointBucket(MemoryStore(bucket, "", None), Owner(2, "cc"), Retention(2))
    place.begin()
    place.claim(0)
    assert sorted(name.split(".")[1] for name in bucket.objects if "data" in name) == ["r2-bb", "r2-cc", "r3-dd"]


def test_what_a_newer_process_has_read_is_not_deleted_by_its_writer_that_was_told_of_a_failure() -> None:
    bucket = Bucket()
    old, new = (Process(MemoryStore(bucket, f"p{n}", None), n, 0, 2) for n in (1, 2))
    old.place.claim(0)
    old.place.begin()
    name = old.place.staging(1).name
    original = old.store.swap

    def sent_twice(*given: Any) -> None:
        original(*given)
        new.place.remember_owner()
        new.place.claim(1)  # it has read this very checkpoint
        raise ChangedError("it was changed")

    old.store.swap = sent_twice  # type: ignore[assignment, method-assign]
    old.store.put(f"{name}/data.0", b"x")
    with pytest.raises(SupersededError):
        old.place.complete(Position(1))
    old.place.discard(1)
    assert f"{name}/data.0" in bucket.objects
    assert [each.path.name for each in bucket_checkpoints(new.store)] == [name]


class HierarchicalStore(MemoryStore):
    """As Azure's accounts with a hierarchical namespace: a folder stays until it is deleted itself, once it is empty.

    https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-known-issues
    """

    def __init__(self) -> None:
        super().__init__(Bucket(), "", None)
        self.directories: set[str] = set()

    def put(self, name: str, data: Any) -> None:
        super().put(name, data)
        self.directories.add(name.partition("/")[0])

    def folders(self) -> list[str]:
        return sorted(self.directories)

    def delete(self, names: Sequence[str]) -> None:
        super().delete(names)
        self.directories -= {name for name in names if not self.listed(name)}


def test_folders_of_removed_checkpoints_do_not_pile_up_where_folders_are_real() -> None:
    store = HierarchicalStore()
    place = CheckpointBucket(store, Owner(1, "aa"), Retention(2))
    place.claim(0)
    for step in range(1, 6):
        place.begin()
        store.put(f"{place.staging(step).name}/data.0", b"x")
        place.complete(Position(step))
    assert [name.partition(".")[0] for name in store.folders()] == ["step_00000004", "step_00000005"]


def test_the_best_and_one_of_every_so_many_steps_stay_in_a_bucket() -> None:
    bucket = Bucket()
    place = CheckpointBucket(MemoryStore(bucket, "", None), Owner(1, "aa"), Retention(1, every=10))
    place.remember_owner()
    place.claim(0)
    best: tuple[Best, ...] = ()
    for step in (4, 9, 12, 17, 21, 26):
        if step == 9:
            best = (Best("loss", 0.5, "min", 9),)
        place.begin()
        place.complete(Position(step, best=best))
    assert [each.step for each in place.checkpoints()] == [26, 21, 12, 9]
    assert [each.position().best for each in place.checkpoints()] == [best] * 4
    assert {name.split(".")[0] for name in bucket.objects if "/" in name} == {
        f"step_{step:08}" for step in (9, 12, 21, 26)
    }
