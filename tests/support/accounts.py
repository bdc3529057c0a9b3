"""Accounts of each cloud: their tables, as data; and how one is filled and emptied, without waiting."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioners.account import (
    Account,
    Clock,
    Found,
    Plan,
    Resource,
    Said,
    Seen,
    Step,
    Table,
    Wish,
    carry_out,
    missing,
    remaining,
)
from provisioners.aws.account import wanted as aws
from provisioners.aws.account.table import AwsTable
from provisioners.aws.settings import AwsSettings
from provisioners.azure.account import wanted as azure
from provisioners.azure.account.table import AzureTable
from provisioners.azure.settings import AzureSettings
from provisioners.gcp.account import wanted as gcp
from provisioners.gcp.account.table import GcpTable
from provisioners.gcp.settings import GcpSettings
from provisioners.registry import CLOUDS
from supervisor.cli.account import permissions
from tests.support.machines import OTHER, OWNER

_WISH = Wish(OWNER, ("198.51.100.7", "2001:db8::7"), shared_storage=True, permissions=permissions())
_AWS = AwsSettings(regions=("us-east-1",))
_AWS_WISH = replace(_WISH, checkpoints="s3://models")
_GCP = GcpSettings(project="p", regions=("us-central1",))
_GCP_WISH = replace(_WISH, checkpoints="gs://models")
AZURE = AzureSettings(subscription="s", resource_group="g", regions=("eastus", "westus2"), reach="ssh")
_AZURE_WISH = replace(_WISH, checkpoints="abfs://runs@models.dfs.core.windows.net")


@dataclass(frozen=True)
class Tabled:
    """A cloud's table, and all that can be wanted of it."""

    table: Table
    wanted: Sequence[Resource]

    def nothing(self) -> Seen:
        """A look at an account in which all is missing."""
        return Seen(OWNER, self.wanted)

    def whole(self, foreign: Container[str] = ()) -> Seen:
        """A look at an account in which nothing is missing. `foreign`: the names of what is another installation's."""
        seen = self.nothing()
        seen.add(Found(each, OTHER if each.whole.name in foreign else OWNER) for each in self.wanted)
        return seen

    def missing(self, seen: Seen) -> Plan:
        """What is to be made."""
        return missing(self.table.rows, seen)

    def making(self, seen: Seen) -> list[Step]:
        """The steps, where there is no problem."""
        plan = self.missing(seen)
        assert plan.problems == ()
        return list(plan.steps)

    def deleting(self, seen: Seen, *, with_data: bool = True) -> Plan:
        """What is to be deleted."""
        return remaining(self.table.rows, seen, self.table.marked_by, with_data=with_data)


TABLES = {
    "aws": Tabled(
        AwsTable(_AWS, _AWS_WISH),
        aws.wanted(_AWS, _AWS_WISH, [aws.Network("us-east-1", "vpc-1", ("subnet-a", "subnet-b"))]),
    ),
    "gcp": Tabled(GcpTable(_GCP, _GCP_WISH), gcp.wanted(_GCP, _GCP_WISH, {"us-central1": "us-central1-a"})),
    "azure": Tabled(
        AzureTable(AZURE, _AZURE_WISH), azure.wanted(AZURE, _AZURE_WISH, "/subscriptions/s/container", is_there=False)
    ),
}


def account_of(cloud: str, settings: Any, wish: Wish) -> Account:
    """A cloud's account, as the command line opens it."""
    factory = CLOUDS[cloud].account
    assert factory is not None
    return factory(settings, wish)


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


def made(account: Account, limit_s: float = 600.0) -> list[str]:
    """Make what is missing; the steps that were taken."""
    said: list[str] = []
    carry_out(account.missing, account.take, Said(said.append), Waits().clock, limit_s)
    return said


def deleted(account: Account, *, with_data: bool = True, limit_s: float = 600.0) -> tuple[list[str], Plan]:
    """Delete what is ours; the steps that were taken, and the last plan."""
    said: list[str] = []
    left = carry_out(
        lambda: account.remaining(with_data=with_data), account.take, Said(said.append), Waits().clock, limit_s
    )
    return said, left
