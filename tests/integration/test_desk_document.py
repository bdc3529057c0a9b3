"""docs/desk.md: its commands are run from the first to the last, against a daemon in the simulated world."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.model import NodeState
from tests.sim.promises import jobs_of
from tests.support.desk import Desk
from tests.support.desk import desk as a_desk
from tests.support.documents import blocks
from tools.stack import ROOT

DOCUMENT = ROOT / "docs" / "desk.md"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with a_desk(tmp_path) as desk:
        desk.write("train.py", "print('trains')\n")
        monkeypatch.chdir(desk.folder)
        yield desk


def commands(heading: str) -> list[list[str]]:
    found = [each for each in blocks(DOCUMENT, "sh") if each.heading == heading]
    return [shlex.split(line)[1:] for block in found for line in block.commands()]


def test_its_commands_do_what_it_says(desk: Desk) -> None:
    (init,) = commands("A job file from a script")
    assert "wrote job.yaml" in desk.said(*init)
    names = [desk.said(*each).strip() for each in commands("The same job, a little different")]
    assert names == ["digits", "digits-4", "digits-gpu", "no-file"]
    specs = {name: jobs_of(desk.world)[name].record.spec for name in names}
    assert specs["digits"].run == "train.py --epochs 3 --lr 0.1"
    assert (specs["digits-4"].nodes.max, specs["digits-4"].limits.usd) == (6, 20)
    assert (specs["digits-gpu"].nodes.desired, specs["digits-gpu"].resources[0].gpus_per_node) == (2, 2)

    submit, listing, show, cancel = commands("Sweeps")
    assert desk.said(*submit) == "search\n"
    assert "search  running" in desk.said(*listing)
    assert "6 jobs, 2 at a time" in desk.said(*show)
    assert desk.said(*cancel).startswith("search: cancelled")

    def trains() -> bool:
        return any(node.state is NodeState.MEMBER for node in jobs_of(desk.world)["digits"].nodes.values())

    desk.world.run_until(lambda _: trains(), 900.0)
    node = next(iter(jobs_of(desk.world)["digits"].nodes))
    tail, grep, one, since, follow = commands("Output")
    for each in (tail, grep, since, [part.replace("digits-xxxxx-1", node) for part in one]):
        desk.said(*each)
    listing, runs, some, compared = commands("What has run")
    assert "digits" in desk.said(*listing)
    desk.said("cancel", "digits", "digits-4")
    desk.world.run_until(lambda world: all(jobs_of(world)[each].record.ended for each in ("digits", "digits-4")), 900.0)
    desk.said(*follow)
    assert "cancelled" in desk.said(*runs)
    assert "digits-4" in desk.said(*some)
    assert "nodes.max" in desk.said(*compared)


def test_completion_is_a_script_of_bash(desk: Desk) -> None:
    (line,) = [block.text for block in blocks(DOCUMENT, "sh") if block.heading == "Completion"]
    script = desk.said("completion", "bash")
    done = subprocess.run(
        ["bash", "-c", f'spotsupctl() {{ printf %s "$SCRIPT"; }}\n{line}complete -p spotsupctl'],
        env={"SCRIPT": script, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "spotsupctl" in done.stdout
