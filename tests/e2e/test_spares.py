"""A spare steps in: the daemon, a real etcd, machines of the local cloud, real torch processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery.timeline import MarkReader, Outcome, Span, Timeline, outcome
from tools.stack import ROOT, Stack

NAME = "spared"
EVERY_STEPS = 25
JOB = """\
name: {name}
nodes: {{min: 1, desired: 2, max: 2, spares: 1}}
code: {code}
run: worker.py --session --marks {marks} --checkpoint-every {every}
env: {{OMP_NUM_THREADS: "1"}}
"""


class Job:
    """Two nodes that train and one that waits."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._marks = stack.folder / "marks"
        self._marks.mkdir()
        self._reader, self._timeline = MarkReader(self._marks), Timeline()

    def submit(self) -> None:
        """As a user does."""
        file = self.stack.folder / "job.yaml"
        # Quotes for the shell-like splitting of `run`; YAML leaves them alone inside a line.
        code = json.dumps(str(ROOT / "benchmarks" / "recovery"))
        file.write_text(JOB.format(name=NAME, code=code, marks=f"'{self._marks}'", every=EVERY_STEPS))
        assert self.stack.ask("submit", str(file))["nodes"]["spares"] == 1

    def spans(self) -> list[Span]:
        """The rounds so far, by what their ranks wrote."""
        self._timeline.add(self._reader.new())
        return self._timeline.spans()

    def status(self) -> Any:
        """What `spotsupctl status` says."""
        return self.stack.ask("status", NAME)

    def wait_whole(self) -> tuple[Span, str]:
        """Until two train, and have for a checkpoint and a half, and one waits: the round, and who waits."""
        found: list[Any] = []

        def whole() -> bool:
            last = self.spans()[-1:]
            found[:] = [self.status()]
            assert found[0]["state"] != "failed", found[0]["reason"]
            if not last or last[0].last_step - last[0].first_step < EVERY_STEPS * 3 // 2:
                return False
            counts, sentence = found[0]["nodes"], found[0]["sentence"]
            all_there = counts["training"] == 2 and counts["spares_ready"] == 1 and found[0]["state"] == "running"
            return bool(all_there and sentence.startswith("2 of 2 nodes train (round "))

        self.stack.wait_for(whole, 120.0, "two nodes that train and one that waits")
        (spare,) = [node["id"] for node in found[0]["node_list"] if node["spare"]]
        return self.spans()[-1], spare

    def wait_change(self, before: Span, gone: str, spare: str) -> Outcome:
        """Until the next round trains, which must have the spare in the place of who is gone; what it cost."""
        self.stack.wait_for(lambda: self.spans()[-1].round != before.round, 60.0, "the next round")
        after = self.spans()[-1]
        assert after.nodes == (*(node for node in before.nodes if node != gone), spare)
        return outcome(self.spans(), before.round, gone, full=2)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Submitted, in a path with a space."""
    stack = Stack(tmp_path / "a stack", cluster="test")
    stack.prepare()
    try:
        stack.start_daemon()
        job = Job(stack)
        job.submit()
        yield job
    finally:
        left = stack.close()
    assert left.processes == ()


def cost(kind: str, found: Outcome) -> None:
    """For who runs it with -s."""
    print(f"{kind}: pause {found.full_s:.2f} s, {found.steps_lost} steps lost")


@pytest.mark.nightly
def test_the_spare_trains_where_a_member_was_killed_or_noticed_and_its_own_end_stops_nobody(job: Job) -> None:
    before, spare = job.wait_whole()
    killed, saved = before.nodes[1], int(job.status()["checkpoint_step"])
    job.stack.cloud("kill", killed)
    found = job.wait_change(before, killed, spare)
    assert found.steps_lost is not None
    assert found.steps_lost <= 4 * EVERY_STEPS, "a busy computer writes a checkpoint for long"
    assert job.spans()[-1].first_step > saved
    cost("killed", found)

    before, spare = job.wait_whole()
    doomed = before.nodes[0]
    job.stack.cloud("preempt", doomed, "--notice", "90")
    found = job.wait_change(before, doomed, spare)
    assert found.steps_lost == 0
    cost("notice", found)

    before, spare = job.wait_whole()
    job.stack.cloud("kill", spare)
    job.stack.wait_for(lambda: ended(job, spare), 60.0, "the daemon to know of it")
    assert job.wait_whole()[0].round == before.round, "a spare's end pauses no member"

    joined = [event["node"] for event in job.stack.ask("events", NAME) if event["kind"] == "replacement-joined"]
    assert len(joined) == 2
    assert job.stack.ctl("cancel", NAME).returncode == 0
    job.stack.wait_for(lambda: not job.stack.machines(), 60.0, "the machines to be released")


@pytest.mark.nightly
def test_what_members_decided_while_no_daemon_was_there_stays(job: Job) -> None:
    before, spare = job.wait_whole()
    killed = before.nodes[0]
    job.stack.kill_daemon()
    job.stack.cloud("kill", killed)
    cost("killed, no daemon", job.wait_change(before, killed, spare))
    formed = job.spans()[-1]
    job.stack.start_daemon()
    after, _ = job.wait_whole()
    assert after.round == formed.round

    def ranks() -> list[int | None]:
        return [node["rank"] for node in job.status()["node_list"] if node["id"] == spare]

    job.stack.wait_for(lambda: ranks() == [1], 60.0, "its rank")


def ended(job: Job, node: str) -> bool:
    """Whether the daemon knows that a node has ended."""
    return any(n["id"] == node and n["state"] in {"lost", "terminating", "gone"} for n in job.status()["node_list"])
