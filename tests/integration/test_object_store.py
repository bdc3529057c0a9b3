"""Checkpoints in an object store: real servers of S3 and, with `make test-azurite`, of Azure, which also misbehave."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from spotsup_trainer.objects.check import check
from spotsup_trainer.objects.store import (
    TRANSFERS,
    ChangedError,
    ObstoreStore,
    Store,
    StoreError,
    open_store,
    region_by,
    region_needed,
)
from spotsup_trainer.session import object_files, restoring
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position, SupersededError
from spotsup_trainer.session.fetch import fetch
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.places import open_place
from spotsup_trainer.session.retention import Retention
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.support.azurite import Azurite, azurite
from tests.support.gcs import Gcs
from tests.support.object_gate import Fault, Gate, Request
from tests.support.s3 import S3, s3_here
from tests.support.serving import answering, serving

pytestmark = pytest.mark.long

ALONE = Peers(0, 1, None)
ROOT = Path(__file__).resolve().parents[2]
State = dict[str, Any]


# `make test-azurite` sets it: it has installed the emulator.
SERVERS = ["azurite"] if "SPOTSUP_AZURITE" in os.environ else ["s3", pytest.param("gcs", marks=pytest.mark.nightly)]


@pytest.fixture(scope="module")
def azurite_port() -> Iterator[int]:
    """One emulator for all tests; each has a container of its own."""
    with azurite() as port:
        yield port


@pytest.fixture(params=SERVERS)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """With small parts, so that small files have several."""
    monkeypatch.setattr(object_files, "PART_BYTES", 4096)
    make: dict[str, Callable[[], Gate]] = {
        "s3": S3,
        "gcs": Gcs,
        "azurite": lambda: Azurite(request.getfixturevalue("azurite_port")),
    }
    with make[request.param]().here() as server:
        yield server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """For what is S3's own."""
    monkeypatch.setattr(object_files, "PART_BYTES", 4096)
    with s3_here() as server:
        yield server


