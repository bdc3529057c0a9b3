"""Machines of a cloud, as bootstrap is asked to prepare them."""

from __future__ import annotations

from bootstrap.model import Host
from provisioners.registry import CLOUDS


def host_on(cloud: str = "local", gpu: str = "", gpus: int = 0) -> Host:
    """What was asked of this cloud."""
    return Host(CLOUDS[cloud].host, gpu, gpus)
