"""What the contract suite needs of a provider: the provider itself, and control over the cloud behind it."""

from __future__ import annotations

from typing import NoReturn, Protocol

import pytest

from provisioners.base import Owner, Provisioner


def cannot(why: str) -> NoReturn:
    """This cloud cannot show what a test needs, and why."""
    pytest.skip(why)


class Harness(Protocol):
    """A provider over a cloud, real or faked, of which the test can dispose. Its listings do not lag at first."""

    @property
    def provisioner(self) -> Provisioner:
        """The provider under test."""
        ...

    @property
    def zone(self) -> str:
        """A zone in which there is room."""
        ...

    def exhaust(self, zone: str) -> None:
        """From now on there is no capacity in `zone`."""
        ...

    def limit(self, zone: str, machines: int) -> None:
        """From now on `zone` holds so many machines, with those that it has."""
        ...

    def fail_next_launch(self, how: str) -> None:
        """The next launch call meets one of: throttled, transient, fatal, quota; drop-reply (done, and half an answer);
        done-but-error (done, and answered by the fault that this cloud has for its own); twice (it reaches the cloud
        twice, and the second answer is the caller's); hang.
        """
        ...

    def lag(self, seconds: float) -> None:
        """From now on listings are so far behind."""
        ...

    def skew(self, ahead_s: float) -> None:
        """The cloud's clock is so far ahead of ours in all its replies; it still accepts what our clock signs."""
        ...

    def be_terse(self) -> None:
        """From now on descriptions lack all that this cloud may not know of a young machine."""
        ...

    def reuse_addresses(self) -> None:
        """From now on new machines get the addresses of those that have ended."""
        ...

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Announce a preemption, which comes after `notice_s`. Returns the deadline that the cloud's API tells (UNIX
        seconds): some report their usual notice in any case.
        """
        ...

    def alarm(self, instance_id: str) -> None:
        """Announce a preemption whose deadline is over, and which does not come."""
        ...

    def withdraw(self, instance_id: str) -> None:
        """Take the announcement of a preemption back."""
        ...

    def stop(self, instance_id: str) -> None:
        """The machine is switched off, and not deleted: it has its disk, and goes on to cost."""
        ...

    def vanish(self, instance_id: str) -> None:
        """The machine is lost without a notice."""
        ...

    def leave_behind(self, owner: Owner, node: str) -> bool:
        """Leave one resource of each kind that can outlive a machine, of this owner and node; False where none can."""
        ...

    def cut_off(self) -> None:
        """From now on the cloud cannot be reached; its machines run on."""
        ...
