"""What the daemon's own uv fetches on a node: packages through a proxy, and an interpreter from a mirror."""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import trustme

from bootstrap import lock_of
from bootstrap.environment.step import python_of
from bootstrap.model import Run, Setup, Skip
from bootstrap.steps import Decision, plan
from supervisor.config import NodeConfig
from supervisor.nodes.prepare import package_variables
from supervisor.nodes.uv import pack_uv
from tests.integration.test_bootstrap_environment import CODE, a_wheel, as_commands
from tests.support.agents import TRAINER
from tests.support.interpreters import archive_of, interpreter, list_of
from tests.support.sandbox import Sandbox
from tests.support.serving import serving

pytestmark = pytest.mark.long

# A name that no resolver knows, as an index behind a company's proxy has none outside.
INDEX = "packages.example"
WHEEL = "torch-2.13-py3-none-any.whl"
PAUSE_S = 30.0


class _Index(BaseHTTPRequestHandler):
    """A package index with one package."""

    def do_GET(self) -> None:
        body = {
            "/simple/torch/": f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode(),
            f"/files/{WHEEL}": a_wheel(),
        }.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    do_HEAD = do_GET  # noqa: N815 - http.server finds it by this name

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Proxy(BaseHTTPRequestHandler):
    """A proxy as companies have them: it knows the index, and what it does not know it refuses."""

    known: ClassVar[Mapping[str, int]]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        """`GET http://host/path`."""
        self.asked.append(f"{self.command} {self.path}")
        host, _, path = self.path.removeprefix("http://").partition("/")
        if host not in self.known:
            self.send_error(403, "not through this proxy")
            return
        onward = HTTPConnection("127.0.0.1", self.known[host], timeout=PAUSE_S)
        onward.request(self.command, f"/{path}", headers={"Host": host})
        answer = onward.getresponse()
        body = answer.read()
        onward.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", answer.headers["Content-Length"])
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - as above

    def do_CONNECT(self) -> None:
        """`CONNECT host:443`: bytes in both directions, which it cannot read."""
        self.asked.append(f"CONNECT {self.path}")
        if self.path not in self.known:
            self.send_error(403, "not through this proxy")
            return
        with socket.create_connection(("127.0.0.1", self.known[self.path]), timeout=PAUSE_S) as onward:
            self.send_response(200, "Connection established")
            self.end_headers()
            ends = {self.connection: onward, onward: self.connection}
            while ready := select.select(list(ends), [], [], PAUSE_S)[0]:
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    ends[end].sendall(data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def proxy(known: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and what it is asked. `known`: ports of the loopback by name."""
    asked: list[str] = []
    handler = type("Handler", (_Proxy,), {"known": known, "asked": asked})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked


@pytest.fixture
def machine(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path / "box")


def setup_with(node: NodeConfig, python: Path | str) -> Setup:
    """As the daemon makes it: the variables of `[node]`, and then those of `[node.env]`."""
    env = {**package_variables(node), **node.env}
    lock = lock_of(CODE, "requirements.txt")
    return Setup("n1", b"{}", CODE, TRAINER, str(python), lock=lock, uv=pack_uv(), env=env)


def version_in(machine: Sandbox, setup: Setup) -> str:
    """Which Python runs in the environment, which has the package."""
    code = "import platform, torch; print(platform.python_version(), torch.here)"
    done = subprocess.run(
        [python_of(machine.facts(setup), setup), "-c", code], capture_output=True, text=True, check=True
    )
    version, _, here = done.stdout.strip().partition(" ")
    assert here == "installed by uv"
    return version


def test_packages_come_through_a_proxy_where_the_machine_has_no_other_way(machine: Sandbox) -> None:
    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), _Index)) as index,
        proxy({INDEX: index.server_address[1]}) as (url, asked),
    ):
        node = NodeConfig(index_url=f"http://{INDEX}/simple", env={"http_proxy": url, "https_proxy": url})
        setup = setup_with(node, interpreter("3.11"))
        machine.bootstrap(setup, "code", "trainer", "environment")
    assert version_in(machine, setup).startswith("3.11.")
    assert f"GET http://{INDEX}/files/{WHEEL}" in asked
    assert {each.split("/")[2] for each in asked} == {INDEX}, "and nothing else was asked for"


def test_an_index_with_tls_is_reached_through_a_proxy_that_only_passes_bytes_on(
    machine: Sandbox, tmp_path: Path
) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(INDEX).configure_cert(context)
    index = ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    index.socket = context.wrap_socket(index.socket, server_side=True)
    with serving(index), proxy({f"{INDEX}:443": index.server_address[1]}) as (url, asked):
        variables = {"http_proxy": url, "https_proxy": url, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        setup = setup_with(NodeConfig(index_url=f"https://{INDEX}/simple", env=variables), interpreter("3.11"))
        machine.bootstrap(setup, "code", "trainer", "environment")
    assert version_in(machine, setup).startswith("3.11.")
    assert set(asked) == {f"CONNECT {INDEX}:443"}


def test_a_proxy_that_refuses_the_index_is_named_in_the_error(machine: Sandbox) -> None:
    with proxy({}) as (url, _):
        node = NodeConfig(index_url=f"http://{INDEX}/simple", env={"http_proxy": url})
        said = failure(machine, setup_with(node, interpreter("3.11")))
    assert "403" in said
    assert INDEX in said


def _missing(_: str) -> str:
    return "python-that-no-image-has"


def _too_old(version: str) -> str:
    return str(interpreter(version))


def decision(machine: Sandbox, setup: Setup) -> Decision:
    return next(step.decision for step in plan(machine.facts(setup), setup) if step.name == "environment")


def failure(machine: Sandbox, setup: Setup) -> str:
    """What is written where the environment cannot be built."""
    machine.bootstrap(setup, "code", "trainer")
    *before, command = as_commands(decision(machine, setup))
    for each in before:
        machine.apply(each)
    assert isinstance(command, Run)
    done = machine.run(command)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize(
    "own", [pytest.param(_missing, id="none"), pytest.param(_too_old, id="3.8", marks=pytest.mark.nightly)]
)
def test_uv_brings_an_interpreter_from_a_mirror_where_the_machine_has_none_that_fits(
    own: Callable[[str], str], machine: Sandbox, tmp_path: Path
) -> None:
    """uv downloads, checks and unpacks it, and builds the environment with it; the archive is one of ours."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / WHEEL).write_bytes(a_wheel())
    brought = interpreter("3.12")
    shown = subprocess.run([brought, "-V"], capture_output=True, text=True, check=True).stdout
    version = shown.split()[1]
    archive = tmp_path / "cpython.tar.gz"
    archive_of(brought, archive)
    listed = tmp_path / "pythons.json"
    listed.write_text(list_of(version, f"file://{archive}", archive))
    node = NodeConfig(wheelhouse=str(wheels), env={"UV_PYTHON_DOWNLOADS_JSON_URL": f"file://{listed}"})
    setup = setup_with(node, own("3.8"))
    machine.bootstrap(setup, "code", "trainer", "environment")
    assert version_in(machine, setup) == version
    cache = machine.home / ".spotsup/environments"
    in_cache = list((cache / "python").glob(f"cpython-{version}-*"))
    assert in_cache, "the interpreter is where nodes that share the environment find it"
    assert isinstance(decision(machine, setup), Skip)


def test_an_interpreter_that_is_not_what_the_list_says_is_not_used(machine: Sandbox, tmp_path: Path) -> None:
    archive = tmp_path / "cpython.tar.gz"
    archive_of(interpreter("3.12"), archive)
    listed = tmp_path / "pythons.json"
    listed.write_text(list_of("3.12.1", f"file://{archive}", archive))
    with archive.open("ab") as file:
        file.write(b"more")
    node = NodeConfig(wheelhouse="/none", env={"UV_PYTHON_DOWNLOADS_JSON_URL": f"file://{listed}"})
    assert "hash" in failure(machine, setup_with(node, _missing(""))).lower()
