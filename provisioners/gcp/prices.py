"""Spot prices, from Compute Engine's history of capacity: "advice.capacityHistory" has the list price of spot instances
by machine type and region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from provisioners.calls import Deadline
from provisioners.catalog import MachineType
from provisioners.gcp.advice import Advice, gpus_of
from provisioners.gcp.client import Gcp
from provisioners.offers import read_at

KEPT_S = 3600.0
SOURCE = "Compute Engine capacity history"


class SpotPrices:
    """Reads them once an hour, one call per machine type and region. Thread-safe."""

    def __init__(self, gcp: Gcp) -> None:
        self._gcp = gcp
        self._advice: Advice[tuple[str, str], float] = Advice(KEPT_S)

    def of(
        self, wanted: Iterable[tuple[str, MachineType]], now: float, deadline: Deadline
    ) -> Mapping[tuple[str, str], tuple[float, str]]:
        """(region, our name of the type) -> (US dollars per hour, source). Those that cannot be read are left out."""
        types = {(region, machine.name): self._reader(region, machine) for region, machine in wanted}
        found = self._advice.of(types, now, deadline)
        return {key: (price, read_at(SOURCE, at)) for key, (at, price) in found.items()}

    def _reader(self, region: str, machine: MachineType) -> Callable[[Deadline], float | None]:
        return lambda deadline: self._read(region, machine, deadline)

    def _read(self, region: str, machine: MachineType, deadline: Deadline) -> float | None:
        properties: dict[str, Any] = {
            "machine_type": machine.machine_type or machine.name,
            "scheduling": {"provisioning_model": "SPOT"},
            **gpus_of(machine),
        }
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
