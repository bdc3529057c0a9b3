"""The GPUs' metrics for Prometheus, where no dcgm-exporter has them: at its port, under its names.

So one scrape and one dashboard fit both. Source of the names: dcgm-exporter's default-counters.csv.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from socketserver import TCPServer

from spotsup_trainer.agent.exporter import Sample, family, serve
from spotsup_trainer.nvml import GpuReading, Nvml, NvmlError

PORT = 9400
"""dcgm-exporter's own default."""

_MIB = 1 << 20

# Name, kind, what it is, and its value from a reading: None is left out.
_METRICS: tuple[tuple[str, str, str, Callable[[GpuReading], float | None]], ...] = (
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda gpu: gpu.utilisation_percent),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", lambda gpu: _mib(gpu.memory_used_bytes)),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", lambda gpu: _mib(gpu.memory_free_bytes)),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda gpu: gpu.temperature_c),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda gpu: _watts(gpu.power_mw)),
    (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "counter",
        "Total number of single-bit volatile ECC errors.",
        lambda gpu: gpu.ecc_corrected,
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "counter",
        "Total number of double-bit volatile ECC errors.",
        lambda gpu: gpu.ecc_uncorrected,
    ),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", lambda gpu: gpu.xid),
    ("spotsup_gpu_xids_total", "counter", "XID errors since the agent's start.", lambda gpu: gpu.xids),
)


def exposition(gpus: Sequence[GpuReading]) -> str:
    """Prometheus' text format 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(gpus))


def start_gpu_metrics(address: str) -> None:
    """Serve the metrics, if there is a GPU, until the process ends; on its own daemon thread.

    A driver that hangs then costs metrics, not the node's last checkpoint.
    """
    threading.Thread(target=serve_gpu_metrics, args=(address,), name="gpu-metrics", daemon=True).start()


def serve_gpu_metrics(
    address: str,
    *,
    port: int = PORT,
    open_nvml: Callable[[], Nvml] = Nvml,
    ready: Callable[[TCPServer], None] = lambda _: None,
) -> None:
    """Serve the metrics until `shutdown` of the server that `ready` gets. Returns at once without a GPU or free
    port."""
    try:
        nvml = open_nvml()
    except NvmlError:
        return
    serve("GPU", address, port, lambda: exposition(nvml.read()), ready)


def _lines(gpus: Sequence[GpuReading]) -> Iterator[str]:
    for name, kind, what, value in _METRICS:
        found = ((gpu, value(gpu)) for gpu in gpus)
        yield from family(name, kind, what, [Sample(_labels(gpu), each) for gpu, each in found if each is not None])


def _labels(gpu: GpuReading) -> dict[str, str]:
    return {"gpu": str(gpu.index), "UUID": gpu.uuid, "device": f"nvidia{gpu.index}", "modelName": gpu.name}


def _mib(size: int | None) -> float | None:
    return None if size is None else size // _MIB


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000
