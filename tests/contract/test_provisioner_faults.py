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


def test_a_machine_behind_an_error_is_found_and_not_made_twice(harness: Harness) -> None:
    harness.fail_next_launch("done-but-error")
    request = request_for(harness.provisioner, "n1")
    assert isinstance(harness.provisioner.launch(request, TIMEOUT_S), Unknown)
    machine = found_by(harness.provisioner, "n1")
    again = harness.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(again, Launched)
    assert again.instance.id == machine.id
    assert len(harness.provisioner.instances(OWNER, TIMEOUT_S)) == 1


def test_a_launch_that_arrives_twice_makes_one_machine(harness: Harness) -> None:
    harness.fail_next_launch("twice")
    request = request_for(harness.provisioner, "n1")
    outcome = harness.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(outcome, Launched)
    assert found_by(harness.provisioner, "n1").id == outcome.instance.id
    assert len(harness.provisioner.instances(OWNER, TIMEOUT_S)) == 1


def test_room_for_three_is_three_machines_of_eight_and_each_is_told_of_its_own(harness: Harness) -> None:
    harness.limit(harness.zone, 3)
    first = request_for(harness.provisioner, "n0", zone=harness.zone)
    requests = {f"token-n{number}": replace(first, token=f"token-n{number}", node=f"n{number}") for number in range(8)}
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda each: harness.provisioner.launch(each, TIMEOUT_S), requests.values())
        outcomes = dict(zip(requests, answers, strict=True))
    made = {token: outcome.instance for token, outcome in outcomes.items() if isinstance(outcome, Launched)}
    refused = {token: outcome for token, outcome in outcomes.items() if isinstance(outcome, NoCapacity)}
    assert (len(made), len(refused)) == (3, 5), outcomes
    assert {token: (each.token, each.node) for token, each in made.items()} == {
        token: (token, requests[token].node) for token in made
    }
    assert alive(harness.provisioner) == set(made)
    assert all(harness.zone in each.message for each in refused.values())
    assert harness.provisioner.find(OWNER, next(iter(refused)), TIMEOUT_S) is None


# -- listings ------------------------------------------------------------------------------------------------


def test_a_listing_may_lack_what_a_young_machine_does_not_have_yet(harness: Harness) -> None:
    harness.be_terse()
    launched = launch(harness.provisioner, "n1")
    (listed,) = harness.provisioner.instances(OWNER, TIMEOUT_S)
    for seen in (launched, listed, found_by(harness.provisioner, "n1")):
        assert (seen.id, seen.node, seen.token) == (launched.id, "n1", launched.token)
        assert seen.state in ALIVE
        assert (seen.ssh_host, seen.private_address, seen.end_cause, seen.preempt_at) == ("", "", None, None)
    harness.provisioner.terminate(launched.id, TIMEOUT_S)
    wait_state(harness.provisioner, launched.token, InstanceState.TERMINATED)


def test_an_id_that_never_was_has_no_console_and_its_end_is_nobodys(harness: Harness) -> None:
    machine = launch_running(harness.provisioner, "n1")
    stranger = machine.id[:-1] + ("1" if machine.id[-1] == "0" else "0")
    harness.provisioner.terminate(stranger, TIMEOUT_S)
    assert harness.provisioner.console(stranger, TIMEOUT_S) == ""
    assert found_by(harness.provisioner, "n1").state is InstanceState.RUNNING


def test_an_address_that_comes_back_is_not_the_machine_that_had_it(login_harness: Harness) -> None:
    login_harness.reuse_addresses()
    old = launch_running(login_harness.provisioner, "old")
    login_harness.provisioner.terminate(old.id, TIMEOUT_S)
    ended = wait_state(login_harness.provisioner, old.token, InstanceState.TERMINATED)
    assert (ended.ssh_host, ended.private_address) == ("", "")
    key = new_key()
    request = replace(request_for(login_harness.provisioner, "new"), host_key=HostKey(key.public, key.private_openssh))
    assert isinstance(login_harness.provisioner.launch(request, TIMEOUT_S), Launched)
    new = wait_state(login_harness.provisioner, request.token, InstanceState.RUNNING)
    assert (new.private_address, new.ssh_port) == (old.private_address, old.ssh_port)
    with pytest.raises(paramiko.BadHostKeyException), login(new):
        pass
    with login(new, host_key=key.public) as connection:
        assert run(connection, "echo here") == "here\n"
    assert found_by(login_harness.provisioner, "old").ssh_host == ""


