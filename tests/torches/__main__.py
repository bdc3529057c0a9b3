"""`make test-torch`: each supported minor version of torch in an environment of its own, and our tests on it.

    make test-torch                    all of them, one after the other: several GB each, removed afterwards
    make test-torch VERSIONS=2.6,2.15  these alone
    make test-torch VERSIONS=2.8@3.9   launcher, rendezvous and an example with another interpreter than ours
    make test-torch KEEP=1             the environments stay in .tools/torch

An environment has torch and its dependencies; all else is .venv's, which its path ends with. Nothing stays in uv's
cache. Exits non-zero where a test failed; writes build/test-torch.json. docs/releasing.md has the table of what ran.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from bootstrap.environment.torch import TORCH_MIN
from tests.support.interpreters import interpreter

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".tools" / "torch"
NEWEST = (2, 15)
TESTS = (
    *(
        f"tests/e2e/test_{name}.py"
        for name in ("launcher", "rendezvous", "restore", "session", "training_documents", "worker_environment")
    ),
    *(
        f"tests/integration/test_{name}.py"
        for name in (
            "session",
            "session_data",
            "session_gradients",
            "session_in_jobs",
            "wrapped",
            "checkpoint",
            "staging",
            "forkserver",
            "sampler",
            "parallel",
            "restoring",
            "weights",
        )
    ),
)
# Those in which all that torch does is done by programs that tests start as nodes do, with any interpreter.
TESTS_OF_NODES = tuple(f"tests/e2e/test_{name}.py" for name in ("launcher", "rendezvous", "char_example"))
# An environment has 5 GB, and as much again while it is unpacked.
MIN_FREE_GB = 12
INSTALL_TIMEOUT_S = 3600.0
TESTS_TIMEOUT_S = 3600.0

_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)")
_FAILED = re.compile(r"^(FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """What ran on one version."""

    wanted: str
    torch: str
    """The exact version, "" where it could not be installed."""
    python: str
    passed: int
    failed: int
    skipped: int
    wall_s: float
    date: str = ""
    reason: str = ""
    """Why nothing ran, or why it did not end."""
    failures: tuple[str, ...] = ()
    """The tests that failed."""

    @property
    def ok(self) -> bool:
        """Whether all tests passed."""
        return self.passed > 0 and self.failed == 0 and not self.reason


def versions() -> tuple[str, ...]:
    """All minors that are supported."""
    assert TORCH_MIN[0] == NEWEST[0]
    return tuple(f"{NEWEST[0]}.{minor}" for minor in range(TORCH_MIN[1], NEWEST[1] + 1))


def counts(output: str) -> dict[str, int]:
    """The numbers of pytest's last line."""
    lines = [line for line in output.splitlines() if _COUNT.search(line)]
    found = {kind.rstrip("s"): int(number) for number, kind in _COUNT.findall(lines[-1] if lines else "")}
    return {"passed": 0, "skipped": 0, **found, "failed": found.get("failed", 0) + found.get("error", 0)}


def failures(output: str) -> tuple[str, ...]:
    """The tests that pytest's summary names."""
    return tuple(match[2] for match in _FAILED.finditer(output))


def run(version: str, *, keep: bool) -> Result:
    """Install one version, such as "2.8", or "2.8@3.9" for another interpreter than ours, run the tests on it, and
    remove it again."""
    began, folder = time.monotonic(), FOLDER / version
    python = folder / "bin" / "python"
    date = time.strftime("%Y-%m-%d")
    try:
        reason = "" if python.exists() else _install(version, folder)
        if reason:
            return Result(version, "", "", 0, 0, 0, round(time.monotonic() - began, 1), date, reason)
        printed = _output(
            [str(python), "-c", "import platform, torch; print(torch.__version__, platform.python_version())"]
        )
        torch, _, found_python = printed.strip().partition(" ")
        other = "@" in version
        tests = TESTS_OF_NODES if other else TESTS
        print(f"torch {torch}, Python {found_python}: {len(tests)} files of tests", flush=True)
        # A warning of a torch of last year is no error of ours.
        command = [sys.executable if other else str(python), "-m", "pytest", "-q", "-n", "2", "-m", ""]
        command += ["-o", "filterwarnings=default", *tests]
        output = _output(command, {"SPOTSUP_TEST_NODE_PYTHON": str(python)} if other else {})
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / f"test-torch-{version}.log").write_text(output)
        found = counts(output)
        return Result(
            version,
            torch,
            found_python,
            found["passed"],
            found["failed"],
            found["skipped"],
            round(time.monotonic() - began, 1),
            date,
            failures=failures(output),
        )
    except subprocess.TimeoutExpired as error:  # the next version may do better
        reason = f"did not end within {error.timeout:.0f} s: {' '.join(map(str, error.cmd[:4]))}"
        return Result(version, "", "", 0, 0, 0, round(time.monotonic() - began, 1), date, reason)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _install(version: str, folder: Path) -> str:
    """torch and numpy into a new environment; why that failed, "" where it did not."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(FOLDER).free / 1e9
    if free_gb < MIN_FREE_GB:
        return f"{FOLDER} has {free_gb:.0f} GB free, and an environment needs {MIN_FREE_GB}"
    uv = str(Path(sys.executable).with_name("uv"))
    # In uv's cache all versions together would stay, 50 GB; it unpacks below TMPDIR, from where it moves.
    environ = {**os.environ, "UV_NO_CACHE": "1", "TMPDIR": str(FOLDER)}
    torch, _, other = version.partition("@")
    base = str(interpreter(other)) if other else sys.executable
    python = str(folder / "bin" / "python")
    # torchrun finds our backend only in an installed distribution.
    trainer = (
        [[uv, "pip", "install", "--quiet", "--python", python, "--no-deps", str(ROOT / "trainer")]] if other else []
    )
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", base, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", python, f"torch=={torch}.*", "numpy"],
        *trainer,
    ):
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "uv failed"
    if other:
        return ""
    (site,) = folder.glob("lib/python*/site-packages")
    (own,) = (ROOT / ".venv").glob("lib/python*/site-packages")
    (site / "development.pth").write_text(f"import site; site.addsitedir({str(own)!r})\n")
    return ""


def _output(command: Sequence[str], environ: Mapping[str, str] = MappingProxyType({})) -> str:
    env = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", **environ}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TESTS_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def _row(result: Result) -> str:
    """As in docs/releasing.md."""
    ran = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
    last = result.reason or "; ".join((ran, *result.failures))
    return f"| {result.torch or result.wanted} | {result.python} | {result.date} | {result.wall_s:.0f} s | {last} |"


def main(arguments: Sequence[str]) -> int:
    """Run the matrix, print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", default=",".join(versions()))
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    results = []
    for version in options.versions.split(","):
        results.append(run(version, keep=options.keep))
        print(_row(results[-1]), flush=True)
    text = json.dumps({"ok": all(each.ok for each in results), "rows": [asdict(each) for each in results]}, indent=2)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "test-torch.json").write_text(text + "\n")
    return 0 if all(each.ok for each in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
