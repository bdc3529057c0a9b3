"""Writes tests/clouds/azure_models: what the requests and the answers of Azure's operations consist of, by api-version.

    .venv/bin/python -m tools.azure_models

Azure refuses a member that the api-version of its request does not know. Each version that is called has a release of
Microsoft's SDK that was generated from it. The release is downloaded from PyPI into a temporary folder, and read as
text (tools/azure_sdk.py): nothing of it is installed or imported. Run this after changing an api-version in
provisioners/azure, the installed version of an SDK, or `RELEASES`, and read the difference.

What these releases do not say: which enumerations Azure extends (all are written, except `OPEN`), and what is required
within an object that may be missing as a whole.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.azure_sdk import Operations, read
from tools.stack import ROOT

FOLDER = ROOT / "tests" / "clouds" / "azure_models"
NEWEST_COMPUTE = "azure-mgmt-compute==39.0.0"
NEWEST_NETWORK = "azure-mgmt-network==33.1.0"


@dataclass(frozen=True, slots=True)
class Release:
    """One api-version, the release that describes it and its folder there, the operations that are called, and the
    types that their bodies and answers consist of.
    """

    namespace: str
    version: str
    requirement: str
    folder: str
    operations: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Return what is written."""
        return FOLDER / f"{self.namespace.lower()}-{self.version}.json"


RELEASES = (
    Release(
        "Microsoft.Compute",
        "2025-04-01",
        "azure-mgmt-compute==37.0.0",
        "azure/mgmt/compute",
        (
            *("VirtualMachines.begin_create_or_update", "VirtualMachines.begin_deallocate"),
            *("Images.get", "VirtualMachineScaleSets.get"),
        ),
        (
            *("VirtualMachine", "VirtualMachineIdentity", "UserAssignedIdentitiesValue", "SubResource"),
            *("HardwareProfile", "StorageProfile", "ImageReference", "OSDisk", "ManagedDiskParameters"),
            *("OSProfile", "LinuxConfiguration", "SshConfiguration", "SshPublicKey"),
            *("NetworkProfile", "VirtualMachineNetworkInterfaceConfiguration", "NetworkInterfaceReference"),
            *("VirtualMachineNetworkInterfaceIPConfiguration", "VirtualMachinePublicIPAddressConfiguration"),
            *("PublicIPAddressSku", "DiagnosticsProfile", "BootDiagnostics", "BillingProfile"),
            *("CapacityReservationProfile", "Image", "VirtualMachineScaleSet"),
        ),
    ),
    Release(
        "Microsoft.Compute",
        "2026-04-01",
        NEWEST_COMPUTE,
        "azure/mgmt/compute",
        (
            *("VirtualMachines.list", "VirtualMachines.list_all", "VirtualMachines.get"),
            *("VirtualMachines.begin_delete", "VirtualMachines.simulate_eviction"),
            "VirtualMachines.retrieve_boot_diagnostics_data",
            *("VirtualMachineImages.list", "VirtualMachineImages.get", "Usage.list"),
            *("CapacityReservationGroups.get", "CapacityReservations.list_by_capacity_reservation_group"),
        ),
        (
            *("VirtualMachine", "VirtualMachineProperties", "VirtualMachineIdentity", "UserAssignedIdentitiesValue"),
            *("SubResource", "HardwareProfile", "OSProfile", "LinuxConfiguration", "SshConfiguration", "SshPublicKey"),
            *("NetworkProfile", "NetworkInterfaceReference", "BillingProfile", "CapacityReservationProfile"),
            *("VirtualMachineInstanceView", "InstanceViewStatus", "RetrieveBootDiagnosticsDataResult"),
            *("VirtualMachineImageResource", "VirtualMachineImage", "VirtualMachineImageProperties"),
            *("Usage", "UsageName", "CapacityReservationGroup", "CapacityReservationGroupProperties"),
            *("CapacityReservation", "CapacityReservationProperties", "Sku", "ScheduleProfile", "SubResourceReadOnly"),
        ),
    ),
    Release(
        "Microsoft.Compute",
        "2026-03-02",
        NEWEST_COMPUTE,
        "azure/mgmt/compute",
        ("Disks.list_by_resource_group", "Disks.begin_delete"),
        ("Disk", "DiskProperties", "CreationData"),
    ),
    Release(
        "Microsoft.Compute",
        "2021-07-01",
        NEWEST_COMPUTE,
        "azure/mgmt/compute",
        ("ResourceSkus.list",),
        (
            *("ResourceSku", "ResourceSkuLocationInfo", "ResourceSkuRestrictions", "ResourceSkuRestrictionInfo"),
            "ResourceSkuCapabilities",
        ),
    ),
    Release(
        "Microsoft.Compute",
        "2024-03-03",
        "azure-mgmt-compute==37.0.0",
        "azure/mgmt/compute",
        ("GalleryImageVersions.get", "GalleryImageVersions.list_by_gallery_image"),
        ("GalleryImageVersion", "GalleryImageVersionList"),
    ),
    Release(
        "Microsoft.Network",
        "2024-05-01",
        "azure-mgmt-network==28.1.0",
        "azure/mgmt/network",
        (
            *("NetworkSecurityGroups.list", "NetworkSecurityGroups.begin_create_or_update"),
            *("NetworkSecurityGroups.begin_delete", "SecurityRules.begin_create_or_update", "Subnets.get"),
            *("VirtualNetworks.list", "VirtualNetworks.begin_create_or_update", "VirtualNetworks.begin_delete"),
        ),
        (
            *("NetworkSecurityGroup", "NetworkSecurityGroupListResult", "SecurityRule"),
            *("VirtualNetwork", "VirtualNetworkListResult", "AddressSpace", "Subnet"),
            "ServiceEndpointPropertiesFormat",
        ),
    ),
    Release(
        "Microsoft.Network",
        "2026-03-01",
        NEWEST_NETWORK,
        "azure/mgmt/network",
        (
            *("NetworkInterfaces.list", "NetworkInterfaces.begin_delete", "PublicIPAddresses.list"),
            *("PublicIPAddresses.begin_delete", "NetworkSecurityGroups.get", "Subnets.get"),
        ),
        (
            *("NetworkInterface", "NetworkInterfacePropertiesFormat", "NetworkInterfaceIPConfiguration", "SubResource"),
            *("NetworkInterfaceIPConfigurationPropertiesFormat", "PublicIPAddress", "IPConfiguration"),
            *("PublicIPAddressPropertiesFormat", "NetworkSecurityGroup", "NetworkSecurityGroupPropertiesFormat"),
            *("SecurityRule", "SecurityRulePropertiesFormat", "Subnet", "SubnetPropertiesFormat"),
            "ServiceEndpointPropertiesFormat",
        ),
    ),
    Release(
        "Microsoft.ManagedIdentity",
        "2023-01-31",
        "azure-mgmt-msi==7.0.0",
        "azure/mgmt/msi/v2023_01_31",
        (
            *("UserAssignedIdentities.list_by_resource_group", "UserAssignedIdentities.create_or_update"),
            "UserAssignedIdentities.delete",
        ),
        ("Identity", "UserAssignedIdentitiesListResult"),
    ),
    Release(
        "Microsoft.Authorization",
        "2022-04-01",
        "azure-mgmt-authorization==4.0.0",
        "azure/mgmt/authorization/v2022_04_01",
        (
            *("Permissions.list_for_resource_group", "RoleDefinitions.get", "RoleDefinitions.create_or_update"),
            *("RoleDefinitions.delete", "RoleAssignments.list_for_subscription", "RoleAssignments.create"),
            "RoleAssignments.delete",
        ),
        (
            *("RoleDefinition", "Permission", "PermissionGetResult"),
            *("RoleAssignmentCreateParameters", "RoleAssignment", "RoleAssignmentListResult"),
        ),
    ),
    Release(
        "Microsoft.Storage",
        "2023-05-01",
        "azure-mgmt-storage==21.2.1",
        "azure/mgmt/storage/v2023_05_01",
        (
            *("StorageAccounts.list", "StorageAccounts.list_by_resource_group", "StorageAccounts.get_properties"),
            *("StorageAccounts.check_name_availability", "StorageAccounts.begin_create", "StorageAccounts.update"),
            *("StorageAccounts.delete", "FileShares.get", "FileShares.create"),
            *("BlobContainers.get", "BlobContainers.create"),
        ),
        (
            *("StorageAccountCheckNameAvailabilityParameters", "StorageAccountCreateParameters", "Sku"),
            *("StorageAccountUpdateParameters", "NetworkRuleSet", "VirtualNetworkRule", "IPRule"),
            *("FileShare", "BlobContainer", "CheckNameAvailabilityResult"),
            *("StorageAccount", "StorageAccountListResult"),
        ),
    ),
    *(
        Release(
            "Microsoft.Resources",
            version,
            "azure-mgmt-resource==23.0.1",
            f"azure/mgmt/resource/resources/v{version.replace('-', '_')}",
            ("ResourceGroups.get",),
            ("ResourceGroup", "ResourceGroupProperties"),
        )
        for version in ("2021-04-01", "2022-09-01")
    ),
    Release(
        "Microsoft.Insights",
        "2015-04-01",
        "azure-mgmt-monitor==6.0.2",
        "azure/mgmt/monitor/v2015_04_01",
        ("ActivityLogs.list",),
        ("EventDataCollection", "EventData", "LocalizableString"),
    ),
)


