"""A launch as the tests of all clouds ask for it, and the reviewed requests in tests/golden/clouds."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from provisioners.base import HostKey, LaunchRequest, Market, Offer, Owner
from provisioners.catalog import MachineType, load_catalog

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "clouds"
CATALOG = load_catalog()
TEAM = Owner("team-a", "00112233445566aa")
OTHERS = (replace(TEAM, cluster="team-b"), replace(TEAM, key_mark="bb00112233445566"))
KEY = HostKey("ssh-ed25519 AAAApublic spotsup", "the private key\n")


def request_for(offer: Offer) -> LaunchRequest:
    """Node 1 of cluster team-a."""
    return LaunchRequest("token-1", TEAM, "node-1", offer, KEY, ("ssh-ed25519 AAAAclient daemon",), dead_man_s=3600.0)


def request_on(offer: Offer, instance_type: str, market: Market = Market.SPOT, **change: Any) -> LaunchRequest:
    """The same on another machine."""
    return replace(request_for(replace(offer, instance_type=instance_type, market=market)), **change)


def machine_of(request: LaunchRequest) -> tuple[MachineType, Literal["open", "proprietary"]]:
    """The type that is launched, and the driver that its GPU needs."""
    machine = CATALOG.type_of(request.offer.cloud, request.offer.instance_type)
    return machine, CATALOG.driver_of(machine)


def assert_reviewed(name: str, asked: dict[str, Any], *, sort_keys: bool = False) -> None:
    """SPOTSUP_WRITE_GOLDEN=1 writes the request in the place of the reviewed one."""
    text = json.dumps(asked, indent=2, sort_keys=sort_keys) + "\n"
    path = GOLDEN / f"{name}.json"
    if "SPOTSUP_WRITE_GOLDEN" in os.environ:
        path.write_text(text)
    assert text == path.read_text()


def abridged(user_data: str) -> str:
    """What stands for user data in a reviewed request."""
    return f"{len(user_data) // 100} hundred bytes, see user_data.txt"
