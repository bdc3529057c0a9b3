"""moto's own server in a process of its own, where its permissions can be switched on: an AWS that nobody here wrote.

Its state is one for the whole process. `python -m tests.support.moto_server` serves until its standard input ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3

from tools.stack import ROOT

REGION = "us-east-1"
AS_IT_IS = "--as-it-is"


@dataclass(frozen=True, slots=True)
class MotoServer:
    """A running one."""

    url: str

    def reset(self) -> None:
        """Forget everything, users too; nobody needs a permission from now on."""
        self._post("reset", "")
        self._post("reset-auth", "inf")

    def ask_for_permissions(self) -> None:
        """Judge each call from now on by the policies of the user whose key has signed it."""
        self._post("reset-auth", "0")

    def client(self, service: str, key_id: str, key: str) -> Any:
        """boto3's."""
        keys = {"aws_access_key_id": key_id, "aws_secret_access_key": key}
        return boto3.client(service, endpoint_url=self.url, region_name=REGION, **keys)

    def _post(self, what: str, data: str) -> None:
        # As a form, which is urllib's default, moto would not see the data.
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(  # noqa: S310 - our own URL
            f"{self.url}/moto-api/{what}", data.encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=30.0) as answer:  # noqa: S310
            answer.read()


@contextmanager
def moto_server(*arguments: str) -> Iterator[MotoServer]:
    """A server on a free port of loopback, until the end. `AS_IT_IS`: without what is put right below."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.moto_server", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        text=True,
        cwd=ROOT,
        # No test asks for the hundreds of images that moto makes for each region.
        env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"},
    )
    with process:
        assert process.stdout is not None
        try:
            yield MotoServer(process.stdout.readline().strip())
        finally:
            process.kill()


def sign_without_a_body() -> None:
    """Put right how moto checks the signature of a request without a body, as EFS's are that list or delete.

    It takes the headers or the query, as it has parsed them, for the body that was signed, and so refuses each such
    request with SignatureDoesNotMatch, whoever has signed it (iam/access_control.py, `_create_aws_request`).
    """
    from moto.iam import access_control

    class Request(access_control.AWSRequest):  # type: ignore[misc]
        def __init__(self, method: str, url: str, data: Any, headers: Any) -> None:
            super().__init__(method=method, url=url, headers=headers, data=b"" if method in {"GET", "DELETE"} else data)

    access_control.AWSRequest = Request


def main() -> None:
    """Serve."""
    from moto.server import ThreadedMotoServer

    if AS_IT_IS not in sys.argv:
        sign_without_a_body()
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
