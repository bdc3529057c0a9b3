"""The commands of README and docs/quickstart.md are run as they stand, in a folder that looks like a fresh clone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioners.localcloud.control import destroy
from provisioners.localcloud.store import Store
from supervisor.journal.etcd_server import EmbeddedEtcd
from tests.support.documents import Block, blocks
from tools.stack import ROOT

QUICKSTART = ROOT / "docs" / "quickstart.md"
MADE_BY_RUNS = {".git", "build", "mine", "job.yaml"}


@pytest.fixture
def clone() -> Iterator[Path]:
    """Links to all that a clone has; a short path, for the socket's. What was started there is ended."""
    folder = Path(tempfile.mkdtemp(prefix="clone-"))
    for path in ROOT.iterdir():
        if path.name not in MADE_BY_RUNS:
            (folder / path.name).symlink_to(path)
    try:
        yield folder
    finally:
        state = folder / "build" / "quickstart"
        if Store(state / "localcloud").birth() is not None:
            destroy(state / "localcloud")
        if (state / "etcd").exists():
            EmbeddedEtcd(state / "etcd").stop()
        shutil.rmtree(folder)


def run(script: str, folder: Path, timeout_s: float) -> str:
    """What bash prints that stops at the first error; nothing of its process group is left."""
    environ = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    with (folder / "output").open("w+") as output:
        bash = subprocess.Popen(
            ["bash", "-e", "-x", "-o", "pipefail", "-c", script],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = bash.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
            bash.wait()
        said = Path(output.name).read_text()
    assert status == 0, said
    return said


def write_files(found: list[Block], folder: Path) -> None:
    """The blocks that the document has the reader save."""
    for block in found:
        if block.file:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.text)


@pytest.mark.timeout(600)
def test_the_quickstart_does_what_it_says(clone: Path) -> None:
    write_files(blocks(QUICKSTART), clone)
    script = "".join(block.text for block in blocks(QUICKSTART, "sh"))
    # Set up is what every test stands on; a folder of links is no place for it.
    assert script.startswith("make setup\n")
    said = run(script.removeprefix("make setup\n"), clone, timeout_s=540)
    assert "3 of 3 nodes train" in said
    assert "replacement-joined" in said
    assert said.count("\ndone\n") >= 1
    assert not (clone / "build" / "quickstart").exists()


def test_the_scripts_of_readme_and_quickstart_run_by_themselves(clone: Path) -> None:
    for document in (ROOT / "README.md", QUICKSTART):
        write_files(blocks(document), clone)
        for block in blocks(document, "python"):
            assert run(f". .venv/bin/activate\npython {block.file}", clone, timeout_s=120).endswith("\ndone\n")
