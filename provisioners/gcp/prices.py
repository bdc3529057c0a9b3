"""Spot prices, from Compute Engine's history of capacity: "advice.capacityHistory" has the list price of spot instances
by machine type and region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from provisioners.base import ProvisionerError
from provisioners.calls import Deadline
from provisioners.catalog import MachineType
from provisioners.gcp.client import Gcp
from provisioners.kept import Kept
from provisioners.offers import read_at

KEPT_S = 3600.0
SOURCE = "Compute Engine capacity history"
_SHARE = 0.4  # of the time that is left: offers do not need prices
_THREADS = 8


class SpotPrices:
    """Reads them once an hour, one call per machine type and region. Thread-safe."""

    def __init__(self, gcp: Gcp) -> None:
        self._gcp = gcp
        self._kept: Kept[tuple[str, str], float | None] = Kept(KEPT_S)

    def of(
        self, wanted: Iterable[tuple[str, MachineType]], now: float, deadline: Deadline
    ) -> Mapping[tuple[str, str], tuple[float, str]]:
        """(region, our name of the type) -> (US dollars per hour, source). Those that cannot be read are left out."""
        types = {(region, machine.name): machine for region, machine in wanted}
        unknown = {key: machine for key, machine in types.items() if self._kept.known(key, now) is None}
        within = Deadline(deadline.left_s() * _SHARE)
        if unknown:
            with ThreadPoolExecutor(min(len(unknown), _THREADS)) as pool:
                asked = {key: pool.submit(self._read, key[0], each, within) for key, each in unknown.items()}
                for key, each in asked.items():
                    try:
                        self._kept.put(key, now, each.result())
                    except ProvisionerError:
                        continue
        known = {key: self._kept.known(key, now) for key in types}
        return {
            key: (each[1], read_at(SOURCE, each[0]))
            for key, each in known.items()
            if each is not None and each[1] is not None
        }

    def _read(self, region: str, machine: MachineType, deadline: Deadline) -> float | None:
        properties: dict[str, Any] = {
            "machine_type": machine.machine_type or machine.name,
            "scheduling": {"provisioning_model": "SPOT"},
        }
        if machine.machine_type and machine.accelerator:
            properties["guest_accelerators"] = [
                {"accelerator_type": machine.accelerator, "accelerator_count": machine.gpus}
            ]
        answer = self._gcp.ask(
            "advice",
            "capacity_history",
            deadline,
            region,
            region=region,
            capacity_history_request_resource={
                "instance_properties": properties,
                "location_policy": {"location": f"regions/{region}"},
                "types": ["PRICE"],
            },
        )
        return newest(answer.price_history)


def newest(history: Iterable[Any]) -> float | None:
    """US dollars per hour of the record whose interval is the newest; None where there is none. Pure."""
    usable = [each for each in history if each.list_price.currency_code == "USD"]
    last = max(usable, key=lambda each: str(each.interval.start_time), default=None)
    if last is None:
        return None
    price = float(last.list_price.units or 0) + float(last.list_price.nanos or 0) / 1e9
    return price if price > 0 else None
