"""Scripts that many start from, written from their sources, as they are: they go on after a notice and after a kill."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.e2e.launching import Nodes, eventually, nodes

SCRIPTS = Path(__file__).with_name("public")
STEPS = {"nanogpt.py": 100, "multinode_torchrun.py": 60, "imagenet_main.py": 40, "mingpt_ddp.py": 40}
# Between two checkpoints, and so the most that an interruption may cost.
EVERY = {"nanogpt.py": 20, "multinode_torchrun.py": 5, "imagenet_main.py": 1, "mingpt_ddp.py": 3}


def printed(job: Nodes) -> list[tuple[str, int]]:
    """What the scripts say of their steps, or epochs, and where they resume; node after node."""
    found = []
    for node in job.launchers:
        text = job.log(node).read_text()
        found += [
            (what, int(number)) for what, number in re.findall(r"^(step|resuming from) (\d+)", text, re.MULTILINE)
        ]
    return found


def newest(job: Nodes) -> int:
    return max((number for what, number in printed(job) if what == "step"), default=0)


@pytest.mark.parametrize("name", STEPS)
def test_a_public_script_goes_on_from_its_own_checkpoint_after_a_notice_and_a_kill(
    name: str, etcd_endpoint: str, tmp_path: Path
) -> None:
    every, steps = EVERY[name], STEPS[name]
    with nodes(etcd_endpoint, tmp_path, script=SCRIPTS / name) as job:
        job.hint("a", "b", minimum=2)
        job.start("a", "b", "c", "d")
        job.ready("c", "d")  # spares: each round has two ranks
        eventually("a checkpoint", lambda: newest(job) > every + 1)
        job.hint("b", "c", minimum=2)
        job.launchers["a"].send_signal(signal.SIGTERM)
        assert job.exit_code("a") == 0
        noticed_at = newest(job)
        eventually("more than one checkpoint later", lambda: newest(job) > noticed_at + every)
        job.hint("c", "d", minimum=2)
        job.kill("b")
        killed_at = newest(job)
        for node in ("c", "d"):
            assert job.exit_code(node, 120.0) == 0, job.log(node).read_text()
        said = printed(job)
        logs = "\n".join(job.log(node).read_text() for node in "abcd")
    resumed = sorted({number for what, number in said if what == "resuming from"})
    assert {number for what, number in said if what == "step"} == set(range(1, steps + 1))
    assert killed_at < steps, "the kill came too late for this test"
    assert "round 3: rank" in logs
    assert len(resumed) == 2
    # minGPT and the tutorial save the number of the epoch that has ended, not of the next: they repeat one
    for at, back_to in zip((noticed_at, killed_at), resumed, strict=True):
        assert at - every - 2 <= back_to <= at + 1
