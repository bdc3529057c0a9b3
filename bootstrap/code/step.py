"""Ships the job's code and spotsup_trainer, each into a folder named by its content."""

from __future__ import annotations

from spotsup.archive import Archive

from bootstrap.decision import Decision, paths_on
from bootstrap.facts import Facts
from bootstrap.model import Paths, Run, Setup, Skip, Unfit
from bootstrap.templates import fill

FREE_MB_MIN = 64

# An unpacked archive takes several times its own size; source code shrinks by 3 to 5.
UNPACKED_FACTOR = 5
SHIP_TIMEOUT_S = 900.0


def code(facts: Facts, setup: Setup) -> Decision:
    """Return the job's code, in a folder named by its content."""
    paths = paths_on(facts, setup)
    if setup.code.name in facts.codes:
        return Skip(f"code {setup.code.name} is there")
    return _ship("code", setup.code, paths.code(setup.code), facts, paths)


def trainer(facts: Facts, setup: Setup) -> Decision:
    """Return the daemon's own version of spotsup_trainer, in a folder named by its content: no pip, no version
    conflict."""
    paths = paths_on(facts, setup)
    if setup.trainer.name in facts.trainers:
        return Skip(f"trainer {setup.trainer.name} is there")
    return _ship("trainer", setup.trainer, paths.trainer(setup.trainer), facts, paths)


def _ship(what: str, archive: Archive, folder: str, facts: Facts, paths: Paths) -> Decision:
    needed_mb = FREE_MB_MIN + UNPACKED_FACTOR * len(archive.data) // 1_000_000
    if facts.free_mb < needed_mb:
        return Unfit(f"{facts.free_mb} MB are free below {paths.root}; unpacking the {what} needs {needed_mb}")
    script, size = unpack(archive, folder), len(archive.data)
    return (
        Run(f"unpack the {what} ({size} bytes)", script, SHIP_TIMEOUT_S, stdin=archive.data, of_job=what == "code"),
    )


def unpack(archive: Archive, folder: str) -> str:
    """Unpack the archive, which comes on stdin, into `folder`, which appears complete or not at all."""
    return fill("code/unpack.sh", folder=folder, sha256=archive.sha256)
