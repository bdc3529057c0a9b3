"""Flex-start VMs: machines for a limited time, which Google gives once it has one, and does not preempt. Pure.

"About Flex-start VMs" and "Choose a consumption option" (AI Hypercomputer): any machine with GPUs but A4X's; at most
seven days; at a discount; they count towards preemptible quotas. "Create a Flex-start VM": a request waits for 90 s to
2 h. "Compute Engine instance lifecycle": meanwhile the VM is PENDING, and Google deletes it where the wait is in vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioners.base import ProvisionerError
from provisioners.catalog import MachineType

# The shortest that Google takes: whether to wait on, or to ask for something else, is for the job's own loop to say.
WAIT_S = 90
DAY_S = 86400.0


def scheduling(lasts_s: float) -> dict[str, Any]:
    """Return the scheduling of one. `lasts_s`: after how long Google deletes it."""
    return {
        "provisioning_model": "FLEX_START",
        "instance_termination_action": "DELETE",
        "max_run_duration": {"seconds": round(lasts_s)},
    }


def request() -> dict[str, Any]:
    """Return what else of the body makes a request one for a flex-start VM, which cannot use a reservation."""
    return {
        "params": {"request_valid_for_duration": {"seconds": WAIT_S}},
        "reservation_affinity": {"consume_reservation_type": "NO_RESERVATION"},
    }


def sold(types: Mapping[str, MachineType]) -> Mapping[str, MachineType]:
    """Return those of the types that may be asked for so. Raises ProvisionerError where there are none."""
    found = {name: each for name, each in types.items() if not name.startswith("a4x-")}
    if not found:
        raise ProvisionerError(
            f"gcp does not sell {', '.join(types)} as flex machines: ask for another market, or other types"
        )
    return found


def at_most(on_demand: tuple[float, str] | None) -> tuple[float, str] | None:
    """Return a price and its source: Google publishes those of flex-start as discounts on the price on demand."""
    return (on_demand[0], f"at most: on-demand, {on_demand[1]}") if on_demand is not None else None
