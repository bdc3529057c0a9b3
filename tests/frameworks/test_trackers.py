"""The trackers of docs/training/frameworks.md over a kill and a notice: one run, and what becomes of repeated steps."""

from __future__ import annotations

import importlib
import re
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launching import BUSY_S, Nodes, eventually, nodes
from tests.e2e.ranks import script
from tests.frameworks.test_examples_with_packages import as_read, as_shown

TASK = "lines-7x3k"  # as the agent names it: the job, and what makes it unique
STEPS = 1000
EVERY = 50
BLOCK = 32768

# The packages' own warnings are not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Start:
    """What rank 0 has logged in one round: the loss of each step, as printed."""

    losses: dict[int, float]

    @property
    def first(self) -> int:
        return min(self.losses)

    @property
    def last(self) -> int:
        return max(self.losses)


def printed(job: Nodes) -> list[Start]:
    """All rounds in order, by each node's log. A line that is not whole is left out."""
    found = []
    for node in job.launchers:
        lines = re.findall(r"^step (\d+) loss (\d+\.\d{6})$", job.log(node).read_text(), re.MULTILINE)
        losses: dict[int, float] = {}
        for step, loss in lines:
            if losses and int(step) <= max(losses):
                found.append(Start(losses))
                losses = {}
            losses[int(step)] = float(loss)
        if losses:
            found.append(Start(losses))
    return sorted(found, key=lambda start: start.last)


def over_a_kill_and_a_notice(tracker: str, endpoint: str, folder: Path, **env: str) -> list[Start]:
    """Three rounds: the machine of rank 0 vanishes from the first, that of the second has a notice."""
    path = script("tracked.py", folder)
    path.write_text(path.read_text().replace("from with_wandb", f"from {tracker}"))
    script(f"{tracker}.py", folder)
    with nodes(endpoint, folder, script=path, env={"SPOTSUP_TASK_ID": TASK, **env}) as job:

        def reached(step: int) -> bool:
            starts = printed(job)
            return bool(starts) and starts[-1].last >= step

        job.hint("a", "b", minimum=2)
        job.start("a", "b", "c")
        job.ready("c", timeout_s=BUSY_S)  # a spare, which replaces a at once
        eventually("steps after a checkpoint", lambda: reached(220), BUSY_S)
        leader = next(node for node in "ab" if "step 1 loss" in job.log(node).read_text())
        (other,) = {"a", "b"} - {leader}
        job.kill(leader)  # before the hint: without its place in the next round, it would have a checkpoint made
        job.hint(other, "c")
        killed_at = printed(job)[-1].last
        eventually("steps of the next round", lambda: reached(killed_at + 100), BUSY_S)
        second = next(node for node in (other, "c") if "\nstep " in f"\n{job.log(node).read_text()}")
        job.launchers[second].send_signal(signal.SIGTERM)
        for node in (other, "c"):
            assert job.exit_code(node, BUSY_S) == 0, job.log(node).read_text()
        starts = printed(job)
        progress = "\n".join(f"{start.first} to {start.last}" for start in starts)
    assert len(starts) == 3, progress
    killed, parked, last = starts
    assert killed.first == 1
    assert last.last == STEPS
    assert EVERY < parked.first <= killed.last, f"some steps are done again: {progress}"
    assert parked.last + 1 == last.first, f"a notice costs no step: {progress}"
    return starts


def merged(*starts: Start) -> dict[int, float]:
    """Of a step that was done twice, the later."""
    return {step: loss for start in starts for step, loss in start.losses.items()}


def test_tensorboard_shows_one_curve_with_the_values_that_count(etcd_endpoint: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    starts = over_a_kill_and_a_notice("with_tensorboard", etcd_endpoint, tmp_path, SPOTSUP_OUTPUT_DIR=str(output))
    folder = output / "curves"
    for curve in (as_read(folder, "loss"), as_shown(folder, "loss")):
        assert [step for step, _ in curve] == list(range(1, STEPS + 1))
        assert dict(curve) == pytest.approx(merged(*starts), abs=1e-6)


def test_mlflow_has_one_run_and_of_each_step_the_first_value(etcd_endpoint: str, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/mlflow.db"
    starts = over_a_kill_and_a_notice("with_mlflow", etcd_endpoint, tmp_path, MLFLOW_TRACKING_URI=place)
    mlflow: Any = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(place)
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == (TASK, "FINISHED")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in history] == list(range(1, STEPS + 1))
    # the step that the kill interrupted may be stored, and not printed
    known = merged(*reversed(starts))
    assert {m.step: m.value for m in history if m.step != starts[0].last + 1} == pytest.approx(
        {step: loss for step, loss in known.items() if step != starts[0].last + 1}, abs=1e-6
    )


def records(file: Path) -> Iterator[Any]:
    """What W&B's offline mode has written: LevelDB's log format, of messages. What a kill cut off is left out."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data = file.read_bytes()
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        if kind == 0 or len(part) < length:
            return
        at, whole = at + 7 + length, whole + part
        if kind in {1, 4}:  # whole, or its last part
            yield messages.Record.FromString(whole)
            whole = b""


def test_wandb_has_one_run_and_a_kill_takes_what_it_held_back(etcd_endpoint: str, tmp_path: Path) -> None:
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    starts = over_a_kill_and_a_notice("with_wandb", etcd_endpoint, tmp_path, **offline)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 3
    logged = []
    for file in files:
        found = list(records(file))
        runs = {record.run.run_id for record in found if record.HasField("run")}
        assert runs == {TASK}
        logged.append([record.history.step.num for record in found if record.HasField("history")])
    killed, parked, last = logged
    assert killed == list(range(1, len(killed) + 1))
    assert len(killed) <= starts[0].last + 1
    assert parked == list(starts[1].losses), "on_park has written all of it"
    assert last == list(starts[2].losses)


def test_wandb_leaves_out_a_step_that_is_behind_the_last_one(tmp_path: Path) -> None:
    """What the client does within one run; online it continues a run at the last step that the server knows."""
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(project="lines", id=TASK, mode="offline", dir=str(tmp_path))
    for step, loss in ((1, 0.5), (2, 0.25), (1, 0.75), (3, 0.125)):
        run.log({"loss": loss}, step=step)
    wandb.teardown()  # `finish` may return before the file is whole
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    history = [record.history for record in records(file) if record.HasField("history")]
    assert [each.step.num for each in history] == [1, 2, 3]


def test_wandb_takes_the_run_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For frameworks that call `wandb.init` by themselves."""
    wandb: Any = importlib.import_module("wandb")
    monkeypatch.setenv("WANDB_RUN_ID", TASK)
    monkeypatch.setenv("WANDB_RESUME", "allow")
    run = wandb.init(project="lines", mode="offline", dir=str(tmp_path))
    assert (run.id, run.settings.resume) == (TASK, "allow")
    wandb.teardown()