def a_state(seed: int) -> State:
    """A model with its optimizer, 60 kB together."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 75)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def weights(state: State) -> torch.Tensor:
    found: torch.Tensor = state["model"].weight
    return found.detach().clone()


def checkpointer(store: Gate, state: State, number: int, keep: int = 2, **more: Any) -> Checkpointer:
    """A process of round `number`."""
    return Checkpointer(store.place, state, ALONE, keep, round_number=number, sleep=lambda _: None, **more)


def trained(store: Gate, *steps: int, number: int = 1, keep: int = 2) -> tuple[Checkpointer, State]:
    """A process that has saved these steps, each with other weights."""
    state = a_state(number)
    writer = checkpointer(store, state, number, keep)
    writer.restore()
    writer.claim()
    for step in steps:
        with torch.no_grad():
            state["model"].weight.fill_(float(step))
        assert writer.save(Position(step)), writer.problem()
    return writer, state


def restored(store: Gate, number: int = 2) -> tuple[int, float]:
    """The step and the weight that a new process begins with; 0 and 0 without a checkpoint."""
    state = a_state(0)
    position = checkpointer(store, state, number).restore()
    return (position.step, float(weights(state)[0, 0])) if position else (0, 0.0)


def times(count: int, fault: Fault, where: Callable[[Request], bool] = lambda _: True) -> Callable[[Request], Any]:
    """The next `count` requests for which `where` holds get `fault`."""
    left = itertools.count(count, -1)
    return lambda request: fault if where(request) and next(left) > 0 else None


def test_a_state_comes_back_as_it_was_and_only_the_newest_checkpoints_are_kept(store: Gate) -> None:
    _, state = trained(store, 1, 2, 3)
    again = a_state(9)
    assert checkpointer(store, again, 2).restore() == Position(3)
    for mine, theirs in zip(state["model"].parameters(), again["model"].parameters(), strict=True):
        assert torch.equal(mine, theirs)
        slots = [each["optimizer"].state[parameter] for each, parameter in ((state, mine), (again, theirs))]
        assert all(torch.equal(slots[0][name], slots[1][name]) for name in slots[0])
    assert [name[:13] for name in store.folders()] == ["step_00000002", "step_00000003"]
    data = [size for key, size in store.keys().items() if ".distcp." in key]
    assert len(data) > 10, "files have several parts"
    assert set(data[:-1]) > {4096}
    assert not any("upload" in request.query for request in store.requests), "no upload in parts is ever begun"


def test_a_process_that_dies_while_it_writes_leaves_nothing_for_long(store: Gate) -> None:
    trained(store, 1)
    open_store(store.place).put("step_00000002.r1-abc.1/__0_0.distcp.00000", b"x" * 4096)  # killed then
    assert restored(store) == (1, 1.0)
    trained(store, 2, number=2)
    assert [name[:16] for name in store.folders()] == ["step_00000001.r1", "step_00000002.r2"]
    assert restored(store, 3) == (2, 2.0)


@pytest.mark.parametrize("damage", ["delete", "overwrite", "shorten", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(store: Gate, capfd: pytest.CaptureFixture[str], damage: str) -> None:
    trained(store, 1, 2)
    newest = store.folders()[-1]
    victim = f"{newest}/manifest.json" if damage == "manifest" else f"{newest}/__0_0.distcp.00003"
    if damage in {"delete", "manifest"}:
        store.remove(victim)
    else:
        store.write(victim, b"y" * (4096 if damage == "overwrite" else 9))
    assert restored(store) == (1, 1.0)
    said = capfd.readouterr().err
    assert f"skipping checkpoint {store.place}/{newest}: " in said
    assert "training goes on from step 1, an older checkpoint" in said


def test_the_newest_checkpoint_of_an_abandoned_history_is_set_aside(store: Gate) -> None:
    trained(store, 1, 2, 3, keep=3)
    newest = store.folders()[-1]
    store.remove(f"{newest}/.metadata.00000")
    trained(store, 3, number=2, keep=3)  # it has gone on from step 2
    index = json.loads(store.read("index.json"))
    assert index["aside"] == newest
    assert [name[:16] for name in index["complete"]] == ["step_00000003.r2", "step_00000002.r1", "step_00000001.r1"]
    assert newest in store.folders()
    assert restored(store, 3) == (3, 3.0)


def test_of_two_processes_the_one_that_claims_later_goes_on(store: Gate) -> None:
    old, _ = trained(store, 1)
    new, _ = trained(store, number=2)
    new.settle()
    with pytest.raises(
        SupersededError, match=f"another process .* trains with {store.place} now, so this one .* must stop"
    ):
        old.save(Position(2))
    late = checkpointer(store, a_state(1), 1)
    late.restore()
    late.claim()
    late.settle()  # an older round, which has seen the newer one: a person has started it anew
    assert new.problem() == ""


def test_an_index_that_was_deleted_by_hand_loses_no_checkpoint(store: Gate) -> None:
    writer, _ = trained(store, 1, 2)
    store.remove("index.json")
    assert restored(store) == (2, 2.0)
    assert writer.save(Position(3))
    assert restored(store)[0] == 3


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("slow down", marks=pytest.mark.long),
        "internal",
        pytest.param("reset before", marks=pytest.mark.long),
        "answer lost",
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET", "POST", "index"])
def test_a_burst_of_errors_loses_nothing_and_is_no_problem(store: Gate, kind: str, method: str) -> None:
    fault = {
        "slow down": Fault(error=store.slow_down),
        "internal": Fault(error=store.internal),
        "reset before": Fault(reset="before"),
        "answer lost": Fault(reset="after"),
    }[kind]
    writer, state = trained(store, 1)

    def hit(request: Request) -> bool:
        return (
            request.key.endswith("index.json") and request.method == "PUT"
            if method == "index"
            else request.method == method
        )

    for step in (2, 3):
        with torch.no_grad():
            state["model"].weight.fill_(float(step))
        store.fault = times(1 if method == "index" else 4, fault, hit)
        assert writer.save(Position(step)), writer.problem()
        assert writer.problem() == ""
    store.fault = times(4, fault, hit)
    assert restored(store) == (3, 3.0)
    assert [name[:13] for name in store.folders()] == ["step_00000002", "step_00000003"]


def test_an_answer_that_ends_in_the_middle_is_asked_for_again(store: Gate) -> None:
    trained(store, 1)
    store.fault = times(3, Fault(cut=True), lambda request: ".distcp." in request.key)
    assert restored(store) == (1, 1.0)


def test_a_store_that_refuses_is_a_problem_in_one_sentence_and_training_goes_on(store: Gate) -> None:
    writer, _ = trained(store, 1)
    store.fault = lambda request: Fault(error=store.denied) if request.method == "PUT" else None
    began = time.monotonic()
    writer.begin(Position(2))
    assert time.monotonic() - began < 30.0
    writer.settle()
    problem = writer.problem()
    assert problem.startswith(
        f"the checkpoint of step 2 could not be written to {store.place}: rank 0: cannot write {store.place}/"
    )
    assert problem.endswith(
        f"give the machine's role what docs/permissions/*-checkpoints-* lists (403 {store.denied[1]})"
    )
    assert "\n" not in problem
    store.fault = lambda _: None
    assert writer.save(Position(3))
    assert writer.problem() == ""
    assert restored(store)[0] == 3
    assert [name[:13] for name in store.folders()] == ["step_00000001", "step_00000003"]


def test_a_store_that_hangs_stops_no_training(store: Gate) -> None:
    ticks = iter(range(0, 10_000_000, 70))
    state = a_state(1)
    writer = checkpointer(store, state, 1, warn_after_s=60.0, clock=lambda: float(next(ticks)))
    writer.restore()
    assert writer.save(Position(1))
    answer = threading.Event()
    store.fault = lambda request: Fault(until=answer) if request.method == "PUT" else None
    began = time.monotonic()
    writer.begin(Position(2))
    assert time.monotonic() - began < 30.0, "training goes on at once"
    assert writer.busy
    assert writer.problem().startswith(
        f"the object store {store.place} does not answer or is slow: the checkpoint of step 2"
    )
    answer.set()
    writer.settle()
    assert restored(store)[0] == 2


def test_an_outage_at_the_start_is_waited_for_and_costs_no_step(store: Gate, capfd: pytest.CaptureFixture[str]) -> None:
    trained(store, 1, 2)
    waited: list[float] = []

    def wait(pause_s: float) -> None:
        waited.append(pause_s)
        if len(waited) == 3:
            store.fault = lambda _: None

    state = a_state(0)
    reader = Checkpointer(store.place, state, ALONE, 2, round_number=2, sleep=wait)
    store.fault = lambda request: Fault(error=store.denied) if ".distcp." in request.key else None
    assert reader.restore() == Position(2), "not the older one, which could not be read either"
    assert float(weights(state)[0, 0]) == 2.0
    assert waited == [restoring._READ_PAUSE_S] * 3
    assert "it is tried again" in capfd.readouterr().err
    store.fault = lambda _: Fault(error=store.denied)
    with pytest.raises(StoreError, match="access is denied"):
        checkpointer(store, a_state(0), 3).restore()
    store.fault = lambda request: Fault(error=store.denied) if ".distcp." in request.key else None
    with pytest.raises(CheckpointError, match="access is denied"):
        checkpointer(store, a_state(0), 3).restore()


def test_a_job_resumes_from_another_place(store: Gate, tmp_path: Path) -> None:
    trained(store, 1, 2)
    state = a_state(0)
    own = Checkpointer(tmp_path, state, ALONE, 2, resume_from=[store.place])
    assert own.restore() == Position(2)
    assert own.save(Position(3))
    other = Checkpointer(
        store.place_of(store.bucket, "other"), a_state(0), ALONE, 2, resume_from=[tmp_path, store.place]
    )
    assert other.restore() == Position(3)
    assert all(
        request.key.startswith("prefix/job-1") for request in store.requests if request.method == "PUT" and request.key
    )


def test_the_check_of_a_node_says_what_is_wrong(store: Gate) -> None:
    def said(opened: Store) -> str:
        return check(opened, "n1")

    assert said(open_store(store.place)) == ""
    assert store.keys() == {}
    missing = said(open_store(store.place.replace(store.bucket, "no-such-bucket")))
    assert re.search(r"there is no such (bucket|container): make it, or correct `checkpoints` ", missing)
    assert missing.endswith(f"(404 {store.missing[1]})")
    store.fault = lambda request: Fault(error=store.denied) if request.method in {"POST", "DELETE"} else None
    assert said(open_store(store.place)).startswith(f"cannot delete {store.place}/check/n1: access is denied")


def test_credentials_that_the_store_does_not_know_are_said(store: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    if not store.unknown_credentials:
        pytest.skip("moto looks at no signature")
    for name, value in store.unknown_credentials.items():
        monkeypatch.setenv(name, value)
    said = check(ObstoreStore(store.place, os.environ, retries=1), "n1")
    assert said.startswith(f"cannot write {store.place}/check/n1: access is denied: give the machine's role what")
    assert store.keys() == {}


def test_of_many_who_write_the_index_at_once_each_time_one_succeeds(store: Gate) -> None:
    """The store's own promise, on which all else stands: neither a first write nor a later one is overwritten."""
    opened, tag = open_store(store.place), ""
    for number in range(5):
        won: list[int] = []

        def write(mine: int, tag: str = tag, won: list[int] = won, text: bytes = b"%d " % number) -> None:
            with contextlib.suppress(ChangedError):
                opened.swap("index.json", text + b"%d" % mine, tag)
                won.append(mine)

        threads = [threading.Thread(target=write, args=(mine,)) for mine in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = opened.get("index.json")
        assert found is not None
        assert won == [int(found[0].split()[1])], found[0]
        tag = found[1]


def test_the_region_of_a_bucket_is_what_s3_says_even_where_it_refuses() -> None:
    said = {"x-amz-bucket-region": "eu-north-1"}
    for status in (200, 301, 403):
        with answering(partial(lambda status, *_: (status, ""), status), headers=said) as url:
            assert region_by(f"{url}/bucket", 10.0) == "eu-north-1"
    with answering(lambda *_: (404, "")) as url:
        assert region_by(f"{url}/bucket", 10.0) == ""
    assert region_by(f"{url}/bucket", 10.0) == "", "nobody answers"
    assert region_needed("s3://bucket/x", {"AWS_REGION": "r"}) == region_needed("gs://bucket/x", {}) == ""


def test_an_object_that_is_not_there_keeps_no_other_from_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {f"f%2F{number}" for number in range(40)}

    class Handler(BaseHTTPRequestHandler):
        """Google Cloud Storage: one request per object, 404 for one that is not there."""

        def do_DELETE(self) -> None:
            name = self.path.rpartition("prefix%2F")[2]
            self.send_response(204 if name in left else 404)
            left.discard(name)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
        open_store("gs://bucket/prefix").delete(["f/missing", *(f"f/{number}" for number in range(40))])
    assert left == set()


def test_what_the_client_sends_to_google(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of Google's XML API that checkpoints need: a name is one escaped segment, a condition a generation.

    Source: "XML API requests" and "HTTP headers and query string parameters for the XML API", Cloud Storage.
    """
    with Gcs().here() as server:
        monkeypatch.setattr(server, "bucket", "box")
        server.make_bucket()
        opened = ObstoreStore("gs://box/job", os.environ)
        opened.swap("index.json", b"1", "")
        found = opened.get("index.json")
        assert found is not None
        generation = json.loads(found[1])["version"]
        opened.swap("index.json", b"2", found[1])
        opened.put("f/part", b"data")
        opened.get_range("f/part", 1, 2)
        opened.listed("f")
        opened.folders()
        opened.delete(["f/part", "f/missing"])
        match = "X_GOOG_IF_GENERATION_MATCH"
        assert server.sent[:7] == [
            ("PUT", "/box/job%2Findex%2Ejson", {match: "0"}),
            ("GET", "/box/job%2Findex%2Ejson", {}),
            ("PUT", "/box/job%2Findex%2Ejson", {match: generation}),
            ("PUT", "/box/job%2Ff%2Fpart", {}),
            ("GET", "/box/job%2Ff%2Fpart", {}),
            ("GET", "/box?list-type=2&prefix=job%2Ff%2F", {}),
            ("GET", "/box?list-type=2&delimiter=%2F&prefix=job%2F", {}),
        ]
        deleted = {(method, line) for method, line, _ in server.sent[7:]}  # side by side, and what did not begin again
        assert deleted == {("DELETE", f"/box/job%2Ff%2F{name}") for name in ("part", "missing")}


def test_a_path_that_was_an_address_is_refused() -> None:
    from spotsup_trainer.session.checkpoint_dir import Owner

    with pytest.raises(ValueError, match="a Path has changed it: pass the address as text"):
        open_place(Path("s3://bucket/prefix"), Owner(0, "a"), Retention(2))


def test_parts_are_sent_a_few_at_a_time(store: Gate) -> None:
    here, most = 0, 0
    lock = threading.Lock()

    class Slow:
        url = store.place

        def put(self, name: str, data: Any) -> None:
            nonlocal here, most
            with lock:
                here += 1
                most = max(most, here)
            time.sleep(0.01)
            with lock:
                here -= 1

    files: Any = object_files.ObjectFileSystem(Slow(), "folder")  # type: ignore[arg-type]  # it only writes
    with files.create_stream("file", "wb") as stream:
        stream.write(b"x" * 4096 * 20)
    assert 1 < most <= TRANSFERS


def _s3(request: Request) -> str:
    return "s3:ListBucket" if "list-type" in request.query else _S3[request.method]


def _gcs(request: Request) -> str:
    return f"storage.objects.{'list' if 'list-type' in request.query else _GCS[request.method]}"


def _azure(request: Request) -> str:
    kinds = {"PUT": "write", "GET": "read", "POST": "delete", "DELETE": "delete"}
    return f"Microsoft.Storage/storageAccounts/blobServices/containers/blobs/{kinds[request.method]}"


_S3 = {"PUT": "s3:PutObject", "GET": "s3:GetObject", "POST": "s3:DeleteObject", "DELETE": "s3:DeleteObject"}
_GCS = {"PUT": "create", "GET": "get", "DELETE": "delete"}
# Server's class -> what a request needs (by the stores' own references), and the file with the role.
PERMISSIONS: dict[str, tuple[Callable[[Request], str], str]] = {
    "S3": (_s3, "aws-checkpoints-policy.json"),
    "Gcs": (_gcs, "gcp-checkpoints-role.yaml"),
    "Azurite": (_azure, "azure-checkpoints-role.json"),
}


def granted(file: str) -> set[str]:
    """What a role of docs/permissions grants on objects."""
    role = yaml.safe_load((ROOT / "docs" / "permissions" / file).read_text())  # JSON is YAML
    if "Statement" in role:
        return {action for statement in role["Statement"] for action in statement["Action"]}
    return set(role.get("includedPermissions") or role["DataActions"])


def test_a_node_needs_the_permissions_that_the_policy_lists_and_no_others(store: Gate) -> None:
    trained(store, 1, 2, 3)
    restored(store)
    check(open_store(store.place), "n1")
    mine = [each for each in store.requests if each.key or re.search("list|delete|comp=", each.query)]
    needed, file = PERMISSIONS[type(store).__name__]
    # "Put Blob" needs `write`, or `add` for a new blob: who has the first needs no other.
    assert {needed(each) for each in mine} == {each for each in granted(file) if not each.endswith("/add/action")}


def test_a_checkpoint_is_copied_to_a_folder_that_torchs_own_tools_read(store: Gate, tmp_path: Path) -> None:
    _, state = trained(store, 1, 2)
    store.remove(f"{store.folders()[-1]}/__0_0.distcp.00001")
    copied = fetch(open_store(store.place), tmp_path)
    assert copied == tmp_path / "step_00000001"
    dcp_to_torch_save(copied, tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt", weights_only=False)["model"]
    assert torch.equal(found["weight"], torch.ones_like(state["model"].weight))
    again = a_state(0)
    assert Checkpointer(tmp_path, again, ALONE, 2).restore() == Position(1)
    with pytest.raises(CheckpointError, match="there is no complete checkpoint in"):
        fetch(open_store(store.place_of(store.bucket, "elsewhere")), tmp_path)
