"""The way to the other nodes: EFA's software on AWS, and what to tell NCCL and gloo. What costs speed is said.

None of this was ever run with EFA or InfiniBand: docs/nodes.md.
"""

from __future__ import annotations

import shlex

from bootstrap.decision import Decision, ours
from bootstrap.facts import Facts
from bootstrap.model import Again, Run, Setup, Skip, Unfit
from bootstrap.network.env import efa_missing
from bootstrap.network.facts import EFA_FILE, NetworkFacts

EFA_TIMEOUT_S = 900.0
EFA_URL = "https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz"

# The installer looks after the kernel module, libfabric and NCCL's plugin, and lets sessions lock memory from the next
# one on. Open MPI is nothing to us.
_EFA = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
curl -fsS --retry 3 --max-time 300 -o efa.tar.gz {EFA_URL}
tar -xzf efa.tar.gz
cd aws-efa-installer
./efa_installer.sh -y -g >"$work/log" 2>&1 || {{ tail -n 50 "$work/log" >&2; exit 1; }}
mkdir -p "$(dirname @file@)"
echo @kernel@ >@file@
"""


def network(facts: Facts, setup: Setup) -> Decision:
    """EFA's software where the machine has EFA. For the rest, what there is, and whether it is the fast way."""
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
    script = _EFA.replace("@file@", shlex.quote(EFA_FILE)).replace("@kernel@", shlex.quote(facts.system.kernel))
    return (
        Run(f"install EFA's software: {missing}", script, EFA_TIMEOUT_S, as_root=True),
        Again("what EFA's software brings"),
    )


def _drivers(found: NetworkFacts) -> str:
    return ", ".join(sorted(found.drivers)) or "no network device that is known"
