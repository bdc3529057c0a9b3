"""The commands of docs/quickstart.md and docs/install.md, and README's script, are run as they stand, in a folder that
looks like a fresh clone, or a home."""

from __future__ import annotations

import contextlib
import os
import re
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
INSTALL = ROOT / "docs" / "install.md"
MADE_BY_RUNS = {".git", "build", "mine"}


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


@pytest.mark.timeout(660)
def test_the_quickstart_does_what_it_says_within_ten_minutes_of_waiting(clone: Path) -> None:
    write_files(blocks(QUICKSTART), clone)
    script = "".join(block.text for block in blocks(QUICKSTART, "sh"))
    # Every test stands on the first; tests/e2e/test_demo.py runs the second.
    assert script.startswith("make setup\nmake demo\n")
    said = run(script.removeprefix("make setup\nmake demo\n"), clone, timeout_s=600)
    assert said.count("of 2: 98.4% are right\n") == 4, "under torchrun, and as a job"
    story = " ".join(said.partition("WHAT HAPPENED")[2].partition("in all: ")[0].split())  # wrapped where it is long
    assert re.search(r"n1 gets a preemption notice, 30 s ahead; .* n4 in place after .*; no step lost$", story), story
    assert re.search(r"^in all: 1 node lost or taken; 1 pause, .*; no step lost; cost \$", said, re.MULTILINE)
    assert re.search(r"^search-1 +0\.1 +succeeded +200 .* best", said, re.MULTILINE)
    assert re.search(r"^http://127\.0\.0\.1:\d+/\?link=", said, re.MULTILINE)
    assert "wrote build/quickstart/report.html" in said
    assert said.rstrip().endswith("+ rm -r build/quickstart mine")
    assert not (clone / "build" / "quickstart").exists()


@pytest.mark.nightly
def test_the_script_of_the_readme_runs_by_itself(clone: Path) -> None:
    write_files(blocks(ROOT / "README.md"), clone)
    for block in blocks(ROOT / "README.md", "python"):
        assert run(f". .venv/bin/activate\npython {block.file}", clone, timeout_s=120).endswith("\ndone\n")


# Root's state is in /var/lib: so root becomes a user who has a home. Files of root stay readable: it is the same user
# of this computer, whose number is another one in a user namespace.
_AS_A_USER = """
cp /etc/passwd passwd
echo "ada:x:4242:4242::$HOME:/bin/bash" >>passwd
mount --bind passwd /etc/passwd
exec unshare --user --map-user=4242 --map-group=4242 bash -e -x -o pipefail script
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with nothing in it; a short path, for the socket's. What was started there is ended."""
    folder = Path(tempfile.mkdtemp(prefix="home-"))
    state = folder / ".local" / "state" / "spotsup"
    try:
        yield folder
    finally:
        if Store(state / "localcloud").birth() is not None:
            destroy(state / "localcloud")
        if (state / "etcd").exists():
            EmbeddedEtcd(state / "etcd").stop()
        shutil.rmtree(folder)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_installation_on_one_computer_leads_to_a_trained_step(home: Path) -> None:
    found = [block for block in blocks(INSTALL) if block.heading == "On one computer"]
    write_files(found, home)
    commands = "".join(block.text for block in found if block.language == "sh")
    (home / "script").write_text(commands + "wait\n")
    variables = f"export HOME='{home}' PATH='{ROOT}/.venv/bin':$PATH SPOTSUP_TOOLS='{ROOT}/.tools/root'\n"
    variables += "unset XDG_STATE_HOME XDG_CONFIG_HOME SPOTSUP_SOCKET\n"
    root = f"unshare --mount --propagation private bash -e -c '{_AS_A_USER}'"
    said = run(variables + (root if os.geteuid() == 0 else "bash -e -x script"), home, timeout_s=280)
    assert "spotsupctl logs first" in said
    _, logs = said.split("+ spotsupctl logs first\n")
    assert re.search(r"step 9: loss [\d.]+$", logs, re.MULTILINE)
    assert re.search(r"\bdone$", logs, re.MULTILINE)
    assert " machines ended, 0 processes left\n" in logs
