"""What a pause consists of, as launchers measure it, against what the workers' own lines say."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.wire import Pause

from tests.e2e.launching import Nodes, eventually, nodes

SCRIPT = Path(__file__).with_name("session_steps.py")
IMPORT_S = 0.7
SLOW_S = 5.0  # longer than a pause on a busy machine
# A worker's line is written just before Session notes the step.
NEAR_S = 0.25


@pytest.fixture
def job(etcd_endpoint: str, tmp_path: Path) -> Iterator[Nodes]:
    with nodes(etcd_endpoint, tmp_path, script=SCRIPT, program={"import_s": str(IMPORT_S)}) as made:
        yield made


def pause_before(job: Nodes, number: int, node: str) -> Pause:
    def look() -> Pause | None:
        found = RunDir(job.folder / f"run-{node}").pauses()
        return next((each for each in found.pauses if each.round == number), None) if found else None

    return eventually(f"the pause before round {number} on {node}", look)


def first_step_at(job: Nodes, number: int, node: str) -> float:
    return min(float(event["at"]) for event in job.events("step", round=number, node=node))


def last_step_at(job: Nodes, number: int, node: str) -> float:
    return max(float(event["at"]) for event in job.events("step", round=number, node=node))


def test_the_parts_of_a_pause_add_up_after_a_loss_and_after_a_notice(job: Nodes) -> None:
    first = job.form("a", "b", "c")["round"]
    job.kill("b")
    second = job.stepping(2, first)["round"]
    lost = pause_before(job, second, "a")
    seen_s = first_step_at(job, second, "a") - last_step_at(job, first, "a")
    assert lost.pause_s == pytest.approx(seen_s, abs=NEAR_S)
    assert sum(each for each in lost.parts().values() if each is not None) == pytest.approx(lost.pause_s, abs=0.01)
    assert None not in lost.parts().values()
    assert None not in lost.sources().values()
    # The lease had to end; no checkpoint was written.
    assert lost.detect_s is not None
    assert lost.detect_s > 0.5 * job.ttl_s
    assert lost.checkpoint_s == 0
    assert lost.start_s is not None
    assert lost.start_s >= IMPORT_S

    job.launchers["a"].send_signal(signal.SIGTERM)
    third = job.stepping(1, second)["round"]
    parked = pause_before(job, third, "c")
    assert parked.detect_s == 0
    assert parked.checkpoint_s is not None
    assert parked.checkpoint_s > 0
    seen_s = first_step_at(job, third, "c") - last_step_at(job, second, "c")
    assert parked.pause_s == pytest.approx(seen_s, abs=NEAR_S)
    assert sum(each for each in parked.parts().values() if each is not None) == pytest.approx(parked.pause_s, abs=0.01)
    found = RunDir(job.folder / "run-c").pauses()
    assert found is not None
    assert [each.round for each in found.pauses] == [second, third]


@pytest.mark.nightly
def test_a_program_with_slow_imports_costs_others_nothing_when_a_newcomer_joins(
    etcd_endpoint: str, tmp_path: Path
) -> None:
    """The newcomer imports while the others train on, and their own new workers have it, too."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "slow_library.py").write_text(
        f"import os, time\ntime.sleep({SLOW_S})\nopen({str(tmp_path / 'imported')!r}, 'a').write(f'{{os.getpid()}}\\n')"
    )
    script = tmp_path / "train.py"
    script.write_text(f"import slow_library\n{SCRIPT.read_text().replace('from __future__ import annotations', '')}")
    with nodes(etcd_endpoint, tmp_path, script=script, env={"PYTHONPATH": str(site)}) as job:
        first = job.form("a", "b")["round"]
        job.start("c")
        job.ready("c")
        job.hint("a", "b", "c")
        second = job.stepping(3, first)["round"]
        joined = pause_before(job, second, "a")
        job.kill("b")
        third = job.stepping(2, second)["round"]
        lost = pause_before(job, third, "c")
    for pause in (joined, lost):
        assert pause.start_s is not None
        assert pause.start_s < SLOW_S
    assert joined.pause_s is not None
    assert joined.pause_s < SLOW_S
    importers = (tmp_path / "imported").read_text().split()
    assert len(importers) == len(set(importers)) == 3, "once on each node"
    assert "imported before the first round" in job.log("c").read_text()
