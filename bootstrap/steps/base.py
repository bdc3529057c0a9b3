"""What a step is: a pure function of facts and setup, and what several of them need."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TypeAlias

from bootstrap.facts import Facts
from bootstrap.model import Command, Paths, Setup, Skip, Unfit, expand

CHECK_TIMEOUT_S = 60.0

Decision: TypeAlias = tuple[Command, ...] | Skip | Unfit
Step: TypeAlias = Callable[[Facts, Setup], Decision]


def paths_on(facts: Facts, setup: Setup) -> Paths:
    """Where things lie on this machine, absolute."""
    return Paths(expand(setup.root, facts.home), setup.node)


def env_script(setup: Setup) -> bytes:
    """`Setup.env` for sh."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(setup.env.items())).encode()
