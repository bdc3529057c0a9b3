"""Azure's virtual machines behind the provisioner protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from provisioners.azure import console, describe, errors, history, launch, leftovers
from provisioners.azure.checks import Checks
from provisioners.azure.client import CREDENTIALS_HINT, Azure, Clients
from provisioners.azure.errors import AzureErrorReply
from provisioners.azure.offers import Offers
from provisioners.azure.reservations import Reservations
from provisioners.azure.settings import AzureSettings
from provisioners.base import (
    CLUSTER_TAG,
    Coverage,
    DeniedError,
    Fatal,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    LeftoverKind,
    Offer,
    OfferQuery,
    Owner,
    ProvisionerError,
    Transient,
    Unknown,
    owner_of,
)
from provisioners.calls import Deadline, NoAnswerError, NoCredentialsError, NotSentError, launched
from provisioners.catalog import Catalog, load_catalog
from provisioners.codes import ApiError
from provisioners.listings import one_of
from provisioners.readings import read_each

NOT_FOUND = ("ResourceNotFound", "NotFound", "ResourceGroupNotFound", "HTTP 404")
# The waits between looks at whether an accepted launch has failed: a failure seen then has a code for capacity memory.
_LOOKS_S = (0.0, 0.5, 1.5)
_ASSIGNMENTS_API = "2022-04-01"
_LOG_SHARE = 0.3  # of the time that is left: a slow log must not cost the listing


class AzureProvisioner:
    """A Provisioner over one resource group. Raises ProvisionerError where the SDK or the catalog is missing."""

    name = "azure"

    def __init__(
        self,
        settings: AzureSettings,
        *,
        catalog: Catalog | None = None,
        now: Callable[[], float] = time.time,
        looks_s: Sequence[float] = _LOOKS_S,
    ) -> None:
        self._settings = settings
        self._catalog = catalog or load_catalog(settings.catalog)
        self._azure = Azure(settings)
        self._now = now
        self._looks_s = looks_s
        self._offers = Offers(self._azure, settings, self._catalog, now)
        self._reservations = Reservations(self._azure, settings, now)

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """As the protocol says."""
        return self._offers.find(query, Deadline(timeout_s))

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """As the protocol says. The PUT is made once, and only if the name is unused: it changes no existing machine.

        Azure accepts a request first and allocates it later. The operation is watched for two seconds; if it fails
        within them, the machine that it leaves behind is deleted, and the outcome follows from the operation's code. If
        it fails later, a listing shows the machine as stopped, with its tags and the refusal: the daemon then
        terminates it.
        """
        deadline = Deadline(timeout_s)
        return launched(
            request,
            "azure",
            self._settings.regions,
            errors.ERRORS,
            lambda where: self._launch(request, where, deadline),
            CREDENTIALS_HINT,
        )

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """As the protocol says, by listing."""
        return one_of(
            lambda: self._list(owner, Deadline(timeout_s)),
            lambda each: each.token == token or each.state is InstanceState.UNREADABLE,
        )

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """As the protocol says: five listings, of machines, their power, interfaces, addresses, and the log. Azure
        cannot filter them by tags.
        """
        return self._list(owner, Deadline(timeout_s))

    def coverage(self, timeout_s: float) -> Coverage:  # noqa: ARG002 - the protocol's
        """As the protocol says; the subscription is configured."""
        return Coverage(self._settings.subscription, tuple(self._settings.regions))

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """As the protocol says. Azure deletes disk, interface and address with the machine."""
        self._delete(instance_id, Deadline(timeout_s))

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        """Disks, network interfaces and addresses without a machine."""
        return leftovers.listed(self._azure, owner, Deadline(timeout_s))

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Delete it; one that is already gone is no error."""
        leftovers.removed(self._azure, leftover, Deadline(timeout_s))

    def console(self, instance_id: str, timeout_s: float) -> str:
        """Return the tail of the serial console, from the machine's boot diagnostics; "" where there is none (yet)."""
        return console.tail(self._azure, self._settings, instance_id, Deadline(timeout_s))

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """Return what `spotsupd check` shows: credentials, permissions, images, network, quota, and the dead-man
        switch."""
        return Checks(self._azure, self._settings, self._catalog).run(Deadline(timeout_s))

    # -- launching -----------------------------------------------------------------------------------------

    def _launch(self, request: LaunchRequest, where: str, deadline: Deadline) -> LaunchOutcome:
        name = launch.vm_name(request.owner, request.token)
        machine = self._catalog.type_of("azure", request.offer.instance_type)
        body = launch.virtual_machine(request, self._settings, machine, self._catalog.driver_of(machine))
        if (ended := self._ended_before(name, request.owner, deadline)) is not None:
            return self._if_ours(ended, request)
        machine_id = launch.machine_id(self._settings, name)
        try:
            with self._reservations.place(request.offer, machine_id, deadline) as none:
                if none is not None:
                    return self._existing(name, request, none.message, where, deadline, absent=none)
                vm, operation = self._put(name, body, deadline)
        except ApiError as error:
            if errors.ERRORS.is_used(error.reply):
                return self._existing(name, request, error, where, deadline)
            raise
        if (reply := self._failed_at_once(operation, deadline)) is not None:
            return self._after_deleting(name, reply, where, deadline)
        try:
            self._let_deallocate_itself(vm, deadline)
        except ApiError as error:
            return self._after_deleting(name, cast("AzureErrorReply", error.reply), where, deadline)
        except DeniedError:
            self._delete(name, deadline)  # if that fails, it is reaped as an orphan
            raise
        except ProvisionerError as error:
            return Unknown(f"Azure accepted the launch, and not its dead-man switch: {error}")
        try:
            return Launched(describe.instance(vm, self._settings))
        except ProvisionerError as error:
            return Unknown(f"Azure accepted the launch, but its reply cannot be read: {error}")

    def _let_deallocate_itself(self, vm: Mapping[str, Any], deadline: Deadline) -> None:
        """Give the machine's own identity its one right. Raises as `Azure.ask`."""
        assignment = launch.role_assignment(vm, self._settings)
        if assignment is None:
            return
        path, body = assignment
        params = {"api-version": _ASSIGNMENTS_API}
        self._azure.ask(
            "the role of a machine's dead-man switch",
            lambda clients, more: clients.raw("PUT", path, params, more, body),
            deadline,
        )

    def _put(self, name: str, body: Mapping[str, Any], deadline: Deadline) -> tuple[Mapping[str, Any], str]:
        """(the machine as Azure accepted it, the URL of its operation). Raises as `Azure.once`."""
        headers: dict[str, str] = {}

        def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
            from azure.core import MatchConditions

            return clients.compute.virtual_machines.begin_create_or_update(
                clients.group,
                name,
                dict(body),
                etag="*",
                match_condition=MatchConditions.IfMissing,
                polling=False,
                api_version=launch.COMPUTE_API,
                raw_response_hook=lambda seen: headers.update(
                    {key.lower(): value for key, value in seen.http_response.headers.items()}
                ),
                **more,
            ).result()

        reply = self._azure.once(f"a launch of {name}", ask, deadline.left_s())
        return reply, headers.get("azure-asyncoperation", "")

    def _failed_at_once(self, operation: str, deadline: Deadline) -> AzureErrorReply | None:
        """Return why the operation failed, if it fails soon. A missing answer is no evidence."""
        for wait_s in self._looks_s if operation else ():
            if deadline.left_s() < 2 * wait_s + 1.0:
                return None
            time.sleep(wait_s)
            try:
                reply = self._azure.once(
                    "a launch's progress",
                    lambda clients, more: clients.raw("GET", operation, {}, more),
                    deadline.left_s() / 2,
                )
            except (ApiError, NotSentError, NoAnswerError, NoCredentialsError):
                continue
            if reply.get("status") == "Succeeded":
                return None
            if reply.get("status") in {"Failed", "Canceled"}:
                error = reply.get("error") or {}
                code, message = str(error.get("code") or reply["status"]), str(error.get("message") or "")
                return AzureErrorReply("Azure, asked to create the machine,", 200, code, message)
        return None

    def _after_deleting(self, name: str, reply: AzureErrorReply, where: str, deadline: Deadline) -> LaunchOutcome:
        """Return the outcome of a failed launch, after starting its machine's deletion. If that fails, an outcome that
        would be retried is Unknown: the retry would meet the failed machine.
        """
        found = errors.ERRORS.launch_outcome(reply, where)
        try:
            self._delete(name, deadline)
        except ProvisionerError as error:
            if isinstance(found, Transient | Unknown):
                return Unknown(f"{reply.sentence(where)}; its instance could not be deleted: {error}")
        if isinstance(found, Unknown):
            return Transient(found.message)
        return found

    def _existing(
        self,
        name: str,
        request: LaunchRequest,
        refused: object,
        where: str,
        deadline: Deadline,
        *,
        absent: LaunchOutcome | None = None,
    ) -> LaunchOutcome:
        """Return the outcome where a machine of this name exists: it is the result if it is this token's and node's and
        has not failed. `refused`: why none was launched; `absent`: the outcome where there is no such machine."""
        try:
            vm = self._azure.ask(
                f"the machine {name}",
                lambda clients, more: clients.compute.virtual_machines.get(
                    clients.group, name, expand="instanceView", **more
                ),
                deadline,
            )
            power = describe.status(vm, "PowerState/")
            found = describe.instance(vm, self._settings, power, failed=describe.failure(vm))
        except ApiError as error:
            if absent is not None and errors.is_missing(error.reply.code):
                return absent
            return Transient(f"{refused}; then {error}")
        except ProvisionerError as error:
            return Unknown(f"{refused}; {error}")
        outcome = self._if_ours(found, request)
        code, message = describe.failure(vm)
        if isinstance(outcome, Launched) and code and found.state is InstanceState.STOPPED:
            reply = AzureErrorReply("Azure, asked to create the machine,", 200, code, message)
            return self._after_deleting(name, reply, where, deadline)
        return outcome

    def _if_ours(self, found: Instance, request: LaunchRequest) -> LaunchOutcome:
        """Return the outcome for a machine with this request's name: its tags show whether it is this request's."""
        if (found.owner, found.token) == (request.owner, request.token) and found.node in {"", request.node}:
            return Launched(found)
        return Fatal(
            f"the token of {request.node} belongs to {found.node or found.id} of {found.owner} already: a token "
            "identifies one request"
        )

    def _ended_before(self, name: str, owner: Owner, deadline: Deadline) -> Instance | None:
        """Return the token's machine if the log has its end: Azure itself would create another of that name."""
        past = self._log(deadline, machine=name).get(name)
        if past is None or past.gone_at is None or past.failed:
            return None
        return describe.gone(name, past, self._settings, owner)

    # -- listing -------------------------------------------------------------------------------------------

    def _list(self, owner: Owner | None, deadline: Deadline) -> list[Instance]:
        """Return the owner's machines; None: those of every owner, without ended ones. The log is read last: one that
        ends meanwhile is in the listing or the log.
        """
        listed = list(
            self._azure.pages(
                "machines",
                lambda clients, more: clients.compute.virtual_machines.list(clients.group, **more),
                deadline,
            )
        )
        machines = [each for each in listed if _is_owned(describe.tags_of(each), owner)]
        powers: dict[str, str] = {}
        failures: dict[str, tuple[str, str]] = {}
        addresses: dict[str, describe.Addresses] = {}
        if machines:
            statuses = list(
                self._azure.pages(
                    "machines' power",
                    lambda clients, more: clients.compute.virtual_machines.list_all(status_only="true", **more),
                    deadline,
                )
            )
            powers, failures = describe.powers(statuses), describe.failures(statuses)
            nics = leftovers.all_of(self._azure, LeftoverKind.NETWORK_INTERFACE, deadline)
            public = self._settings.public_address
            ips = leftovers.all_of(self._azure, LeftoverKind.ADDRESS, deadline) if public else []
            addresses = describe.addresses_of(nics, ips)
        pasts, now = self._log(deadline), self._now()

        def read(vm: Mapping[str, Any]) -> Instance:
            key, name = str(vm.get("id", "")).lower(), str(vm.get("name", "")).lower()
            return describe.instance(
                vm,
                self._settings,
                powers.get(key, ""),
                addresses.get(key),
                pasts.get(name),
                now,
                failures.get(key, ("", "")),
            )

        found = read_each(machines, read, lambda vm: vm["name"])
        there = {str(each.get("name", "")).lower() for each in listed}
        if owner is not None:
            gone = [(n, past) for n, past in pasts.items() if past.gone_at is not None and not past.failed]
            ended = read_each(
                [(name, past) for name, past in gone if name not in there],
                lambda each: describe.gone(each[0], each[1], self._settings, owner),
                lambda each: each[0],
            )
            found += [each for each in ended if each.owner == owner]
        return found

    def _log(self, deadline: Deadline, machine: str = "") -> dict[str, history.Past]:
        """Return the log's histories; none where it cannot be read: `check` reports that, and a listing does not need
        it."""
        settings, within = self._settings, Deadline(deadline.left_s() * _LOG_SHARE)

        def raw(method: str, url: str, params: Mapping[str, str]) -> Any:
            if (left_s := within.left_s()) <= 0:
                raise NoAnswerError("the activity log took too long")
            what = "the activity log"
            return self._azure.once(what, lambda clients, more: clients.raw(method, url, params, more), left_s)

        def ask() -> dict[str, history.Past]:
            now = self._now() + self._azure.ahead_s
            return history.pasts(
                history.read(raw, settings.subscription, settings.resource_group, now, machine=machine)
            )

        try:
            by_clock = self._azure.ahead_s
            found = ask()
            # The first answer shows that Azure's clock differs: what was asked for was another hour.
            return found if abs(self._azure.ahead_s - by_clock) < history.CLOCKS_S / 2 else ask()
        except (ApiError, NoAnswerError, KeyError, TypeError):
            return {}
        except (NotSentError, NoCredentialsError):
            if machine:
                raise
            return {}

    def _delete(self, name: str, deadline: Deadline) -> None:
        """Return once Azure accepted. Forced: an unwanted machine need not shut down in order."""
        try:
            self._azure.ask(
                f"the deletion of {name}",
                lambda clients, more: clients.compute.virtual_machines.begin_delete(
                    clients.group, name, force_deletion=True, polling=False, **more
                ),
                deadline,
            )
        except ApiError as error:
            if error.reply.code not in NOT_FOUND:
                raise


def _is_owned(tags: Mapping[str, str], owner: Owner | None) -> bool:
    return CLUSTER_TAG in tags and owner in {None, owner_of(tags)}
