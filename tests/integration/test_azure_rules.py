"""Azure's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from provisioners.azure import launch
from tests.clouds.azure_contract import asked as asked_against
from tests.clouds.azure_wire import Call
from tests.support.serving import serving
from tests.unit.test_azure_rules import FULL


@contextmanager
def azure_from_within() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The metadata service and Resource Manager, as a machine sees them."""
    seen: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(
                (self.command, self.path, self.headers.get("Metadata") or self.headers.get("Authorization") or "")
            )
            body_ = json.dumps({"access_token": "machines-token"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body_)))
            self.end_headers()
            self.wfile.write(body_)

        do_POST = do_GET  # noqa: N815 - http.server finds it by this name

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen


def test_the_switch_has_the_machine_deallocate_itself() -> None:
    with azure_from_within() as (url, seen):
        switch = launch.dead_man("spotsup-6-team-a-n", FULL.model_copy(update={"endpoint": url}), 3600.0)
        assert switch is not None
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", switch.end],
            env={"PATH": os.environ["PATH"], "SPOTSUP_AZURE_METADATA": url},
            capture_output=True,
            timeout=60,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    (token, end) = seen
    asked = parse_qs(urlsplit(token[1]).query)
    assert (token[0], token[2]) == ("GET", "true")
    assert (asked.get("mi_res_id"), asked["resource"]) == (None, ["https://management.azure.com/"])
    assert (end[0], end[2]) == ("POST", "Bearer machines-token")
    where = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/spotsup-6-team-a-n"
    assert urlsplit(end[1]).path == f"{where}/deallocate"
    assert parse_qs(urlsplit(end[1]).query) == {"api-version": [launch.COMPUTE_API]}
    action = "Microsoft.Compute/virtualMachines/deallocate/action"
    query = {"api-version": launch.COMPUTE_API}
    assert not list(asked_against(Call("POST", urlsplit(end[1]).path, query, {}, b"", action)))
