"""Checkpoints in an object store: a real S3 server, which also misbehaves."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from spotsup_trainer.objects.check import check
from spotsup_trainer.objects.store import TRANSFERS, Store, StoreError, open_store, region_by, region_needed
from spotsup_trainer.session import checkpoint as checkpoint_module
from spotsup_trainer.session import object_files
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position, SupersededError
from spotsup_trainer.session.fetch import fetch
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.places import open_place
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.support.s3 import DENIED, INTERNAL, S3, SLOW_DOWN, Fault, Request, s3_here
from tests.support.serving import answering, serving

ALONE = Peers(0, 1, None)
ROOT = Path(__file__).resolve().parents[2]
State = dict[str, Any]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """With small parts, so that small files have several."""
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


def checkpointer(s3: S3, state: State, number: int, keep: int = 2, **more: Any) -> Checkpointer:
    """A process of round `number`."""
    return Checkpointer(s3.place, state, ALONE, keep, round_number=number, sleep=lambda _: None, **more)


def trained(s3: S3, *steps: int, number: int = 1, keep: int = 2) -> tuple[Checkpointer, State]:
    """A process that has saved these steps, each with other weights."""
    state = a_state(number)
    writer = checkpointer(s3, state, number, keep)
    writer.restore()
    writer.claim()
    for step in steps:
        with torch.no_grad():
            state["model"].weight.fill_(float(step))
        assert writer.save(Position(step)), writer.problem()
    return writer, state


def restored(s3: S3, number: int = 2) -> tuple[int, float]:
    """The step and the weight that a new process begins with; 0 and 0 without a checkpoint."""
    state = a_state(0)
    position = checkpointer(s3, state, number).restore()
    return (position.step, float(weights(state)[0, 0])) if position else (0, 0.0)


def times(count: int, fault: Fault, where: Callable[[Request], bool] = lambda _: True) -> Callable[[Request], Any]:
    """The next `count` requests for which `where` holds get `fault`."""
    left = itertools.count(count, -1)
    return lambda request: fault if where(request) and next(left) > 0 else None


def test_a_state_comes_back_as_it_was_and_only_the_newest_checkpoints_are_kept(s3: S3) -> None:
    _, state = trained(s3, 1, 2, 3)
    again = a_state(9)
    assert checkpointer(s3, again, 2).restore() == Position(3)
    for mine, theirs in zip(state["model"].parameters(), again["model"].parameters(), strict=True):
        assert torch.equal(mine, theirs)
        slots = [each["optimizer"].state[parameter] for each, parameter in ((state, mine), (again, theirs))]
        assert all(torch.equal(slots[0][name], slots[1][name]) for name in slots[0])
    assert [name[:13] for name in s3.folders()] == ["step_00000002", "step_00000003"]
    data = [size for key, size in s3.keys().items() if ".distcp." in key]
    assert len(data) > 10, "files have several parts"
    assert set(data[:-1]) > {4096}
    assert not any("upload" in request.query for request in s3.requests), "no upload in parts is ever begun"


def test_a_process_that_dies_while_it_writes_leaves_nothing_for_long(s3: S3) -> None:
    trained(s3, 1)
    store = open_store(s3.place)
    store.put("step_00000002.r1-abc.1/__0_0.distcp.00000", b"x" * 4096)  # killed then
    assert restored(s3) == (1, 1.0)
    trained(s3, 2, number=2)
    assert [name[:16] for name in s3.folders()] == ["step_00000001.r1", "step_00000002.r2"]
    assert restored(s3, 3) == (2, 2.0)


@pytest.mark.parametrize("damage", ["delete", "overwrite", "shorten", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(s3: S3, capfd: pytest.CaptureFixture[str], damage: str) -> None:
    trained(s3, 1, 2)
    newest = s3.folders()[-1]
    victim = f"{newest}/manifest.json" if damage == "manifest" else f"{newest}/__0_0.distcp.00003"
    key = f"prefix/job-1/{victim}"
    if damage in {"delete", "manifest"}:
        s3.client.delete_object(Bucket=s3.bucket, Key=key)
    else:
        s3.client.put_object(Bucket=s3.bucket, Key=key, Body=b"y" * (4096 if damage == "overwrite" else 9))
    assert restored(s3) == (1, 1.0)
    said = capfd.readouterr().err
    assert f"skipping checkpoint {s3.place}/{newest}: " in said
    assert "training goes on from step 1, an older checkpoint" in said


def test_the_newest_checkpoint_of_an_abandoned_history_is_set_aside(s3: S3) -> None:
    trained(s3, 1, 2, 3, keep=3)
    newest = s3.folders()[-1]
    s3.client.delete_object(Bucket=s3.bucket, Key=f"prefix/job-1/{newest}/.metadata.00000")
    trained(s3, 3, number=2, keep=3)  # it has gone on from step 2
    index = json.loads(s3.client.get_object(Bucket=s3.bucket, Key="prefix/job-1/index.json")["Body"].read())
    assert index["aside"] == newest
    assert [name[:16] for name in index["complete"]] == ["step_00000003.r2", "step_00000002.r1", "step_00000001.r1"]
    assert newest in s3.folders()
    assert restored(s3, 3) == (3, 3.0)


def test_of_two_processes_the_one_that_claims_later_goes_on(s3: S3) -> None:
    old, _ = trained(s3, 1)
    new, _ = trained(s3, number=2)
    new.settle()
    with pytest.raises(
        SupersededError, match=f"another process .* trains with {s3.place} now, so this one .* must stop"
    ):
        old.save(Position(2))
    late = checkpointer(s3, a_state(1), 1)
    late.restore()
    late.claim()
    late.settle()  # an older round, which has seen the newer one: a person has started it anew
    assert new.problem() == ""


def test_an_index_that_was_deleted_by_hand_loses_no_checkpoint(s3: S3) -> None:
    writer, _ = trained(s3, 1, 2)
    s3.client.delete_object(Bucket=s3.bucket, Key="prefix/job-1/index.json")
    assert restored(s3) == (2, 2.0)
    assert writer.save(Position(3))
    assert restored(s3)[0] == 3


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(error=SLOW_DOWN), id="503", marks=pytest.mark.long),
        pytest.param(Fault(error=INTERNAL), id="500"),
        pytest.param(Fault(reset="before"), id="reset before", marks=pytest.mark.long),
        pytest.param(Fault(reset="after"), id="answer lost"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET", "POST", "index"])
def test_a_burst_of_errors_loses_nothing_and_is_no_problem(s3: S3, fault: Fault, method: str) -> None:
    writer, state = trained(s3, 1)

    def hit(request: Request) -> bool:
        return (
            request.key.endswith("index.json") and request.method == "PUT"
            if method == "index"
            else request.method == method
        )

    for step in (2, 3):
        with torch.no_grad():
            state["model"].weight.fill_(float(step))
        s3.fault = times(1 if method == "index" else 4, fault, hit)
        assert writer.save(Position(step)), writer.problem()
        assert writer.problem() == ""
    s3.fault = times(4, fault, hit)
    assert restored(s3) == (3, 3.0)
    assert [name[:13] for name in s3.folders()] == ["step_00000002", "step_00000003"]


def test_an_answer_that_ends_in_the_middle_is_asked_for_again(s3: S3) -> None:
    trained(s3, 1)
    s3.fault = times(3, Fault(cut=True), lambda request: ".distcp." in request.key)
    assert restored(s3) == (1, 1.0)


def test_a_store_that_refuses_is_a_problem_in_one_sentence_and_training_goes_on(s3: S3) -> None:
    writer, _ = trained(s3, 1)
    s3.fault = lambda request: Fault(error=DENIED) if request.method == "PUT" else None
    began = time.monotonic()
    writer.begin(Position(2))
    assert time.monotonic() - began < 30.0
    writer.settle()
    problem = writer.problem()
    assert problem.startswith(
        f"the checkpoint of step 2 could not be written to {s3.place}: rank 0: cannot write {s3.place}/"
    )
    assert problem.endswith("give the machine's role what docs/permissions/*-checkpoints-* lists (403 AccessDenied)")
    assert "\n" not in problem
    s3.fault = lambda _: None
    assert writer.save(Position(3))
    assert writer.problem() == ""
    assert restored(s3)[0] == 3
    assert [name[:13] for name in s3.folders()] == ["step_00000001", "step_00000003"]


def test_a_store_that_hangs_stops_no_training(s3: S3) -> None:
    ticks = iter(range(0, 10_000_000, 70))
    state = a_state(1)
    writer = checkpointer(s3, state, 1, warn_after_s=60.0, clock=lambda: float(next(ticks)))
    writer.restore()
    assert writer.save(Position(1))
    answer = threading.Event()
    s3.fault = lambda request: Fault(until=answer) if request.method == "PUT" else None
    began = time.monotonic()
    writer.begin(Position(2))
    assert time.monotonic() - began < 30.0, "training goes on at once"
    assert writer.busy
    assert writer.problem().startswith(
        f"the object store {s3.place} does not answer or is slow: the checkpoint of step 2"
    )
    answer.set()
    writer.settle()
    assert restored(s3)[0] == 2


def test_an_outage_at_the_start_is_waited_for_and_costs_no_step(s3: S3, capfd: pytest.CaptureFixture[str]) -> None:
    trained(s3, 1, 2)
    waited: list[float] = []

    def wait(pause_s: float) -> None:
        waited.append(pause_s)
        if len(waited) == 3:
            s3.fault = lambda _: None

    state = a_state(0)
    reader = Checkpointer(s3.place, state, ALONE, 2, round_number=2, sleep=wait)
    s3.fault = lambda request: Fault(error=DENIED) if ".distcp." in request.key else None
    assert reader.restore() == Position(2), "not the older one, which could not be read either"
    assert float(weights(state)[0, 0]) == 2.0
    assert waited == [checkpoint_module._READ_PAUSE_S] * 3
    assert "it is tried again" in capfd.readouterr().err
    s3.fault = lambda _: Fault(error=DENIED)
    with pytest.raises(StoreError, match="access is denied"):
        checkpointer(s3, a_state(0), 3).restore()
    s3.fault = lambda request: Fault(error=DENIED) if ".distcp." in request.key else None
    with pytest.raises(CheckpointError, match="access is denied"):
        checkpointer(s3, a_state(0), 3).restore()


def test_a_job_resumes_from_another_place(s3: S3, tmp_path: Path) -> None:
    trained(s3, 1, 2)
    state = a_state(0)
    own = Checkpointer(tmp_path, state, ALONE, 2, resume_from=[s3.place])
    assert own.restore() == Position(2)
    assert own.save(Position(3))
    other = Checkpointer(f"s3://{s3.bucket}/other", a_state(0), ALONE, 2, resume_from=[tmp_path, s3.place])
    assert other.restore() == Position(3)
    assert all(
        request.key.startswith("prefix/job-1") for request in s3.requests if request.method == "PUT" and request.key
    )


def test_the_check_of_a_node_says_what_is_wrong(s3: S3) -> None:
    def said(store: Store) -> str:
        return check(store, "n1")

    assert said(open_store(s3.place)) == ""
    assert s3.keys() == {}
    missing = s3.place.replace(s3.bucket, "no-such-bucket")
    assert said(open_store(missing)).endswith(
        "there is no such bucket: make it, or correct `checkpoints` (404 NoSuchBucket)"
    )
    s3.fault = lambda request: Fault(error=DENIED) if request.method == "POST" else None
    assert said(open_store(s3.place)).startswith(f"cannot delete {s3.place}/check/n1: access is denied")


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


def test_a_path_that_was_an_address_is_refused() -> None:
    from spotsup_trainer.session.checkpoint_dir import Owner

    with pytest.raises(ValueError, match="a Path has changed it: pass the address as text"):
        open_place(Path("s3://bucket/prefix"), Owner(0, "a"), 2)


def test_parts_are_sent_a_few_at_a_time(s3: S3) -> None:
    here, most = 0, 0
    lock = threading.Lock()

    class Slow:
        url = s3.place

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


def test_a_node_needs_the_permissions_that_the_policy_lists_and_no_others(s3: S3) -> None:
    trained(s3, 1, 2, 3)
    restored(s3)
    check(open_store(s3.place), "n1")
    mine = [each for each in s3.requests if each.key or "list-type" in each.query or "delete" in each.query]
    kinds = {"PUT": "s3:PutObject", "GET": "s3:GetObject", "POST": "s3:DeleteObject", "DELETE": "s3:DeleteObject"}
    used = {"s3:ListBucket" if "list-type" in each.query else kinds[each.method] for each in mine}
    policy = json.loads((ROOT / "docs/permissions/aws-checkpoints-policy.json").read_text())
    assert used == {action for statement in policy["Statement"] for action in statement["Action"]}


def test_a_checkpoint_is_copied_to_a_folder_that_torchs_own_tools_read(s3: S3, tmp_path: Path) -> None:
    _, state = trained(s3, 1, 2)
    s3.client.delete_object(Bucket=s3.bucket, Key=f"prefix/job-1/{s3.folders()[-1]}/__0_0.distcp.00001")
    copied = fetch(open_store(s3.place), tmp_path)
    assert copied == tmp_path / "step_00000001"
    dcp_to_torch_save(copied, tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt", weights_only=False)["model"]
    assert torch.equal(found["weight"], torch.ones_like(state["model"].weight))
    again = a_state(0)
    assert Checkpointer(tmp_path, again, ALONE, 2).restore() == Position(1)
    with pytest.raises(CheckpointError, match="there is no complete checkpoint in"):
        fetch(open_store(f"s3://{s3.bucket}/elsewhere"), tmp_path)
