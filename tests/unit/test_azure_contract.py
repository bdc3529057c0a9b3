"""What the test cloud's requests and answers are held against: Azure's operations, by api-version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clouds.azure_contract import against, asked, check_members
from tests.clouds.azure_machines import ROOT, SUBSCRIPTION
from tests.clouds.azure_wire import Call, FakeAzureError
from tests.clouds.base import Answer

SECURITY_GROUPS = f"{ROOT}/Microsoft.Network/networkSecurityGroups"
WHERE = "NetworkSecurityGroups.list of microsoft.network 2024-05-01"


def call(path: str, method: str = "GET", action: str = "Microsoft.Network/x/read", **query: str) -> Call:
    version = {"api-version": "2024-05-01", **query}
    return Call(method, path, version, {}, b"", action)


def listed(*rules: dict[str, Any], **more: Any) -> list[str]:
    group = {"id": "g", "location": "eastus", "properties": {"securityRules": list(rules)}, **more}
    return list(against(call(SECURITY_GROUPS), Answer(200, {"value": [group]})))


RULE = {"access": "Allow", "direction": "Inbound", "priority": 100, "protocol": "Tcp"}


def test_an_answer_as_it_is_described_has_no_complaints() -> None:
    assert listed({"name": "ssh", "properties": {**RULE, "provisioningState": "Succeeded"}}) == []
    assert list(against(call(f"{SECURITY_GROUPS}/g", "DELETE"), Answer(202))) == []


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (
            {"state": "on"},
            "Could not find member 'state' on object of type 'SecurityRule.properties'. Path '{}.state'.",
        ),
        ({"access": "Maybe"}, "Error converting value 'Maybe' to type 'SecurityRuleAccess'. Path '{}.access'."),
        ({"priority": "100"}, "Error converting value '100' to type 'int'. Path '{}.priority'."),
        (
            {"destinationApplicationSecurityGroups": [{"id": "a"}]},
            "The type ApplicationSecurityGroup is not in tests/clouds/azure_models: name it in",
        ),
    ],
)
def test_what_an_answer_should_not_have_is_found(rule: dict[str, Any], complaint: str) -> None:
    (found,) = listed({"name": "ssh", "properties": {**RULE, **rule}})
    assert found.startswith(f"{WHERE}: {complaint.format('value[0].properties.securityRules[0].properties')}")


def test_a_required_member_that_an_answer_lacks_is_found() -> None:
    rule = {"name": "ssh", "properties": {**RULE, "priority": None}}
    asked_for = call(f"{SECURITY_GROUPS}/g", **{"api-version": "2026-03-01"})
    (found,) = against(asked_for, Answer(200, {"id": "g", "properties": {"securityRules": [rule]}}))
    text, path = "Required property 'priority' not found in JSON.", "properties.securityRules[0].properties"
    assert found == f"NetworkSecurityGroups.get of microsoft.network 2026-03-01: {text} Path '{path}'."


def test_an_answers_status_and_whether_it_has_a_body_are_held_too() -> None:
    assert list(against(call(SECURITY_GROUPS), Answer(201))) == [
        f"{WHERE} does not answer with status 201",
        f"{WHERE} answers with a body, also with status 201",
    ]
    (found,) = against(call(f"{SECURITY_GROUPS}/g", "DELETE"), Answer(200, {"name": "g"}))
    assert found.startswith("NetworkSecurityGroups.begin_delete of microsoft.network 2024-05-01 answers without a body")


def test_times_are_in_azures_format() -> None:
    path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Insights/eventtypes/management/values"
    query = {"api-version": "2015-04-01", "$filter": "f"}
    log = call(path, action="Microsoft.Insights/eventtypes/values/read", **query)
    assert list(against(log, Answer(200, {"value": [{"eventTimestamp": "2026-11-29T14:00:00.1234567Z"}]}))) == []
    (found,) = against(log, Answer(200, {"value": [{"eventTimestamp": "yesterday"}]}))
    assert "Error converting value 'yesterday' to type 'datetime'" in found


def test_a_request_for_nothing_that_is_described_is_found() -> None:
    assert list(asked(call(SECURITY_GROUPS))) == []
    assert list(asked(call(SECURITY_GROUPS.lower(), **{"$skiptoken": "100"}))) == []
    gone = f"{SECURITY_GROUPS}/g/flowLogs"
    assert list(asked(call(gone))) == [
        f"microsoft.network 2024-05-01 has no operation GET {gone} in tests/clouds/azure_models"
    ]
    (found,) = asked(call(SECURITY_GROUPS, "PATCH"))
    assert found.startswith("microsoft.network 2024-05-01 has no operation PATCH")
    (found,) = asked(call(SECURITY_GROUPS, **{"api-version": "2019-01-01"}))
    assert found.endswith("Microsoft.Network 2019-01-01 is not in tools/azure_models.py")


def test_parameters_that_are_unknown_or_missing_are_found() -> None:
    assert list(asked(call(SECURITY_GROUPS, statusOnly="true"))) == [f"{WHERE} has no parameter 'statusOnly'"]
    path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Insights/eventtypes/management/values"
    log = call(path, action="Microsoft.Insights/eventtypes/values/read", **{"api-version": "2015-04-01"})
    assert list(asked(log)) == ["ActivityLogs.list of microsoft.insights 2015-04-01 requires the parameter '$filter'"]
    # The subscription's listing has a parameter that the group's does not.
    path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/virtualMachines"
    more = {"api-version": "2026-04-01", "statusOnly": "true"}
    assert not list(asked(call(path, action="Microsoft.Compute/virtualMachines/read", **more)))


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        (f"{SECURITY_GROUPS}/g", b'{"location": "eastus", "id": "g", "speed": 1}', "Could not find member 'speed'"),
        (
            f"{SECURITY_GROUPS}/g",
            b'{"name": "g"}',
            "The member 'name' on object of type 'NetworkSecurityGroup' is read",
        ),
        (f"{SECURITY_GROUPS}/g/flowLogs", b"{}", "no type of it is known"),
    ],
)
def test_a_body_that_is_not_described_is_refused(path: str, body: bytes, complaint: str) -> None:
    made = call(path, "PUT")
    with pytest.raises(FakeAzureError, match=complaint):
        check_members(Call(made.method, made.path, made.query, {}, body, made.action))
