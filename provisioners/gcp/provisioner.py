"""Compute Engine behind the provisioner protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from provisioners.base import (
    CLUSTER_TAG,
    TOKEN_TAG,
    Coverage,
    Finding,
    Instance,
    InstanceState,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    Offer,
    OfferQuery,
    Owner,
)
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, load_catalog
from provisioners.codes import ApiError
from provisioners.gcp import leftovers, names
from provisioners.gcp.checks import Checks
from provisioners.gcp.client import Gcp
from provisioners.gcp.errors import is_gone
from provisioners.gcp.insertion import Insertion
from provisioners.gcp.listing import Listing
from provisioners.gcp.offers import Offers
from provisioners.gcp.reservations import Reservations
from provisioners.gcp.settings import GcpSettings
from provisioners.listings import complete, one_of

_CONSOLE_PORT = 1
UNREADABLE = InstanceState.UNREADABLE


class GcpProvisioner:
    """A Provisioner over the regions of the settings. Raises ProvisionerError where SDK or catalog are missing."""

    name = "gcp"

    def __init__(
        self, settings: GcpSettings, *, catalog: Catalog | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._catalog = catalog or load_catalog(settings.catalog)
        self._gcp = Gcp(settings)
        self._listing = Listing(self._gcp, settings, now)
        reservations = Reservations(self._gcp, settings, self._catalog)
        self._insertion = Insertion(self._gcp, settings, self._catalog, self._listing, reservations)
        self._offers = Offers(self._gcp, settings, self._catalog, now)

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """As the protocol says."""
        return self._offers.find(query, Deadline(timeout_s))

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """As the protocol says. The instance is inserted once; then its operation is polled until it is done."""
        return self._insertion.launch(request, Deadline(timeout_s))

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """As the protocol says. Of an ended one only owner, id, zone, node and cause are known."""
        wanted = names.labelled({**owner.tags, TOKEN_TAG: token})
        snapshot = self._listing.read(wanted, names.pattern_of_token(owner, token), Deadline(timeout_s))
        ended = [replace(each, owner=owner, token=token) for each in snapshot.ended(since=0.0)]
        return one_of(
            lambda: complete([*snapshot.machines, *ended], snapshot.silent),
            lambda each: (each.owner, each.token) == (owner, token) or each.state is UNREADABLE,
        )

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """As the protocol says: two listings for the whole project, one of instances and one of operations. The latter
        shows instances deleted within the last hour, and those that could not be made after all, among the newest 500
        of the owner's operations.
        """
        wanted = names.labelled(owner.tags) if owner else f"labels.{CLUSTER_TAG}:*"
        snapshot = self._listing.read(wanted, names.pattern_of_owner(owner), Deadline(timeout_s))
        if owner is None:
            return complete(snapshot.machines, snapshot.silent)
        mine = [each for each in snapshot.machines if each.owner == owner or each.state is UNREADABLE]
        over = [replace(each, owner=owner) for each in (*snapshot.ended(), *snapshot.refused())]
        return complete([*mine, *over], snapshot.silent)

    def coverage(self, timeout_s: float) -> Coverage:  # noqa: ARG002 - the protocol's
        """As the protocol says; the project is configured."""
        return Coverage(self._settings.project, tuple(self._settings.regions))

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """As the protocol says."""
        deadline = Deadline(timeout_s)
        for zone, name in self._places(instance_id, deadline):
            self._ask_unless_gone("delete_unary", deadline, zone=zone, instance=name)

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        """Disks without an instance. Addresses and interfaces cannot outlive their instance here."""
        return leftovers.listed(self._gcp, owner, Deadline(timeout_s))

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Delete it; one that is already gone is no error."""
        leftovers.removed(self._gcp, leftover, Deadline(timeout_s))

    def console(self, instance_id: str, timeout_s: float) -> str:
        """Return the last megabyte of the serial console."""
        deadline = Deadline(timeout_s)
        for zone, name in self._places(instance_id, deadline):
            answer = self._ask_unless_gone(
                "get_serial_port_output", deadline, zone=zone, instance=name, port=_CONSOLE_PORT
            )
            if answer is not None and answer.contents:
                return str(answer.contents)
        return ""

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """Return what `spotsupd check` shows: credentials, permissions, images, network, machine types, quota."""
        return Checks(self._gcp, self._settings, self._catalog).run(Deadline(timeout_s))

    # -- inside --------------------------------------------------------------------------------------------

    def _places(self, instance_id: str, deadline: Deadline) -> list[tuple[str, str]]:
        zone, name = names.split_id(instance_id)
        if zone:
            return [(zone, name)]
        found = self._listing.machines(f'name = "{name}"', deadline)
        return [(where, vm.name) for where, vm in found]

    def _ask_unless_gone(self, method: str, deadline: Deadline, *, zone: str, **parameters: Any) -> Any:
        try:
            return self._gcp.ask("instances", method, deadline, zone, zone=zone, **parameters)
        except ApiError as error:
            if is_gone(error.reply):
                return None
            raise
