"""The clouds that are set up. Their SDKs are loaded here, each with its own cloud, and not before."""

from __future__ import annotations

import contextlib

from provisioners.base import Provisioner, ProvisionerError
from supervisor.config import Config
from supervisor.errors import StartError

NO_CLOUD = "no cloud is set up: give the configuration an [aws], [gcp] or [azure] section, or [local]"


def open_clouds(config: Config, stack: contextlib.ExitStack) -> dict[str, Provisioner]:
    """By name. What has to be closed is put on `stack`. Raises StartError where one cannot be used at all."""
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
    """The names of those that are set up, without the local one."""
    return [name for name in ("aws", "gcp", "azure") if config.cloud(name) is not None]


def open_cloud(config: Config, name: str) -> Provisioner:
    """One that is rented; nothing is called yet. Raises ProvisionerError where its SDK or its catalog is missing."""
    if name == "aws" and config.aws is not None:
        from provisioners.aws import AwsProvisioner

        return AwsProvisioner(config.aws)
    if name == "gcp" and config.gcp is not None:
        from provisioners.gcp import GcpProvisioner

        return GcpProvisioner(config.gcp)
    if name == "azure" and config.azure is not None:
        from provisioners.azure import AzureProvisioner

        return AzureProvisioner(config.azure)
    raise ProvisionerError(f"cloud {name!r} is not set up: give the configuration a section for it")


def _local(config: Config, stack: contextlib.ExitStack) -> Provisioner:
    from provisioners.local import LocalProvisioner
    from provisioners.localcloud.embed import ServerError, StoreError, ensure_server, stop_if_empty

    try:
        ensure_server(config.local_dir, config.local.image)
    except (ServerError, StoreError) as error:
        raise StartError(f"the local cloud does not start: {error}") from error
    stack.callback(stop_if_empty, config.local_dir)
    return LocalProvisioner(config.local_dir)
