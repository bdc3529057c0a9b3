"""What a host has answered, as typed, bounded values: it may be broken, or hostile, and speaks for itself alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from provisioners.base import Owner
from provisioners.gpu_names import name_of
from provisioners.own.settings import OwnHost

_Word = Annotated[str, StringConstraints(max_length=100)]
_Words = Annotated[str, StringConstraints(max_length=400)]
_MAX_CLAIMS = 4096


class _Answer(BaseModel):
    # A newer or older program may say more.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Closed(_Answer):
    """Since and until when one of its users has the computer for themselves (UNIX seconds, our clock)."""

    since: Annotated[float, Field(ge=0, le=1e11)]
    until: Annotated[float, Field(ge=0, le=1e11)]


class FactsSaid(_Answer):
    """What a host is, in its words."""

    gpus: Annotated[list[Annotated[list[_Word], Field(min_length=4, max_length=4)]], Field(max_length=64)]
    user: _Word
    lingers: bool
    missing: _Words
    smi: _Words


class Look(_Answer):
    """The answer to a look. Claims are read one by one: one that cannot be read hides no other."""

    claims: Annotated[list[Any], Field(max_length=_MAX_CLAIMS)]
    closed: Closed | None


class LookAtAll(Look):
    """The answer to a look that asks for facts, too."""

    facts: FactsSaid


class Refused(_Answer):
    """A claim that came to nothing: all of it is for people."""

    busy: _Words = ""
    fatal: Annotated[str, StringConstraints(max_length=2000)] = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a host is."""

    gpu: str = ""
    gpus: tuple[tuple[str, int], ...] = ()  # (nvidia-smi's name, its memory in MiB) of those that are ours to use
    problems: tuple[str, ...] = ()


def facts_of(said: FactsSaid, host: OwnHost, known: Sequence[str]) -> Facts:
    """Return what a host is. Raises ValueError where its GPUs cannot be read."""
    # A GPU that shares the computer's memory has none of its own: nvidia-smi says [N/A].
    rows = {int(number): (name, int(mib) if mib.isdecimal() else 0) for number, _, mib, name in said.gpus}
    numbers = tuple(rows) if host.numbers is None else host.numbers
    ours = tuple(rows[number] for number in numbers if number in rows)
    problems = [said.missing, said.smi]
    if missing := [number for number in numbers if number not in rows]:
        problems.append(f"nvidia-smi knows no GPU {', '.join(map(str, missing))}")
    if kinds := sorted({name for name, _ in ours})[1:]:
        problems.append(
            f"its GPUs are of several kinds ({ours[0][0]}, {', '.join(kinds)}): give it an entry in [own.hosts] for "
            "each kind, with `gpus`"
        )
    if not said.lingers:
        problems.append(
            "logind removes the shared memory of a job when the last login of its user ends: on that host, "
            f"`sudo loginctl enable-linger {said.user}`"
        )
    return Facts(name_of(*ours[0], known) if ours else "", ours, tuple(filter(None, problems)))


def digest_of(host: str) -> str:
    """Return what of a host's name is in the ids of its machines."""
    return hashlib.sha256(host.encode()).hexdigest()[:8]


def machine_id(host: str, owner: Owner, token: str) -> str:
    """Return the id of the machine that a host is claimed as: the same for the same request."""
    number = int(hashlib.sha256(f"{owner.digest} {token}".encode()).hexdigest(), 16) % 10**12
    return f"own-{digest_of(host)}-{number:012d}"


def owner_of(made: Mapping[str, Any]) -> Owner:
    """Return whose claim this is. Raises KeyError."""
    return Owner(str(made["cluster"]), str(made["key_mark"]))
