"""Variables for NCCL, libfabric and gloo: a pure function of the machine's network and kind.

Sources: Amazon's guide to EFA with NCCL, Microsoft's guide to NCCL on ND machines (azhpc-images).
"""

from __future__ import annotations

from bootstrap.model import Host
from bootstrap.network.facts import NetworkFacts


def network_env(found: NetworkFacts, host: Host) -> dict[str, str]:
    """Return the variables. A job's own `env` overrides these. Empty on the local cloud, whose machines share one
    network."""
    if not host.traits.rented or not found.interface:
        return {}
    # By default gloo takes the interface that the host name resolves to: 127.0.1.1 on Debian's images.
    env = {"GLOO_SOCKET_IFNAME": found.interface, "NCCL_SOCKET_IFNAME": f"={found.interface}"}
    if found.efa_devices and not efa_missing(found):
        env |= {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1"}  # workers are forked
    if found.infiniband:
        env |= host.traits.infiniband_env
        if topology := _topology(found, host):
            env |= {"NCCL_TOPO_FILE": topology}
    return env


def efa_missing(found: NetworkFacts) -> str:
    """Return which part of EFA's software is missing, "" for none."""
    if not found.efa_module:
        return "its kernel module is not loaded"
    if not found.efa_version:
        return "libfabric is missing"
    return "" if found.nccl_plugin else "NCCL's plugin is missing"


def _topology(found: NetworkFacts, host: Host) -> str:
    """Return the file that describes a whole machine with this GPU, "" for none."""
    file = host.traits.topologies.get(host.gpu, "") if host.gpus == 8 else ""
    return file if file.rpartition("/")[2] in found.topologies else ""
