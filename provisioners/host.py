"""What is known about a cloud's machines before one is seen: plain data, which bootstrap reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FastNetwork:
    """The network adapter that a cloud's machines should have."""

    # As the cloud calls it.
    name: str
    # The kernel drivers that show that a machine has it.
    drivers: frozenset[str]
    # What to do where a machine has another one: the end of a sentence.
    advice: str


@dataclass(frozen=True, slots=True)
class HostTraits:
    """A cloud's machines. The defaults are those of the local cloud: machines are processes of this computer."""

    # The cloud's name in job files.
    cloud: str = "local"
    # Machines come from the cloud's images and have a network of their own; else they are this computer.
    rented: bool = False
    # The release of Ubuntu that its default image is made from.
    ubuntu: str = ""
    # The kernel driver of a new machine's network adapter, and the kernel package of its default image.
    adapter: str = ""
    kernel_package: str = ""
    # Whether the default image has Docker and NVIDIA's container toolkit.
    has_docker: bool = True
    fast_network: FastNetwork | None = None
    # Variables for NCCL on a machine with InfiniBand.
    infiniband_env: Mapping[str, str] = field(default_factory=dict)
    # NCCL's topology file of a machine with 8 GPUs, by the GPU's name.
    topologies: Mapping[str, str] = field(default_factory=dict)
    # GPUs that are parts of one, and need NVIDIA's GRID driver.
    grid_gpus: frozenset[str] = frozenset()
    # Whether Amazon's Lustre client can be installed on a machine without one.
    fsx_client: bool = False
