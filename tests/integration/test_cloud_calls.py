"""What holds for the calls of every cloud alike: faults, time limits, numbers of calls, `check`."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import (
    BY_THE_HOUR,
    Denied,
    DeniedError,
    EndCause,
    Fatal,
    InstanceState,
    NoCapacity,
    ProvisionerError,
    Quota,
    Scope,
    Throttled,
    Transient,
    Unknown,
    UnreachableError,
)
from provisioners.readings import Guarded
from tests.clouds.base import bare
from tests.integration.cloud_names import NAMES, T4, Api
from tests.support.machines import OTHER, OWNER, TIMEOUT_S, launched_by

pytestmark = pytest.mark.long

# -- launches ------------------------------------------------------------------------------------------------


def test_an_unreadable_answer_is_unknown_and_the_machine_is_found(api: Api) -> None:
    for how in api.names.unreadable:
        api.cloud.fail_next(api.cloud.launch, how)
        outcome = api.launch(how)
        assert isinstance(outcome, Unknown), outcome
        machine = api.found(how)
        assert api.launched(how).id == machine.id
    assert len(api.listed()) == len(api.names.unreadable)


def test_an_unknown_code_is_reported(api: Api) -> None:
    for how, code in api.names.unknown.items():
        api.cloud.fail_next(api.cloud.launch, how)
        outcome = api.launch("n1")
        assert isinstance(outcome, Transient)
        assert outcome.unknown_code == code


def test_a_region_that_is_not_configured_is_not_called(api: Api) -> None:
    outcome = api.launch("n1", api.names.elsewhere)
    assert isinstance(outcome, Fatal)
    assert f"{api.name}.regions ({api.names.region})" in outcome.message
    assert not api.cloud.calls


def test_a_listing_says_of_which_account_and_regions_it_is(api: Api) -> None:
    covered = api.provisioner.coverage(TIMEOUT_S)
    assert covered.account
    assert api.launched("n1").region in covered.regions


def test_a_changed_retry_finds_the_machine_of_its_node(api: Api) -> None:
    machine = api.launched("n1")
    changed = api.with_settings(disk_gb=200)
    assert changed.launched("n1").id == machine.id
    stolen = changed.provisioner.launch(replace(api.request("n1"), node="n2"), TIMEOUT_S)
    assert isinstance(stolen, Fatal)
    assert "one request" in stolen.message
    assert len(api.listed()) == 1


def test_a_launch_is_sent_once_even_where_the_sdk_would_retry(api: Api) -> None:
    machine_type = api.names.instance_type.partition("+")[0]
    api.cloud.exhaust(api.names.zone, machine_type)
    outcome = api.launch("n1")
    assert isinstance(outcome, NoCapacity)
    assert outcome.scope is Scope.TYPE_IN_ZONE
    api.cloud.fail_next(api.cloud.launch, "throttled")
    assert isinstance(api.launch("n1"), Throttled)
    assert api.launches() == 2
    api.launched("n2", api.names.other_zone)
    api.cloud.make_room(api.names.zone, machine_type)
    api.launched("n1")


def test_a_fault_inside_the_cloud_is_unknown(api: Api) -> None:
    api.cloud.fail_next(api.cloud.launch, "internal")
    assert isinstance(api.launch("n1"), Unknown)
    assert api.provisioner.find(OWNER, "token-n1", TIMEOUT_S) is None


def test_the_accounts_limit_is_a_quota_of_the_types_family(api: Api) -> None:
    api.cloud.fleet.most_machines = 1
    api.launched("n1")
    for number, market in enumerate(BY_THE_HOUR):
        outcome = api.launch(f"other-{number}", market=market)
        assert isinstance(outcome, Quota), outcome
        assert outcome.scope is Scope.QUOTA
    assert all(offer.quota for offer in api.offers())


def test_a_token_of_another_owner_is_another_token(api: Api) -> None:
    machine = api.launched("n1")
    assert launched_by(api.provisioner, replace(api.request("n1"), owner=OTHER)).id != machine.id


@pytest.mark.parametrize(("api", "zone"), [("aws", "us-east-1e"), ("gcp", "us-central1-c")], indirect=["api"])
def test_a_type_that_a_zone_lacks_is_no_capacity_for_an_hour(api: Api, zone: str) -> None:
    outcome = api.launch("n1", zone)
    assert isinstance(outcome, NoCapacity)
    assert outcome.memory_s == 3600


# -- calls that change nothing -------------------------------------------------------------------------------


def test_reading_is_tried_again_and_then_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.launched("n1")
    for how in api.names.passing:
        api.cloud.fail_next(api.names.listing, how)
        assert len(api.listed()) == 1
    api.cloud.calls.clear()
    monkeypatch.setattr("provisioners.azure.client._MAX_RETRY_AFTER_S", 0.1)
    api.cloud.fail_next(api.names.listing, "throttled", times=50)
    with pytest.raises(UnreachableError, match=api.names.throttled):
        api.listed()
    assert list(api.cloud.counted().values()) == [4]


@pytest.mark.parametrize("timeout_s", [0.3, 1.0, pytest.param(3.0, marks=pytest.mark.long)])
def test_every_call_ends_in_time(api: Api, timeout_s: float) -> None:
    machine, cloud = api.launched("n1"), api.provisioner
    asks: list[Callable[[], object]] = [
        lambda: cloud.instances(OWNER, timeout_s),
        lambda: cloud.terminate(machine.id, timeout_s),
        lambda: cloud.leftovers(OWNER, timeout_s),
        lambda: cloud.offers(T4, timeout_s),
        lambda: cloud.console(machine.id, timeout_s),
    ]

    def took(ask: Callable[[], object]) -> float:
        began = time.monotonic()
        with pytest.raises(UnreachableError):
            ask()
        return time.monotonic() - began

    for action in api.names.hanging:
        api.cloud.fail_next(action, "hang", times=20)
    with ThreadPoolExecutor(len(asks)) as pool:
        assert max(pool.map(took, asks)) < timeout_s + 20.0  # the SDKs themselves would wait for a minute and more


@pytest.mark.parametrize(
    ("api", "credentials"),
    [(name, state) for name, names in NAMES.items() for state in names.credentials],
    indirect=["api"],
)
def test_invalid_credentials_are_reported_by_every_call(api: Api, credentials: str) -> None:
    api.cloud.credentials = credentials
    cloud, nobody, message = api.provisioner, api.names.nobody, api.names.credentials[credentials]
    for ask in (
        api.offers,
        api.listed,
        lambda: cloud.find(OWNER, "token", TIMEOUT_S),
        lambda: cloud.terminate(nobody, TIMEOUT_S),
        lambda: cloud.leftovers(OWNER, TIMEOUT_S),
        lambda: cloud.console(nobody, TIMEOUT_S),
    ):
        with pytest.raises(DeniedError, match=message):
            ask()
    outcome = api.launch("n1")
    assert isinstance(outcome, Denied)
    assert outcome.scope is Scope.GLOBAL
    assert re.search(message, outcome.message)
    api.cloud.credentials = "good"
    api.launched("n1")  # corrected credentials are used


def test_missing_credentials_are_reported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in api.names.without.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(DeniedError, match=api.names.set_up):
        api.listed()
    assert isinstance(api.launch("n1"), Denied)


def test_descriptions_may_lack_fields(api: Api) -> None:
    launched = api.launched("n1")
    api.cloud.fleet.missing = set(api.names.optional)
    (machine,) = api.listed()
    for name, value in api.names.optional.values():
        assert getattr(machine, name) == value
    api.cloud.fleet.missing = {api.names.required}
    (unreadable,) = api.listed()
    assert (unreadable.id, unreadable.state) == (launched.id, InstanceState.UNREADABLE)
    with pytest.raises(ProvisionerError):
        Guarded(api.provisioner).find(OWNER, "token-n1", TIMEOUT_S)
    api.cloud.fleet.missing = set()
    assert api.found("n1").id == launched.id


def test_each_region_is_listed_once(api: Api) -> None:
    west_region = api.request("n1", api.names.elsewhere).offer.region
    api = api.with_settings(regions=(api.names.region, west_region))
    west, east = api.launched("n1", api.names.elsewhere), api.launched("n2")
    api.cloud.calls.clear()
    assert {each.id for each in api.listed()} == {west.id, east.id}
    # EC2 has a region for each call, Azure a path for each kind of listing.
    called = Counter(
        (call.action, getattr(call, "region", ""), str(getattr(call, "path", ""))) for call in api.cloud.calls
    )
    assert set(called.values()) == {1}
    assert api.found("n1").region == west_region
    api.terminate(west)
    assert api.found("n1").state is InstanceState.TERMINATED
    api.provisioner.terminate(bare(east.id), TIMEOUT_S)
    assert api.found("n2").state is InstanceState.TERMINATED


def test_a_missing_permission_is_named(api: Api) -> None:
    api.cloud.denied |= api.names.denied
    with pytest.raises(DeniedError, match=api.names.denial):
        api.listed()
    outcome = api.launch("n1")
    assert isinstance(outcome, Denied)
    assert outcome.scope is Scope.TYPE_IN_ZONE, "it may be missing for this place only"
    assert "docs/permissions" in outcome.message


@pytest.mark.nightly
@pytest.mark.parametrize("machines", [10, 100, pytest.param(1000, marks=pytest.mark.long)])
def test_a_listing_costs_few_calls_whatever_the_number_of_machines(api: Api, machines: int) -> None:
    if api.name == "azure":
        api.cloud.arm.page = 1000
    api.cloud.fleet.multiply(bare(api.launched("n1").id), machines - 1)
    api.cloud.calls.clear()
    assert len(api.provisioner.instances(OWNER, 60.0)) == machines
    assert api.cloud.counted() == api.names.cost(machines)


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_preemption_may_stop_a_machine_which_then_still_costs(api: Api) -> None:
    machine = api.launched("n1")
    api.cloud.preempt(machine.id, 0.0, stop=True)
    stopped = api.found("n1")
    assert (stopped.state, stopped.end_cause) == (InstanceState.STOPPED, EndCause.PREEMPTED)
    api.terminate(machine)
    assert api.found("n1").state is InstanceState.TERMINATED


def test_a_machine_that_ended_itself_is_gone_with_its_cause(api: Api) -> None:
    machine = api.launched("n1")
    api.cloud.lose(machine.id, api.names.own_end)
    (gone,) = api.listed()
    state = InstanceState.STOPPED if api.name == "azure" else InstanceState.TERMINATED
    assert (gone.state, gone.end_cause) == (state, EndCause.FAILED)
    assert (gone.owner, gone.node, gone.zone) == (OWNER, "n1", api.names.zone)


def test_a_console_is_shown_and_none_is_empty(api: Api) -> None:
    machine = api.launched("n1")
    assert api.provisioner.console(machine.id, TIMEOUT_S).endswith(": a machine on paper\n")
    assert api.provisioner.console(bare(machine.id), TIMEOUT_S) == api.provisioner.console(machine.id, TIMEOUT_S)
    assert api.provisioner.console(api.names.nobody, TIMEOUT_S) == ""
    assert api.provisioner.console("no-such-machine", TIMEOUT_S) == ""


def test_leftovers_are_found_and_removed(api: Api) -> None:
    api.launched("n1")  # its resources are in use
    for owner in (OTHER, OWNER):
        api.cloud.fleet.leave_behind(owner, "gone")
    left = api.provisioner.leftovers(OWNER, TIMEOUT_S)
    assert sorted(each.kind for each in left) == sorted(api.names.leftovers)
    assert {(each.owner, each.node, each.region) for each in left} == {(OWNER, "gone", api.names.region)}
    for each in [*left, *left]:
        api.provisioner.remove(each, TIMEOUT_S)
    assert not api.provisioner.leftovers(OWNER, TIMEOUT_S)
    assert len(api.provisioner.leftovers(OTHER, TIMEOUT_S)) == len(left)
    assert api.found("n1").state is InstanceState.RUNNING


# -- offers and check ----------------------------------------------------------------------------------------


def test_an_empty_result_is_explained(api: Api) -> None:
    for query, message in api.names.absent:
        with pytest.raises(ProvisionerError, match=message):
            api.offers(query)


def test_wrong_credentials_are_the_only_complaint(api: Api) -> None:
    api.cloud.credentials = "wrong"
    assert list(api.complaints()) == ["credentials"]


def test_correct_settings_have_no_complaint(api: Api) -> None:
    api.cloud.let_daemon_in()
    findings = api.provisioner.check(30.0)
    assert [each.what for each in findings if not each.ok] == []
    assert {each.what for each in findings} >= api.names.findings
    assert not api.cloud.fleet.born()


@pytest.mark.parametrize(
    ("api", "settings", "what", "message"),
    [(name, *each) for name, names in NAMES.items() for each in names.wrong],
    indirect=["api"],
)
def test_wrong_settings_are_reported(api: Api, settings: dict[str, Any], what: str, message: str) -> None:
    assert re.search(message, api.with_settings(**settings).complaints()[what])


def test_missing_permissions_are_found_before_anything_is_launched(api: Api) -> None:
    denied, (what, message) = api.names.not_reading
    api.cloud.denied |= denied
    assert message in api.complaints()[what]
    assert not api.cloud.fleet.born()
