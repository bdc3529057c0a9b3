"""One launch: what the token has had already, the one insertion, its operation until that is over, and the machine."""

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
    ProvisionerError,
    Transient,
    Unknown,
    UnreachableError,
)
from provisioners.calls import Deadline, NoAnswerError, NoCredentialsError, NotSentError
from provisioners.catalog import Catalog
from provisioners.gcp import describe, launch, names
from provisioners.gcp.client import Gcp, GcpApiError
from provisioners.gcp.errors import GcpErrorReply, is_gone, is_used, launch_outcome
from provisioners.gcp.listing import Listing
from provisioners.gcp.settings import GcpSettings

_FIRST_LOOK_S = 0.2
_MAX_LOOK_S = 2.0
_MAX_CALL_S = 10.0
_OTHER = "a token stands for one request: take a new one"


class Insertion:
    """A name can be used again once its machine is deleted, and an insertion that failed may be repeated under the same
    token: so the operations are asked first what became of the token. Where they lag, the name and the request id
    still allow one machine at a time.
    """

    def __init__(self, gcp: Gcp, settings: GcpSettings, catalog: Catalog, listing: Listing) -> None:
        self._gcp = gcp
        self._settings = settings
        self._catalog = catalog
        self._listing = listing

    def launch(self, request: LaunchRequest, deadline: Deadline) -> LaunchOutcome:
        """As the protocol says."""
        offer = request.offer
        where = f"{offer.zone}, {offer.instance_type}, {offer.market}"
        if offer.region not in self._settings.regions:
            return Fatal(f"{offer.region} is not one of gcp.regions ({', '.join(self._settings.regions)})")
        machine = self._catalog.type_of("gcp", offer.instance_type)
        try:
            body = launch.instance(request, self._settings, machine, self._catalog.driver_of(machine))
            pattern = names.pattern_of_token(request.token)
            operations = self._listing.operations_in(offer.zone, pattern, deadline)
        except GcpApiError as error:
            return launch_outcome(error.reply, where)
        except UnreachableError as error:
            return Transient(str(error))
        except ProvisionerError as error:
            return Fatal(str(error))
        births = [each for each in operations if each.kind == "insert" and not each.code]
        if births:
            return self._launched_before(request, births[0], operations, where, deadline)
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
                return Unknown(f"Compute Engine ({zone}) took the launch, and answered what is no operation")
        except GcpApiError as error:
            if is_used(error.reply):
                name = names.instance_name(request)
                return self._the_machine(request, name, deadline) or _gone_again(request, name)
            return launch_outcome(error.reply, where)
        except NotSentError as error:
            return Transient(str(error))
        except NoAnswerError as error:
            return Unknown(str(error))
        except (NoCredentialsError, ProvisionerError) as error:
            return Fatal(str(error))
        return self._over(request, operation.name, where, deadline)

    def _over(self, request: LaunchRequest, name: str, where: str, deadline: Deadline) -> LaunchOutcome:
        """Wait for an insertion; Google takes up to half a minute to say that a zone is full."""
        zone, wait_s = request.offer.zone, _FIRST_LOOK_S
        while deadline.left_s() > wait_s:
            try:
                limit_s = min(deadline.left_s(), _MAX_CALL_S)
                raw = self._gcp.once("zoneOperations", "get", limit_s, zone, zone=zone, operation=name)
                found = describe.operation(raw)
            except (GcpApiError, NotSentError, NoAnswerError, NoCredentialsError, ProvisionerError):
                found = None  # the insertion goes on, whether or not it can be looked at
            if found is not None and found.done:
                if found.code and not is_used(GcpErrorReply(zone, found.code, found.message)):
                    return launch_outcome(GcpErrorReply(zone, found.code, found.message), where)
                return self._the_machine(request, found.target, deadline) or _gone_again(request, found.target)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_LOOK_S)
        return Unknown(f"Compute Engine ({where}) has begun to launch, and is not done in time")

    def _launched_before(
        self,
        request: LaunchRequest,
        birth: describe.Operation,
        operations: Sequence[describe.Operation],
        where: str,
        deadline: Deadline,
    ) -> LaunchOutcome:
        """The token has had its machine, or is about to."""
        if birth.target != names.instance_name(request):
            return Fatal(f"Compute Engine has {birth.target} under the token of {request.node}; {_OTHER}")
        if not birth.done:
            return self._over(request, birth.name, where, deadline)
        outcome = self._the_machine(request, birth.target, deadline)
        if outcome is not None:
            return outcome
        for gone in describe.ended(operations, (), since=0.0):
            return Launched(replace(gone, cluster=request.cluster, node=request.node, token=request.token))
        return Transient(
            f"Compute Engine ({where}) has had {birth.target}, and has it no more; a new node takes a new token"
        )

    def _the_machine(self, request: LaunchRequest, name: str, deadline: Deadline) -> LaunchOutcome | None:
        """The machine of this name, if it is the request's; None where there is none."""
        zone = request.offer.zone
        try:
            vm = self._gcp.ask("instances", "get", deadline, zone, kind="compute#instance", zone=zone, instance=name)
            found = describe.instance(vm, zone, self._settings, (), 0.0)
        except GcpApiError as error:
            if is_gone(error.reply):
                return None
            return Unknown(str(error))
        except ProvisionerError as error:
            return Unknown(str(error))
        if (found.cluster, found.node, found.token) != (request.cluster, request.node, request.token):
            return Fatal(f"{name} belongs to node {found.node!r} of cluster {found.cluster!r}; {_OTHER}")
        return Launched(found)


def _gone_again(request: LaunchRequest, name: str) -> LaunchOutcome:
    """It was there a moment ago: a look-up finds its end."""
    return Unknown(f"Compute Engine ({request.offer.zone}) has made {name}, and has it no more")
