"""Which members Azure's api-versions know, and which api-versions our requests have."""

from __future__ import annotations

import pytest

from provisioners.azure import launch
from tests.clouds.azure_wire import FakeAzureError, complaints
from tests.unit.test_azure_rules import CASES, PLAIN, REQUEST, body
from tools.azure_models import FOLDER, RELEASES, read


def found_in(asked: object, version: str = launch.COMPUTE_API) -> list[str]:
    return complaints(asked, "Microsoft.Compute", version, "VirtualMachine")


@pytest.mark.parametrize("name", CASES)
def test_the_api_version_of_a_launch_knows_all_its_members(name: str) -> None:
    assert found_in(body(*CASES[name])) == []


def test_members_and_values_that_the_api_version_does_not_know_are_refused() -> None:
    asked = body(REQUEST, PLAIN)
    interface = asked["properties"]["networkProfile"]["networkInterfaceConfigurations"][0]
    asked["properties"]["priority"] = "Spott"
    asked["properties"]["networkProfile"]["networkApiVersion"] = "2022-11-02"
    interface["properties"]["speed"] = 9
    del interface["name"]
    del asked["properties"]["storageProfile"]["osDisk"]["createOption"]
    asked["properties"]["storageProfile"]["osDisk"]["diskSizeGB"] = "30"
    asked["zones"] = [1]
    where = "properties.networkProfile.networkInterfaceConfigurations[0]"
    kind = "VirtualMachineNetworkInterfaceConfiguration"
    assert sorted(found_in(asked)) == [
        f"Could not find member 'speed' on object of type '{kind}.properties'. Path '{where}.properties.speed'.",
        f"Error converting value '2022-11-02' to type 'NetworkApiVersion'. Path '{where[:25]}.networkApiVersion'.",
        "Error converting value '30' to type 'int'. Path 'properties.storageProfile.osDisk.diskSizeGB'.",
        "Error converting value 'Spott' to type 'VirtualMachinePriorityTypes'. Path 'properties.priority'.",
        "Error converting value 1 to type 'str'. Path 'zones[0]'.",
        "Required property 'createOption' not found in JSON. Path 'properties.storageProfile.osDisk'.",
        f"Required property 'name' not found in JSON. Path '{where}'.",
    ]


def test_a_body_with_a_type_that_was_not_written_is_refused() -> None:
    asked = body(REQUEST, PLAIN)
    asked["properties"]["hardwareProfile"]["vmSizeProperties"] = {"vCPUsAvailable": 1}
    (found,) = found_in(asked)
    assert found.startswith("The type VMSizeProperties is not in tests/clouds/azure_models")


def test_a_version_without_models_is_refused() -> None:
    with pytest.raises(FakeAzureError, match="No registered resource provider found for API version '2024-07-01'"):
        found_in({}, "2024-07-01")


def test_each_release_has_its_file_of_models_and_none_is_left() -> None:
    assert {each.file for each in RELEASES} == set(FOLDER.iterdir())


SDK = """
class Base(Model):
    pass
class Thing(Base):
    _validation = {"id": {"readonly": True}, "kind": {"required": True}, "size": {"required": True}}
    _attribute_map = {
        "id": {"key": "id", "type": "str"},
        "kind": {"key": "properties.kind", "type": "str"},
        "size": {"key": "size", "type": "str"},
        "parts": {"key": "properties.parts", "type": "[Part]"},
        "odata": {"key": "odata\\\\.type", "type": "str"},
    }
    def __init__(self, *, kind: Union[str, "_models.Kind"], size: Union[str, "_models.VirtualMachineSizeTypes"],
                 parts: Optional[List["_models.Part"]] = None, odata: Optional[str] = None, **kwargs: Any) -> None:
        pass
"""
KINDS = '''
class Kind(str, Enum, metaclass=CaseInsensitiveEnumMeta):
    """Of a thing."""
    TWO = "Two"
    ONE = "One"
class VirtualMachineSizeTypes(str, Enum):
    OLD = "Old"
'''


def test_the_models_of_a_release_are_read_without_importing_it() -> None:
    written = read(SDK, KINDS, ("Thing",))
    assert written.types == {
        "Thing": {"properties": "Thing.properties", "size": "str", "odata.type": "str"},
        "Thing.properties": {"kind": "Kind", "parts": "[Part]"},
    }
    assert written.required == {"Thing": ["properties", "size"], "Thing.properties": ["kind"]}
    assert written.enumerations == {"Kind": ["One", "Two"]}
