"""The two-node job of `make contract-real`: a daemon of its own, with an etcd of its own, on the person's account.

Nothing of the person's installation is used but its table for the cloud: the cluster's name and key are this run's, so
its tags are, too. Nodes reach etcd through the daemon's SSH connections, so this computer needs no address for them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from provisioners.base import Instance, Provisioner, ProvisionerError
from provisioners.settings import CloudSettings
from tests.contract.evidence import Recorder, Step
from tests.contract.forced_end import Forced, force_end
from tests.contract.spending import DEAD_MAN_S, JOB_S, Estimate
from tests.demo.clouds import to_toml
from tests.support.machines import LOOK_S, TIMEOUT_S
from tools.stack import Stack, StackError

Look: TypeAlias = Callable[[], tuple[Instance, ...] | None]
"""Lists the job's machines, and notes what is listed; None where the cloud gave no listing."""

JOB = "contract"
PROGRAM = Path(__file__).with_name("program")
# What of the person's configuration counts here, beside the cloud's own table.
# How long a machine that trains may be in no listing.
LISTED_S = 60.0
_KEPT = ("timing", "node", "prices")
# CPU builds, which uv takes from the further index first: the default ones bring gigabytes of CUDA.
_REQUIREMENTS = "--extra-index-url https://download.pytorch.org/whl/cpu\ntorch\nnumpy\n"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds; the default is for a real cloud, where an eviction may take half an hour."""

    training_s: float = 1200.0
    replaced_s: float = 2100.0
    finished_s: float = 300.0
    gone_s: float = 300.0
    step_s: float = 0.5
    steps_after: int = 60


def dead_man_of(settings: CloudSettings) -> float:
    """Seconds; 0 where the person has switched it off."""
    return min(settings.dead_man_s, DEAD_MAN_S)


def daemon_config(given: Mapping[str, Any], cloud: str, dead_man_s: float) -> dict[str, Any]:
    """What of a person's configuration the run's daemon has, and what it has of its own, but for its folders."""
    return {key: given[key] for key in _KEPT if key in given} | {
        "local": {"enabled": False},
        "etcd": {"secure": True},
        # The shortest dead-man switch: should this computer vanish, the estimate covers so long a life.
        cloud: {**given[cloud], "reach": "ssh", "dead_man_s": dead_man_s},
    }


class JobError(Exception):
    """The job did not do what it is for: one sentence."""


class ContractJob:
    """One job, from its daemon's start to its machines' end."""

    def __init__(
        self,
        stack: Stack,
        provisioner: Provisioner,
        settings: CloudSettings,
        recorder: Recorder,
        times: Times,
        *,
        fis_role: str = "",
        checkpoints: str = "",
    ) -> None:
        """`fis_role`: as of `force_end`. `checkpoints`: an address that is the run's own; "" for none."""
        self._stack, self._cloud, self._settings = stack, provisioner, settings
        self._recorder, self._times, self._fis_role = recorder, times, fis_role
        self._checkpoints = checkpoints
        self.forced: Forced | None = None

    def configure(self, config_path: Path, cluster: str) -> None:
        """Write the daemon's configuration. `config_path`: the person's."""
        given = tomllib.loads(config_path.read_text())
        values = daemon_config(given, self._cloud.name, dead_man_of(self._settings)) | {
            "cluster": cluster,
            "state_dir": str(self._stack.state),
            "api": {"socket": str(self._stack.socket)},
        }
        # the keys outside of any table come first
        lines = [f"{key} = {to_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for name, table in values.items():
            if isinstance(table, dict):
                lines += [f"[{name}]", *(f"{json.dumps(key)} = {to_toml(value)}" for key, value in table.items())]
        (self._stack.folder / "spotsupd.toml").write_text("\n".join(lines) + "\n")

    def submit(self, cost: Estimate, budget_usd: float) -> None:
        """The daemon keeps the rest of the budget by itself, also if this process ends. Raises StackError."""
        code = self._stack.folder / "code"
        shutil.copytree(PROGRAM, code, ignore=shutil.ignore_patterns("__pycache__"))
        has_python = "python" in tomllib.loads((self._stack.folder / "spotsupd.toml").read_text()).get("node", {})
        if not has_python:
            (code / "requirements.txt").write_text(_REQUIREMENTS + ("obstore\n" if self._checkpoints else ""))
        job = {
            "name": JOB,
            "nodes": {"min": 2, "desired": 2, "max": 2},
            "resources": {"instance_types": [cost.instance_type]},
            "placement": {"cloud": self._cloud.name, "regions": [cost.region]},
            "checkpoints": self._checkpoints or "none",
            "environment": "image" if has_python else "requirements.txt",
            "run": f"train.py --step-s {self._times.step_s:g} --steps-after {self._times.steps_after}",
            "limits": {"hours": JOB_S / 3600, "usd": round(budget_usd, 4), "app_failures": 0},
        }
        (code / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        self._stack.ask("submit", str(code / "job.yaml"))

    def run(self, look: Look) -> None:
        """Train, lose a node, go on with another one, succeed. `look` lists the job's machines. Raises JobError, and
        StackError for what did not happen in time."""
        began = time.time()
        self._wait(
            lambda job: self._members(job) == 2 and job["step"] > 0, self._times.training_s, "two nodes to train", look
        )
        job = self._job()
        self._recorder.add(Step.TRAINING, f"round {job['round']}, step {job['step']}: {job['sentence']}", began=began)
        saved = self._saved(look) if self._checkpoints else None
        job = self._job()
        doomed = next(str(each["id"]) for each in job["node_list"] if each["rank"] == 1)
        machine = self._machine_of(doomed, look)
        began = time.time()
        try:
            self.forced = force_end(self._cloud, self._settings, machine, self._fis_role, TIMEOUT_S)
        except ProvisionerError as error:
            self._recorder.add(Step.FORCE, str(error), began=began, ok=False, machine=machine.id)
            raise JobError(f"no node could be taken: {error}") from error
        self._recorder.add(Step.FORCE, self.forced.answer, began=began, machine=machine.id)
        self._replace(doomed, look)
        if saved is not None:
            job = self._job()
            answer = f"round {job['round']} is at step {job['step']}; step {saved} was complete before the end"
            self._recorder.add(Step.RESUMED, answer, ok=job["step"] > saved)
        began = time.time()
        self._wait(lambda job: job["state"] == "succeeded", self._times.finished_s, "the job to succeed", look)
        self._recorder.add(Step.FINISHED, f"step {self._job()['step']}", began=began)

    def end(self, look: Look) -> None:
        """Cancel the job if it has not ended, and give its daemon the time to end its machines. Never raises."""
        try:
            if self._job()["state"] not in {"succeeded", "failed", "cancelled"}:
                self._stack.ctl("cancel", JOB)
            until = time.monotonic() + self._times.gone_s
            while time.monotonic() < until and any(each["state"] != "gone" for each in self._job()["node_list"]):
                look()
                time.sleep(max(LOOK_S, 0.2))
        except (StackError, subprocess.TimeoutExpired) as error:
            print(f"the job's daemon did not end it, the sweep will: {error}", flush=True)

    def spent_usd(self) -> float | None:
        """By the daemon's own accounts; None where it does not answer."""
        try:
            return float(self._job()["usd"])
        except (StackError, subprocess.TimeoutExpired):
            return None

    def _saved(self, look: Look) -> int:
        """The step of a checkpoint that is complete, once there is one."""
        began = time.time()
        self._wait(lambda job: job["checkpoint_step"] > 0, self._times.training_s, "a checkpoint to be complete", look)
        step = int(self._job()["checkpoint_step"])
        self._recorder.add(Step.CHECKPOINT, f"step {step} is complete at {self._checkpoints}", began=began)
        return step

    def _replace(self, doomed: str, look: Look) -> None:
        began, noticed = time.time(), False

        def replaced(job: Mapping[str, Any]) -> bool:
            nonlocal noticed
            if not noticed:
                noticed = self._note_notice(doomed)
            members = {each["id"] for each in job["node_list"] if each["state"] == "member"}
            stepped: bool = len(members) == 2 and doomed not in members and job["progress_round"] == job["round"]
            return stepped or job["state"] == "succeeded"

        self._wait(replaced, self._times.replaced_s, f"{doomed} to be replaced", look)
        if not noticed:
            self._note_notice(doomed)
        job = self._job()
        if doomed in {each["id"] for each in job["node_list"] if each["state"] == "member"}:
            raise JobError("the job succeeded before a node was taken from it")
        self._recorder.add(Step.REPLACED, f"round {job['round']}, step {job['step']}", began=began)

    def _note_notice(self, doomed: str) -> bool:
        for each in self._stack.ask("events", JOB):
            if each["kind"] == "notice" and each["node"] == doomed:
                self._recorder.add(Step.NOTICE, each["text"], began=each["at"], ended=each["at"], machine=doomed)
                return True
        return False

    def _machine_of(self, node: str, look: Look) -> Instance:
        until = time.monotonic() + LISTED_S  # a listing may fail
        while time.monotonic() < until:
            for each in look() or ():
                if each.node == node:
                    return each
            time.sleep(max(LOOK_S, 0.2))
        raise JobError(f"the cloud lists no machine of {node}, which trains")

    def _members(self, job: Mapping[str, Any]) -> int:
        return sum(each["state"] == "member" for each in job["node_list"])

    def _job(self) -> dict[str, Any]:
        found: dict[str, Any] = self._stack.ask("status", JOB)
        return found

    def _wait(self, holds: Callable[[dict[str, Any]], bool], timeout_s: float, what: str, look: Look) -> None:
        """Follow the job, and the cloud's listings beside it."""
        said = ""

        def met() -> bool:
            nonlocal said
            look()
            job = self._job()
            if job["sentence"] != said:
                said = job["sentence"]
                print(f"  {job['state']}: {said}", flush=True)
            if job["state"] in {"failed", "cancelled", "paused"}:
                raise JobError(f"the job {job['state']} while waiting for {what}: {job['reason']}")
            if holds(job):
                return True
            time.sleep(LOOK_S)
            return False

        self._stack.wait_for(met, timeout_s, what)
