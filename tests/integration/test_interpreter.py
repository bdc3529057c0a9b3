"""A worker is what `python PROGRAM` is: what a program can find out is equal under both, to the last line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.combinations import others_nightly

pytestmark = pytest.mark.long
WAYS_TO_END = ["raise", "raise plainly", "exit 3", "exit text", "broken hook", "interrupt"]

FACTS = Path(__file__).with_name("interpreter_facts.py")
# A launcher as far as a worker can tell: started in the code's folder, with torch and multiprocessing imported.
HOST = """
import sys; "" in sys.path[:1] and sys.path.pop(0)
import os
import torch.distributed.run
from spotsup_trainer.launcher import forkserver
from spotsup_trainer.launcher.worker import WorkerRequest

kind, *argv = sys.argv[1:]
server = forkserver.start()
argv = ([sys.executable, "-u"] if kind == "exec" else []) + argv
pid = server.spawn(WorkerRequest(kind, tuple(argv), dict(os.environ), 0))
assert server.wait([pid], 150)
code = server.exit_code(pid)
server.close()
sys.stdout.flush()
os._exit(code if code >= 0 else 200 - code)
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    status: int
    out: str
    err: str


def _hear_ctrl_c() -> None:
    """Below a shell that runs the tests in the background, SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(folder: Path, *command: str) -> Ended:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        preexec_fn=_hear_ctrl_c,
    )
    status = done.returncode if done.returncode >= 0 else 200 - done.returncode
    return Ended(status, done.stdout, done.stderr)


def plain(folder: Path, *argv: str, warm: bool = True) -> Ended:
    """The interpreter alone. A warm worker shows where a program crashed, as torchrun's `record` does."""
    return run(folder, sys.executable, *(["-X", "faulthandler"] if warm else []), *argv)


def worker(folder: Path, kind: str, *argv: str) -> Ended:
    return run(folder, sys.executable, "-c", HOST, kind, *argv)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A code folder with a space in its name, whose script is reached by dots."""
    folder = tmp_path / "a job" / "src"
    folder.mkdir(parents=True)
    shutil.copy(FACTS, folder)
    (folder / "__init__.py").touch()
    return folder.parent


@pytest.mark.parametrize("kind", others_nightly(["script"], ["script", "exec"]))
def test_all_that_a_script_can_find_out_is_equal(code: Path, kind: str) -> None:
    expected = plain(code, "./src/../src/interpreter_facts.py", "--lr", "1", "facts", warm=kind == "script")
    assert expected.status == 0, expected.err
    assert expected.out.count("\n") > 70
    assert "Error" not in expected.out
    found = worker(code, kind, "./src/../src/interpreter_facts.py", "--lr", "1", "facts")
    assert found.out.splitlines() == expected.out.splitlines()
    assert found == expected


def test_all_that_a_module_can_find_out_is_equal(code: Path) -> None:
    expected = plain(code, "-m", "src.interpreter_facts", "facts")
    assert (expected.status, "Error" in expected.out) == (0, False)
    found = worker(code, "module", "src.interpreter_facts", "facts")
    assert found.out.splitlines() == expected.out.splitlines()
    assert found == expected


@pytest.mark.parametrize("how", others_nightly(["raise", "exit 3", "interrupt"], WAYS_TO_END))
def test_a_script_ends_as_under_the_interpreter(code: Path, how: str) -> None:
    expected = plain(code, "src/interpreter_facts.py", how)
    found = worker(code, "script", "src/interpreter_facts.py", how)
    if how in {"broken hook", "interrupt"}:  # its frames, and those of an interrupt, include ours
        assert (found.status, found.out, found.err.splitlines()[-1:]) == (
            expected.status,
            expected.out,
            expected.err.splitlines()[-1:],
        )
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("kind", "argv"),
    [("module", ("src.missing",)), ("module", ("src",)), ("script", ("broken.py",)), ("script", ("folder",))],
)
def test_a_program_that_cannot_be_run_is_refused_as_by_the_interpreter(
    code: Path, kind: str, argv: tuple[str, ...]
) -> None:
    (code / "broken.py").write_text("def f(:\n")
    (code / "folder").mkdir()
    expected = plain(code, *(["-m"] if kind == "module" else []), *argv)
    found = worker(code, kind, *argv)
    assert (found.status, found.err) == (expected.status, expected.err)
    assert expected.status == 1


def test_a_folder_with_a_main_is_run(code: Path) -> None:
    (code / "app").mkdir()
    (code / "app" / "__main__.py").write_text("import sys; print(__file__, sys.argv, sys.path[0], __spec__.name)\n")
    assert worker(code, "script", "app", "--x") == plain(code, "app", "--x")
