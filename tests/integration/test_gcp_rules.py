"""Compute Engine's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provisioners.gcp import launch
from tests.support.serving import serving
from tests.unit.test_gcp_rules import FULL


@contextmanager
def google(*, deletes: int) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A metadata service, and an API that answers a deletion as given; records requests and headers."""
    asked: list[tuple[str, str, str]] = []
    root = "/computeMetadata/v1/"
    data = {
        f"{root}instance/service-accounts/default/token": '{"access_token":"ya29.x-y","expires_in":3599}',
        f"{root}project/project-id": "a-project",
        f"{root}instance/zone": "projects/1/zones/us-central1-a",
        f"{root}instance/name": "spotsup-1",
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(("GET", self.path, self.headers.get("Metadata-Flavor") or ""))
            self._answer(200 if self.path in data else 404, data.get(self.path, ""))

        def do_DELETE(self) -> None:
            asked.append(("DELETE", self.path, self.headers.get("Authorization") or ""))
            self._answer(deletes, "{}")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"127.0.0.1:{server.server_address[1]}", asked


@pytest.mark.parametrize(("deletes", "off"), [(200, False), (403, True)])
def test_a_forgotten_machine_deletes_itself_or_else_shuts_down(tmp_path: Path, deletes: int, off: bool) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/output\n')
    systemctl.chmod(0o755)
    with google(deletes=deletes) as (host, asked):
        settings = FULL.model_copy(update={"endpoint": f"http://{host}"})
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GCE_METADATA_HOST": host}
        script = f"set -eu\n{launch.dead_man_end(settings)}\n"
        done = subprocess.run(["/bin/sh", "-c", script], env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    last = asked[-1]
    url = "/compute/v1/projects/a-project/zones/us-central1-a/instances/spotsup-1"
    assert last == ("DELETE", url, "Bearer ya29.x-y")
    assert {flavour for verb, _, flavour in asked if verb == "GET"} == {"Google"}
    assert (tmp_path / "output").exists() is off
