"""The rendezvous on a real etcd: handlers as threads of this process, and plain torchrun."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.rendezvous.handler import handler_from
from spotsup_trainer.rendezvous.membership import Broken, Yield
from spotsup_trainer.wire import Hint, Result, Tombstone, encode
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from tests.e2e.handlers import JOB, KEYS, Handlers
from tests.e2e.launching import Nodes, eventually, nodes
from tests.support.programs import free_ports


@pytest.fixture
def handlers(etcd_endpoint: str) -> Iterator[Handlers]:
    with contextlib.closing(Handlers(etcd_endpoint)) as made:
        yield made


def test_rounds_form_with_a_fresh_store_each_and_leave_nothing_behind(handlers: Handlers) -> None:
    for node in "abc":
        handlers.make(node, 3, 3)
    descriptors = []
    ports = set()
    for number in range(1, 6):
        infos = handlers.form("a", "b", "c")
        assert [info.rank for info in infos] == [0, 1, 2]
        assert {info.world_size for info in infos} == {3}
        ports.add(infos[0].bootstrap_store_info.master_port)
        assert infos[1].store.check(["old"]) is False
        infos[0].store.set("old", "x")
        assert infos[2].store.get("old") == b"x"
        assert handlers.round().number == number
        assert [handlers.made[node].num_nodes_waiting() for node in "abc"] == [0, 0, 0]
        descriptors.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - counted, not walked
    assert len(ports) == 5
    assert descriptors[-1] <= descriptors[1] + 2
    assert len(handlers.etcd.range(KEYS.run(JOB)).kvs) == 4  # three members and the round


def test_the_store_listens_on_its_own_address_only(handlers: Handlers) -> None:
    handlers.make("a", 1, 1)
    info = handlers.form("a")[0]
    listening = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    port = f":{info.bootstrap_store_info.master_port:04X}"
    addresses = [line.split()[1] for line in listening if line.split()[3] == "0A" and port in line.split()[1]]
    assert addresses == [f"1E00007F{port}"]  # 127.0.0.30


def test_who_leaves_is_missed_at_once_and_a_newcomer_is_let_in(handlers: Handlers) -> None:
    for node in "abc":
        handlers.make(node, 2, 3)
    handlers.form("a", "b", "c")
    handlers.made["a"].shutdown()
    handlers.stands("b", Broken)
    assert handlers.made["b"].num_nodes_waiting() == 1
    assert [info.rank for info in handlers.form("b", "c")] == [0, 1]
    handlers.make("d", 2, 3)
    late = handlers.join("d")
    handlers.stands("b", Yield)
    assert [info.world_size for info in handlers.form("b", "c")] == [3, 3]
    assert late["d"].result(timeout=90).rank == 2


def test_a_hint_chooses_and_a_tombstone_saves_waiting(handlers: Handlers) -> None:
    for node in "abcd":
        handlers.make(node, 1, 4)
    handlers.etcd.put(KEYS.hint(JOB), encode(Hint(("c", "a", "e"), 2, 3)))
    waiting = handlers.join("a", "b", "c", "d")
    handlers.etcd.put(KEYS.tombstone(JOB, "e"), encode(Tombstone("e", "test", 0.0)))
    assert [waiting[node].result(timeout=90).rank for node in "ca"] == [0, 1]
    assert not waiting["b"].done()
    # the spare gets the place of the lost one as soon as the hint says so
    handlers.made["c"].shutdown()
    handlers.etcd.put(KEYS.hint(JOB), encode(Hint(("a", "b"), 2, 2)))
    handlers.form("a")
    assert waiting["b"].result(timeout=90).rank == 1
    handlers.etcd.put(KEYS.tombstone(JOB, "d"), encode(Tombstone("d", "test", 0.0)))
    with pytest.raises(RendezvousClosedError, match="node d"):
        waiting["d"].result(timeout=90)


def test_a_lease_that_ended_is_granted_again_and_the_round_goes_on(handlers: Handlers) -> None:
    for node in "ab":
        handlers.make(node, 2, 2, lease_ttl=6.0)
    handlers.form("a", "b")
    eventually("b runs", lambda: (found := handlers.member("b")) and found.state == "running")
    before = handlers.etcd.get(KEYS.member(JOB, "b"))
    assert before is not None
    handlers.etcd.revoke(before.lease)
    handlers.steady("a", "b", until=lambda: handlers.member("b"))
    back = handlers.etcd.get(KEYS.member(JOB, "b"))
    assert back is not None
    assert (back.value, back.lease == before.lease) == (before.value, False)
    handlers.steady_for(0.5, "a", "b")


def test_no_round_is_formed_after_the_result(handlers: Handlers) -> None:
    handlers.make("a")
    assert not handlers.made["a"].is_closed()
    handlers.form("a")
    handlers.etcd.put(KEYS.result(JOB), encode(Result("failure", "cancelled by the user", 1)))
    eventually("a stops", handlers.made["a"].num_nodes_waiting)
    with pytest.raises(RendezvousClosedError, match="cancelled by the user"):
        handlers.made["a"].next_rendezvous()
    assert handlers.made["a"].is_closed()


def test_waiting_is_bounded_and_can_be_interrupted(handlers: Handlers) -> None:
    lonely = handlers.make("a", 2, 2, join_timeout=3.0)  # its own key is there by then
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        lonely.next_rendezvous()
    patient = handlers.make("b", 3, 3)
    patient.interrupted = lambda: True
    with pytest.raises(RendezvousGracefulExitError):
        patient.next_rendezvous()


def test_an_etcd_that_is_not_there_is_named() -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    with (
        contextlib.closing(Handlers(endpoint)) as handlers,
        pytest.raises(RendezvousTimeoutError, match=f"etcd does not answer at {endpoint}"),
    ):
        handlers.make("a", join_timeout=0.3).next_rendezvous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"endpoint": " ,"}, "--rdzv-endpoint is empty"),
        ({"run_id": "a/b"}, "--rdzv-id is 'a/b'"),
        ({"node": "x/y"}, "node is 'x/y'"),
        ({"lease_ttl": "soon"}, "lease_ttl=soon"),
        ({"join_timeout": 0}, "join_timeout=0"),
    ],
)
def test_what_cannot_be_right_is_said(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"endpoint": "127.0.0.1:2379", "run_id": "job"} | change
    parameters = RendezvousParameters("spotsup", given.pop("endpoint"), given.pop("run_id"), 1, 1, "127.0.0.1", **given)
    with pytest.raises(ValueError, match=message):
        handler_from(parameters, {})


def test_plain_torchrun_forms_and_re_forms(etcd_endpoint: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"module": "torch.distributed.run", "max_restarts": 5, "nnodes": "1:2"}
    with nodes(etcd_endpoint, tmp_path, program={"session": "0"}, **options) as job:
        job.start("a", "b")
        job.stepping(2, after_round=-1)
        job.kill("a")
        eventually("a step of b alone", _later_step(job, 1))
        job.start("c")
        eventually("a step of b and c", _later_step(job, 2))
        job.end_file.touch()
        assert [job.exit_code(node) for node in "bc"] == [0, 0]


def _later_step(job: Nodes, world: int) -> Callable[[], bool]:
    """Whether a step with `world` ranks came after now. Plain torchrun gives its workers no round number."""
    since = time.time()
    return lambda: any(event["at"] > since for event in job.events("step", world=world))
