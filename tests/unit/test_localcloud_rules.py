"""The local cloud's decisions, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from provisioners.base import EndCause, InstanceState, Market
from provisioners.localcloud import rules
from provisioners.localcloud.models import Fault, LaunchBody, Machine, RefusedError, Settings, SettingsPatch, sentence

NODE = "n"
BODY = LaunchBody(
    token=NODE,
    cluster="c",
    key_mark="k",
    node=NODE,
    region="local",
    zone="local-a",
    instance_type="local.small",
    market=Market.SPOT,
    host_key_public="ssh-ed25519 AAAA",
    host_key_private="secret",
    authorized_keys=("ssh-ed25519 BBBB",),
)


def machine(**change: Any) -> Machine:
    """A machine launched at 100, due at 101."""
    plain = Machine(
        id="local-x-0001",
        index=1,
        token=NODE,
        digest="d",
        cluster="c",
        key_mark="k",
        node=NODE,
        zone="local-a",
        instance_type="local.small",
        market=Market.SPOT,
        address="127.64.0.1",
        launched_at=100.0,
        due_at=101.0,
    )
    return plain.model_copy(update=change)


def lived() -> Machine:
    """Running at 110, notified at 120 for 150, ended by 151."""
    return machine(
        running_at=110.0,
        pid=7,
        ssh_port=2222,
        metadata_port=8080,
        preempt_announced_at=120.0,
        preempt_at=150.0,
        ending_at=150.0,
        end_cause=EndCause.PREEMPTED,
        ended_at=151.0,
    )


@pytest.mark.parametrize(
    ("as_of", "state", "reachable", "preempt_at", "end_cause"),
    [
        (100.0, InstanceState.PENDING, False, None, None),
        (109.9, InstanceState.PENDING, False, None, None),
        (110.0, InstanceState.RUNNING, True, None, None),
        (120.0, InstanceState.RUNNING, True, 150.0, None),
        (150.5, InstanceState.RUNNING, True, 150.0, None),
        (151.0, InstanceState.TERMINATED, False, None, EndCause.PREEMPTED),
    ],
)
def test_a_view_shows_the_machine_as_it_was_then(
    as_of: float, state: InstanceState, reachable: bool, preempt_at: float | None, end_cause: EndCause | None
) -> None:
    seen = rules.view(lived(), as_of)
    assert seen is not None
    assert (seen.state, seen.preempt_at, seen.end_cause) == (state, preempt_at, end_cause)
    assert (seen.ssh_host, seen.ssh_port) == (("127.64.0.1", 2222) if reachable else ("", 22))
    assert seen.metadata_url == ("http://127.64.0.1:8080" if reachable else "")


def test_before_its_launch_there_is_no_view() -> None:
    assert rules.view(lived(), 99.9) is None


def test_only_an_end_by_its_owner_shows_as_stopping() -> None:
    for cause, state in ((EndCause.USER, InstanceState.STOPPING), (EndCause.FAILED, InstanceState.RUNNING)):
        seen = rules.view(machine(running_at=110.0, ending_at=120.0, end_cause=cause), 121.0)
        assert seen is not None
        assert seen.state is state


def test_a_listing_drops_what_ended_long_ago_and_a_token_still_finds_it() -> None:
    settings = Settings(ended_listed_s=60.0, listing_lag_s=5.0)
    assert len(rules.listing(settings, [lived()], 215.9)) == 1
    assert not rules.listing(settings, [lived()], 216.0)
    assert len(rules.tokened(settings, [lived()], NODE, 9999.0)) == 1
    assert not rules.tokened(settings, [lived()], NODE, 104.9)


def test_a_full_zone_refuses_and_ended_machines_give_room() -> None:
    settings = Settings(capacity={"local-a": 1, "local-b": 1})
    with pytest.raises(RefusedError) as refused:
        rules.admit(settings, [machine()], BODY)
    assert refused.value.refusal.kind == "no-capacity"
    assert refused.value.refusal.after_s == settings.no_capacity_memory_s
    rules.admit(settings, [lived()], BODY)
    rules.admit(settings, [machine(zone="local-b")], BODY)


def test_only_faults_of_the_connection_have_no_refusal() -> None:
    silent = {fault for fault in Fault if rules.fault_refusal(fault) is None}
    assert silent == {Fault.DROP_REPLY, Fault.DONE_BUT_ERROR, Fault.TWICE, Fault.HANG}


def test_the_earliest_preemption_holds() -> None:
    first = machine(running_at=110.0, **rules.announce(machine(running_at=110.0), 30.0, 120.0))
    assert (first.preempt_announced_at, first.preempt_at) == (120.0, 150.0)
    assert rules.announce(first, 60.0, 121.0) == {}
    sooner = {"preempt_announced_at": 120.0, "preempt_at": 126.0, "spared": False}
    assert rules.announce(first, 5.0, 121.0) == sooner


def test_a_false_alarm_ends_nothing_and_a_true_one_after_it_does() -> None:
    alarmed = machine(running_at=110.0, **rules.announce(machine(running_at=110.0), 1.0, 120.0, false_alarm=True))
    assert alarmed.preempt_at == 121.0
    assert not rules.due(Settings(), {alarmed.id: alarmed}, [alarmed.id], 200.0).preempt
    doomed = alarmed.model_copy(update=rules.announce(alarmed, 5.0, 200.0))
    assert rules.due(Settings(), {doomed.id: doomed}, [doomed.id], 206.0).preempt == (doomed.id,)


def test_a_preemption_that_is_withdrawn_was_never_announced() -> None:
    doomed = machine(running_at=110.0, **rules.announce(machine(running_at=110.0), 30.0, 120.0))
    spared = doomed.model_copy(update=rules.withdraw(doomed))
    assert spared == machine(running_at=110.0)
    with pytest.raises(RefusedError):
        rules.withdraw(lived())


def test_a_clock_that_is_ahead_tells_later_launches() -> None:
    settings = Settings(clock_ahead_s=3600.0)
    (seen,) = rules.listing(settings, [machine(running_at=110.0)], 200.0)
    assert seen.launched_at == machine().launched_at + 3600.0


@pytest.mark.parametrize("settled", [machine(market=Market.ON_DEMAND), lived()])
def test_neither_on_demand_nor_ended_machines_are_preempted(settled: Machine) -> None:
    with pytest.raises(RefusedError):
        rules.announce(settled, 30.0, 200.0)


def test_what_is_due() -> None:
    machines = {
        "waits": machine(id="waits", due_at=205.0),
        "starts": machine(id="starts"),
        "boots": machine(id="boots"),
        "runs": machine(id="runs", running_at=110.0, preempt_announced_at=120.0, preempt_at=203.0),
        "goes": machine(id="goes", running_at=110.0, preempt_announced_at=120.0, preempt_at=200.0),
        "ends": machine(id="ends", running_at=110.0, ending_at=199.0, end_cause=EndCause.USER),
        "cancelled": machine(id="cancelled", ending_at=199.0, end_cause=EndCause.USER),
        "old": machine(id="old", ending_at=100.0, ended_at=101.0),
        "wiped": machine(id="wiped", ending_at=100.0, ended_at=101.0, wiped=True),
    }
    due = rules.due(Settings(ended_listed_s=60.0), machines, {"boots", "runs", "goes", "ends"}, 200.0)
    assert due == rules.Due(
        start=("starts",),
        boot=("boots",),
        preempt=("goes",),
        end=("ends", "cancelled"),
        wipe=("old",),
        next_at=203.0,
    )


@given(first=st.integers(0, 2**22 - 1), index=st.integers(0, 10**6))
def test_addresses_are_usable_and_neighbours_differ(first: int, index: int) -> None:
    here, there = rules.address_of(first, index), rules.address_of(first, index + 1)
    assert here != there
    parts = [int(part) for part in here.split(".")]
    assert parts[0] == 127
    assert 64 <= parts[1] <= 127
    assert 1 <= parts[3] <= 254


def test_a_patch_changes_what_it_names() -> None:
    before = Settings(launch_delay_s=3.0)
    after = SettingsPatch(capacity={"local-a": 2, "local-c": 1}).applied_to(before)
    assert after.capacity == {"local-a": 2, "local-b": 16, "local-c": 1}
    assert after.launch_delay_s == 3.0
    assert before.capacity["local-a"] == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"launch_delay": 1}', "launch_delay: there is no such key"),
        ('{"launch_delay_s": -1}', "launch_delay_s: input should be greater than or equal to 0"),
        ('{"listing_lag_s": "3"}', "listing_lag_s: input should be a valid number"),
        ('{"capacity": {"local-a": 1.5}}', "capacity.local-a: "),
        ('{"next_launch_faults": ["fire"]}', "next_launch_faults.0: input should be "),
        ("nonsense", "invalid JSON"),
    ],
)
def test_a_wrong_body_is_told_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        SettingsPatch.model_validate_json(text)
    assert sentence(wrong.value).startswith(words)


def test_a_request_never_shows_its_private_key() -> None:
    assert "secret" not in repr(BODY)
    assert BODY.digest() == BODY.model_copy().digest()
    assert BODY.digest() != BODY.model_copy(update={"node": "m"}).digest()


def test_an_address_comes_back_only_where_the_settings_say_so_and_its_machine_ended() -> None:
    machines = [machine(), machine(address="127.64.0.9", ended_at=150.0)]
    own = rules.address_of(7, 3)
    assert rules.address_for(Settings(), machines, 7, 3) == own
    assert rules.address_for(Settings(reuse_addresses=True), machines, 7, 3) == "127.64.0.9"
    taken = [*machines, machine(address="127.64.0.9")]
    assert rules.address_for(Settings(reuse_addresses=True), taken, 7, 3) == own


def test_an_owner_is_cluster_and_key_together() -> None:
    mine, same_name, same_key = machine(), machine(key_mark="other"), machine(cluster="other")
    every = [mine, same_name, same_key]
    assert rules.owned(every, "c", "k") == [mine]
    assert rules.owned(every, "", "") == every
