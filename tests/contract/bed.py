"""What the contract suite needs of a provider's test bed: the provider, and a hand on the cloud behind it."""

from __future__ import annotations

from typing import Protocol

from provisioners.base import Provisioner


class Bed(Protocol):
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

    def fail_next_launch(self, how: str) -> None:
        """The next launch call meets one of: throttled, transient, fatal, quota, drop-reply, hang."""
        ...

    def lag(self, seconds: float) -> None:
        """From now on listings are so far behind."""
        ...

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Announce a preemption, which comes after `notice_s`. Returns the deadline that the cloud's API tells (UNIX
        seconds): some tell their usual notice, whatever comes.
        """
        ...

    def vanish(self, instance_id: str) -> None:
        """The machine is lost without a notice."""
        ...

    def cut_off(self) -> None:
        """From now on the cloud cannot be reached; its machines run on."""
        ...
