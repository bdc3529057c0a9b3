"""The users' command line, from a user's desk: against a daemon behind a socket, in the simulated world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.desk import Desk
from tests.support.desk import desk as a_desk

TRAIN = "print('trains')\n"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A daemon without jobs, and a folder with a script."""
    with a_desk(tmp_path) as desk:
        desk.write("train.py", TRAIN)
        yield desk


def submit(desk: Desk, name: str, *options: str) -> None:
    desk.said("submit", "--name", name, "--nodes", "1", "--code", str(desk.folder), *options, "--", "train.py")


# -- several at once -----------------------------------------------------------------------------------------


def test_several_jobs_are_cancelled_by_one_command_and_a_refusal_keeps_none_from_it(desk: Desk) -> None:
    for name in ("one", "two"):
        submit(desk, name)
    result = desk.ctl("cancel", "one", "nosuch", "two")
    assert result.exit_code == 4
    assert [line.partition(" machine")[0][:-2] for line in result.stdout.splitlines()] == [
        "one: cancelling; releasing",
        "two: cancelling; releasing",
    ]
    assert "no job is named 'nosuch'; jobs: one, two" in result.stderr
    assert [row["name"] for row in desk.ask("cancel", "one", "two")] == ["one", "two"]
    assert desk.ask("cancel", "two")["name"] == "two", "one is one object, as before"


# -- what cannot be right ------------------------------------------------------------------------------------


def test_a_script_without_a_name_is_told_how_to_give_one(desk: Desk) -> None:
    result = desk.ctl("submit", "--nodes", "1", "--code", str(desk.folder), "--", "train.py")
    assert (result.exit_code, result.stderr) == (
        2,
        "spotsupctl: the job has no name: give --name, or `name` in a job file\n",
    )
