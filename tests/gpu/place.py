"""Where checks run, and what they have in common. Standard library only."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Facts = dict[str, object]
"""What a check has seen, for people: name -> number or text."""


class NotSeenError(Exception):
    """Nothing can be said here; the message says why, and what it needs."""


class TooLongError(AssertionError):
    """A command had not ended in its time."""


@dataclass(frozen=True)
class Place:
    """A machine, and a folder for one check."""

    device: str  # cuda, or cpu in a dry run
    gpus: int  # 0 in a dry run
    folder: Path
    ends_at: float = math.inf  # of this check, monotonic

    @property
    def cuda(self) -> bool:
        """True if there is a GPU."""
        return self.device == "cuda"

    def left_s(self, at_most: float = math.inf) -> float:
        """Return the seconds that are left for this check, less what a message takes."""
        return max(0.1, min(at_most, self.ends_at - time.monotonic() - 1.0))

    def note(self, name: str, value: object) -> None:
        """Keep a fact now: it is in the report also if this check fails later, or is cut off."""
        with (self.folder / FACTS).open("a") as file:
            file.write(json.dumps([name, value], default=str) + "\n")


FACTS = "facts"


def noted(folder: Path) -> Facts:
    """Return the facts that a check has kept so far."""
    file = folder / FACTS
    whole, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
    return dict(json.loads(line) for line in whole.splitlines())


def ran(command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """What a command printed; nothing of it is left. Raises AssertionError if it fails, TooLongError."""
    process = subprocess.Popen(
        list(command),
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_group(process.pid)
        output, _ = process.communicate()
        raise TooLongError(f"{' '.join(command)} took longer than {timeout_s:g} s:\n{output[-2000:]}") from None
    finally:
        end_group(process.pid)
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}:\n{output[-3000:]}"
    return output


def end_group(group: int) -> None:
    """Kill what is left of a process group of ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def until(what: str, look: Callable[[], bool], timeout_s: float = 60.0, poll_s: float = 0.01) -> float:
    """Wait until something is so; the seconds that it took."""
    began = time.monotonic()
    while not look():
        assert time.monotonic() < began + timeout_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(poll_s)
    return time.monotonic() - began


def percentiles(seconds: Sequence[float]) -> str:
    """Return the median and the slowest but one in a hundred, in milliseconds."""
    ordered = sorted(seconds)
    middle, late = ordered[len(ordered) // 2], ordered[(len(ordered) * 99) // 100]
    return f"p50 {1000 * middle:.2f}, p99 {1000 * late:.2f}"


def etcd_program() -> str:
    """etcd of the PATH, or as `make setup` unpacks it. Raises NotSeenError."""
    carried = ROOT / ".tools" / "root" / "usr" / "bin" / "etcd"
    found = shutil.which("etcd") or (str(carried) if carried.is_file() else "")
    if not found:
        raise NotSeenError(f"needs the program etcd, on the PATH or as {carried.relative_to(ROOT)}")
    return found


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """A real etcd on a free port; yields its endpoint."""
    program = etcd_program()
    client, peer = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
    command = [program, "--data-dir", str(folder / "etcd"), "--log-level", "error", "--unsafe-no-fsync"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until("etcd is healthy", lambda: process.poll() is not None or _is_healthy(client), 30.0)
        assert process.poll() is None, (folder / "etcd.log").read_text()[-1000:]
        yield client
    finally:
        process.kill()
        process.wait()


def _is_healthy(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/health", timeout=2.0) as reply:  # noqa: S310 - our own, on loopback
            return b'"true"' in reply.read()
    except (OSError, urllib.error.URLError):
        return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
