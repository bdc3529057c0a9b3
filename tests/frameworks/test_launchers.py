"""Hydra's launcher, with the real package, against a daemon in the simulated world."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup import JobFailedError

from supervisor.model import JobState
from tests.sim.promises import jobs_of
from tests.support.desk import Desk
from tests.support.desk import desk as a_desk
from tools.stack import ROOT

pytest.importorskip("hydra")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with a_desk(tmp_path) as desk:
        desk.write("train.py", "print('trains')\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SPOTSUP_SOCKET", str(desk.socket))
        yield desk


def state(desk: Desk, name: str) -> JobState:
    return jobs_of(desk.world)[name].record.state


def environment(desk: Desk) -> dict[str, str]:
    paths = os.pathsep.join([*filter(None, sys.path), str(ROOT / "client")])
    return {**os.environ, "PYTHONPATH": paths, "SPOTSUP_SOCKET": str(desk.socket)}


def run(desk: Desk, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=desk.folder,
        env=environment(desk),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


APP = """\
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="main")
def main(config):
    raise AssertionError("this runs on the nodes")

main()
"""


def test_a_multirun_is_a_job_for_each_combination(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra._internal.callbacks import Callbacks
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.types import HydraContext, RunMode
    from hydra.utils import instantiate

    desk.write("conf/main.yaml", "lr: 1.0\nseed: 0\n")
    desk.write("train.py", APP)
    monkeypatch.setattr(sys, "argv", [str(desk.folder / "train.py")])
    loader = ConfigLoaderImpl(create_config_search_path(str(desk.folder / "conf")))
    config = loader.load_configuration(
        "main",
        [
            "hydra/launcher=spotsup",
            "hydra.launcher.parallel=2",
            "+hydra.launcher.spec.limits.hours=3",
            "hydra.job.name=t",
        ],
        RunMode.MULTIRUN,
    )
    config.hydra.runtime.cwd = str(desk.folder)
    launcher = instantiate(config.hydra.launcher)
    launcher.setup(hydra_context=HydraContext(loader, Callbacks()), task_function=lambda _: None, config=config)
    most = 0

    def goes_on(_: float) -> None:
        """The first to train succeeds, but the second job fails."""
        nonlocal most
        open_ones = [name for name, job in jobs_of(desk.world).items() if not job.record.ended]
        most = max(most, len(open_ones))
        for name in open_ones:
            if name.endswith("-1"):
                desk.said("cancel", name)
            elif state(desk, name) is JobState.RUNNING:
                desk.world.nodes.trainings[name].finish()
        desk.world.run(5.0)

    monkeypatch.setattr(time, "sleep", goes_on)
    found = launcher.launch([["lr=0.1"], ["lr=0.2"], ["lr=0.3", "seed=7"]], 0)
    assert [dict(each.cfg) for each in found] == [
        {"lr": 0.1, "seed": 0},
        {"lr": 0.2, "seed": 0},
        {"lr": 0.3, "seed": 7},
    ]
    assert most == 2
    assert isinstance(found[0].return_value, float | None)
    with pytest.raises(JobFailedError, match="cancelled"):
        found[1].return_value  # noqa: B018
    spec = next(job.record.spec for name, job in jobs_of(desk.world).items() if name.endswith("-2"))
    assert spec.command == ("train.py", "--config-name", "main", "lr=0.3", "seed=7")
    assert spec.limits.hours == 3


def test_the_command_line_waits_for_all_jobs(desk: Desk) -> None:
    desk.write("conf/main.yaml", "lr: 1.0\n")
    desk.write("train.py", APP)
    command = [sys.executable, "train.py", "-m", "lr=0.1,0.2", "hydra/launcher=spotsup", "hydra.launcher.name=search"]
    with subprocess.Popen(
        command, cwd=desk.folder, env=environment(desk), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        said = ""
        while "#1 :" not in said:  # all are submitted
            line = running.stdout.readline()
            assert line, said
            said += line
        names = sorted(jobs_of(desk.world))
        assert [re.sub("-[0-9a-f]{4}-", "-", name) for name in names] == ["search-0", "search-1"]
        desk.world.run_until(lambda _: all(state(desk, name) is JobState.RUNNING for name in names), 600.0)
        for name in names:
            desk.world.nodes.trainings[name].finish()
        desk.world.run_until(lambda _: all(state(desk, name) is JobState.SUCCEEDED for name in names), 600.0)
        said += running.communicate(timeout=60)[0]
    assert running.returncode == 0, said
    assert [jobs_of(desk.world)[name].record.spec.command[-1] for name in names] == ["lr=0.1", "lr=0.2"]
