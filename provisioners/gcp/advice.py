"""What Compute Engine advises about spot instances, as far as it answers in time: nothing depends on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from provisioners.base import ProvisionerError
from provisioners.calls import Deadline
from provisioners.catalog import MachineType
from provisioners.gcp.client import Gcp
from provisioners.gcp.names import region_of
from provisioners.kept import Kept

_SHARE = 0.4  # of the time that is left
_THREADS = 8

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Advice(Generic[Key, Value]):
    """Answers, each kept for a while. Thread-safe."""

    def __init__(self, kept_s: float) -> None:
        self._kept: Kept[Key, Value | None] = Kept(kept_s)

    def of(
        self, wanted: Mapping[Key, Callable[[Deadline], Value | None]], now: float, deadline: Deadline
    ) -> dict[Key, tuple[float, Value]]:
        """(when it was read, the answer); what cannot be read, or is nothing, is left out. `wanted`: how to ask."""
        unknown = {key: ask for key, ask in wanted.items() if self._kept.known(key, now) is None}
        within = Deadline(deadline.left_s() * _SHARE)
        if unknown:
            with ThreadPoolExecutor(min(len(unknown), _THREADS)) as pool:
                asked = {key: pool.submit(ask, within) for key, ask in unknown.items()}
                for key, each in asked.items():
                    try:
                        self._kept.put(key, now, each.result())
                    except ProvisionerError:
                        continue
        known = {key: self._kept.known(key, now) for key in wanted}
        return {key: (each[0], each[1]) for key, each in known.items() if each is not None and each[1] is not None}


def gpus_of(machine: MachineType) -> dict[str, Any]:
    """Return the GPUs that are attached to an N1; the other families include theirs."""
    if not machine.machine_type or not machine.accelerator:
        return {}
    return {
        "guest_accelerators": [{"accelerator_type": machine.accelerator, "accelerator_count": machine.gpus}],
    }


class Obtainability:
    """How likely a zone has room for a spot machine, from 0 to 1: "advice.capacity" ("View Spot VM availability"). It
    decides between places of one price, which the zones of a region are. One call per zone and type, every 10 minutes.
    """

    KEPT_S = 600.0
    MAX_PLACES = 24  # the cheapest ones

    def __init__(self, gcp: Gcp) -> None:
        self._gcp = gcp
        self._advice: Advice[tuple[str, str], float] = Advice(self.KEPT_S)

    def of(
        self, places: Iterable[tuple[str, MachineType]], now: float, deadline: Deadline
    ) -> dict[tuple[str, str], float]:
        """(zone, our name of the type) -> the score, where it is known."""
        wanted = {}
        for zone, machine in places:
            wanted[zone, machine.name] = self._reader(zone, machine)
            if len(wanted) == self.MAX_PLACES:
                break
        return {key: score for key, (_, score) in self._advice.of(wanted, now, deadline).items()}

    def _reader(self, zone: str, machine: MachineType) -> Callable[[Deadline], float | None]:
        return lambda deadline: self._read(zone, machine, deadline)

    def _read(self, zone: str, machine: MachineType, deadline: Deadline) -> float | None:
        selection = {"machine_types": [machine.machine_type or machine.name], **gpus_of(machine)}
        answer = self._gcp.ask(
            "advice",
            "capacity",
            deadline,
            region_of(zone),
            region=region_of(zone),
            capacity_advice_request_resource={
                "distribution_policy": {"target_shape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{zone}"}]},
                "instance_flexibility_policy": {"instance_selections": {"machine": selection}},
                "instance_properties": {"scheduling": {"provisioning_model": "SPOT"}},
                "size": 1,
            },
        )
        scores = [each.scores.obtainability for each in answer.recommendations if "obtainability" in each.scores]
        return max((float(each) for each in scores if 0.0 <= each <= 1.0), default=None)
