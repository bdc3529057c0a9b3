"""Opens the configured clouds. Each SDK is loaded when its cloud is opened, not before."""

from __future__ import annotations

import contextlib

from provisioners.base import Provisioner, ProvisionerError
from supervisor.config import Config
from supervisor.errors import StartError

NO_CLOUD = "no cloud is configured: add an [aws], [gcp], [azure] or [local] section"


def open_clouds(config: Config, stack: contextlib.ExitStack) -> dict[str, Provisioner]:
    """All configured clouds by name, closed by `stack`. Raises StartError if one cannot be used."""
    clouds: dict[str, Provisioner] = {}
    if config.local.enabled:
        clouds["local"] = _local(config, stack)
    try:
        clouds |= {name: open_cloud(config, name) for name in rented_clouds(config)}
    except ProvisionerError as error:
        raise StartError(str(error)) from error
    if not clouds:
        raise StartError(NO_CLOUD)
    return clouds


def rented_clouds(config: Config) -> list[str]:
    """The names of the configured clouds, without the local one."""
    return [name for name in ("aws", "gcp", "azure") if config.cloud(name) is not None]


def open_cloud(config: Config, name: str) -> Provisioner:
    """Open one rented cloud, without a call to it. Raises ProvisionerError if its SDK or its catalog is missing."""
    if name == "aws" and config.aws is not None:
        from provisioners.aws import AwsProvisioner

        return AwsProvisioner(config.aws)
    if name == "gcp" and config.gcp is not None:
        from provisioners.gcp import GcpProvisioner

        return GcpProvisioner(config.gcp)
    if name == "azure" and config.azure is not None:
        from provisioners.azure import AzureProvisioner

        return AzureProvisioner(config.azure)
    raise ProvisionerError(f"cloud {name!r} is not configured: add a section for it")


def _local(config: Config, stack: contextlib.ExitStack) -> Provisioner:
    from provisioners.local import LocalProvisioner
    from provisioners.localcloud.embed import ServerError, StoreError, ensure_server, stop_if_empty

    try:
        ensure_server(config.local_dir, config.local.image)
    except (ServerError, StoreError) as error:
        raise StartError(f"the local cloud did not start: {error}") from error
    stack.callback(stop_if_empty, config.local_dir)
    return LocalProvisioner(config.local_dir)
