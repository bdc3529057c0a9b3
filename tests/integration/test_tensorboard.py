"""`spotsupctl tensorboard`: the program that runs on the node, and the way to it through a real ssh and sshd."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.operate import logged_in
from supervisor.cli.tensorboard import PROGRAM
from supervisor.identity import Identity
from supervisor.logins import certificate, public_key
from tests.support.faulty_ssh import machine_with_sshd
from tests.support.machines import wait_for
from tests.support.programs import free_ports

# As TensorBoard does: listens where it is told to, and shows which folders it was given.
STUB = """
import argparse, http.server
parser = argparse.ArgumentParser()
for name in ("logdir", "logdir_spec", "host", "port"):
    parser.add_argument("--" + name)
options = parser.parse_args()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write((options.logdir or options.logdir_spec).encode())
    def log_message(self, *_):
        pass
http.server.HTTPServer((options.host, int(options.port)), Page).serve_forever()
"""


class Node:
    """What bootstrap has left on a node: the agent's configuration, and an interpreter with TensorBoard."""

    def __init__(self, folder: Path, stub: str | None = STUB, output: str = "/mnt/out/spotsup/chars-7x/output") -> None:
        folder.mkdir()
        packages = folder / "packages"
        packages.mkdir()
        if stub is not None:
            (packages / "tensorboard").mkdir()
            (packages / "tensorboard" / "__init__.py").touch()
            (packages / "tensorboard" / "main.py").write_text(stub)
        python = folder / "python"
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(packages))} exec {shlex.quote(sys.executable)} "$@"\n'
        )
        python.chmod(0o755)
        self.config = folder / "agent.json"
        self.config.write_text(json.dumps({"python": str(python), "output": output}))

    def words(self, port: int, *runs: str) -> list[str]:
        program = PROGRAM.read_text(encoding="utf-8")
        return [sys.executable, "-c", program, str(self.config), str(port), "http://127.0.0.1:1/", *runs]


@contextmanager
def running(words: list[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **more) as child:
        try:
            yield child
        finally:
            child.kill()


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30.0) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(
    ("runs", "shown", "folders"),
    [
        (["chars=chars-7x"], "TensorBoard of chars: ", "/mnt/out/spotsup/chars-7x/output"),
        (
            ["lr-1=lr-1-aa", "lr-2=lr-2-bb"],
            "TensorBoard of lr-1, lr-2: ",
            "lr-1:/mnt/out/spotsup/lr-1-aa/output,lr-2:/mnt/out/spotsup/lr-2-bb/output",
        ),
    ],
)
def test_it_shows_the_folders_of_its_runs_until_the_connection_ends(
    tmp_path: Path, runs: list[str], shown: str, folders: str
) -> None:
    (port,) = free_ports(1)
    with running(Node(tmp_path / "node").words(port, *runs)) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == f"{shown}http://127.0.0.1:1/  (Ctrl-C ends it)\n"
        assert page(port) == folders
        child.stdin.close()
        assert child.wait(60.0) == 0
        with pytest.raises(OSError, match="refused"):
            page(port)


def failed(words: list[str]) -> str:
    with running(words) as child:
        assert child.stderr is not None
        errors = child.stderr.read()  # while stdin is open: its end is a reason of its own to end
        assert child.wait(120.0) == 1
        return errors


def test_it_says_that_tensorboard_is_missing(tmp_path: Path) -> None:
    words = Node(tmp_path / "node", None).words(1, "chars=chars-7x")
    words[0:1] = [sys.executable, "-I"]
    said = failed([*words])
    assert said == "spotsupctl: tensorboard is not in the job's environment: add it to its requirements\n"


def test_it_says_that_the_job_has_no_shared_folder(tmp_path: Path) -> None:
    said = failed(Node(tmp_path / "node", output="").words(1, "chars=chars-7x"))
    assert said == "spotsupctl: the job has no output folder: it needs `storage` that its nodes share\n"


def test_it_shows_why_tensorboard_ended(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "raise SystemExit('no such plugin')")
    assert failed(node.words(1, "chars=chars-7x")) == "spotsupctl: TensorBoard ended with status 1: no such plugin\n"


class Daemon:
    """Signs as the API does."""

    def __init__(self, identity: Identity, host: str, port: int, user: str, host_key: str) -> None:
        self._identity = identity
        self._row = {"host": host, "port": port, "user": user, "known_hosts": f"[{host}]:{port} {host_key}\n"}

    def post(self, path: str, body: dict[str, str]) -> dict[str, Any]:
        assert path == "/v1/nodes/n1/login"
        key = public_key(body["public_key"])
        return {**self._row, "certificate": certificate(self._identity.login_ca(), key, "ann", "n1", time.time(), 1)}


def test_the_page_comes_through_ssh_and_nothing_is_left_when_that_ends(tmp_path: Path) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh client here")
    identity = Identity(b"s" * 32)
    here, there = free_ports(2)
    with machine_with_sshd(tmp_path, identity.host_key("n1"), identity.client_key()) as machine:
        (tmp_path / "sshd" / "authorized_keys").write_text("\n".join(identity.authorized_keys("n1")) + "\n")
        target = machine.target
        daemon = Daemon(identity, target.host, target.port, target.user, target.host_key_public)
        node = Node(tmp_path / "node")
        options = ["-o", "BatchMode=yes", "-L", f"127.0.0.1:{here}:127.0.0.1:{there}"]
        with ExitStack() as stack:
            words, _ = stack.enter_context(logged_in(daemon, "n1", "", options))  # type: ignore[arg-type]
            command = shlex.join(node.words(there, "chars=chars-7x"))
            child = stack.enter_context(running([*words, command], env=dict(os.environ)))
            assert child.stdout is not None
            assert child.stdout.readline().startswith("TensorBoard of chars: ")
            assert page(here) == "/mnt/out/spotsup/chars-7x/output"
            child.terminate()
            child.wait(60.0)

        def is_gone() -> bool:
            try:
                page(there)
            except OSError:
                return True
            return False

        wait_for(is_gone, "TensorBoard to end with its connection")
