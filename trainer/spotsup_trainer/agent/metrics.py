"""The GPUs' metrics for Prometheus, where no dcgm-exporter has them: at its port, under its names.

So one scrape and one dashboard fit both. Source of the names: dcgm-exporter's default-counters.csv.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from spotsup_trainer.agent.nvml import GpuReading, Nvml, NvmlError

PORT = 9400
"""dcgm-exporter's own default."""

_READ_TIMEOUT_S = 10.0
_MIB = 1 << 20

log = logging.getLogger(__name__)

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


class _Server(TCPServer):
    """Not HTTPServer: that one asks for the machine's name, which may take seconds."""

    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's face
        """A scraper that hung up, most often. One line of the agent's log, where the base class prints a traceback."""
        log.warning("the GPUs' metrics were not given to %s: %s", client_address[0], sys.exception())


def start_gpu_metrics(address: str) -> None:
    """Serve them, where there is a GPU, until the process ends; on a thread of its own, for which nobody waits.

    A driver that hangs costs metrics then, not the node's last checkpoint.
    """
    threading.Thread(target=serve_gpu_metrics, args=(address,), name="gpu-metrics", daemon=True).start()


def serve_gpu_metrics(
    address: str,
    *,
    port: int = PORT,
    open_nvml: Callable[[], Nvml] = Nvml,
    ready: Callable[[TCPServer], None] = lambda _: None,
) -> None:
    """Serve them until `shutdown` of what `ready` is given; returns at once without a GPU, or a free port."""
    try:
        nvml = open_nvml()
    except NvmlError:
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = exposition(nvml.read()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Every scrape would be a line."""

    try:
        server = _Server((address, port), Handler)
    except OSError as error:
        log.info("the GPUs' metrics are not served at %s:%d: %s", address, port, error)
        return
    with server:
        log.info("the GPUs' metrics are served at %s:%d", address, server.server_address[1])
        ready(server)
        server.serve_forever()


def _lines(gpus: Sequence[GpuReading]) -> Iterator[str]:
    for name, kind, what, value in _METRICS:
        told = [(gpu, found) for gpu in gpus if (found := value(gpu)) is not None]
        if told:
            yield f"# HELP {name} {what}"
            yield f"# TYPE {name} {kind}"
        for gpu, found in told:
            yield f"{name}{{{_labels(gpu)}}} {found}"


def _labels(gpu: GpuReading) -> str:
    told = {"gpu": str(gpu.index), "UUID": gpu.uuid, "device": f"nvidia{gpu.index}", "modelName": gpu.name}
    return ",".join(f'{key}="{_escaped(text)}"' for key, text in told.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _mib(size: int | None) -> float | None:
    return None if size is None else size // _MIB


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000
