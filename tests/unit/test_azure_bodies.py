"""Which members Azure's api-versions know, and which api-versions our requests have."""

from __future__ import annotations

import pytest

from provisioners.azure import launch
from tests.clouds.azure_contract import complaints
from tests.clouds.azure_wire import FakeAzureError
from tests.unit.test_azure_rules import CASES, PLAIN, REQUEST, body
from tools.azure_models import FOLDER, RELEASES
from tools.azure_sdk import Operations, read


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


SDK = '''
class Base(Model):
    pass
class Thing(Base):
    """A thing.

    :vartype id: str
    :ivar state: How it is.
    :vartype state: str or
     ~azure.models.Kind
    """
    _validation = {
        "id": {"readonly": True},
        "state": {"readonly": True},
        "made": {"readonly": True},
        "kind": {"required": True},
        "size": {"required": True},
    }
    _attribute_map = {
        "id": {"key": "id", "type": "str"},
        "state": {"key": "properties.state", "type": "str"},
        "made": {"key": "properties.times.made", "type": "iso-8601"},
        "kind": {"key": "properties.kind", "type": "str"},
        "size": {"key": "size", "type": "str"},
        "parts": {"key": "properties.parts", "type": "[Part]"},
        "odata": {"key": "odata\\\\.type", "type": "str"},
    }
    def __init__(self, *, kind: Union[str, "_models.Kind"], size: Union[str, "_models.VirtualMachineSizeTypes"],
                 parts: Optional[List["_models.Part"]] = None, odata: Optional[str] = None, **kwargs: Any) -> None:
        pass
'''
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
        "Thing": {"id": "str", "properties": "Thing.properties", "size": "str", "odata.type": "str"},
        "Thing.properties": {"state": "Kind", "times": "Thing.properties.times", "kind": "Kind", "parts": "[Part]"},
        "Thing.properties.times": {"made": "datetime"},
    }
    assert written.required == {"Thing": ["properties", "size"], "Thing.properties": ["kind"]}
    assert {kind: each for kind, each in written.read_only.items() if each} == {
        "Thing": ["id"],
        "Thing.properties": ["state", "times"],
        "Thing.properties.times": ["made"],
    }
    assert written.enumerations == {"Kind": ["One", "Two"]}


NEWER = """
class Base(_Model):
    id: Optional[str] = rest_field(visibility=["read"])
class Thing(Base):
    made_at: Optional[datetime.datetime] = rest_field(name="madeAt", visibility=["read"], format="rfc3339")
    kind: Union[str, "_models.Kind"] = rest_field(visibility=["read", "create"])
    parts: Optional[list["_models.Part"]] = rest_field()
    tags: Optional[dict[str, str]] = rest_field()
    unit: Literal["Count"] = rest_field()
"""


def test_the_models_of_a_newer_release_are_read_too() -> None:
    written = read(NEWER, KINDS, ("Thing",))
    members = {"id": "str", "madeAt": "datetime", "kind": "Kind", "parts": "[Part]", "tags": "{str}", "unit": "str"}
    assert written.types == {"Thing": members}
    assert written.required == {"Thing": ["kind", "unit"]}
    assert written.read_only == {"Thing": ["id", "madeAt"]}


OPERATIONS = """
def build_things_list_request(subscription_id: str, *, top: Optional[int] = None, **kwargs: Any) -> HttpRequest:
    api_version: str = kwargs.pop("api_version", _params.pop("api-version", "2026-01-01"))
    _url = "/subscriptions/{subscriptionId}/providers/Microsoft.Made/things"
    _params["api-version"] = _SERIALIZER.query("api_version", api_version, "str")
    if top is not None:
        _params["$top"] = _SERIALIZER.query("top", top, "int")
    return HttpRequest(method="GET", url=_url, params=_params, headers=_headers, **kwargs)
def build_things_make_request(name: str, **kwargs: Any) -> HttpRequest:
    api_version: str = kwargs.pop("api_version", _params.pop("api-version", "2026-01-01"))
    _url = kwargs.pop("template_url", "/{scope}/things/{name}")
    _params["api-version"] = _SERIALIZER.query("api_version", api_version, "str")
    return HttpRequest(method="PUT", url=_url, params=_params, headers=_headers, **kwargs)
class ThingsOperations:
    def list(self, *, top: Optional[int] = None, **kwargs: Any) -> ItemPaged["_models.Thing"]:
        _request = build_things_list_request(top=top)
        if response.status_code not in [200]:
            raise HttpResponseError(response=response)
    def _make_initial(self, name: str, thing: Union[_models.Wish, IO[bytes]], **kwargs: Any) -> Iterator[bytes]:
        _request = build_things_make_request(name=name)
        if response.status_code not in [200, 201]:
            raise HttpResponseError(response=response)
    def begin_make(self, name: str, thing: Union[_models.Wish, IO[bytes]], **kwargs: Any) -> LROPoller[_models.Thing]:
        raw_result = self._make_initial(name=name)
"""


def test_operations_are_read_with_their_parameters_bodies_and_answers() -> None:
    described = Operations([OPERATIONS])
    assert described.read("Things.list", "2026-01-01") == (
        {
            "method": "GET",
            "path": "/subscriptions/{subscriptionId}/providers/Microsoft.Made/things",
            "query": {"api-version": True, "$top": False},
            "body": "",
            "answer": "Thing page",
            "statuses": [200],
        },
        {"value": "[Thing]", "nextLink": "str"},
    )
    made, page = described.read("Things.begin_make", "2026-01-01")
    assert (made["method"], made["path"], page) == ("PUT", "/{scope}/things/{name}", {})
    assert (made["body"], made["answer"], made["statuses"]) == ("Wish", "Thing", [200, 201])
    with pytest.raises(ValueError, match="of the api-version 2026-01-01, and not 2025-01-01"):
        described.read("Things.list", "2025-01-01")
