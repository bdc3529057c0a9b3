"""Scripts that many start from, written from their sources, as they are: they go on after a notice and after a kill."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.e2e.launching import BUSY_S, Nodes, eventually, nodes

SCRIPTS = Path(__file__).with_name("public")
STEPS = {"nanogpt.py": 100, "multinode_torchrun.py": 60, "imagenet_main.py": 40, "mingpt_ddp.py": 40}
STEPS |= {"run_clm.py": 60, "run_clm_no_trainer.py": 60, "bug_report_model.py": 60, "bug_report_model_parks.py": 60}
# Between two checkpoints, and so the most that an interruption may cost.
EVERY = {"nanogpt.py": 20, "multinode_torchrun.py": 5, "imagenet_main.py": 1, "mingpt_ddp.py": 3}
EVERY |= dict.fromkeys(("run_clm.py", "run_clm_no_trainer.py", "bug_report_model.py", "bug_report_model_parks.py"), 10)
# These lose no step to a notice.
PARKING = {"run_clm_no_trainer.py", "bug_report_model_parks.py"}
# Its checkpoints are not renamed into place, so nothing is interrupted while it may be writing one.
WRITES_IN_PLACE = {"run_clm.py"}


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
        # Spares: each round has two ranks.
        job.ready("c", "d", timeout_s=BUSY_S)

        def between_checkpoints() -> bool:
            return name not in WRITES_IN_PLACE or newest(job) % every in {2, 3}

        eventually("a checkpoint", lambda: newest(job) > every + 1 and between_checkpoints(), BUSY_S)
        job.hint("b", "c", minimum=2)
        job.launchers["a"].send_signal(signal.SIGTERM)
        assert job.exit_code("a", BUSY_S) == 0
        noticed_at = newest(job)
        eventually("a checkpoint later", lambda: newest(job) > noticed_at + every and between_checkpoints(), BUSY_S)
        job.hint("c", "d", minimum=2)
        job.kill("b")
        killed_at = newest(job)
        for node in ("c", "d"):
            assert job.exit_code(node, BUSY_S) == 0, job.log(node).read_text()
        said = printed(job)
        logs = "\n".join(job.log(node).read_text() for node in "abcd")
    resumed = sorted({number for what, number in said if what == "resuming from"})
    assert {number for what, number in said if what == "step"} == set(range(1, steps + 1))
    assert killed_at < steps, "the kill came too late for this test"
    assert "round 3: rank" in logs
    assert len(resumed) == 2
    assert ("all workers are parked" in logs) == (name in PARKING)
    assert name not in PARKING or resumed[0] == noticed_at
    # minGPT and the tutorial save the number of the epoch that has ended, not of the next: they repeat one
    for at, back_to in zip((noticed_at, killed_at), resumed, strict=True):
        assert at - every - 2 <= back_to <= at + 1
