"""The agent's GPU metrics. Here is no GPU: the driver's library is one of ours."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from socketserver import TCPServer

import pytest
from spotsup_trainer.agent.gpu_use import GpuUse
from spotsup_trainer.agent.metrics import exposition, serve_gpu_metrics
from spotsup_trainer.agent.nvml import GpuReading, Nvml, NvmlError

# Two GPUs as nvml.h has them: a T4 that reports everything, and one that reports neither ECC nor its power, and is new
# to Xid 79.
FAKE = r"""
#include <string.h>
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } Event;
static int devices[2], events;
static int queued = 2;
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    strncpy(name, device == devices ? "Tesla T4" : "a \"quoted\" GPU", length); return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, device == devices ? "GPU-1" : "GPU-2", length); return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *found) { found->gpu = 87; found->memory = 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *found) {
    found->total = 16106127360ULL; found->used = 5368709120ULL; found->free = 10737418240ULL; return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *found) { *found = 61 + sensor; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *found) { *found = 69500; return device == devices ? 0 : 3; }
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *found) {
    *found = kind ? 2 : 7; return device == devices ? 0 : 3;
}
int nvmlEventSetCreate(void **set) { *set = &events; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return types == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    if (!queued) return 10;
    event->device = &devices[1]; event->type = 8; event->data = queued-- == 2 ? 31 : 79;
    return 0;
}
"""


def library(folder: Path, init: int = 0) -> str:
    """The library, compiled. Skips where nothing compiles."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is here to make a library with")
    source, made = folder / "nvml.c", folder / f"nvml-{init}.so"
    source.write_text(FAKE)
    subprocess.run([compiler, "-shared", "-fPIC", f"-DINIT={init}", "-o", made, source], check=True, timeout=60)
    return str(made)


def test_the_drivers_library_is_read(tmp_path: Path) -> None:
    nvml = Nvml(library(tmp_path))
    memory = {"memory_used_bytes": 5 << 30, "memory_free_bytes": 10 << 30}
    full = {**memory, "temperature_c": 61, "power_mw": 69500, "ecc_corrected": 7, "ecc_uncorrected": 2}
    full_reading, sparse = nvml.read()
    assert full_reading == GpuReading(0, "Tesla T4", "GPU-1", 87, **full)
    assert sparse == GpuReading(1, 'a "quoted" GPU', "GPU-2", 87, **memory, temperature_c=61, xid=79, xids=2)
    assert nvml.read()[1].xids == 2, "each is counted once"


def test_without_a_driver_or_with_one_that_does_not_start_nothing_is_served(tmp_path: Path) -> None:
    with pytest.raises(NvmlError, match=r"nvmlInit_v2 gives 9"):
        Nvml(library(tmp_path, init=9))
    with pytest.raises(NvmlError):
        Nvml(str(tmp_path / "nowhere.so"))
    serve_gpu_metrics("127.0.0.1", port=0, open_nvml=lambda: Nvml(str(tmp_path / "nowhere.so")))


def test_missing_values_are_left_out_and_names_are_those_of_dcgm_exporter() -> None:
    text = exposition([GpuReading(0, "T4", "GPU-1", utilisation_percent=5), GpuReading(1, 'a\\"b\n', "GPU-2", xid=79)])
    assert text == (
        "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n"
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="T4"} 5\n'
        "# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.\n"
        "# TYPE DCGM_FI_DEV_XID_ERRORS gauge\n"
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1",device="nvidia0",modelName="T4"} 0\n'
        'DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-2",device="nvidia1",modelName="a\\\\\\"b\\n"} 79\n'
        "# HELP spotsup_gpu_xids_total XID errors since the agent's start.\n"
        "# TYPE spotsup_gpu_xids_total counter\n"
        'spotsup_gpu_xids_total{gpu="0",UUID="GPU-1",device="nvidia0",modelName="T4"} 0\n'
        'spotsup_gpu_xids_total{gpu="1",UUID="GPU-2",device="nvidia1",modelName="a\\\\\\"b\\n"} 0\n'
    )


class Unhealthy(Nvml):
    """A driver that has nothing to say."""

    def read(self) -> list[GpuReading]:
        raise NvmlError("gone")


def test_a_scrape_that_fails_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    made, servers = library(tmp_path), queue.SimpleQueue[TCPServer]()
    ours = {"open_nvml": lambda: Unhealthy(made), "ready": servers.put}
    thread = threading.Thread(target=serve_gpu_metrics, args=("127.0.0.1",), kwargs={"port": 0, **ours})
    thread.start()
    server = servers.get(timeout=30)
    try:
        with pytest.raises(OSError, match=r"closed connection|reset"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=10)
    finally:
        server.shutdown()
        thread.join()
    assert caplog.messages == ["the GPU metrics were not sent to 127.0.0.1: gone"]
    assert capfd.readouterr().err == ""


def test_they_are_served_at_one_path_and_nowhere_where_the_port_is_taken(tmp_path: Path) -> None:
    made, servers = library(tmp_path), queue.SimpleQueue[TCPServer]()
    ours = {"open_nvml": lambda: Nvml(made), "ready": servers.put}
    thread = threading.Thread(target=serve_gpu_metrics, args=("127.0.0.1",), kwargs={"port": 0, **ours})
    thread.start()
    server = servers.get(timeout=30)
    port = int(server.server_address[1])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = answer.read().decode().splitlines()
        labels = 'gpu="0",UUID="GPU-1",device="nvidia0",modelName="Tesla T4"'
        assert f"DCGM_FI_DEV_FB_USED{{{labels}}} 5120" in lines
        assert f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 69.5" in lines
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        serve_gpu_metrics("127.0.0.1", port=port, open_nvml=lambda: Nvml(made))
    finally:
        server.shutdown()
        thread.join()
    assert servers.empty()


# -- how busy they are ---------------------------------------------------------------------------------------


class Busy:
    """A driver's library by a script: percents of each GPU, for one read after the other; then it stands still."""

    def __init__(self, *reads: tuple[int | None, ...]) -> None:
        self._reads = list(reads)
        self.all_read = threading.Event()

    def read(self) -> list[GpuReading]:
        if not self._reads:
            self.all_read.set()
            return []
        return [GpuReading(n, "T4", f"GPU-{n}", utilisation_percent=each) for n, each in enumerate(self._reads.pop(0))]


@pytest.mark.parametrize(
    ("reads", "percent"),
    [
        ([(50, 100)], 75.0),
        ([(0,)] * 5 + [(80,)] * 5, 80.0),  # only the last ones count
        ([(90, None)], 90.0),  # a GPU that does not say it
        ([(None,)], None),
        ([], None),
    ],
)
def test_how_busy_gpus_are_is_their_mean_over_the_last_reads(
    reads: list[tuple[int | None, ...]], percent: float | None
) -> None:
    library, now = Busy(*reads), [100.0]
    use = GpuUse(lambda: library, every_s=0.001, clock=lambda: now[0])
    use.start()
    try:
        assert library.all_read.wait(30)
        assert use.percent() == percent
        now[0] += 60.0  # the driver has held the thread up for a minute
        assert use.percent() is None
    finally:
        use.stop()


def test_without_a_driver_nothing_is_known(tmp_path: Path) -> None:
    use = GpuUse(lambda: Nvml(str(tmp_path / "nowhere.so")), every_s=0.001)
    use.start()
    assert use.percent() is None
    use.stop()
