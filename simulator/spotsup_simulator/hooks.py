"""Callbacks for observers of a world. The world itself judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from provisioners.base import Instance
from spotsup_simulator.machine import Machine
from supervisor.planner.actions import Action, Commit

# simulation.daemon.Daemon, which calls them.
Daemon: TypeAlias = Any


@dataclass
class Hooks:
    """Each callback runs synchronously; an exception it raises ends the run, or breaks the daemon where noted."""

    # After every step of time.
    step: list[Callable[[], None]] = field(default_factory=list)
    # A machine was launched.
    launch: list[Callable[[Machine], None]] = field(default_factory=list)
    # A daemon's request is about to end a machine.
    terminate: list[Callable[[Machine], None]] = field(default_factory=list)
    # A daemon received a listing.
    listing: list[Callable[[Sequence[Instance]], None]] = field(default_factory=list)
    # A daemon starts an action.
    action: list[Callable[[Daemon, Action], None]] = field(default_factory=list)
    # A daemon's commit is in etcd.
    commit: list[Callable[[Daemon, Commit], None]] = field(default_factory=list)
    # A daemon passes a boundary of an action: (daemon, "before intent" | "after intent" | "after call" | "after
    # outcome", the action's kind). RuntimeError fails the operation; DiedError kills the daemon there.
    boundary: list[Callable[[Daemon, str, str], None]] = field(default_factory=list)
