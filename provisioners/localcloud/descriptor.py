"""The local cloud."""

from __future__ import annotations

import contextlib
from pathlib import Path

from provisioners.base import Finding, Market, Provisioner
from provisioners.descriptor import Descriptor
from provisioners.host import HostTraits
from provisioners.localcloud.settings import LocalSettings


def _provisioner(settings: LocalSettings, state: Path) -> Provisioner:
    from provisioners.local import LocalProvisioner

    return LocalProvisioner(settings.folder(state))


def _start(settings: LocalSettings, state: Path, stack: contextlib.ExitStack) -> None:
    from provisioners.localcloud.embed import start

    start(settings.folder(state), settings.image, stack)


def _startable(settings: LocalSettings, state: Path, timeout_s: float) -> Finding | None:
    from provisioners.localcloud.embed import startable

    return startable(settings.folder(state), timeout_s)


LOCAL = Descriptor(
    name="local",
    settings=LocalSettings,
    factory=_provisioner,
    metadata="local",
    markets=(Market.SPOT, Market.ON_DEMAND, Market.FLEX),
    host=HostTraits(),
    default=LocalSettings(),
    start=_start,
    startable=_startable,
    has_catalog=False,
    max_notice_s=3600.0,  # as `spotsup-localcloud preempt` takes it
)
