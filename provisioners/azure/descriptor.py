"""Azure, without its SDK.

Source of the variables and topologies: Microsoft's guide to NCCL on ND machines (azhpc-images).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioners.account import Account, Wish
from provisioners.azure.settings import AzureSettings
from provisioners.base import Market, Provisioner
from provisioners.descriptor import Descriptor
from provisioners.host import FastNetwork, HostTraits

# Drivers of the fast path beside hv_netvsc: Mellanox' virtual functions, and Microsoft's own adapter.
_FAST = frozenset({"mlx4_core", "mlx5_core", "mana"})


def _provisioner(settings: AzureSettings, state: Path) -> Provisioner:
    from provisioners.azure.provisioner import AzureProvisioner
    from provisioners.catalog import load_catalog
    from provisioners.refreshed import file_of

    return AzureProvisioner(settings, catalog=load_catalog(settings.catalog, file_of(state, "azure")))


def _types(settings: AzureSettings, timeout_s: float) -> tuple[str, Sequence[Any]]:
    from provisioners.azure import types

    return types.SOURCE, types.read(settings, timeout_s)


def _account(settings: AzureSettings, wish: Wish) -> Account:
    from provisioners.azure.account.table import AzureTable

    return Account(AzureTable(settings, wish), wish.owner)


AZURE = Descriptor(
    name="azure",
    settings=AzureSettings,
    factory=_provisioner,
    types=_types,
    account=_account,
    metadata="azure",
    markets=(Market.SPOT, Market.ON_DEMAND, Market.RESERVED),
    notice_s=30.0,
    max_notice_s=900.0,  # of its scheduled events
    host=HostTraits(
        cloud="azure",
        rented=True,
        ubuntu="24.04",
        adapter="mlx5_core",
        kernel_package="linux-image-azure",
        fast_network=FastNetwork(
            "accelerated networking", _FAST, "`azure.accelerated_networking` asks for it where the size supports it"
        ),
        infiniband_env={"NCCL_IB_PCI_RELAXED_ORDERING": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        topologies={
            **dict.fromkeys(("A100", "A100-40GB", "A100-80GB"), "/opt/microsoft/ndv4-topo.xml"),
            **dict.fromkeys(("H100", "H200"), "/opt/microsoft/ndv5-topo.xml"),
        },
        grid_gpus=frozenset({"A10", "RTXPRO6000"}),
    ),
)
