"""What spotsup knows about a cloud without asking it: data, no SDK. To add one: docs/contributing/add-a-cloud.md."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from provisioners.account import Account, Wish
from provisioners.base import BY_THE_HOUR, Finding, Market, Provisioner
from provisioners.host import HostTraits
from provisioners.settings import Section

# All get the cloud's section and the daemon's state folder. The first two raise ProvisionerError.
Factory: TypeAlias = Callable[[Any, Path], Provisioner]
Starter: TypeAlias = Callable[[Any, Path, contextlib.ExitStack], None]
# Gets the cloud's section and a time limit in seconds; (its source, the types). Raises ProvisionerError.
TypesReader: TypeAlias = Callable[[Any, float], tuple[str, Sequence[Any]]]
StartCheck: TypeAlias = Callable[[Any, Path, float], Finding | None]
# Gets the cloud's section; loads the SDK, and calls nothing. Raises ProvisionerError.
AccountFactory: TypeAlias = Callable[[Any, Wish], Account]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One cloud."""

    # In job files, in records, in the catalogue; and of its section in the configuration.
    name: str
    # The model of its section: default images, login user, dead-man switch, log agent.
    settings: type[Section]
    # Makes the provisioner, and loads the SDK. It calls no cloud.
    factory: Factory
    # The format of its preemption notices, which the agent on a node has to know (spotsup_trainer/agent/notices.py).
    metadata: str
    # Its machines, for bootstrap.
    host: HostTraits
    # The section where the configuration has none; None: the cloud is not used then.
    default: Section | None = None
    # Starts what has to run beside the daemon, and puts its end on the stack.
    start: Starter | None = None
    # Whether `start` would succeed, within so many seconds; None where it runs already.
    startable: StartCheck | None = None
    # Whether machines without a GPU have to be named: the catalogue knows machines with GPUs only.
    has_catalog: bool = True
    # Reads the types that it describes itself, for `spotsupd catalogue refresh`; None: it describes none.
    types: TypesReader | None = None
    # Makes what an installation needs in an account beside machines (provisioners/account.py); None: people do it.
    account: AccountFactory | None = None
    # How its machines can be bought.
    markets: tuple[Market, ...] = BY_THE_HOUR
    # Whether its machines cost money.
    bills: bool = True
    # How long before a preemption its notice comes, at least; 0: not known.
    notice_s: float = 0.0
    # How long before it comes at most: of a node that says more, no more is believed.
    max_notice_s: float = 900.0
