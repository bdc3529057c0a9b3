"""Reads the GPUs' state from NVIDIA's driver, through its own library.

Not yet run on a machine with a GPU. Source: NVML API reference; names and numbers are nvml.h's.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

_MAX_EVENTS = 64  # read from the driver's queue at a time
_MAX_PROCESSES = 1024  # of one GPU
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE
_XID = 0x8  # nvmlEventTypeXidCriticalError
_SUCCESS, _TEMPERATURE_GPU, _CORRECTED, _UNCORRECTED, _VOLATILE = 0, 0, 0, 1, 0


class NvmlError(Exception):
    """The driver is missing, or does not answer."""


@dataclass(frozen=True)
class GpuReading:
    """One GPU now. None: the driver does not report it."""

    index: int
    name: str
    uuid: str
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    # The number of the last XID error since the agent's start, 0 for none.
    xid: int = 0
    # How many there were.
    xids: int = 0


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of versions 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The driver's library. For one thread of its own: an unhealthy driver may block a call forever. Raises
    NvmlError."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            status = self._library.nvmlInit_v2()
        except (OSError, AttributeError) as error:
            raise NvmlError(str(error)) from error
        if status != _SUCCESS:
            raise NvmlError(f"nvmlInit_v2 gives {status}")
        self._devices = [self._device(index) for index in range(self._count())]
        self._last: dict[int, int] = {}
        self._seen: Counter[int] = Counter()
        self._events = self._listen()

    def read(self) -> list[GpuReading]:
        """Return all GPUs."""
        self._read_events()
        return [self._reading(index, device) for index, device in enumerate(self._devices)]

    def processes(self) -> frozenset[int] | None:
        """Return the pids, in the machine's own namespace, that have a CUDA context on any GPU; None if the driver does
        not list them."""
        found: set[int] = set()
        for device in self._devices:
            count, rows = ctypes.c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
            names = (f"nvmlDeviceGetComputeRunningProcesses_v{version}" for version in (3, 2))
            if not any(self._call(name, device, ctypes.byref(count), rows) for name in names):
                return None
            found |= {row.pid for row in rows[: count.value]}
        return frozenset(found)

    # -- inside --------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> bool:
        """True if the call succeeded: old drivers have fewer functions, and small GPUs fewer sensors."""
        function: Callable[..., int] | None = getattr(self._library, name, None)
        return function is not None and function(*arguments) == _SUCCESS

    def _count(self) -> int:
        found = ctypes.c_uint()
        return found.value if self._call("nvmlDeviceGetCount_v2", ctypes.byref(found)) else 0

    def _device(self, index: int) -> ctypes.c_void_p:
        """Return a null handle, which every function refuses, if the GPU is lost."""
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        return device

    def _listen(self) -> ctypes.c_void_p | None:
        events = ctypes.c_void_p()
        if not self._call("nvmlEventSetCreate", ctypes.byref(events)):
            return None
        for device in self._devices:
            self._call("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(_XID), events)
        return events

    def _read_events(self) -> None:
        event = _Event()
        for _ in range(_MAX_EVENTS if self._events else 0):
            if not self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0)):
                return
            if event.type == _XID and event.device:
                self._last[event.device] = event.data
                self._seen[event.device] += 1

    def _reading(self, index: int, device: ctypes.c_void_p) -> GpuReading:
        used, memory = _Utilisation(), _Memory()
        has_used = self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(used))
        has_memory = self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        key = device.value or 0
        return GpuReading(
            index=index,
            name=self._text("nvmlDeviceGetName", device),
            uuid=self._text("nvmlDeviceGetUUID", device),
            utilisation_percent=used.gpu if has_used else None,
            memory_used_bytes=memory.used if has_memory else None,
            memory_free_bytes=memory.free if has_memory else None,
            temperature_c=self._number("nvmlDeviceGetTemperature", device, ctypes.c_int(_TEMPERATURE_GPU)),
            power_mw=self._number("nvmlDeviceGetPowerUsage", device),
            ecc_corrected=self._ecc(device, _CORRECTED),
            ecc_uncorrected=self._ecc(device, _UNCORRECTED),
            xid=self._last.get(key, 0),
            xids=self._seen[key],
        )

    def _text(self, name: str, device: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        succeeded = self._call(name, device, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace") if succeeded else ""

    def _number(self, name: str, device: ctypes.c_void_p, *arguments: Any) -> int | None:
        found = ctypes.c_uint()
        return found.value if self._call(name, device, *arguments, ctypes.byref(found)) else None

    def _ecc(self, device: ctypes.c_void_p, kind: int) -> int | None:
        found = ctypes.c_ulonglong()
        arguments = (device, ctypes.c_int(kind), ctypes.c_int(_VOLATILE), ctypes.byref(found))
        return found.value if self._call("nvmlDeviceGetTotalEccErrors", *arguments) else None
