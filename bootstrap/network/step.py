"""EFA's software on AWS; on other clouds, whether the network device is the fast one.

None of this has run with EFA or InfiniBand yet: docs/nodes.md.
"""

from __future__ import annotations

from bootstrap.decision import Decision, ours
from bootstrap.facts import Facts
from bootstrap.model import Again, Run, Setup, Skip, Unfit
from bootstrap.network.env import efa_missing
from bootstrap.network.facts import EFA_FILE, NetworkFacts
from bootstrap.templates import fill

EFA_TIMEOUT_S = 900.0


def network(facts: Facts, setup: Setup) -> Decision:
    """Install EFA's software where the machine has EFA. Otherwise say which device it has, and whether that is fast."""
    found, traits = facts.network, setup.host.traits
    if not traits.rented:
        return Skip(f"nothing to do on the cloud {traits.cloud!r}")
    if found.efa_devices:
        return _efa(facts, setup)
    if (fast := traits.fast_network) is None:
        return Skip(f"{_drivers(found)}, no EFA")
    if not (drivers := sorted(found.drivers & fast.drivers)):
        return Skip(f"{_drivers(found)}, no {fast.name}: slower; {fast.advice}")
    infiniband = f", {found.infiniband} InfiniBand" if found.infiniband else ""
    return Skip(f"{fast.name} ({', '.join(drivers)}){infiniband}")


def _efa(facts: Facts, setup: Setup) -> Decision:
    found = facts.network
    interfaces = f"{found.efa_devices} EFA interface{'s' if found.efa_devices > 1 else ''}"
    missing = efa_missing(found)
    if not missing:
        return Skip(f"{interfaces}, EFA {found.efa_version}")
    if not ours(facts, setup):
        return Skip(f"{interfaces}, but {missing}: NCCL will use TCP")
    if found.efa_installed == facts.system.kernel:
        return Unfit(f"{interfaces}, but {missing}, although EFA's software was installed; name another image")
    script = fill("network/install_efa.sh", file=EFA_FILE, kernel=facts.system.kernel)
    return (
        Run(f"install EFA's software: {missing}", script, EFA_TIMEOUT_S, as_root=True),
        Again("what EFA's software brings"),
    )


def _drivers(found: NetworkFacts) -> str:
    return ", ".join(sorted(found.drivers)) or "no network device that is known"
