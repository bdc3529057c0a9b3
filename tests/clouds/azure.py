"""Azure for tests: Resource Manager, Entra ID's tokens and the retail prices, over TLS.

The real SDK talks to it, with its real credentials: a client secret, a token, an authority of its own. Requests and
answers are held against Microsoft's description of their api-version. It has: launches that are accepted and fail
later, full zones, quotas, throttling, evictions with and without notice, and none after a notice, listings and a log
that lag, lost, broken, wrong and missing answers, calls that arrive twice, a clock that differs, wrong credentials and
missing permissions.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import trustme

from provisioners.azure.provisioner import AzureProvisioner
from provisioners.azure.settings import AzureSettings
from provisioners.base import Provisioner
from tests.clouds.azure_arm import Arm
from tests.clouds.azure_contract import against, asked
from tests.clouds.azure_machines import DEAD_MAN_ROLE, GROUP, ROOT, SUBSCRIPTION
from tests.clouds.azure_requests import SECURITY_GROUP, SUBNETS
from tests.clouds.azure_storage import POLL
from tests.clouds.azure_wire import Call, FakeAzureError, read_call
from tests.clouds.base import Answer, CloudServer, WireCloud
from tests.clouds.machines import Machines

TENANT = "99999999-8888-7777-6666-555555555555"
_SECRET = "client-secret"  # noqa: S105 - the test cloud's only one
# A JWT whose claims name an application.
_TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps({'appid': 'spotsupd'}).encode()).decode().rstrip('=')}.c2ln"
FAULTS = {
    "throttled": FakeAzureError("TooManyRequests", "The request is being throttled.", {"Retry-After": "1"}),
    "transient": FakeAzureError("ServiceUnavailable", "The service is unavailable."),
    "internal": FakeAzureError("InternalServerError", "An internal error has occurred"),
    "fatal": FakeAzureError("InvalidParameter", "The value of parameter networkProfile is invalid."),
    "full": FakeAzureError("SkuNotAvailable", "The requested size is currently not available in location 'eastus'."),
    "quota": FakeAzureError(
        "OperationNotAllowed",
        "Operation could not be completed as it results in exceeding approved LowPriorityCores quota. Current Limit: 3",
    ),
    "denied": FakeAzureError("AuthorizationFailed", "The client does not have authorization to perform action"),
    "unheard-of": FakeAzureError("SomethingNew", "Never seen before"),
}
_CREDENTIALS = {
    "refused": FakeAzureError("InvalidAuthenticationToken", "The access token is invalid."),
    "expired": FakeAzureError("ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than now."),
}
LAUNCH = "Microsoft.Compute/virtualMachines/write"
DELETE = "Microsoft.Compute/virtualMachines/delete"
LISTING = "Microsoft.Compute/virtualMachines/read"
STORAGE_WRITE = "Microsoft.Storage/storageAccounts/write"
LOG = "Microsoft.Insights/eventtypes/values/read"
# The linked permissions, by action, for Azure's own steps.
LINKED = {
    LAUNCH: (
        "Microsoft.Compute/disks/write",
        "Microsoft.Network/networkInterfaces/write",
        "Microsoft.Network/networkInterfaces/join/action",
        "Microsoft.Network/publicIPAddresses/write",
        "Microsoft.Network/publicIPAddresses/join/action",
        "Microsoft.Network/virtualNetworks/subnets/join/action",
    ),
    DELETE: (
        "Microsoft.Compute/disks/delete",
        "Microsoft.Network/networkInterfaces/delete",
        "Microsoft.Network/publicIPAddresses/delete",
    ),
}


class Cloud(WireCloud):
    """`credentials`: good, wrong (Entra ID takes no secret), refused or expired (Azure takes no token)."""

    faults = FAULTS
    launch = LAUNCH
    # The network's listings lag behind: they do not have its interface yet. Tags come with the machine.
    young = frozenset({"networkInterfaces", "networkProfile", "timeCreated", "hardwareProfile"})

    def __init__(self, machines: Machines) -> None:
        self.arm = Arm(machines)
        super().__init__(self.arm.fleet)

    def fail_allocation(self, code: str, after_s: float = 0.0) -> None:
        """Accept the next launch and fail it so much later: a failed machine stays."""
        self.arm.failing.append((code, after_s))

    def read(self, environ: dict[str, Any], body: bytes) -> Call:
        """As the base says."""
        call = read_call(environ, body)
        return replace(call, action=self.arm.action_of(call))

    def answer(self, call: Call, fault: str) -> Answer:
        """As the base says."""
        self.complaints += asked(call)
        return self.arm.serve(call)

    def against(self, call: Call, answer: Answer) -> Iterable[str]:
        """As the base says."""
        return against(call, answer)

    def aside(self, environ: dict[str, Any], body: bytes) -> Answer | None:
        """A console, prices, a token."""
        path: str = environ["PATH_INFO"]
        if path.startswith("/_blob/"):
            return Answer(200, self.fleet.machines.console(path.removeprefix("/_blob/")).encode())
        if path == "/api/retail/prices":
            return self._prices(read_call(environ, body))
        return self._entra(read_call(environ, body)) if path.startswith(f"/{TENANT}/") else None

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

    def _prices(self, call: Call) -> Answer:
        fault = self.next_fault("prices")
        if fault in FAULTS:
            return FAULTS[fault].answer(call)
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
        return Answer(200, {"Items": items, "NextPageLink": None, "Count": len(items)})

    def admit(self, call: Call) -> None:
        """As the base says."""
        if call.headers.get("authorization") != f"Bearer {_TOKEN}":
            raise FakeAzureError("AuthenticationFailedMissingToken", "Authentication failed.")
        if self.credentials in _CREDENTIALS:
            raise _CREDENTIALS[self.credentials]
        for name in self.needed(call):
            if name in self.denied:
                message = (
                    f"The client 'spotsupd' with object id '0' does not have authorization to perform action '{name}' "
                    f"over scope '{ROOT}' or the scope is invalid."
                )
                raise FakeAzureError("AuthorizationFailed", message)

    def needed(self, call: Call) -> list[str]:
        """As the base says."""
        if call.action == f"Microsoft.Storage/{POLL}":
            return []  # none is documented
        names = [call.action, *LINKED.get(call.action, ())]
        if call.action == STORAGE_WRITE and b'"virtualNetworkRules": [{' in call.body:
            names.append("Microsoft.Network/virtualNetworks/subnets/joinViaServiceEndpoint/action")
        if call.action == LAUNCH:
            names += (
                ["Microsoft.Network/networkSecurityGroups/join/action"] if SECURITY_GROUP.encode() in call.body else []
            )
            names += (
                ["Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"]
                if b"userAssignedIdentities" in call.body
                else []
            )
            names += (
                ["Microsoft.Compute/capacityReservationGroups/deploy/action"]
                if b"capacityReservationGroup" in call.body
                else []
            )
            image = str(call.json()["properties"]["storageProfile"]["imageReference"].get("id", ""))
            names += [
                f"Microsoft.Compute/{kind}/read"
                for part, kind in (("/galleries/", "galleries/images/versions"), ("Compute/images/", "images"))
                if part in image
            ]
        return names


class Server(CloudServer):
    """Azure's server, with TLS. `ca`: the certificate to trust."""

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        super().__init__(cloud, folder, context)
        cloud.arm.url = cloud.arm.account.storage.url = self.url

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
            "dead_man_role": DEAD_MAN_ROLE,
            "endpoint": self.url,
            "endpoint_ca": str(self.ca),
            "prices": self.url,
        }
        return AzureSettings(**{**known, **given})

    def provisioner(self, **given: Any) -> Provisioner:
        """Azure's, which watches an accepted launch for a shorter time: most tests launch."""
        return AzureProvisioner(self.settings(**given), looks_s=(0.0, 0.1, 0.2))
