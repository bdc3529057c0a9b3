"""One launch: the token's earlier operations, the insertion, its operation until it is done, and the instance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from provisioners.base import (
    Fatal,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Market,
    NoCapacity,
    ProvisionerError,
    Transient,
    Unknown,
)
from provisioners.calls import Deadline, NoAnswerError, NoCredentialsError, NotSentError, launched
from provisioners.catalog import Catalog
from provisioners.codes import ApiError
from provisioners.gcp import describe, launch, names
from provisioners.gcp.client import Gcp
from provisioners.gcp.errors import ERRORS, GcpErrorReply, is_gone
from provisioners.gcp.listing import Listing
from provisioners.gcp.reservations import Reservations
from provisioners.gcp.settings import GcpSettings

_FIRST_POLL_S = 0.2
_MAX_POLL_S = 2.0
_MAX_CALL_S = 10.0
_REMEDY = "a token identifies one request: use a new token"


class Insertion:
    """Inserts instances.

    A name can be reused once its instance is deleted, and a failed insertion may be repeated under the same token: so
    the token's operations are read first. Where they lag, the name and the request id still allow only one instance at
    a time.
    """

    def __init__(
        self, gcp: Gcp, settings: GcpSettings, catalog: Catalog, listing: Listing, reservations: Reservations
    ) -> None:
        self._gcp = gcp
        self._settings = settings
        self._catalog = catalog
        self._listing = listing
        self._reservations = reservations

    def launch(self, request: LaunchRequest, deadline: Deadline) -> LaunchOutcome:
        """As the protocol says."""
        regions = self._settings.regions
        return launched(request, "gcp", regions, ERRORS, lambda where: self._launch(request, where, deadline))

    def _launch(self, request: LaunchRequest, where: str, deadline: Deadline) -> LaunchOutcome:
        machine = self._catalog.type_of("gcp", request.offer.instance_type)
        body = launch.instance(request, self._settings, machine, self._catalog.driver_of(machine))
        pattern = names.pattern_of_token(request.owner, request.token)
        operations = self._listing.operations_in(request.offer.zone, pattern, deadline)
        births = [each for each in operations if each.kind == "insert" and not each.code]
        if births:
            return self._launched_before(request, births[0], operations, where, deadline)
        if request.offer.market is Market.RESERVED:
            reserved = self._reservations.within(request.offer, deadline)
            if isinstance(reserved, NoCapacity):
                return reserved
            body |= {**reserved.body(), "scheduling": body["scheduling"] | reserved.scheduling()}
        return self._insert(request, body, sum(each.kind == "insert" for each in operations), where, deadline)

    def _insert(
        self, request: LaunchRequest, body: dict[str, Any], failures: int, where: str, deadline: Deadline
    ) -> LaunchOutcome:
        zone = request.offer.zone
        try:
            operation = self._gcp.once(
                "instances",
                "insert_unary",
                deadline.left_s(),
                zone,
                zone=zone,
                instance_resource=body,
                request_id=names.request_id(request, failures),
            )
            if operation.kind != "compute#operation":
                return Unknown(f"Compute Engine ({zone}) accepted the launch, but did not reply with an operation")
        except ApiError as error:
            if ERRORS.is_used(error.reply):
                name = names.instance_name(request)
                return self._existing(request, name, deadline) or _vanished(request, name)
            raise
        return self._wait(request, operation.name, where, deadline)

    def _wait(self, request: LaunchRequest, name: str, where: str, deadline: Deadline) -> LaunchOutcome:
        """Wait for an insertion; Google takes up to half a minute to report that a zone is full."""
        zone, wait_s = request.offer.zone, _FIRST_POLL_S
        while deadline.left_s() > wait_s:
            try:
                limit_s = min(deadline.left_s(), _MAX_CALL_S)
                raw = self._gcp.once("zoneOperations", "get", limit_s, zone, zone=zone, operation=name)
                found = describe.operation(raw)
            except (NotSentError, NoAnswerError, NoCredentialsError, ProvisionerError):
                found = None  # the insertion continues even if it cannot be read
            if found is not None and found.done:
                if found.code and not ERRORS.is_used(GcpErrorReply(zone, found.code, found.message)):
                    return ERRORS.launch_outcome(GcpErrorReply(zone, found.code, found.message), where)
                return self._existing(request, found.target, deadline) or _vanished(request, found.target)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_POLL_S)
        return Unknown(f"Compute Engine ({where}) started the launch but did not finish in time")

    def _launched_before(
        self,
        request: LaunchRequest,
        birth: describe.Operation,
        operations: Sequence[describe.Operation],
        where: str,
        deadline: Deadline,
    ) -> LaunchOutcome:
        """Return the outcome where the token's instance exists, existed, or is being created."""
        if birth.target != names.instance_name(request):
            return Fatal(f"Compute Engine has {birth.target} under the token of {request.node}; {_REMEDY}")
        if not birth.done:
            return self._wait(request, birth.name, where, deadline)
        outcome = self._existing(request, birth.target, deadline)
        if outcome is not None:
            return outcome
        for gone in describe.ended(operations, (), since=0.0):
            return Launched(replace(gone, owner=request.owner, node=request.node, token=request.token))
        return Transient(
            f"Compute Engine ({where}) launched {birth.target} earlier, and it no longer exists; "
            "a new node needs a new token"
        )

    def _existing(self, request: LaunchRequest, name: str, deadline: Deadline) -> LaunchOutcome | None:
        """Return the instance of this name, if it is the request's; None where it does not exist."""
        zone = request.offer.zone
        try:
            vm = self._gcp.ask("instances", "get", deadline, zone, kind="compute#instance", zone=zone, instance=name)
            found = describe.instance(vm, zone, self._settings, (), 0.0)
        except ApiError as error:
            if is_gone(error.reply):
                return None
            return Unknown(str(error))
        except ProvisionerError as error:
            return Unknown(str(error))
        if (found.owner, found.node, found.token) != (request.owner, request.node, request.token):
            return Fatal(f"{name} belongs to node {found.node!r} of {found.owner}; {_REMEDY}")
        return Launched(found)


def _vanished(request: LaunchRequest, name: str) -> LaunchOutcome:
    """Return the outcome of what existed a moment ago: a look-up finds its end."""
    return Unknown(f"Compute Engine ({request.offer.zone}) created {name}, and it no longer exists")
