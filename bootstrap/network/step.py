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

# Drivers of the fast path beside hv_netvsc: Mellanox' virtual functions, and Microsoft's own adapter.
_AZURE_FAST = frozenset({"mlx4_core", "mlx5_core", "mana"})

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
    found = facts.network
    match setup.host.cloud:
        case "aws":
            return _efa(facts, setup)
        case "gcp" if "gve" in found.drivers:
            return Skip("gVNIC (gve)")
        case "gcp":
            return Skip(f"{_drivers(found)}, not gVNIC: slower; `gcp.gvnic` asks for it where the image knows it")
        case "azure" if fast := sorted(found.drivers & _AZURE_FAST):
            ib = f", {found.infiniband} InfiniBand" if found.infiniband else ""
            return Skip(f"accelerated networking ({', '.join(fast)}){ib}")
        case "azure":
            return Skip(
                f"{_drivers(found)}, no accelerated networking: slower; `azure.accelerated_networking` asks for it"
            )
        case cloud:
            return Skip(f"nothing to do on the cloud {cloud!r}")


def _efa(facts: Facts, setup: Setup) -> Decision:
    found = facts.network
    if not found.efa_devices:
        return Skip(f"{_drivers(found)}, no EFA")
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
