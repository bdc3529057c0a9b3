"""The README's job on two machines that have nothing of ours: stock Debian, by the same bootstrap as rented ones."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from spotsup_trainer.wire import Progress, Result, Round

from bootstrap import stop_agent
from bootstrap.agent.unit import unit_name
from bootstrap.model import Paths
from tests.acceptance import updates
from tests.acceptance.installation import Installation, done_by, eventually, seconds_of
from tests.acceptance.stock import (
    REQUIREMENTS,
    USER,
    StockMachine,
    ensure_wheels,
    skipped_where_impossible,
    why_not,
)
from tools.stack import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

STEPS = 60
TRAIN_S = 600.0
SPEC = {
    "name": "chars",
    "nodes": {"min": 1, "desired": 2, "max": 2},
    "environment": "requirements.txt",
    "run": f"char_transformer.py --steps {STEPS}",
    "checkpoints": "none",
}
LOADER_S = 30.0  # logind forgets a user 10 s after his last session
LOADER_OUTPUT = "/tmp/loader.out"
LOADER = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.zeros(100_000)
torch.multiprocessing.set_sharing_strategy("file_system")
began = time.monotonic()
for _ in DataLoader(Slow(), batch_size=2, num_workers=2):
    if time.monotonic() - began > float(sys.argv[1]):
        print("loaded")
        break
"""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        with skipped_where_impossible():
            code = tmp_path / "code"
            shutil.copytree(ROOT / "trainer" / "examples", code, ignore=shutil.ignore_patterns("__pycache__"))
            (code / "requirements.txt").write_text("\n".join(REQUIREMENTS))
            env = {"GLOO_SOCKET_IFNAME": "host0", "OMP_NUM_THREADS": "1"}
            made = Installation(tmp_path, stack, ensure_wheels(ROOT, REQUIREMENTS), code, env)
        yield made


def test_the_readmes_job_trains_on_machines_that_have_nothing_of_ours(installation: Installation) -> None:
    job = installation.submit(SPEC).name
    first, second = installation.boot(), installation.boot()
    for machine in (first, second):
        machine.await_sshd()
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(("first", "second"), pool.map(installation.prepare, (first, second)), strict=True))
    for report in reports.values():
        done = done_by(report)
        assert "unpack uv" in done["environment"]
        assert done["agent"].endswith("start the agent")
    ready_s = time.monotonic() - began

    assert installation.run(first, f"sudo sh -c {shlex.quote(updates.LOOK)}") == updates.UPGRADED
    nothing = "command -v pip pip3 uv; python3 -c 'import ensurepip' 2>&1 | tail -n 1; id -un"
    assert installation.run(first, nothing).splitlines() == ["ModuleNotFoundError: No module named 'ensurepip'", USER]
    unit = installation.run(
        first, f"systemctl is-active {unit_name(first.node)} || tail -n 30 ~/.spotsup/nodes/*/agent.log"
    )
    assert unit == "active"
    keys = installation.keys

    def both() -> Progress | None:
        formed = installation.message(keys.round(job), Round)
        progress = installation.message(keys.progress(job), Progress)
        if formed is None or progress is None or len(formed.members) < 2 or progress.round != formed.number:
            return None
        return progress

    eventually("both train", both, TRAIN_S, installation.why)
    first_step_s = time.monotonic() - began
    second.kill()
    assert not second.runs

    def result() -> Result | None:
        return installation.message(keys.result(job), Result)

    assert eventually("the job ends", result, TRAIN_S, installation.why).outcome == "success"
    formed = installation.message(keys.round(job), Round)
    assert formed is not None
    assert [member.node for member in formed.members] == [first.node]

    stop_agent(installation.target(first), first.node, grace_s=30.0, clock=time.monotonic, deadline_s=120.0)
    left = installation.run(first, "grep -lzs '^SPOTSUP_AGENT_FOLDER=' /proc/[0-9]*/environ | wc -l")
    assert left == "0"

    assert loader_with_shared_files(installation, first) == "loaded"
    installation.run(first, f"sudo loginctl disable-linger {USER}")
    assert "shared memory" in loader_with_shared_files(installation, first), "logind was to take it along"

    seconds = {
        "ready": round(ready_s, 1),
        "first_step": round(first_step_s, 1),
        "login": {name: round(report.connected_s, 1) for name, report in reports.items()},
        "steps": {name: seconds_of(report) for name, report in reports.items()},
    }
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "stock.json").write_text(json.dumps(seconds, indent=1) + "\n")
    print(json.dumps(seconds, indent=1))


def loader_with_shared_files(installation: Installation, machine: StockMachine) -> str:
    """The last line of a loader whose tensors are files in /dev/shm, and which runs as the agent does: as a service of
    the user who logs in. He logs out at once."""
    config = f"/home/{USER}/{Paths(installation.setup(machine).root, machine.node).agent_config.removeprefix('~/')}"
    python = json.loads(machine.read(config))["python"]
    line = f"{shlex.quote(python)} -c {shlex.quote(LOADER)} {LOADER_S}; echo ended"
    service = f"--uid={USER} --property=StandardOutput=truncate:{LOADER_OUTPUT} --property=StandardError=inherit"
    start = f"sudo systemd-run --quiet --collect {service} /bin/sh -c {shlex.quote(line)}"
    installation.run(machine, f"sudo rm -f {LOADER_OUTPUT}; {start}")
    ended = eventually("the loader ends", lambda: read_whole(machine), LOADER_S + 120.0, installation.why)
    return ended.splitlines()[-2] if "loaded" in ended else ended


def read_whole(machine: StockMachine) -> str | None:
    """What the loader has printed, once it has ended."""
    try:
        text = machine.read(LOADER_OUTPUT)
    except FileNotFoundError:
        return None
    return text if text.endswith("ended\n") else None
