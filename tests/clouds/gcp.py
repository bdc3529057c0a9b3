"""Compute Engine for tests.

Real google-cloud-compute clients talk to it, with access tokens that they fetch from it for a service account's key.
Requests that Google's discovery document does not allow are refused. It has: insertions that are accepted and fail
later (full zones, quotas), names and request ids that are reused, listings that lag, preemptions with and without
notice, and none after a notice, machines that stop instead of ending, or leave nothing but their operations;
throttling, lost, broken, wrong and missing answers, calls that arrive twice, a clock that differs, wrong credentials
and missing permissions. What an account has beside machines is in gcp_account.py.
"""

from __future__ import annotations

import base64
import functools
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from provisioners.base import Provisioner
from provisioners.gcp.provisioner import GcpProvisioner
from provisioners.gcp.settings import GcpSettings
from tests.clouds.base import HANG_S, Answer, CloudServer, WireCloud
from tests.clouds.gcp_account import NEEDS
from tests.clouds.gcp_compute import OP_FAULTS, PROJECT, Compute
from tests.clouds.gcp_wire import Call, FakeGcpError, against, read_call
from tests.clouds.machines import Machines

_TOKEN = "ya29.a-token"  # noqa: S105 - of the test cloud alone
FAULTS = {
    "throttled": FakeGcpError(403, "rateLimitExceeded", "Rate Limit Exceeded"),
    "internal": FakeGcpError(503, "backendError", "Backend Error"),
    "fatal": FakeGcpError(400, "invalid", "Invalid value for field 'resource.networkInterfaces[0].network'"),
    "quota-at-once": FakeGcpError(403, "quotaExceeded", "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 0.0"),
    "unheard-of-at-once": FakeGcpError(400, "somethingNew", "Never seen before"),
}
_PERMISSIONS: Mapping[str, str] = {
    "instances.aggregatedList": "compute.instances.list",
    "globalOperations.aggregatedList": "compute.globalOperations.list",
    "disks.aggregatedList": "compute.disks.list",
    "machineTypes.aggregatedList": "compute.machineTypes.list",
    "acceleratorTypes.aggregatedList": "compute.acceleratorTypes.list",
    "instances.insert": "compute.instances.create",
}


class Cloud(WireCloud):
    """`credentials`: good, wrong (no token for them), expired (tokens are refused), hang or busy (no token now).
    `denied`: as "compute.instances.create". `strict`: what a clock that is off has signed is worth no token; without
    it, only the answers are by another clock.
    """

    faults = FAULTS
    # done-but-failed: accepted, and the operation fails, but the machine exists.
    handled = frozenset({*OP_FAULTS, "done-but-failed", "taken-at-once", "proxy", "full-late"})
    launch = "instances.insert"
    # Labels come with the machine; where metadata are held back, its name shows its cluster.
    young = frozenset({"networkInterfaces", "creationTimestamp", "machineType", "metadata"})

    def __init__(self, machines: Machines) -> None:
        self.compute = Compute(machines)
        self.strict = False
        # Whether the project uses Compute Engine's API.
        self.api_enabled = True
        super().__init__(self.compute.fleet)

    def read(self, environ: dict[str, Any], body: bytes) -> Call:
        """As the base says."""
        return read_call(environ, body)

    def answer(self, call: Call, fault: str) -> Answer:
        """As the base says."""
        return Answer(502, b"<html>Bad Gateway</html>") if fault == "proxy" else self.compute.serve(call, fault)

    def against(self, call: Call, answer: Answer) -> Iterable[str]:
        """As the base says."""
        return against(call, answer.body)

    def aside(self, environ: dict[str, Any], body: bytes) -> Answer | None:
        """An access token."""
        if environ["PATH_INFO"] != "/token":
            return None
        if self.credentials == "wrong":
            return Answer(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
        form = dict(parse_qsl(body.decode()))
        claims = json.loads(base64.urlsafe_b64decode(form["assertion"].split(".")[1] + "=="))
        now = time.time() + self.fleet.ahead_s
        if self.strict and not claims["iat"] - 300 < now < claims["exp"]:
            # google-api-php-client#1429
            why = "Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp"
            return Answer(400, {"error": "invalid_grant", "error_description": f"Invalid JWT: {why} values."})
        if self.credentials == "hang":
            self.closing.wait(HANG_S)
        if self.credentials in {"hang", "busy"}:
            return Answer(503, {"error": "internal_failure"})
        return Answer(200, {"access_token": _TOKEN, "expires_in": 3600, "token_type": "Bearer"})

    def admit(self, call: Call) -> None:
        """As the base says."""
        if self.credentials != "good" or call.authorization != f"Bearer {_TOKEN}":
            raise FakeGcpError(401, "authError", "Request had invalid authentication credentials.")
        # A bucket's name is unique in the world.
        project = call.path.get("project") or call.path.get("projectsId") or call.path.get("resource", PROJECT)
        if not self.api_enabled:
            # midl-dev/tezos-on-gke#34, terraform-google-modules/cloud-foundation-training#17
            page = "https://console.developers.google.com/apis/api/compute.googleapis.com/overview"
            message = (
                f"Compute Engine API has not been used in project {project} before or it is disabled. Enable it by "
                f"visiting {page}?project={project} then retry. If you enabled this API recently, wait a few minutes "
                "for the action to propagate to our systems and retry."
            )
            raise FakeGcpError(403, "accessNotConfigured", message)
        if project != PROJECT and not call.action.startswith(("images.", "reservations.")):
            raise FakeGcpError(404, "notFound", f"The resource 'projects/{project}' was not found")
        for name in self.needed(call):
            if name in self.denied:
                raise FakeGcpError(403, "forbidden", f"Required '{name}' permission for 'projects/{project}'")
        self.compute.account.admit(call)

    def needed(self, call: Call) -> list[str]:
        """Source: Compute Engine's reference, "instances.insert", IAM Permissions."""
        if call.action in NEEDS:
            return list(NEEDS[call.action])
        names = [_PERMISSIONS.get(call.action, f"compute.{call.action}")]
        if call.action == "instances.insert":
            body = call.body
            names += ["compute.disks.create", "compute.instances.setMetadata", "compute.subnetworks.use"]
            names += ["compute.instances.setLabels", "compute.disks.setLabels"] if body.get("labels") else []
            names += ["compute.resourcePolicies.use"] if body.get("resourcePolicies") else []
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


class Server(CloudServer):
    """Compute Engine's server, which also issues tokens."""

    @property
    def environ(self) -> dict[str, str]:
        """A service account's key, whose tokens are fetched here."""
        key = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": _key(),
            "client_email": f"daemon@{PROJECT}.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.url}/token",
        }
        file = self.folder / "gcp-key.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(key))
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "NO_GCE_CHECK": "true"}

    def settings(self, **given: Any) -> GcpSettings:
        """Of one region."""
        return GcpSettings(**{"project": PROJECT, "regions": ("us-central1",), "endpoint": self.url, **given})

    def provisioner(self, **given: Any) -> Provisioner:
        """Compute Engine's."""
        return GcpProvisioner(self.settings(**given))
