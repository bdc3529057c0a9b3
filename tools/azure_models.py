"""Writes tests/clouds/azure_models: which members a request's body may have, by api-version.

    .venv/bin/python -m tools.azure_models

Azure refuses a member that the api-version of its request does not know. Each version that we send bodies with has a
release of Microsoft's SDK that was generated from it. The release is downloaded from PyPI into a temporary folder, and
read as text: nothing of it is installed or imported. Run this after changing an api-version in provisioners/azure or
`RELEASES`, and read the difference.

Read-only members are left out: no request has them. What these releases do not say: which enumerations Azure extends
(all are written, except `OPEN`), and what is required within an object that may be missing as a whole.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.stack import ROOT

FOLDER = ROOT / "tests" / "clouds" / "azure_models"
OPEN = frozenset({"VirtualMachineSizeTypes"})  # those of 2019; Microsoft.Compute/skus has the sizes of today


@dataclass(frozen=True, slots=True)
class Release:
    """One api-version, the release with its models and their folder there, and the types that our bodies consist of."""

    namespace: str
    version: str
    requirement: str
    models: str
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
        "azure/mgmt/compute/models",
        (
            *("VirtualMachine", "VirtualMachineIdentity", "UserAssignedIdentitiesValue", "SubResource"),
            *("HardwareProfile", "StorageProfile", "ImageReference", "OSDisk", "ManagedDiskParameters"),
            *("OSProfile", "LinuxConfiguration", "SshConfiguration", "SshPublicKey"),
            *("NetworkProfile", "VirtualMachineNetworkInterfaceConfiguration"),
            *("VirtualMachineNetworkInterfaceIPConfiguration", "VirtualMachinePublicIPAddressConfiguration"),
            *("PublicIPAddressSku", "DiagnosticsProfile", "BootDiagnostics", "BillingProfile"),
            "CapacityReservationProfile",
        ),
    ),
    Release(
        "Microsoft.Network",
        "2024-05-01",
        "azure-mgmt-network==28.1.0",
        "azure/mgmt/network/models",
        (
            *("NetworkSecurityGroup", "SecurityRule"),
            *("VirtualNetwork", "AddressSpace", "Subnet", "ServiceEndpointPropertiesFormat"),
        ),
    ),
    Release(
        "Microsoft.ManagedIdentity",
        "2023-01-31",
        "azure-mgmt-msi==7.0.0",
        "azure/mgmt/msi/v2023_01_31/models",
        ("Identity",),
    ),
    Release(
        "Microsoft.Authorization",
        "2022-04-01",
        "azure-mgmt-authorization==4.0.0",
        "azure/mgmt/authorization/v2022_04_01/models",
        ("RoleDefinition", "Permission", "RoleAssignmentCreateParameters"),
    ),
    Release(
        "Microsoft.Storage",
        "2023-05-01",
        "azure-mgmt-storage==21.2.1",
        "azure/mgmt/storage/v2023_05_01/models",
        (
            *("StorageAccountCheckNameAvailabilityParameters", "StorageAccountCreateParameters", "Sku"),
            *("StorageAccountUpdateParameters", "NetworkRuleSet", "VirtualNetworkRule", "IPRule"),
            *("FileShare", "BlobContainer"),
        ),
    ),
)


@dataclass(slots=True)
class Written:
    """What goes into a file: members' types by type, those that are required, and the values of enumerations."""

    types: dict[str, dict[str, str]] = field(default_factory=dict)
    required: dict[str, list[str]] = field(default_factory=dict)
    enumerations: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, member: str, what: str, *, required: bool) -> None:
        """Add a member of a type."""
        self.types.setdefault(kind, {})[member] = what
        if required and member not in self.required.setdefault(kind, []):
            self.required[kind].append(member)


def read(source: str, enumerations: str, wanted: tuple[str, ...]) -> Written:
    """Return the wanted types of a release's models. Pure."""
    classes = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
    known = {each.name: each for each in ast.parse(enumerations).body if isinstance(each, ast.ClassDef)}
    written = Written()
    for kind in wanted:
        written.types[kind] = {}
        for key, what, enumeration, required in _members(classes[kind]):
            # A dot in a key is an object that the SDK has taken apart; an escaped one is a dot.
            *outer, member = (part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", key))
            where = kind
            for part in outer:
                written.add(where, part, f"{where}.{part}", required=required)
                where = f"{where}.{part}"
            if enumeration and enumeration not in OPEN:
                written.enumerations[enumeration] = sorted(_values(known[enumeration]))
                written.add(where, member, what.replace("str", enumeration), required=required)
            else:
                written.add(where, member, what, required=required)
    return written


def _members(made: ast.ClassDef) -> Iterator[tuple[str, str, str, bool]]:
    """(its path in the body, its type, the enumeration of its values or "", whether it is required) of each member.
    A class repeats what it inherits."""
    rules = _literal(made, "_validation")
    start = next(each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    hints = {each.arg: ast.unparse(each.annotation) for each in start.args.kwonlyargs if each.annotation is not None}
    for name, described in _literal(made, "_attribute_map").items():
        rule = rules.get(name, {})
        if not rule.get("readonly"):
            what = str(described["type"])
            named = re.search(r"_models\.(\w+)", hints.get(name, "")) if what.strip("[]{}") == "str" else None
            yield str(described["key"]), what, named[1] if named else "", bool(rule.get("required"))


def _literal(made: ast.ClassDef, name: str) -> dict[str, Any]:
    for each in made.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id == name:
            found: dict[str, Any] = ast.literal_eval(each.value)
            return found
    return {}


def _values(made: ast.ClassDef) -> Iterator[str]:
    for each in made.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield str(each.value.value)


def write(release: Release) -> None:
    """Download a release and write its file."""
    with tempfile.TemporaryDirectory() as folder:
        download = ["download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", *download, release.requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (named,) = (each for each in files.namelist() if re.fullmatch(f"{release.models}/_\\w+_enums.py", each))
            models = files.read(f"{release.models}/_models_py3.py").decode()
            written = read(models, files.read(named).decode(), release.types)
    text = {
        "source": release.requirement,
        "types": dict(sorted(written.types.items())),
        "required": {kind: sorted(members) for kind, members in sorted(written.required.items()) if members},
        "enumerations": dict(sorted(written.enumerations.items())),
    }
    FOLDER.mkdir(exist_ok=True)
    release.file.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in RELEASES:
        write(each)
        print(f"{each.file.relative_to(ROOT)}: {each.file.stat().st_size} bytes, from {each.requirement}")
