"""An account is filled and emptied, without waiting."""

from __future__ import annotations

from typing import Any

from provisioners.account import Account, Clock, CloudAccount, Plan, Said, Wish, carry_out
from provisioners.registry import CLOUDS


def account_of(cloud: str, settings: Any, wish: Wish) -> Account:
    """A cloud's account, as the command line opens it."""
    factory = CLOUDS[cloud].account
    assert factory is not None
    account = factory(settings, wish)
    assert isinstance(account, Account)
    return account


class Waits:
    """A clock on which waiting takes no time."""

    def __init__(self) -> None:
        self.at = 0.0

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.at += seconds

    @property
    def clock(self) -> Clock:
        """For `carry_out`."""
        return Clock(lambda: self.at, self.wait)


def made(account: CloudAccount, limit_s: float = 600.0) -> list[str]:
    """Make what is missing; the steps that were taken."""
    said: list[str] = []
    carry_out(account.missing, account.take, Said(said.append), Waits().clock, limit_s)
    return said


def deleted(account: CloudAccount, *, with_data: bool = True, limit_s: float = 600.0) -> tuple[list[str], Plan]:
    """Delete what is ours; the steps that were taken, and the last plan."""
    said: list[str] = []
    left = carry_out(
        lambda: account.remaining(with_data=with_data), account.take, Said(said.append), Waits().clock, limit_s
    )
    return said, left
