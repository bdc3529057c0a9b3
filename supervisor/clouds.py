"""Opens the configured clouds. Each SDK is loaded when its cloud is opened, not before."""

from __future__ import annotations

import contextlib

from provisioners.base import Provisioner, ProvisionerError
from provisioners.readings import Guarded
from provisioners.registry import CLOUDS
from supervisor.config import Config
from supervisor.errors import StartError

_SECTIONS = ", ".join(f"[{name}]" for name in CLOUDS)
NO_CLOUD = f"no cloud is configured: add a section for one of {_SECTIONS}"


def open_clouds(config: Config, stack: contextlib.ExitStack) -> dict[str, Provisioner]:
    """Return all configured clouds by name, closed by `stack`. Raises StartError if one cannot be used."""
    clouds: dict[str, Provisioner] = {}
    try:
        for name in clouds_of(config):
            if (start := CLOUDS[name].start) is not None:
                start(config.cloud(name), config.state, stack)
            clouds[name] = open_cloud(config, name)
    except ProvisionerError as error:
        raise StartError(str(error)) from error
    if not clouds:
        raise StartError(NO_CLOUD)
    return clouds


def clouds_of(config: Config) -> list[str]:
    """Return the names of the configured clouds."""
    return [name for name in CLOUDS if config.cloud(name) is not None]


def open_cloud(config: Config, name: str) -> Provisioner:
    """Open one cloud, without a call to it. Raises ProvisionerError if its SDK or its catalog is missing."""
    if (settings := config.cloud(name)) is None:
        raise ProvisionerError(f"cloud {name!r} is not configured: add a section for it")
    return Guarded(CLOUDS[name].factory(settings, config.state))
