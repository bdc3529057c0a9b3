"""The clouds that are set up. Their SDKs are loaded here, each with its own cloud, and not before."""

from __future__ import annotations

import contextlib

from provisioners.base import Provisioner, ProvisionerError
from supervisor.config import Config
from supervisor.errors import StartError


def open_clouds(config: Config, stack: contextlib.ExitStack) -> dict[str, Provisioner]:
    """By name. What has to be closed is put on `stack`. Raises StartError where one cannot be used at all."""
    clouds: dict[str, Provisioner] = {}
    if config.local.enabled:
        clouds["local"] = _local(config, stack)
    try:
        if config.aws is not None:
            from provisioners.aws import AwsProvisioner

            clouds["aws"] = AwsProvisioner(config.aws)
        if config.gcp is not None:
            from provisioners.gcp import GcpProvisioner

            clouds["gcp"] = GcpProvisioner(config.gcp)
        if config.azure is not None:
            from provisioners.azure import AzureProvisioner

            clouds["azure"] = AzureProvisioner(config.azure)
    except ProvisionerError as error:
        raise StartError(str(error)) from error
    if not clouds:
        raise StartError("no cloud is set up: give the configuration an [aws], [gcp] or [azure] section, or [local]")
    return clouds


def _local(config: Config, stack: contextlib.ExitStack) -> Provisioner:
    from provisioners.local import LocalProvisioner
    from provisioners.localcloud.embed import ServerError, StoreError, ensure_server, stop_if_empty

    try:
        ensure_server(config.local_dir)
    except (ServerError, StoreError) as error:
        raise StartError(f"the local cloud does not start: {error}") from error
    stack.callback(stop_if_empty, config.local_dir)
    return LocalProvisioner(config.local_dir)
