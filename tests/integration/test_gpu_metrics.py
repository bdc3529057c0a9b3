"""The agent's GPU metrics. Here is no GPU: the driver's library is one of ours."""

from __future__ import annotations

import queue
import threading
import urllib.error
import urllib.request
from pathlib import Path
from socketserver import TCPServer

import pytest
from spotsup_trainer.agent.gpu_use import GpuUse
from spotsup_trainer.agent.metrics import exposition, serve_gpu_metrics
from spotsup_trainer.launcher.gpu_processes import MACHINES_PIDS, GpuProcesses
from spotsup_trainer.nvml import GpuReading, Nvml, NvmlError

from tests.support.nvml_library import PIDS, library


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


# -- processes -----------------------------------------------------------------------------------------------


def test_processes_that_the_driver_lists_hold_memory_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv(PIDS, str(tmp_path / "pids"))
    made = library(tmp_path, lists=True)
    gpus = GpuProcesses(lambda: Nvml(made), namespace=MACHINES_PIDS)
    (tmp_path / "pids").write_text("12 400000 7")
    assert gpus.held_by({7, 8, 400000}) == [7, 400000]
    (tmp_path / "pids").write_text("")
    assert gpus.held_by({7, 8, 400000}) == []
    assert caplog.messages == []
    (tmp_path / "pids").unlink()
    assert gpus.held_by({7}) == []
    assert caplog.messages == [
        "which processes hold memory of the GPUs is not known: the driver lists none, or has not answered within 10 s"
    ]


def test_processes_are_not_waited_for_where_the_driver_does_not_list_them_or_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hangs = threading.Event()

    class Hangs(Nvml):
        def processes(self) -> frozenset[int] | None:
            hangs.wait()
            return frozenset({7})

    made = library(tmp_path)
    for gpus, why in (
        (GpuProcesses(lambda: Nvml(made), namespace=MACHINES_PIDS), "the driver lists none, or"),
        (GpuProcesses(lambda: Nvml(str(tmp_path / "no.so")), namespace=MACHINES_PIDS), f"{tmp_path}/no.so: cannot"),
        (GpuProcesses(lambda: Hangs(made), namespace=MACHINES_PIDS, answer_s=0.1), "the driver lists none, or"),
        (GpuProcesses(lambda: Nvml(made), namespace=MACHINES_PIDS - 1), "this is a container, whose pids are not"),
    ):
        caplog.clear()
        assert [gpus.held_by({7}), gpus.held_by({7})] == [[], []]
        (message,) = caplog.messages
        assert message.startswith(f"which processes hold memory of the GPUs is not known: {why}")
    hangs.set()
