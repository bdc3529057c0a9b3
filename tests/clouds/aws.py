"""EC2 for tests: moto, and in front of it the behaviour that moto lacks.

    python -m tests.clouds.aws --dir DIR --port PORT

Real boto3 clients talk to it over HTTP. Its machines are real sshd hosts of a local cloud in DIR, or paper ones. Beside
moto it has: idempotency tokens by zone, full zones (HTTP 500), quotas, throttling, spot requests, machines that take
time to begin and end, listings that lag, ids that are not found yet, interruptions with and without notice, notices
without an interruption, lost, broken, wrong and missing answers, calls that arrive twice, a clock that differs, wrong
credentials and missing permissions. `calls` has the calls made.

`POST /_test/NAME` with a JSON object calls the method NAME of `AwsCloud` with it; `GET /_test/calls` shows the calls.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

from moto.ec2.models import ec2_backends
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.clouds.aws_ec2 import Ec2
from tests.clouds.aws_wire import Answer, Call, FakeAwsError, error_answer, json_answer, read_call
from tests.clouds.machines import Machines, real_machines

HANG_S = 120.0
# The SDK signs requests with any key; `credentials` is the cloud's verdict.
ENVIRON = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # moto's own setting: hundreds of unused images
}
_FAULTS = {
    "throttled": FakeAwsError("RequestLimitExceeded", "Request limit exceeded."),
    "transient": FakeAwsError("Unavailable", "The service is unavailable. Please try again shortly."),
    "internal": FakeAwsError("InternalError", "An internal error has occurred"),
    "fatal": FakeAwsError("InvalidGroup.NotFound", "The security group 'sg-0' does not exist"),
    "full": FakeAwsError("InsufficientInstanceCapacity", "We currently do not have sufficient capacity"),
    "quota": FakeAwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
    "unheard-of": FakeAwsError("SomethingNew", "Never seen before"),
}
_DONE_BUT_ERROR = _FAULTS["internal"]
_CREDENTIALS = {
    "wrong": FakeAwsError("AuthFailure", "AWS was not able to validate the provided access credentials"),
    "expired": FakeAwsError("RequestExpired", "Request has expired."),
    # aws-cli#6676
    "clock": FakeAwsError(
        "SignatureDoesNotMatch",
        "Signature expired: 20260127T001427Z is now earlier than 20260127T014428Z (20260127T015928Z - 15 min.)",
    ),
}


class AwsCloud:
    """The cloud: a WSGI application, and the tests' controls. Thread-safe.

    `credentials`: good, wrong, expired, or clock (signed at a wrong time). `denied`: actions that the daemon may not
    call, as "ec2:RunInstances".
    """

    def __init__(self, machines: Machines) -> None:
        for account in ec2_backends.values():
            for backend in list(account.values()):
                backend.reset()  # moto's state is global, and an earlier test may have left some
        self.ec2 = Ec2(machines)
        self.calls: list[Call] = []
        self.credentials = "good"
        self.denied: set[str] = set()
        self.closing = threading.Event()
        self._faults: dict[str, deque[str]] = defaultdict(deque)

    # -- the tests' controls -------------------------------------------------------------------------------

    def exhaust(self, zone: str, instance_type: str = "") -> None:
        """Give a zone no capacity, for one type or all."""
        self.ec2.exhaust(zone, instance_type)

    def make_room(self, zone: str, instance_type: str = "") -> None:
        """Give a zone capacity again."""
        self.ec2.make_room(zone, instance_type)

    def limit(self, zone: str, machines: int) -> None:
        """Limit a zone to so many machines."""
        self.ec2.room[zone] = machines

    def fail_next(self, action: str, how: str, times: int = 1) -> None:
        """Inject a fault into the next calls of an action: one of the faults above, drop-reply, done-but-error, twice,
        garbage, hang, or pass.
        """
        self._faults[action].extend([how] * times)

    def lag(self, seconds: float) -> None:
        """Set how far listings lag."""
        self.ec2.lag_s = seconds

    def preempt(self, machine: str, notice_s: float, *, stop: bool = False) -> float:
        """Announce an interruption; returns EC2's deadline, two minutes after the announcement."""
        with self.ec2.instances.lock:
            return self.ec2.instances.preempt(machine, notice_s, stop=stop)

    def alarm(self, machine: str) -> None:
        """Mark a machine for termination as of just over two minutes ago, and do not terminate it."""
        with self.ec2.instances.lock:
            self.ec2.instances.alarm(machine)

    def withdraw(self, machine: str) -> None:
        """Remove the mark; the machine stays."""
        with self.ec2.instances.lock:
            self.ec2.instances.withdraw(machine)

    def lose(self, machine: str, reason: str = "Server.InternalError") -> None:
        """End a machine without a notice."""
        with self.ec2.instances.lock:
            self.ec2.instances.lose(machine, reason)

    def multiply(self, machine: str, times: int) -> None:
        """Add copies of a machine."""
        with self.ec2.instances.lock:
            self.ec2.instances.multiply(machine, times)

    def leave_behind(self, region: str, tags: dict[str, str]) -> None:
        """Create a disk, a network interface, an address and an open spot request that belong to no machine."""
        with self.ec2.instances.lock:
            self.ec2.instances.leave_behind(region, tags)

    def used(self) -> set[str]:
        """The permissions that were needed: those of the calls, and of EC2's own steps for them."""
        return {name for call in self.calls for name in needed(call)}

    def counted(self) -> Counter[str]:
        """How often each action was called: "ec2:DescribeInstances"."""
        return Counter(f"{call.service}:{call.action}" for call in self.calls)

    # -- WSGI ----------------------------------------------------------------------------------------------

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """One request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"].startswith("/_test/"):
            answer, cut = self._by_hand(environ["PATH_INFO"].removeprefix("/_test/"), body), False
        else:
            answer, cut = self._serve(read_call(environ, body), environ, body)
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} -", headers)
        # A Content-Length above the body's breaks the connection in mid-answer.
        return [answer.body[: len(answer.body) // 2] if cut else answer.body]

    def _by_hand(self, name: str, body: bytes) -> Answer:
        if name == "calls":
            return json_answer({"calls": [[call.service, call.region, call.action] for call in self.calls]})
        return json_answer({"result": getattr(self, name)(**json.loads(body or b"{}"))})

    def _serve(self, call: Call, environ: dict[str, Any], body: bytes) -> tuple[Answer, bool]:
        self.calls.append(call)
        queue = self._faults[call.action]
        fault = queue.popleft() if queue else "pass"
        try:
            self._admit(call)
            if fault in _FAULTS:
                raise _FAULTS[fault]
            if fault == "hang":
                self.closing.wait(HANG_S)
                raise FakeAwsError("InternalError", "it hung")
            with self.ec2.instances.lock:
                answer = self.ec2.serve(call, environ, body)
                if fault == "twice":
                    answer = self.ec2.serve(call, environ, body)
        except FakeAwsError as error:
            return error_answer(call, error), False
        if fault == "done-but-error":
            return error_answer(call, _DONE_BUT_ERROR), False
        if fault == "garbage":
            return Answer(200, "text/html", b"<html>Welcome to the hotel network</html>"), False
        return answer, fault == "drop-reply"

    def _admit(self, call: Call) -> None:
        if self.credentials in _CREDENTIALS:
            raise _CREDENTIALS[self.credentials]
        for name in needed(call):
            if name in self.denied:
                code = "UnauthorizedOperation" if call.service == "ec2" else "AccessDeniedException"
                raise FakeAwsError(code, f"You are not authorized to perform this operation: {name}.")


def needed(call: Call) -> list[str]:
    """The permissions that a call needs: its own, and those of EC2's own steps for it."""
    names = [f"{call.service}:{call.action}"]
    if call.action == "RunInstances":
        names += ["ec2:CreateTags"] if call.tags("instance") else []
        names += ["ssm:GetParameters"] if call.form.get("ImageId", "").startswith("resolve:ssm:") else []
        names += ["iam:PassRole"] if any(name.startswith("IamInstanceProfile.") for name in call.form) else []
    return names


class _Quiet(WSGIRequestHandler):  # type: ignore[misc]
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Log nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The date in each answer, on the cloud's clock."""
        return formatdate(time.time() + self.server.app.ec2.ahead_s, usegmt=True)


class AwsServer:
    """A cloud on a port of its own, served by daemon threads."""

    def __init__(self, cloud: AwsCloud, port: int = 0) -> None:
        self.cloud = cloud
        self._server = make_server("127.0.0.1", port, cloud, threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; the machines run on. Idempotent."""
        self.cloud.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def aws_cloud(machines: Machines, port: int = 0) -> Iterator[AwsServer]:
    """A cloud over these machines, for as long as the context."""
    server = AwsServer(AwsCloud(machines), port)
    try:
        yield server
    finally:
        server.stop()


def main() -> int:
    """Serve until SIGTERM or SIGINT, then end the machines."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.aws", description=__doc__)
    parser.add_argument("--dir", required=True, type=Path, help="where the machines live")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with real_machines(options.dir) as machines, aws_cloud(machines, options.port) as server:
        sys.stdout.write(json.dumps({"endpoint": server.url, "ssh_port": machines.ssh_port}) + "\n")
        sys.stdout.flush()
        done.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
