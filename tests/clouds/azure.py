"""Azure for tests: Resource Manager, Entra ID's tokens and the retail prices, over TLS, in this process.

    python -m tests.clouds.azure --dir DIR --port PORT

The real SDK talks to it, with its real credentials: a client secret, a token, an authority of its own. Its machines
are real sshd hosts of a local cloud in DIR, or paper ones. Bodies are held against the SDK's own models. It has:
launches that are accepted and fail later, full zones, quotas, throttling, evictions with and without notice, and none
after a notice, listings and a log that lag, lost, broken, wrong and missing answers, calls that arrive twice, a clock
that differs, wrong credentials and missing permissions. `calls` has the calls made.

`POST /_test/NAME` with a JSON object calls the method NAME of `AzureCloud` with it; `GET /_test/calls` shows the calls.
"""

from __future__ import annotations

import argparse
import json
import signal
import ssl
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs

import trustme
from werkzeug.serving import WSGIRequestHandler, make_server

from provisioners.azure.settings import AzureSettings
from tests.clouds.azure_arm import Arm
from tests.clouds.azure_machines import GROUP, ROOT, SUBSCRIPTION
from tests.clouds.azure_requests import IDENTITY, SECURITY_GROUP, SUBNETS
from tests.clouds.azure_wire import Answer, Call, FakeAzureError, read_call
from tests.clouds.machines import Machines, real_machines

HANG_S = 120.0
TENANT = "99999999-8888-7777-6666-555555555555"
_SECRET = "client-secret"  # noqa: S105 - the test cloud's only one
_TOKEN = "a-token-of-the-test-cloud"  # noqa: S105
_FAULTS = {
    "throttled": FakeAzureError("TooManyRequests", "The request is being throttled.", {"Retry-After": "1"}),
    "transient": FakeAzureError("ServiceUnavailable", "The service is unavailable."),
    "internal": FakeAzureError("InternalServerError", "An internal error has occurred"),
    "fatal": FakeAzureError("RequestDisallowedByPolicy", "Resource was disallowed by policy 'no-gpus'."),
    "full": FakeAzureError("SkuNotAvailable", "The requested size is currently not available in location 'eastus'."),
    "quota": FakeAzureError(
        "OperationNotAllowed",
        "Operation could not be completed as it results in exceeding approved LowPriorityCores quota. Current Limit: 3",
    ),
    "unheard-of": FakeAzureError("SomethingNew", "Never seen before"),
}
_CREDENTIALS = {
    "refused": FakeAzureError("InvalidAuthenticationToken", "The access token is invalid."),
    "expired": FakeAzureError("ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than now."),
}
LAUNCH = "Microsoft.Compute/virtualMachines/write"
LISTING = "Microsoft.Compute/virtualMachines/read"
LOG = "Microsoft.Insights/eventtypes/values/read"
# The linked permissions, by action, for Azure's own steps.
_LINKED = {
    LAUNCH: (
        "Microsoft.Compute/disks/write",
        "Microsoft.Network/networkInterfaces/write",
        "Microsoft.Network/networkInterfaces/join/action",
        "Microsoft.Network/publicIPAddresses/write",
        "Microsoft.Network/publicIPAddresses/join/action",
        "Microsoft.Network/virtualNetworks/subnets/join/action",
    ),
    "Microsoft.Compute/virtualMachines/delete": (
        "Microsoft.Compute/disks/delete",
        "Microsoft.Network/networkInterfaces/delete",
        "Microsoft.Network/publicIPAddresses/delete",
    ),
}