# -- notices and ends ----------------------------------------------------------------------------------------


def test_a_notice_that_nothing_comes_of_ends_nothing(harness: Harness) -> None:
    machine = launch_running(harness.provisioner, "n1")
    harness.alarm(machine.id)
    launch_running(harness.provisioner, "n2")
    noticed = found_by(harness.provisioner, "n1")
    assert (noticed.state, noticed.end_cause) == (InstanceState.RUNNING, None)
    assert noticed.preempt_at is not None
    assert noticed.preempt_at < time.time()
    assert alive(harness.provisioner) == {"token-n1", "token-n2"}


def test_a_notice_that_is_taken_back_is_none(harness: Harness) -> None:
    machine = launch_running(harness.provisioner, "n1")
    harness.preempt(machine.id, 600.0)
    assert found_by(harness.provisioner, "n1").preempt_at is not None
    harness.withdraw(machine.id)
    seen = found_by(harness.provisioner, "n1")
    assert (seen.state, seen.end_cause, seen.preempt_at) == (InstanceState.RUNNING, None, None)


def test_a_preemption_without_a_notice_is_told_as_one(harness: Harness) -> None:
    machine = launch_running(harness.provisioner, "n1")
    harness.preempt(machine.id, 0.0)
    ended = wait_state(harness.provisioner, machine.token, InstanceState.TERMINATED)
    assert (ended.id, ended.end_cause, ended.preempt_at) == (machine.id, EndCause.PREEMPTED, None)


def test_a_machine_that_is_stopped_is_not_gone_until_it_is_terminated(harness: Harness) -> None:
    machine = launch_running(harness.provisioner, "n1")
    harness.stop(machine.id)
    stopped = wait_state(harness.provisioner, machine.token, InstanceState.STOPPED)
    assert stopped.id == machine.id
    assert [each.state for each in harness.provisioner.instances(OWNER, TIMEOUT_S)] == [InstanceState.STOPPED]
    harness.provisioner.terminate(machine.id, TIMEOUT_S)
    wait_state(harness.provisioner, machine.token, InstanceState.TERMINATED)
    assert not harness.provisioner.leftovers(OWNER, TIMEOUT_S)


# -- clocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_differs_ends_nothing_puts_no_notice_off_and_hides_no_end(
    harness: Harness, ahead_s: float
) -> None:
    harness.skew(ahead_s)
    one, two = (launch_running(harness.provisioner, name) for name in ("n1", "n2"))
    for seen in harness.provisioner.instances(OWNER, TIMEOUT_S):
        assert (seen.state, seen.end_cause, seen.preempt_at) == (InstanceState.RUNNING, None, None)
    assert [each for each in harness.provisioner.check(3 * TIMEOUT_S) if not each.ok] == []
    assert wait_for(lambda: harness.provisioner.console(one.id, TIMEOUT_S), "the console")
    harness.preempt(two.id, 25.0)
    noticed = found_by(harness.provisioner, "n2")
    assert (noticed.state, noticed.end_cause) == (InstanceState.RUNNING, None)
    assert noticed.preempt_at is not None
    assert noticed.preempt_at <= time.time() + 121.0
    harness.provisioner.terminate(one.id, TIMEOUT_S)
    harness.preempt(two.id, 0.0)
    causes = {one.id: EndCause.USER, two.id: EndCause.PREEMPTED}

    def listed() -> bool:
        listed = harness.provisioner.instances(OWNER, TIMEOUT_S)
        ended = {each.id: each.end_cause for each in listed if each.state is InstanceState.TERMINATED}
        return ended == causes

    assert wait_for(listed, "both ends are listed with their causes")
    again = harness.provisioner.launch(request_for(harness.provisioner, "n1"), TIMEOUT_S)
    assert isinstance(again, Launched)
    assert (again.instance.id, again.instance.state) == (one.id, InstanceState.TERMINATED)
