"""Compute Engine for tests.

    python -m tests.clouds.gcp --dir DIR --port PORT

Real google-cloud-compute clients talk to it over HTTP, with access tokens that they fetch from it for a service
account's key. Requests that Google's discovery document does not allow are refused. Its machines are real sshd hosts of
a local cloud in DIR, or paper ones. It has: insertions that are accepted and fail later (full zones, quotas), names and
request ids that are reused, listings that lag, preemptions with and without notice, and none after a notice, machines
that stop instead of ending, or leave nothing but their operations; throttling, lost, broken, wrong and missing answers,
calls that arrive twice, a clock that differs, wrong credentials and missing permissions. `calls` has the calls made.

`POST /_test/NAME` with a JSON object calls the method NAME of `GcpCloud` with it; `GET /_test/calls` shows the calls.
"""

from __future__ import annotations

import argparse
import base64
import functools
import json
import signal
import ssl
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.clouds.gcp_compute import OP_FAULTS, Compute
from tests.clouds.gcp_instances import Record
from tests.clouds.gcp_wire import Answer, Call, FakeGcpError, error_answer, json_answer, read_call
from tests.clouds.machines import Machines, real_machines

PROJECT = "a-project"
HANG_S = 120.0
_TOKEN = "ya29.a-token"  # noqa: S105 - of the test cloud alone
_FAULTS = {
    "throttled": FakeGcpError(403, "rateLimitExceeded", "Rate Limit Exceeded"),
    "internal": FakeGcpError(503, "backendError", "Backend Error"),
    "fatal": FakeGcpError(400, "invalid", "Invalid value for field 'resource.networkInterfaces[0].network'"),
    "quota-at-once": FakeGcpError(403, "quotaExceeded", "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 0.0"),
    "unheard-of-at-once": FakeGcpError(400, "somethingNew", "Never seen before"),
}
# done-but-error: refused as "internal", but done. done-but-failed: accepted, and the operation fails, but the
# machine exists.
_OTHERS = {
    *("drop-reply", "done-but-error", "done-but-failed", "twice"),
    *("garbage", "hang", "proxy", "taken-at-once", "pass"),
}
_PERMISSIONS: Mapping[str, str] = {
    "instances.aggregatedList": "compute.instances.list",
    "globalOperations.aggregatedList": "compute.globalOperations.list",
    "disks.aggregatedList": "compute.disks.list",
    "machineTypes.aggregatedList": "compute.machineTypes.list",
    "acceleratorTypes.aggregatedList": "compute.acceleratorTypes.list",
    "instances.insert": "compute.instances.create",
}


