"""The rest of what provisioners/base.py promises: what clouds do to callers seldom, and without warning."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import paramiko
import pytest

from provisioners.base import (
    EndCause,
    HostKey,
    InstanceState,
    Launched,
    NoCapacity,
    Provisioner,
    Unknown,
)
from tests.contract.harness import Harness
from tests.support.machines import (
    OWNER,
    TIMEOUT_S,
    found_by,
    launch,
    launch_running,
    login,
    new_key,
    request_for,
    run,
    wait_for,
    wait_state,
)

pytestmark = pytest.mark.long

ALIVE = {InstanceState.PENDING, InstanceState.RUNNING}
HOUR_S = 3600.0


def alive(provisioner: Provisioner) -> set[str]:
    """The tokens of all machines that the listing calls alive."""
    return {each.token for each in provisioner.instances(OWNER, TIMEOUT_S) if each.state in ALIVE}


# -- launches ------------------------------------------------------------------------------------------------


def test_a_machine_behind_an_error_is_found_and_not_made_twice(light_harness: Harness) -> None:
    light_harness.fail_next_launch("done-but-error")
    request = request_for(light_harness.provisioner, "n1")
    assert isinstance(light_harness.provisioner.launch(request, TIMEOUT_S), Unknown)
    machine = found_by(light_harness.provisioner, "n1")
    again = light_harness.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(again, Launched)
    assert again.instance.id == machine.id
    assert len(light_harness.provisioner.instances(OWNER, TIMEOUT_S)) == 1


def test_a_launch_that_arrives_twice_makes_one_machine(light_harness: Harness) -> None:
    light_harness.fail_next_launch("twice")
    request = request_for(light_harness.provisioner, "n1")
    outcome = light_harness.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(outcome, Launched)
    assert found_by(light_harness.provisioner, "n1").id == outcome.instance.id
    assert len(light_harness.provisioner.instances(OWNER, TIMEOUT_S)) == 1


def test_room_for_three_is_three_machines_of_eight_and_each_is_told_of_its_own(light_harness: Harness) -> None:
    light_harness.limit(light_harness.zone, 3)
    first = request_for(light_harness.provisioner, "n0", zone=light_harness.zone)
    requests = {f"token-n{number}": replace(first, token=f"token-n{number}", node=f"n{number}") for number in range(8)}
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda each: light_harness.provisioner.launch(each, TIMEOUT_S), requests.values())
        outcomes = dict(zip(requests, answers, strict=True))
    made = {token: outcome.instance for token, outcome in outcomes.items() if isinstance(outcome, Launched)}
    refused = {token: outcome for token, outcome in outcomes.items() if isinstance(outcome, NoCapacity)}
    assert (len(made), len(refused)) == (3, 5), outcomes
    assert {token: (each.token, each.node) for token, each in made.items()} == {
        token: (token, requests[token].node) for token in made
    }
    assert alive(light_harness.provisioner) == set(made)
    assert all(light_harness.zone in each.message for each in refused.values())
    assert light_harness.provisioner.find(OWNER, next(iter(refused)), TIMEOUT_S) is None


# -- listings ------------------------------------------------------------------------------------------------


def test_a_listing_may_lack_what_a_young_machine_does_not_have_yet(light_harness: Harness) -> None:
    light_harness.be_terse()
    launched = launch(light_harness.provisioner, "n1")
    (listed,) = light_harness.provisioner.instances(OWNER, TIMEOUT_S)
    for seen in (launched, listed, found_by(light_harness.provisioner, "n1")):
        assert (seen.id, seen.node, seen.token) == (launched.id, "n1", launched.token)
        assert seen.state in ALIVE
        assert (seen.ssh_host, seen.private_address, seen.end_cause, seen.preempt_at) == ("", "", None, None)
    light_harness.provisioner.terminate(launched.id, TIMEOUT_S)
    wait_state(light_harness.provisioner, launched.token, InstanceState.TERMINATED)


def test_an_id_that_never_was_has_no_console_and_its_end_is_nobodys(light_harness: Harness) -> None:
    machine = launch_running(light_harness.provisioner, "n1")
    stranger = machine.id[:-1] + ("1" if machine.id[-1] == "0" else "0")
    light_harness.provisioner.terminate(stranger, TIMEOUT_S)
    assert light_harness.provisioner.console(stranger, TIMEOUT_S) == ""
    assert found_by(light_harness.provisioner, "n1").state is InstanceState.RUNNING


def test_an_address_that_comes_back_is_not_the_machine_that_had_it(harness: Harness) -> None:
    harness.reuse_addresses()
    old = launch_running(harness.provisioner, "old")
    harness.provisioner.terminate(old.id, TIMEOUT_S)
    ended = wait_state(harness.provisioner, old.token, InstanceState.TERMINATED)
    assert (ended.ssh_host, ended.private_address) == ("", "")
    key = new_key()
    request = replace(request_for(harness.provisioner, "new"), host_key=HostKey(key.public, key.private_openssh))
    assert isinstance(harness.provisioner.launch(request, TIMEOUT_S), Launched)
    new = wait_state(harness.provisioner, request.token, InstanceState.RUNNING)
    assert (new.private_address, new.ssh_port) == (old.private_address, old.ssh_port)
    with pytest.raises(paramiko.BadHostKeyException), login(new):
        pass
    with login(new, host_key=key.public) as connection:
        assert run(connection, "echo here") == "here\n"
    assert found_by(harness.provisioner, "old").ssh_host == ""


# -- notices and ends ----------------------------------------------------------------------------------------


def test_a_notice_that_nothing_comes_of_ends_nothing(light_harness: Harness) -> None:
    machine = launch_running(light_harness.provisioner, "n1")
    light_harness.alarm(machine.id)
    launch_running(light_harness.provisioner, "n2")
    noticed = found_by(light_harness.provisioner, "n1")
    assert (noticed.state, noticed.end_cause) == (InstanceState.RUNNING, None)
    assert noticed.preempt_at is not None
    assert noticed.preempt_at < time.time()
    assert alive(light_harness.provisioner) == {"token-n1", "token-n2"}


def test_a_notice_that_is_taken_back_is_none(light_harness: Harness) -> None:
    machine = launch_running(light_harness.provisioner, "n1")
    light_harness.preempt(machine.id, 600.0)
    assert found_by(light_harness.provisioner, "n1").preempt_at is not None
    light_harness.withdraw(machine.id)
    seen = found_by(light_harness.provisioner, "n1")
    assert (seen.state, seen.end_cause, seen.preempt_at) == (InstanceState.RUNNING, None, None)


def test_a_preemption_without_a_notice_is_told_as_one(light_harness: Harness) -> None:
    machine = launch_running(light_harness.provisioner, "n1")
    light_harness.preempt(machine.id, 0.0)
    ended = wait_state(light_harness.provisioner, machine.token, InstanceState.TERMINATED)
    assert (ended.id, ended.end_cause, ended.preempt_at) == (machine.id, EndCause.PREEMPTED, None)


def test_a_machine_that_is_stopped_is_not_gone_until_it_is_terminated(light_harness: Harness) -> None:
    machine = launch_running(light_harness.provisioner, "n1")
    light_harness.stop(machine.id)
    stopped = wait_state(light_harness.provisioner, machine.token, InstanceState.STOPPED)
    assert stopped.id == machine.id
    assert [each.state for each in light_harness.provisioner.instances(OWNER, TIMEOUT_S)] == [InstanceState.STOPPED]
    light_harness.provisioner.terminate(machine.id, TIMEOUT_S)
    wait_state(light_harness.provisioner, machine.token, InstanceState.TERMINATED)
    assert not light_harness.provisioner.leftovers(OWNER, TIMEOUT_S)


# -- clocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_differs_ends_nothing_puts_no_notice_off_and_hides_no_end(
    light_harness: Harness, ahead_s: float
) -> None:
    light_harness.skew(ahead_s)
    one, two = (launch_running(light_harness.provisioner, name) for name in ("n1", "n2"))
    for seen in light_harness.provisioner.instances(OWNER, TIMEOUT_S):
        assert (seen.state, seen.end_cause, seen.preempt_at) == (InstanceState.RUNNING, None, None)
    assert [each for each in light_harness.provisioner.check(3 * TIMEOUT_S) if not each.ok] == []
    assert wait_for(lambda: light_harness.provisioner.console(one.id, TIMEOUT_S), "the console")
    light_harness.preempt(two.id, 25.0)
    noticed = found_by(light_harness.provisioner, "n2")
    assert (noticed.state, noticed.end_cause) == (InstanceState.RUNNING, None)
    assert noticed.preempt_at is not None
    assert noticed.preempt_at <= time.time() + 121.0
    light_harness.provisioner.terminate(one.id, TIMEOUT_S)
    light_harness.preempt(two.id, 0.0)
    causes = {one.id: EndCause.USER, two.id: EndCause.PREEMPTED}

    def listed() -> bool:
        listed = light_harness.provisioner.instances(OWNER, TIMEOUT_S)
        ended = {each.id: each.end_cause for each in listed if each.state is InstanceState.TERMINATED}
        return ended == causes

    assert wait_for(listed, "both ends are listed with their causes")
    again = light_harness.provisioner.launch(request_for(light_harness.provisioner, "n1"), TIMEOUT_S)
    assert isinstance(again, Launched)
    assert (again.instance.id, again.instance.state) == (one.id, InstanceState.TERMINATED)
