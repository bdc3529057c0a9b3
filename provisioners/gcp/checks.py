"""The checks that `spotsupd check` makes on Compute Engine. They launch nothing.

There is no dry run of a launch: only the first launch shows whether the daemon's account may launch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from provisioners.base import CLUSTER_TAG, DeniedError, Finding, OfferQuery, ProvisionerError, Scope
from provisioners.calls import Deadline
from provisioners.catalog import Catalog
from provisioners.checks import CloudChecks, check_disk, read_all
from provisioners.codes import ApiError
from provisioners.gcp import interfaces, names, quota
from provisioners.gcp.client import Gcp
from provisioners.gcp.disks import DiskType
from provisioners.gcp.offers import Limits, Offers
from provisioners.gcp.reservations import Reservations
from provisioners.gcp.rest import IAM, NOT_ENABLED, Rest
from provisioners.gcp.settings import GcpSettings

_OWN_ACCOUNT = ".iam.gserviceaccount.com"
# The project of the default image: everyone may launch from those.
_PUBLIC = str(GcpSettings.model_fields["image"].default).split("/")[1]
_ACT_AS = "iam.serviceAccounts.actAs"
# Image.architecture of the API; older images have none.
_ARCHITECTURES = {"X86_64": "x86_64", "ARM64": "arm64"}


class Checks(CloudChecks):
    """As CloudChecks says."""

    def __init__(self, gcp: Gcp, settings: GcpSettings, catalog: Catalog) -> None:
        self._gcp = gcp
        self._settings = settings
        self._catalog = catalog
        self._offers = Offers(gcp, settings, catalog)

    def _further(self, deadline: Deadline) -> Iterator[Finding]:
        yield self._try("reading", lambda: self._reading(deadline))
        for key, image in self._images().items():
            yield self._try(key, partial(self._image, key, image, deadline))
        yield self._try("network", lambda: self._network(deadline))
        if account := self._settings.service_account:
            yield self._try("service account", lambda: self._account(account, deadline))
        if self._settings.reservations:
            reservations = Reservations(self._gcp, self._settings, self._catalog)
            yield self._try("reservations", lambda: reservations.check(time.time(), deadline))
        for region in self._settings.regions:
            if subnetwork := self._settings.subnetworks.get(region):
                yield self._try(f"{region} subnetwork", partial(self._subnetwork, region, subnetwork, deadline))
            for place, further in self._settings.further_subnetworks.items():
                if names.region_of(place.partition("/")[0]) == region:
                    yield self._try(f"{place} subnetworks", partial(self._further_of, region, further, deadline))
            yield self._try(f"{region} machine types", partial(self._types, region, deadline))
            yield self._try(f"{region} quota", partial(self._quota, region, deadline))

    def _credentials(self, deadline: Deadline) -> str:
        try:
            project = self._gcp.ask("projects", "get", deadline, kind="compute#project")
        except ApiError as error:
            raise ProvisionerError(f"{error}: set gcp.project to an existing project") from error
        return f"Compute Engine lets the daemon look at project {project.name}"

    def _reading(self, deadline: Deadline) -> str:
        tagged = f'labels.{CLUSTER_TAG} = "none"'
        reads = []
        for service, wanted in (("instances", tagged), ("disks", tagged), ("globalOperations", "name = none")):
            ask = partial(self._gcp.ask, service, "aggregated_list", deadline, filter=wanted, max_results=1)
            reads.append((f"compute.{service}.list", ask))
        read_all(reads, "the daemon's account lacks")
        return "machines, disks and operations of the project can be listed"

    def _images(self) -> dict[str, str]:
        settings = self._settings
        found = {"image": settings.image, **{f"image of {gpu}": image for gpu, image in settings.images.items()}}
        return found | ({"image_proprietary": settings.image_proprietary} if settings.image_proprietary else {})

    def _image(self, key: str, image: str, deadline: Deadline) -> str:
        where = image.split("/")
        remedy = f"set gcp.{'images' if key.startswith('image of') else key}"
        if len(where) < 5 or where[0] != "projects" or where[2:4] != ["global", "images"]:
            raise ProvisionerError(f"{image!r} is not of the form projects/P/global/images/family/F: {remedy}")
        named: dict[str, Any] = {"family": where[5]} if where[4] == "family" else {"image": where[4]}
        method = "get_from_family" if "family" in named else "get"
        try:
            found = self._gcp.ask(
                "images", method, deadline, where[1], kind="compute#image", **{**named, "project": where[1]}
            )
        except ApiError as error:
            raise ProvisionerError(f"image {image} does not exist ({error.reply.code}): {remedy}") from error
        except DeniedError as error:
            if error.scope is Scope.GLOBAL or where[1] == self._settings.project:
                raise
            raise DeniedError(f"{error.__cause__}; {_grant_on(where[1])}, or {remedy}", error.scope) from error
        kind, needed = _ARCHITECTURES.get(found.architecture, ""), self._architectures(key.removeprefix("image of "))
        if kind and kind not in needed:
            raise ProvisionerError(f"image {found.name} is for {kind}, and the machines for {needed[0]}: {remedy}")
        check_disk("gcp", self._settings.disk_gb, found.name, found.disk_size_gb)
        theirs = where[1] not in {self._settings.project, _PUBLIC}
        return f"{image} is {found.name}{f'; for launches, {_grant_on(where[1])}' if theirs else ''}"

    def _architectures(self, gpu: str) -> list[str]:
        """Return what the machines that take an image of `gcp.images` may have; x86_64 for the images for all
        others."""
        machines = self._catalog.select("gcp", OfferQuery())
        found = {each.arch for each in machines if gpu in {each.gpu, each.gpu.split("-", 1)[0]}}
        return sorted(found) or ["x86_64"]

    def _network(self, deadline: Deadline) -> str:
        """Firewall rules that allow SSH, and traffic between nodes, for any source."""
        network = names.last_of(interfaces.network_of(self._settings))
        port = self._settings.ssh_port
        pages = self._gcp.pages("firewalls", "list", deadline, "compute#firewallList", max_results=500)
        listed = [rule for page in pages for rule in page.items]
        rules = [rule for rule in listed if names.last_of(rule.network) == network and _is_for(rule, self._settings)]
        if not any(_lets_in(rule, port) for rule in rules):
            raise ProvisionerError(f"no firewall rule of network {network} allows port {port}: add one for the daemon")
        if not any(_is_wide(rule) for rule in rules):
            raise ProvisionerError(
                f"no firewall rule of network {network} lets machines reach each other at all TCP ports: add one for "
                "their own addresses or tags"
            )
        return f"network {network} lets the daemon in, and nodes reach each other"

    def _account(self, account: str, deadline: Deadline) -> str:
        """Check whether a launch may give nodes this account. IAM lets everybody ask about themselves."""
        name, _, domain = account.partition("@")
        if not domain:
            return f"nodes act as the service account {name}, which is not checked: it is no address"
        inside = domain.removesuffix(_OWN_ACCOUNT)
        project = inside if inside != domain else self._settings.project  # of the project's own ones, a number
        path = f"v1/projects/{project}/serviceAccounts/{account}:testIamPermissions"
        try:
            answer = Rest(self._settings).ask(IAM, "POST", path, deadline.left_s(), body={"permissions": [_ACT_AS]})
        except ApiError as error:
            if error.reply.code == "NOT_FOUND":
                raise ProvisionerError(
                    f"the service account {account} does not exist: create it, or set gcp.service_account to one that "
                    "does"
                ) from error
            if error.reply.code in {NOT_ENABLED, "PERMISSION_DENIED"}:
                return f"whether the daemon's account may act as {account} cannot be read here ({error})"
            raise
        if _ACT_AS not in (answer.get("permissions") or ()):
            raise DeniedError(
                f"the daemon's account may not act as {account}, so that no machine would be created: give it "
                "roles/iam.serviceAccountUser on that account"
            )
        return f"the daemon's account may give nodes the service account {account}"

    def _subnetwork(self, region: str, subnetwork: str, deadline: Deadline, key: str = "subnetworks") -> str:
        name = names.last_of(subnetwork)
        where = subnetwork.split("/")
        project = {"project": where[1]} if where[0] == "projects" else {}
        try:
            self._gcp.ask(
                "subnetworks",
                "get",
                deadline,
                region,
                kind="compute#subnetwork",
                region=region,
                subnetwork=name,
                **project,
            )
        except ApiError as error:
            raise ProvisionerError(f"{error}: change it in gcp.{key}") from error
        return f"subnetwork {name} exists"

    def _further_of(self, region: str, further: Sequence[str], deadline: Deadline) -> str:
        for each in dict.fromkeys(further):
            self._subnetwork(region, each, deadline, "further_subnetworks")
        return f"all {len(further)} of them exist"

    def _types(self, region: str, deadline: Deadline) -> str:
        query = OfferQuery(regions=(region,))
        found = self._offers.places(self._catalog.select("gcp", query), [region], query, deadline)
        if not found:
            raise ProvisionerError(f"{region} offers no machine type of the catalog: remove it from gcp.regions")
        gpus = ", ".join(sorted({machine.gpu for _, machine in found if machine.gpu}))
        return f"{region} has machines with {gpus}; Google has no dry run: only a launch shows whether it is allowed"

    def _quota(self, region: str, deadline: Deadline) -> str:
        limits = self._offers.limits([region], deadline)
        if region not in limits:
            raise ProvisionerError(f"the quotas of {region} cannot be read")
        everywhere = limits.get("", {}).get(quota.ALL_REGIONS)
        gpus = quota.gpus_in(limits[region])
        if everywhere == 0:
            raise ProvisionerError(f"the project's quota {quota.ALL_REGIONS} is 0: request more at IAM & Admin, Quotas")
        if not gpus:
            raise ProvisionerError(f"no GPU quota of {region} is above 0: request more at IAM & Admin, Quotas")
        common = self._other_limit(self._settings.disk_type or "pd-balanced", region, limits)
        if common is not None:
            metric, limit, what = common
            raise ProvisionerError(
                f"the quota {metric} for {region} is {limit:g}, and each node has {what}: request more at IAM & Admin, "
                "Quotas"
            )
        found = f"GPUs in {region}: {', '.join(f'{name} {value:g}' for name, value in gpus.items())}"
        newer = None if self._settings.disk_type else self._other_limit("hyperdisk-balanced", region, limits)
        if newer is not None:
            found += f"; none of a type that takes Hyperdisk only: the quota {newer[0]} is {newer[1]:g}"
        return found

    def _other_limit(self, disk_type: DiskType, region: str, limits: Limits) -> tuple[str, float, str] | None:
        return quota.other_limit(
            1,
            self._settings.disk_gb,
            disk_type,
            public=self._settings.public_address,
            limits=limits[region],
            everywhere=limits.get("", {}),
        )


def _grant_on(project: str) -> str:
    return f"give the daemon's account roles/compute.imageUser (compute.images.useReadOnly) in the project {project}"


def _is_for(rule: Any, settings: GcpSettings) -> bool:
    """True if a rule applies to traffic to our instances."""
    tags = set(rule.target_tags)
    return rule.direction == "INGRESS" and not rule.disabled and (not tags or bool(tags & set(settings.network_tags)))


def _lets_in(rule: Any, port: int) -> bool:
    return any(each.I_p_protocol in {"tcp", "6", "all"} and _has(each.ports, port) for each in rule.allowed)


def _is_wide(rule: Any) -> bool:
    return any(each.I_p_protocol in {"tcp", "6", "all"} and _has_all(each.ports) for each in rule.allowed)


def _has_all(ports: Sequence[str]) -> bool:
    return not ports or any(each in {"0-65535", "1-65535"} for each in ports)


def _has(ports: Sequence[str], port: int) -> bool:
    """ "22" and "20-30" include port 22; no ports means all."""
    ranges = [each.partition("-") for each in ports]
    return not ranges or any(int(first) <= port <= int(last or first) for first, _, last in ranges)
