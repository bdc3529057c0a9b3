"""An installation that works, and how rows of tools/broken_setups break it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from spotsup_trainer.wire import Keys

from tests.clouds.base import wire_cloud
from tests.support.s3 import s3_here
from tests.support.secured_etcd import SecuredEtcd
from tests.support.serving import serving

SECRET = b"k" * 32
KEYS = Keys("default")
AWS, GCP, AZURE = "aws", "gcp", "azure"


@dataclass
class Setup:
    """An installation that works until a row breaks it. `values`: what stands for names in the row's sentence."""

    folder: Path
    stack: ExitStack
    etcds: Etcds
    monkeypatch: pytest.MonkeyPatch
    config: dict[str, Any] = field(default_factory=dict)
    # The configuration's text, where it is not `config`.
    text: str = ""
    arguments: list[str] = field(default_factory=list)
    embedded: bool = True
    values: dict[str, str] = field(default_factory=dict)
    # What another program said.
    said: str = ""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def file(self) -> Path:
        return self.folder / "spotsupd.toml"

    def etcd(self, **keys: Any) -> None:
        """Use an etcd that is not embedded."""
        self.embedded = False
        self.config["etcd"] = keys
        self.values["etcd"] = ", ".join(keys["endpoints"])

    def cloud(self, name: str, **settings: Any) -> Any:
        """Rent machines of a test cloud, which is returned."""
        server = self.stack.enter_context(wire_cloud(name))
        server.cloud.let_daemon_in()
        server.provisioner(**settings)  # loads the SDK: on a busy computer that takes longer than all calls
        known = server.settings(**settings)
        self.config[name] = {key: getattr(known, key) for key in known.model_fields_set}
        self.config["local"] = {"enabled": False}
        return server.cloud

    def write(self, name: str, text: str | bytes, mode: int = 0o600) -> str:
        """A file; its path."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return str(path)

    def key(self, secret: bytes = SECRET, mode: int = 0o600) -> None:
        """The cluster's key."""
        self.write("state/cluster.key", secret, mode)


def closed_port(setup: Setup) -> int:
    """A port that refuses connections, and that nobody else gets meanwhile: it is bound, and does not listen."""
    held = setup.stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


class _Page(BaseHTTPRequestHandler):
    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", "11")
        self.end_headers()
        self.wfile.write(b"hello there")

    def log_message(self, *_: object) -> None:
        pass


def page(setup: Setup, status: int = 200) -> str:
    """The URL of a web server that is neither etcd nor Slack."""
    handler = type("_Status", (_Page,), {"status": status})
    server = setup.stack.enter_context(serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)))
    return f"http://127.0.0.1:{server.server_address[1]}"


def bucket(setup: Setup, place: str = "") -> Any:
    server = setup.stack.enter_context(s3_here())
    job = {"name": "first", "nodes": {"min": 1, "desired": 1, "max": 1}, "run": "first.py"}
    text = json.dumps({**job, "checkpoints": place or f"s3://{server.bucket}/jobs"})
    setup.arguments = ["--job", setup.write("job.yaml", text)]
    setup.values["bucket"] = server.bucket
    return server


def toml(table: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in plain.items())
    for name, inner in table.items():
        if isinstance(inner, dict):
            items = ", ".join(f"{json.dumps(key)} = {_value(value)}" for key, value in inner.items())
            text += f"{name} = {{{items}}}\n"
    return text


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


@dataclass
class Etcds:
    """Two real ones: open to everybody, and with TLS and users. Rows leave them as they are."""

    plain: str
    secured: SecuredEtcd

    def login(self, **other: Any) -> dict[str, Any]:
        """[etcd] for the second."""
        return {"endpoints": [self.secured.endpoint], "ca": str(self.secured.tls.ca), **other}


Break: TypeAlias = Callable[[Setup], object]
BREAKS: dict[str, Break] = {}


def breaks(name: str) -> Callable[[Break], Break]:
    """This function breaks the row of that name."""

    def add(function: Break) -> Break:
        BREAKS[name] = function
        return function

    return add
