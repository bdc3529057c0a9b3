"""Google Compute Engine, without its SDK."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioners.account import Account, Wish
from provisioners.base import Market, Provisioner
from provisioners.descriptor import Descriptor
from provisioners.gcp.settings import GcpSettings
from provisioners.host import FastNetwork, HostTraits


def _provisioner(settings: GcpSettings, state: Path) -> Provisioner:
    from provisioners.catalog import load_catalog
    from provisioners.gcp.provisioner import GcpProvisioner
    from provisioners.refreshed import file_of

    return GcpProvisioner(settings, catalog=load_catalog(settings.catalog, file_of(state, "gcp")))


def _types(settings: GcpSettings, timeout_s: float) -> tuple[str, Sequence[Any]]:
    from provisioners.gcp import types

    return types.SOURCE, types.read(settings, timeout_s)


def _account(settings: GcpSettings, wish: Wish) -> Account:
    from provisioners.gcp.account.table import GcpTable

    return Account(GcpTable(settings, wish), wish.owner)


GCP = Descriptor(
    name="gcp",
    settings=GcpSettings,
    factory=_provisioner,
    types=_types,
    account=_account,
    metadata="gcp",
    markets=(Market.SPOT, Market.ON_DEMAND, Market.FLEX, Market.RESERVED),
    notice_s=30.0,
    max_notice_s=150.0,  # with the longest `gcp.notice_s`
    host=HostTraits(
        cloud="gcp",
        rented=True,
        ubuntu="24.04",
        adapter="gve",
        kernel_package="linux-image-gcp",
        has_docker=False,
        fast_network=FastNetwork("gVNIC", frozenset({"gve"}), "`gcp.gvnic` asks for it where the image supports it"),
    ),
)
