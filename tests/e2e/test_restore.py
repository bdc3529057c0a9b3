"""Jobs under the launcher whose rounds restore from the memory of the nodes that are left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.wire import Pause

from tests.e2e.launching import Nodes, eventually, nodes

LIMIT_S = 150.0  # a launcher imports torch, beside many other tests
PROGRAM = Path(__file__).with_name("remembering.py")
LINE = re.compile(
    r"step (\d+) is restored in [\d.]+ s: (.+) from the memory of the ranks' own nodes, (.+) from other ranks, "
    r"(.+) from storage"
)


def restored(job: Nodes) -> list[tuple[str, ...]]:
    """(step, own, peers, storage) of each round."""
    text = "\n".join(job.log(node).read_text() for node in job.launchers)
    return sorted({match.groups() for match in LINE.finditer(text)}, key=lambda each: int(each[0]))


def pause_before(job: Nodes, number: int, node: str) -> Pause | None:
    found = RunDir(job.folder / f"run-{node}").pauses()
    return next((each for each in found.pauses if each.round == number), None) if found else None


def trained(job: Nodes, world: int, after_round: int, steps: int) -> int:
    """Wait for so many steps of a later round; its number."""
    number = int(job.stepping(world, after_round, LIMIT_S)["round"])
    eventually("it goes on", lambda: len(job.events("step", round=number, rank=0)) >= steps, LIMIT_S)
    return number


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "warm"),
    [("ddp", "1"), *(pytest.param(*each, marks=pytest.mark.nightly) for each in [("ddp", "0"), ("fsdp", "1")])],
)
def test_a_killed_worker_costs_no_byte_of_storage_where_memory_is_left(
    etcd_endpoint: str, tmp_path: Path, kind: str, warm: str
) -> None:
    options = {"script": PROGRAM, "program": {"kind": kind}, "env": {"SPOTSUP_WARM": warm}, "max_restarts": 5}
    with nodes(etcd_endpoint, tmp_path, **options) as job:
        job.form("a", "b")
        first = trained(job, 2, 0, 12)
        killed = next(each for each in job.events("step", round=first) if each["rank"] == 1)
        os.kill(killed["pid"], signal.SIGKILL)  # its node's memory is still there
        second = trained(job, 2, first, 12)
        (step, own, _, storage) = restored(job)[-1]
        assert int(step) >= 5
        assert own != "nothing"
        assert storage == "nothing"
        assert job.first_step(second) == int(step) + 1
        measured = eventually("the pause is measured", lambda: pause_before(job, second, "a"), LIMIT_S)
        assert measured.own_bytes
        assert measured.storage_bytes == 0

        job.kill("b")  # with its memory
        third = trained(job, 1, second, 12)
        (step, own, _, storage) = restored(job)[-1]
        assert own != "nothing"
        assert (storage == "nothing") == (kind == "ddp"), "of a sharded state, one part is only there"

        job.hint("a", "c", minimum=2)
        job.start("c")
        trained(job, 2, third, 3)
        (_, own, peers, storage) = restored(job)[-1]
        assert own != "nothing"
        assert peers != "nothing"
        assert storage == "nothing"
        job.end_file.touch()
        assert job.exit_code("a") == job.exit_code("c") == 0
