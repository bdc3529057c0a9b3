"""Amazon EC2, without its SDK."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioners.account import Account, Wish
from provisioners.aws.settings import AwsSettings
from provisioners.base import Market, Provisioner
from provisioners.descriptor import Descriptor
from provisioners.host import HostTraits


def _provisioner(settings: AwsSettings, state: Path) -> Provisioner:
    from provisioners.aws.provisioner import AwsProvisioner
    from provisioners.catalog import load_catalog
    from provisioners.refreshed import file_of

    return AwsProvisioner(settings, catalog=load_catalog(settings.catalog, file_of(state, "aws")))


def _types(settings: AwsSettings, timeout_s: float) -> tuple[str, Sequence[Any]]:
    from provisioners.aws import types

    return types.SOURCE, types.read(settings, timeout_s)


def _account(settings: AwsSettings, wish: Wish) -> Account:
    from provisioners.aws.account.table import AwsTable

    return Account(AwsTable(settings, wish), wish.owner)


AWS = Descriptor(
    name="aws",
    settings=AwsSettings,
    factory=_provisioner,
    types=_types,
    account=_account,
    metadata="aws",
    markets=(Market.SPOT, Market.ON_DEMAND, Market.RESERVED),
    notice_s=120.0,
    max_notice_s=120.0,
    host=HostTraits(
        cloud="aws",
        rented=True,
        ubuntu="24.04",
        adapter="ena",
        kernel_package="linux-image-aws",
        fsx_client=True,
    ),
)
