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

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Usually a scraper hung up. One line in the agent's log; the base class would print a traceback."""
        log.warning("the GPU metrics were not sent to %s: %s", client_address[0], sys.exc_info()[1])


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
        log.info("the GPU metrics are not served at %s:%d: %s", address, port, error)
        return
    with server:
        log.info("the GPU metrics are served at %s:%d", address, server.server_address[1])
        ready(server)
        server.serve_forever()


def _lines(gpus: Sequence[GpuReading]) -> Iterator[str]:
    for name, kind, what, value in _METRICS:
        samples = [(gpu, found) for gpu in gpus if (found := value(gpu)) is not None]
        if samples:
            yield f"# HELP {name} {what}"
            yield f"# TYPE {name} {kind}"
        for gpu, found in samples:
            yield f"{name}{{{_labels(gpu)}}} {found}"


def _labels(gpu: GpuReading) -> str:
    labels = {"gpu": str(gpu.index), "UUID": gpu.uuid, "device": f"nvidia{gpu.index}", "modelName": gpu.name}
    return ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _mib(size: int | None) -> float | None:
    return None if size is None else size // _MIB


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000
