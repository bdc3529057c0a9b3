"""A host of etcd that comes back empty: what its others have to be asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Member:
    """A member of etcd, as it lists it."""

    id: str
    # "" for one that was added, and has not started since.
    name: str
    peer_urls: tuple[str, ...]
    # Whether it has ever started: it says its own client URLs then.
    started: bool

    @staticmethod
    def of(listed: Mapping[str, Any]) -> Member:
        """From the JSON gateway's answer, which leaves out what is empty."""
        urls = tuple(str(each) for each in listed.get("peerURLs", ()))
        return Member(str(listed["ID"]), str(listed.get("name", "")), urls, started=bool(listed.get("clientURLs")))


@dataclass(frozen=True, slots=True)
class Rejoining:
    """`remove`: a member's id, "" for none. `existing`: etcd here joins an etcd that is there."""

    remove: str = ""
    add: bool = False
    existing: bool = False


def rejoining(members: Sequence[Member], own: str) -> Rejoining:
    """For a host without data that is reached by the others at `own`. Repeated after an interruption, it goes on.

    A member that lost its data must not come back as itself: it has voted for what it does not know any more.
    """
    found = next((each for each in members if own in each.peer_urls), None)
    if found is None:
        return Rejoining(add=True, existing=True)
    if found.started:
        return Rejoining(remove=found.id, add=True, existing=True)
    # With a name, it is of the first hosts, and was never there: all of them start from one list.
    return Rejoining(existing=not found.name)
