"""EC2 behind the provisioner protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from provisioners.aws import addresses, describe, errors, launch, leftovers
from provisioners.aws.checks import Checks
from provisioners.aws.client import CREDENTIALS_HINT, Aws
from provisioners.aws.offers import Offers
from provisioners.aws.settings import AwsSettings
from provisioners.base import (
    CLUSTER_TAG,
    TOKEN_TAG,
    Coverage,
    Fatal,
    Finding,
    Instance,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    Offer,
    OfferQuery,
    Owner,
    ProvisionerError,
    Transient,
    Unknown,
)
from provisioners.calls import Deadline, launched
from provisioners.catalog import Catalog, load_catalog
from provisioners.codes import ApiError
from provisioners.kept import Kept
from provisioners.listings import in_regions, one_of
from provisioners.readings import read_each

_PAGE = 1000  # EC2's maximum
_ACCOUNT_KEPT_S = 600.0  # credentials of another account come with a restart, or with a profile that is refreshed
_ACCOUNT_TIMEOUT_S = 5.0
_NOT_FOUND = ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed")


class AwsProvisioner:
    """A Provisioner over the regions of the settings. Raises ProvisionerError where boto3 or the catalog is missing."""

    name = "aws"

    def __init__(
        self,
        settings: AwsSettings,
        *,
        catalog: Catalog | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._catalog = catalog or load_catalog(settings.catalog)
        self._aws = Aws(settings)
        self._now = now
        self._offers = Offers(self._aws, settings, self._catalog, now)
        self._account: Kept[str, str] = Kept(_ACCOUNT_KEPT_S)

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """As the protocol says."""
        return self._offers.find(query, Deadline(timeout_s))

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """As the protocol says. RunInstances is called once, and never repeated here."""
        deadline = Deadline(timeout_s)
        return launched(
            request,
            "aws",
            self._settings.regions,
            errors.ERRORS,
            lambda where: self._launch(request, where, deadline),
            CREDENTIALS_HINT,
        )

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """As the protocol says. By tag: a listing by idempotency token covers one region only, too."""
        wanted, deadline = describe.tagged({**owner.tags, TOKEN_TAG: token}), Deadline(timeout_s)
        return one_of(lambda: self._list_all(wanted, deadline), lambda _: True)

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """As the protocol says: per region one listing of instances, and one of spot requests where there are any."""
        wanted = describe.tagged(owner.tags) if owner else {"tag-key": CLUSTER_TAG}
        return self._list_all(wanted, Deadline(timeout_s))

    def coverage(self, timeout_s: float) -> Coverage:
        """As the protocol says. STS needs no permission, but a way to it: without one the account is not known."""
        account = self._account.get("", self._now().timestamp(), lambda: self._asked_account(timeout_s))
        return Coverage(account, tuple(self._settings.regions))

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """As the protocol says. EC2 may not find a young instance yet: later listings still show it."""
        deadline = Deadline(timeout_s)
        for region, ec2_id in self._places(instance_id):
            self._ask_unless_gone(
                region,
                "terminate_instances",
                deadline,
                _NOT_FOUND,
                want="TerminatingInstances",
                InstanceIds=[ec2_id],
            )

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        """Disks, network interfaces and addresses without an instance, and open spot requests."""
        deadline = Deadline(timeout_s)
        regions = self._settings.regions
        return [each for region in regions for each in leftovers.listed(self._aws, region, owner, deadline)]

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Delete it; one that is already gone is no error."""
        leftovers.removed(self._aws, leftover, Deadline(timeout_s))

    def console(self, instance_id: str, timeout_s: float) -> str:
        """Return the tail of the serial console; EC2 has it after some minutes, and "" before."""
        deadline = Deadline(timeout_s)
        for region, ec2_id in self._places(instance_id):
            answer = self._ask_unless_gone(region, "get_console_output", deadline, _NOT_FOUND, InstanceId=ec2_id)
            if text := answer.get("Output"):
                return str(text)
        return ""

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """Return what `spotsupd check` shows: credentials, permissions, images, network, quota."""
        return Checks(self._aws, self._settings, self._catalog, self._now).run(Deadline(timeout_s))

    # -- inside --------------------------------------------------------------------------------------------

    def _asked_account(self, timeout_s: float) -> str:
        deadline = Deadline(min(timeout_s, _ACCOUNT_TIMEOUT_S))
        try:
            answer = self._aws.ask("sts", self._settings.regions[0], "get_caller_identity", deadline, want="Account")
        except ProvisionerError:
            return ""
        return str(answer["Account"])

    def _list_all(self, wanted: Mapping[str, str], deadline: Deadline) -> list[Instance]:
        return in_regions(self._settings.regions, lambda region: self._list(region, wanted, deadline))

    def _list(self, region: str, wanted: Mapping[str, str], deadline: Deadline) -> list[Instance]:
        filters = describe.filters(wanted)
        reservations = self._aws.pages(
            "ec2", region, "describe_instances", deadline, "Reservations", Filters=filters, MaxResults=_PAGE
        )
        listed = [each for reservation in reservations for each in reservation.get("Instances", ())]
        notices: dict[str, float] = {}
        if any(describe.may_be_preempted(each) for each in listed):
            notices = describe.preemptions(
                self._aws.pages(
                    "ec2",
                    region,
                    "describe_spot_instance_requests",
                    deadline,
                    "SpotInstanceRequests",
                    Filters=describe.filters({**wanted, "state": "active"}),
                    MaxResults=_PAGE,
                ),
                self._now().timestamp(),
            )
        return read_each(
            listed,
            lambda each: describe.instance(each, region, self._settings, notices.get(each["InstanceId"])),
            lambda each: describe.id_of(region, each["InstanceId"]),
        )

    def _launch(self, request: LaunchRequest, where: str, deadline: Deadline) -> LaunchOutcome:
        region = request.offer.region
        machine = self._catalog.type_of("aws", request.offer.instance_type)
        driver, primary = self._catalog.driver_of(machine), ""
        if addresses.needs_interface(self._settings, machine):
            primary = addresses.ready_interface(self._aws, request, self._settings, machine, deadline)
        parameters = launch.run_instances(request, self._settings, machine, driver, primary)
        try:
            answer = self._aws.once("ec2", region, "run_instances", deadline.left_s(), **parameters)
        except ApiError as error:
            if errors.is_used(error.reply):
                return self._launched_before(request, error, where, deadline)
            refusal = errors.ERRORS.refusal(error.reply, where)
            if primary and refusal is not None:
                addresses.remove_interface(self._aws, request, primary, deadline)
            raise
        try:
            (raw,) = answer["Instances"]
            return Launched(describe.instance(raw, region, self._settings, None))
        except (KeyError, ValueError, ProvisionerError) as error:
            return Unknown(f"EC2 in {region} accepted the launch, but its reply cannot be read: {error!r}")

    def _launched_before(
        self, request: LaunchRequest, refused: ApiError, where: str, deadline: Deadline
    ) -> LaunchOutcome:
        """EC2 refuses a token whose instance has ended, or whose parameters differ: the settings may have changed
        since. The result is the instance of this token and this node, as long as EC2 lists it.
        """
        try:
            wanted = describe.tagged({**request.owner.tags, TOKEN_TAG: request.token})
            found = self._list(request.offer.region, wanted, deadline)
        except ProvisionerError as error:
            return Unknown(f"{refused}; {error}")
        mine = [each for each in found if each.node == request.node]
        if mine:
            return Launched(mine[0])
        outcome = errors.ERRORS.launch_outcome(refused.reply, where)
        return outcome if isinstance(outcome, Fatal) else Transient(f"{refused}; a new node needs a new token")

    def _places(self, instance_id: str) -> Iterable[tuple[str, str]]:
        region, ec2_id = describe.split_id(instance_id)
        return [(each, ec2_id) for each in ([region] if region else self._settings.regions)]

    def _ask_unless_gone(
        self, region: str, call: str, deadline: Deadline, gone: Sequence[str], **parameters: Any
    ) -> dict[str, Any]:
        try:
            return self._aws.ask("ec2", region, call, deadline, **parameters)
        except ApiError as error:
            if error.reply.code in gone:
                return {}
            raise