def text_of(release: Release, files: zipfile.ZipFile) -> dict[str, Any]:
    """Return what is written of a release. Pure."""

    def sources(pattern: str) -> list[str]:
        names = [each for each in files.namelist() if re.fullmatch(f"{release.folder}/{pattern}", each)]
        return [files.read(each).decode() for each in names]

    (models,), (enumerations,) = sources(r"models/_models(_py3)?\.py"), sources(r"models/\w*_enums\.py")
    written = read(models, enumerations, release.types)
    described, operations = Operations(sources(r"operations/_\w*operations\.py")), {}
    for name in release.operations:
        operations[name], page = described.read(name, release.version)
        for member, what in page.items():
            written.add(str(operations[name]["answer"]), member, what, required=member == "value")
    return {
        "source": release.requirement,
        "operations": operations,
        "types": dict(sorted(written.types.items())),
        "required": _sorted(written.required),
        "read_only": _sorted(written.read_only),
        "enumerations": dict(sorted(written.enumerations.items())),
    }


def _sorted(members: dict[str, list[str]]) -> dict[str, list[str]]:
    return {kind: sorted(each) for kind, each in sorted(members.items()) if each}


def write(releases: Iterable[Release]) -> None:
    """Download releases, and write their files."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for release in releases:
            inside = Path(folder) / release.requirement
            if not inside.exists():
                download = ["download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(inside)]
                subprocess.run([sys.executable, "-m", "pip", *download, release.requirement], check=True)
            (wheel,) = inside.glob("*.whl")
            with zipfile.ZipFile(wheel) as files:
                text = text_of(release, files)
            release.file.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
            print(f"{release.file.relative_to(ROOT)}: {release.file.stat().st_size} bytes, from {release.requirement}")


if __name__ == "__main__":
    write(RELEASES)