class AzureCloud:
    """The cloud: a WSGI application, and the tests' controls. Thread-safe.

    `credentials`: good, wrong (Entra ID takes no secret), refused or expired (Azure takes no token). `denied`: actions
    that the daemon may not do.
    """

    def __init__(self, machines: Machines) -> None:
        self.arm = Arm(machines)
        self.calls: list[Call] = []
        self.credentials = "good"
        self.denied: set[str] = set()
        self.closing = threading.Event()
        self._machines = machines
        self._faults: dict[str, deque[str]] = defaultdict(deque)

    # -- the tests' controls -------------------------------------------------------------------------------

    def exhaust(self, zone: str, size: str = "") -> None:
        """Give a zone no capacity, for one size or all."""
        self.arm.exhaust(zone, size)

    def make_room(self, zone: str, size: str = "") -> None:
        """Give a zone capacity again."""
        self.arm.make_room(zone, size)

    def limit(self, zone: str, machines: int) -> None:
        """Limit a zone to so many machines."""
        self.arm.room[zone] = machines

    def fail_next(self, action: str, how: str, times: int = 1) -> None:
        """Inject a fault into the next calls of an action: one of the faults above, drop-reply, done-but-error, twice,
        garbage, empty, hang, or pass.
        """
        self._faults[action].extend([how] * times)

    def fail_allocation(self, code: str, after_s: float = 0.0) -> None:
        """Accept the next launch and fail it so much later: a failed machine stays."""
        self.arm.failing.append((code, after_s))

    def lag(self, seconds: float) -> None:
        """Set how far listings and the log lag."""
        self.arm.fleet.lag_s = seconds

    def skew(self, ahead_s: float) -> None:
        """Set how far its clock is ahead of ours."""
        self.arm.fleet.ahead_s = ahead_s

    def preempt(self, machine: str, notice_s: float, *, deallocate: bool = False) -> float:
        """Announce an eviction; returns the deadline that the log's entry means, 30 s after it."""
        with self.arm.fleet.lock:
            return self.arm.fleet.preempt(machine, notice_s, deallocate=deallocate) + 30.0

    def alarm(self, machine: str) -> None:
        """Announce an eviction as of just over half a minute ago, and do not evict."""
        with self.arm.fleet.lock:
            self.arm.fleet.alarm(machine)

    def withdraw(self, machine: str) -> None:
        """Fail the eviction; the machine stays."""
        with self.arm.fleet.lock:
            self.arm.fleet.withdraw(machine)

    def end_itself(self, machine: str) -> None:
        """What a machine's dead-man switch does: a DELETE in the name of its identity."""
        with self.arm.fleet.lock:
            self.arm.fleet.delete(machine, {"xms_mirid": IDENTITY})

    def halt(self, machine: str) -> None:
        """Shut down the machine from its guest."""
        with self.arm.fleet.lock:
            self.arm.fleet.halt(machine)

    def multiply(self, machine: str, times: int) -> None:
        """Add copies of a machine."""
        with self.arm.fleet.lock:
            self.arm.fleet.multiply(machine, times)

    def leave_behind(self, tags: dict[str, str], machine: str) -> None:
        """Create a disk, a network interface and an address that belong to no machine."""
        with self.arm.fleet.lock:
            self.arm.fleet.leave_behind(tags, machine)

    def used(self) -> set[str]:
        """The permissions that were needed: those of the calls, and of Azure's own steps for them."""
        return {name for call in self.calls for name in needed(call)}

    def counted(self) -> Counter[str]:
        """How often each action was called."""
        return Counter(call.action for call in self.calls)

    # -- WSGI ----------------------------------------------------------------------------------------------

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """One request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        answer, cut = self._answer(read_call(environ, body))
        payload = answer.payload
        kind = "text/html" if isinstance(answer.body, bytes) else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(payload)), **answer.headers}
        start_response(f"{answer.status} -", list(headers.items()))
        # A Content-Length above the body's breaks the connection in mid-answer.
        return [payload[: len(payload) // 2] if cut else payload]

    def _answer(self, call: Call) -> tuple[Answer, bool]:
        if call.path.startswith("/_test/"):
            return self._by_hand(call), False
        if call.path.startswith("/_blob/"):
            return Answer(200, self._machines.console(call.path.removeprefix("/_blob/")).encode()), False
        if call.path == "/api/retail/prices":
            return self._prices(call)
        if call.path.startswith(f"/{TENANT}/"):
            return self._entra(call), False
        return self._serve(call)

    def _by_hand(self, call: Call) -> Answer:
        name = call.path.removeprefix("/_test/")
        if name == "calls":
            return Answer(200, {"calls": [each.action for each in self.calls]})
        return Answer(200, {"result": getattr(self, name)(**call.json())})

    def _entra(self, call: Call) -> Answer:
        base = f"{self.arm.url}/{TENANT}"
        if call.path.endswith("/.well-known/openid-configuration"):
            return Answer(
                200,
                {
                    "issuer": f"{base}/v2.0",
                    "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                    "token_endpoint": f"{base}/oauth2/v2.0/token",
                },
            )
        form = {key: values[0] for key, values in parse_qs(call.body.decode()).items()}
        if self.credentials == "wrong" or form.get("client_secret") != _SECRET:
            return Answer(
                401, {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
            )
        assert form["scope"].split()[0] == "https://management.azure.com/.default"
        return Answer(200, {"token_type": "Bearer", "expires_in": 3600, "access_token": _TOKEN})

    def _prices(self, call: Call) -> tuple[Answer, bool]:
        fault = self._fault("prices")
        if fault in _FAULTS:
            return _FAULTS[fault].answer(), False
        wanted = call.query["$filter"]
        items = []
        for name, (spot, on_demand) in self.arm.prices.items():
            if f"armSkuName eq '{name}'" not in wanted:
                continue
            short = name.removeprefix("Standard_").replace("_", " ")
            rows = [(f"{short} Spot", "", spot), (f"{short} Low Priority", "", 0.001), (short, "", on_demand)]
            rows += [(f"{short} Spot", " Windows", spot * 3), (short, " Windows", on_demand * 3)]
            for sku, system, price in rows:
                items.append(
                    {
                        "currencyCode": "USD",
                        "retailPrice": price,
                        "armSkuName": name,
                        "skuName": sku,
                        "productName": f"Virtual Machines {short} Series{system}",
                        "type": "Consumption",
                        "unitOfMeasure": "1 Hour",
                    }
                )
        return Answer(200, {"Items": items, "NextPageLink": None, "Count": len(items)}), False

    def _fault(self, action: str) -> str:
        queue = self._faults[action]
        return queue.popleft() if queue else "pass"

    def _serve(self, call: Call) -> tuple[Answer, bool]:
        try:
            call = replace(call, action=self.arm.action_of(call))
        except FakeAzureError as error:
            return error.answer(), False
        self.calls.append(call)
        fault = self._fault(call.action)
        try:
            self._admit(call)
            if fault in _FAULTS:
                raise _FAULTS[fault]
            if fault == "hang":
                self.closing.wait(HANG_S)
                raise FakeAzureError("InternalServerError", "it hung")
            with self.arm.fleet.lock:
                answer = self.arm.serve(call)
                if fault == "twice":
                    answer = self.arm.serve(call)
        except FakeAzureError as error:
            return error.answer(), False
        if fault == "done-but-error":
            return _FAULTS["internal"].answer(), False
        if fault == "garbage":
            return Answer(200, b"<html>Welcome to the hotel network</html>"), False
        if fault == "empty":
            return Answer(200, {"welcome": "to the hotel network"}), False
        return answer, fault == "drop-reply"

    def _admit(self, call: Call) -> None:
        if call.headers.get("authorization") != f"Bearer {_TOKEN}":
            raise FakeAzureError("AuthenticationFailedMissingToken", "Authentication failed.")
        if self.credentials in _CREDENTIALS:
            raise _CREDENTIALS[self.credentials]
        for name in needed(call):
            if name in self.denied:
                message = (
                    f"The client 'spotsupd' with object id '0' does not have authorization to perform action '{name}' "
                    f"over scope '{ROOT}' or the scope is invalid."
                )
                raise FakeAzureError("AuthorizationFailed", message)


def needed(call: Call) -> list[str]:
    """The permissions that a call needs: its own, and those of Azure's own steps for it."""
    names = [call.action, *_LINKED.get(call.action, ())]
    if call.action == LAUNCH:
        names += ["Microsoft.Network/networkSecurityGroups/join/action"] if SECURITY_GROUP.encode() in call.body else []
        names += ["Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"] if b"identity" in call.body else []
    return names


