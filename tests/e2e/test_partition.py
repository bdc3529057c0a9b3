"""A partition of a round, in network namespaces of their own: needs root, and is skipped without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from spotsup_trainer.etcd import EtcdError

from tests.chaos.networks import Networks, UnavailableError, networks
from tests.e2e.launching import Nodes, eventually, nodes
from tests.support.etcd_members import Members

COLLECTIVE_S = 10.0
# The kernel removes a namespace a while after it is deleted: no two share a name.
_TAGS = iter("abcdefghij")


@dataclass
class Parted:
    """A job of a and b; etcd, a and b have a network namespace each, in this order."""

    job: Nodes
    network: Networks

    def back(self, node: str) -> bool:
        with suppress(EtcdError):  # the first connection may still look for its way
            return self.job.member(node) is not None
        return False

    def start(self, minimum: int) -> None:
        self.job.hint("a", "b", minimum=2)
        for node, place in zip("ab", self.network.each[1:], strict=True):
            self.job.start(node, place=place, GLOO_SOCKET_IFNAME="eth0")
        self.job.stepping(2, timeout_s=120.0)
        self.job.hint("a", "b", minimum=minimum)


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[Parted]:
    with ExitStack() as stack:
        try:
            network = stack.enter_context(networks(3, f"p{os.getpid() % 997}{next(_TAGS)}"))
        except UnavailableError as error:
            pytest.skip(str(error))
        members = Members(tmp_path / "etcd", 1, networks=network.each[:1])
        stack.callback(members.close)
        members.start(0)
        program = {"timeout_s": f"{COLLECTIVE_S:g}"}
        yield Parted(stack.enter_context(nodes(members.endpoints[0], tmp_path, program=program, ttl_s=5.0)), network)


def test_nodes_that_are_cut_off_from_etcd_and_not_from_each_other_train_on(parted: Parted) -> None:
    parted.start(1)
    parted.network.cut(0)
    cut_at = time.time()
    eventually("steps 15 s later", lambda: parted.job.last_step_at(1) > cut_at + 15.0)
    parted.network.repair(0)
    eventually("steps 30 s later", lambda: parted.job.last_step_at(1) > cut_at + 30.0)
    eventually("both are back", lambda: parted.back("a") and parted.back("b"))
    assert (parted.job.round().number, len(parted.job.events("start"))) == (1, 2)


def test_a_round_that_is_cut_in_two_goes_on_where_etcd_is_and_is_whole_again_afterwards(parted: Parted) -> None:
    parted.start(1)
    parted.network.cut(2)
    cut_at = time.time()
    alone = parted.job.stepping(1, 1)
    assert parted.job.round().nodes() == ("a",)
    # The other half has its launcher and the server of its workers left once a collective has timed out.
    eventually("b has stopped", lambda: len(parted.job.processes("b")) == 2)
    assert time.time() - cut_at < COLLECTIVE_S + 60.0
    parted.network.repair(2)
    parted.job.stepping(2, alone["round"])
    assert parted.job.round().nodes() == ("a", "b")
    assert parted.job.round().app_failures == 0


def test_a_round_that_is_cut_in_two_halves_that_are_too_small_waits_until_it_is_whole(parted: Parted) -> None:
    parted.start(2)
    parted.network.cut(2)
    for node in "ab":
        eventually(f"{node} has stopped", lambda node=node: len(parted.job.processes(node)) == 2)  # type: ignore[misc]
    parted.network.repair(2)
    parted.job.stepping(2, 1)
    assert parted.job.round().app_failures == 0
