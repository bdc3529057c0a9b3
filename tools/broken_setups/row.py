"""One broken set-up, and the headings under which they stand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokenSetup:
    """One row. In `says`, `…` stands for any text: of the system, of an SDK, of a cloud."""

    id: str
    # The heading that it stands under.
    group: str
    what: str
    # Which check of `spotsupd check` says it, as "etcd, answer"; "" where the program ends with it before any check.
    check: str
    says: str
    # The program that says it.
    program: str = "spotsupd check"
    # Further checks that fail for the same reason.
    also: tuple[str, ...] = ()


CONFIG = "The configuration"
STATE = "The state folder and the key"
ETCD = "etcd"
CLOUDS = "The clouds"
OWN = "Machines that you already have"
AROUND = "Slack, secrets and checkpoints"
PACKAGES = "Packages"