class _Quiet(WSGIRequestHandler):  # type: ignore[misc]
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Log nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The date in each answer, on the cloud's clock."""
        return formatdate(time.time() + self.server.app.arm.fleet.ahead_s, usegmt=True)


class AzureServer:
    """A cloud on a port of its own, with TLS, served by daemon threads. `ca`: the certificate to trust."""

    def __init__(self, cloud: AzureCloud, directory: Path, port: int = 0) -> None:
        self.cloud = cloud
        authority = trustme.CA()
        self.ca = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server = make_server("127.0.0.1", port, cloud, threaded=True, request_handler=_Quiet, ssl_context=context)
        self._server.daemon_threads = True
        self.url = cloud.arm.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def environ(self) -> dict[str, str]:
        """What the SDK's own credentials are made from."""
        return {
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": "spotsupd",
            "AZURE_CLIENT_SECRET": _SECRET,
            "AZURE_AUTHORITY_HOST": self.url,
            "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential",
        }

    def settings(self, **given: Any) -> AzureSettings:
        """The settings for this cloud."""
        known: dict[str, Any] = {
            "regions": ("eastus",),
            "subscription": SUBSCRIPTION,
            "resource_group": GROUP,
            "subnets": SUBNETS,
            "security_groups": dict.fromkeys(SUBNETS, SECURITY_GROUP),
            "identity": IDENTITY,
            "endpoint": self.url,
            "endpoint_ca": str(self.ca),
            "prices": self.url,
        }
        return AzureSettings(**{**known, **given})

    def stop(self) -> None:
        """Stop listening; the machines run on. Idempotent."""
        self.cloud.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def azure_cloud(machines: Machines, port: int = 0) -> Iterator[AzureServer]:
    """A cloud over these machines, for as long as the context."""
    with TemporaryDirectory() as directory:
        server = AzureServer(AzureCloud(machines), Path(directory), port)
        try:
            yield server
        finally:
            server.stop()


def main() -> int:
    """Serve until SIGTERM or SIGINT, then end the machines."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.azure", description=__doc__)
    parser.add_argument("--dir", required=True, type=Path, help="where the machines live")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with real_machines(options.dir) as machines, azure_cloud(machines, options.port) as server:
        details = {
            "endpoint": server.url,
            "ssh_port": machines.ssh_port,
            "environ": server.environ,
            "settings": server.settings().model_dump(mode="json"),
        }
        sys.stdout.write(json.dumps(details) + "\n")
        sys.stdout.flush()
        done.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
