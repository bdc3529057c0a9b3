"""How etcd begins on one of several hosts: as a member of a new etcd, or in the place of one that was lost. Pure.

A member that lost its data must not come back as itself: it has voted for what it does not know any more, and with one
other that lags it would be a majority for less than etcd has acknowledged. So a host without data asks the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Member:
    """A member of etcd, as another one lists it."""

    id: str
    # "" for one that was added, and has not started since.
    name: str
    peer_urls: tuple[str, ...]
    # Whether it has ever been in an etcd with a leader: it says its own client URLs then.
    started: bool

    @staticmethod
    def of(listed: Mapping[str, Any]) -> Member:
        """From etcd's JSON, which leaves out what is empty: of its gateway, or of a member's port for its peers."""
        urls = tuple(str(each) for each in listed.get("peerURLs", ()))
        number = str(listed.get("ID", listed.get("id", "")))
        return Member(number, str(listed.get("name", "")), urls, started=bool(listed.get("clientURLs")))


@dataclass(frozen=True, slots=True)
class Answer:
    """What another host's etcd says about the members, as far as it knows: it answers without a leader, too."""

    host: str
    # None: it says nothing.
    members: tuple[Member, ...] | None
    # Why it says nothing.
    problem: str = ""
    # Its etcd has another CA.
    foreign: bool = False


def has_formed(answers: Sequence[Answer]) -> bool:
    """Whether the hosts' etcd has had a leader: then only its leader knows who its members are."""
    return any(member.started for answer in answers for member in answer.members or ())


def refusal(answers: Sequence[Answer], *, first: bool) -> str:
    """Why a host without data may not begin, "" where it may. `first`: it makes the installation, and has never begun.

    An etcd that waits for its first leader is proof enough that this host was in none with it. Silence is no proof.
    """
    for answer in answers:
        if answer.foreign:
            return (
                f"{answer.host} has an etcd of another installation ({answer.problem}): make this host one of it by "
                "`spotsupd join-file | spotsupd init --join -`, or remove that one, as docs/install.md#remove says"
            )
    if first or any(answer.members is not None for answer in answers):
        return ""
    said = "; ".join(f"{answer.host}: {answer.problem}" for answer in answers)
    return (
        f"no other host's etcd answers ({said}), so nobody can say whether it has had this host as a member before, "
        "whose data are not here now. Start etcd there, let this host reach its TCP port 2380, and repeat"
    )


@dataclass(frozen=True, slots=True)
class Rejoining:
    """`remove`: a member's id, "" for none. `existing`: etcd here joins an etcd that is there."""

    remove: str = ""
    add: bool = False
    existing: bool = False


def rejoining(members: Sequence[Member], own: str) -> Rejoining:
    """For a host without data that is reached by the others at `own`. Repeated after an interruption, it goes on.

    `members`: of an etcd that has a leader, and as that one knows them.
    """
    found = next((each for each in members if own in each.peer_urls), None)
    if found is None:
        return Rejoining(add=True, existing=True)
    if found.started:
        return Rejoining(remove=found.id, add=True, existing=True)
    # With a name, it is of the first hosts, and was never there: all of them start from one list.
    return Rejoining(existing=not found.name)