class GcpCloud:
    """The cloud: a WSGI application, and the tests' controls. Thread-safe.

    `credentials`: good, wrong (no token for them), expired (tokens are refused), hang or busy (no token now). `denied`:
    permissions that the daemon lacks, as "compute.instances.create". `strict`: what a clock that is off has signed is
    worth no token; without it, only the answers are by another clock.
    """

    def __init__(self, machines: Machines) -> None:
        self.compute = Compute(machines)
        self.calls: list[Call] = []
        self.credentials = "good"
        self.denied: set[str] = set()
        self.strict = True
        self.closing = threading.Event()
        self._faults: dict[str, deque[str]] = defaultdict(deque)

    # -- the tests' controls -------------------------------------------------------------------------------

    def exhaust(self, zone: str, machine_type: str = "") -> None:
        """Give a zone no capacity, for one type or all."""
        self.compute.exhaust(zone, machine_type)

    def make_room(self, zone: str, machine_type: str = "") -> None:
        """Give a zone capacity again."""
        self.compute.make_room(zone, machine_type)

    def limit(self, zone: str, machines: int) -> None:
        """Limit a zone to so many machines."""
        self.compute.room[zone] = machines

    def fail_next(self, action: str, how: str, times: int = 1) -> None:
        """Inject a fault into the next calls of an action: one above, an operation's, or one of `_OTHERS`."""
        known = {*_FAULTS, *OP_FAULTS, *_OTHERS}
        assert how in known, how
        self._faults[action].extend([how] * times)

    def lag(self, seconds: float) -> None:
        """Set how far listings lag."""
        self.compute.lag_s = seconds

    def skew(self, ahead_s: float, *, strict: bool = False) -> None:
        """Set how far its clock is ahead of ours."""
        self.compute.instances.ahead_s, self.strict = ahead_s, strict

    def preempt(self, name: str, notice_s: float, *, stop: bool = False) -> float:
        """Preempt a machine; returns its end by the API, half a minute after the announcement."""
        with self.compute.instances.lock:
            return self.compute.instances.preempt(self.record(name), notice_s, stop=stop)

    def alarm(self, name: str) -> None:
        """Start a preemption as of just over half a minute ago, and do not complete it."""
        with self.compute.instances.lock:
            self.compute.instances.alarm(self.record(name))

    def withdraw(self, name: str) -> None:
        """Fail the preemption; the machine stays."""
        with self.compute.instances.lock:
            self.compute.instances.withdraw(self.record(name))

    def lose(self, name: str, kind: str = "compute.instances.hostError", *, stop: bool = False) -> None:
        """End a machine without a notice."""
        with self.compute.instances.lock:
            self.compute.instances.lose(self.record(name), kind, stop=stop)

    def multiply(self, name: str, times: int) -> None:
        """Add copies of a machine."""
        with self.compute.instances.lock:
            self.compute.instances.multiply(self.record(name), times)

    def leave_behind(self, zone: str, labels: dict[str, str], name: str = "left") -> None:
        """Create a disk that belongs to no machine."""
        with self.compute.instances.lock:
            disk = {"name": name, "labels": labels, "users": [], "autoDelete": False}
            self.compute.instances.disks[zone, name] = disk

    def record(self, name: str) -> Record:
        """The machine that has, or last had, this name."""
        return next(each for each in reversed(self.compute.instances.records) if each.name == name)

    def alive(self) -> list[Record]:
        """The machines that cost money."""
        with self.compute.instances.lock:
            self.compute.instances.sync()
            return [each for each in self.compute.instances.records if each.status]

    def used(self) -> set[str]:
        """The permissions that were needed."""
        return {name for call in self.calls for name in needed(call)}

    def counted(self) -> Counter[str]:
        """How often each action was called: "instances.insert"."""
        return Counter(call.action for call in self.calls)

    # -- WSGI ----------------------------------------------------------------------------------------------

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """One request."""
        path = environ["PATH_INFO"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        cut = False
        if path.startswith("/_test/"):
            answer = self._by_hand(path.removeprefix("/_test/"), body)
        elif path == "/token":
            answer = self._give_token(dict(parse_qsl(body.decode())))
        else:
            answer, cut = self._serve(environ, path, body)
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} -", headers)
        # A Content-Length above the body's breaks the connection in mid-answer.
        return [answer.body[: len(answer.body) // 2] if cut else answer.body]

    def _by_hand(self, name: str, body: bytes) -> Answer:
        if name == "calls":
            return json_answer({"calls": [call.action for call in self.calls]})
        return json_answer({"result": getattr(self, name)(**json.loads(body or b"{}"))})

    def _give_token(self, form: Mapping[str, str]) -> Answer:
        if self.credentials == "wrong":
            reply = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            return json_answer(reply, 400)
        claims = json.loads(base64.urlsafe_b64decode(form["assertion"].split(".")[1] + "=="))
        now = time.time() + self.compute.instances.ahead_s
        if self.strict and not claims["iat"] - 300 < now < claims["exp"]:
            # google-api-php-client#1429
            why = "Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp"
            return json_answer({"error": "invalid_grant", "error_description": f"Invalid JWT: {why} values."}, 400)
        if self.credentials == "hang":
            self.closing.wait(HANG_S)
        if self.credentials in {"hang", "busy"}:
            return json_answer({"error": "internal_failure"}, 503)
        return json_answer({"access_token": _TOKEN, "expires_in": 3600, "token_type": "Bearer"})

    def _serve(self, environ: dict[str, Any], path: str, body: bytes) -> tuple[Answer, bool]:
        fault = "pass"
        try:
            call = read_call(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), body)
            self.calls.append(call)
            queue = self._faults[call.action]
            fault = queue.popleft() if queue else "pass"
            self._admit(call, environ.get("HTTP_AUTHORIZATION", ""))
            if fault in _FAULTS:
                raise _FAULTS[fault]
            if fault == "hang":
                self.closing.wait(HANG_S)
                raise FakeGcpError(503, "backendError", "it hung")
            if fault == "proxy":
                return Answer(502, "text/html", b"<html>Bad Gateway</html>"), False
            with self.compute.instances.lock:
                answer = self.compute.serve(call, fault)
                if fault == "twice":
                    answer = self.compute.serve(call, "pass")
        except FakeGcpError as error:
            return error_answer(error), False
        if fault == "done-but-error":
            return error_answer(_FAULTS["internal"]), False
        if fault == "garbage":
            return Answer(200, "text/html", b"<html>Welcome to the hotel network</html>"), False
        return answer, fault == "drop-reply"

    def _admit(self, call: Call, authorization: str) -> None:
        if self.credentials != "good" or authorization != f"Bearer {_TOKEN}":
            raise FakeGcpError(401, "authError", "Request had invalid authentication credentials.")
        project = call.path["project"]
        if project != PROJECT and not call.action.startswith("images."):
            raise FakeGcpError(404, "notFound", f"The resource 'projects/{project}' was not found")
        for name in needed(call):
            if name in self.denied:
                raise FakeGcpError(403, "forbidden", f"Required '{name}' permission for 'projects/{project}'")


def needed(call: Call) -> list[str]:
    """The permissions that a call needs. Source: Compute Engine's reference, "instances.insert", IAM Permissions."""
    names = [_PERMISSIONS.get(call.action, f"compute.{call.action}")]
    if call.action == "instances.insert":
        body = call.body
        names += ["compute.disks.create", "compute.instances.setMetadata", "compute.subnetworks.use"]
        names += ["compute.instances.setLabels", "compute.disks.setLabels"] if body.get("labels") else []
        names += ["compute.instances.setTags"] if body.get("tags") else []
        external = any(each.get("accessConfigs") for each in body["networkInterfaces"])
        names += ["compute.subnetworks.useExternalIp"] if external else []
        if body.get("serviceAccounts"):
            names += ["compute.instances.setServiceAccount", "iam.serviceAccounts.actAs"]
        sources = [each["initializeParams"]["sourceImage"] for each in body["disks"]]
        names += ["compute.images.useReadOnly"] if any(f"projects/{PROJECT}/" in each for each in sources) else []
    return names


@functools.cache
def _key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class _Quiet(WSGIRequestHandler):  # type: ignore[misc]
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Log nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The date in each answer, on the cloud's clock."""
        return formatdate(time.time() + self.server.app.compute.instances.ahead_s, usegmt=True)


class GcpServer:
    """A cloud on a port of its own, served by daemon threads."""

    def __init__(self, cloud: GcpCloud, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.cloud = cloud
        self._server = make_server("127.0.0.1", port, cloud, threaded=True, request_handler=_Quiet, ssl_context=tls)
        self._server.daemon_threads = True
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def environ(self, folder: Path) -> dict[str, str]:
        """What the daemon's environment needs: a service account's key, whose tokens are fetched here."""
        key = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": _key(),
            "client_email": f"daemon@{PROJECT}.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.url}/token",
        }
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "gcp-key.json"
        file.write_text(json.dumps(key))
        file.chmod(0o600)
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "NO_GCE_CHECK": "true"}

    def stop(self) -> None:
        """Stop listening; the machines run on. Idempotent."""
        self.cloud.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def gcp_cloud(machines: Machines, port: int = 0) -> Iterator[GcpServer]:
    """A cloud over these machines, for as long as the context."""
    server = GcpServer(GcpCloud(machines), port)
    try:
        yield server
    finally:
        server.stop()


def main() -> int:
    """Serve until SIGTERM or SIGINT, then end the machines."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.gcp", description=__doc__)
    parser.add_argument("--dir", required=True, type=Path, help="where the machines live")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with real_machines(options.dir) as machines, gcp_cloud(machines, options.port) as server:
        details = {"endpoint": server.url, "ssh_port": machines.ssh_port, **server.environ(options.dir)}
        sys.stdout.write(json.dumps(details) + "\n")
        sys.stdout.flush()
        done.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
