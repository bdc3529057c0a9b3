"""`spotsup-localcloud` as people and scripts use it: output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from provisioners.base import InstanceState, Launched, Market, OfferQuery
from tests.support.machines import TIMEOUT_S, launch_running, request_for, wait_state
from tests.support.programs import LocalCloud

pytestmark = pytest.mark.long


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    command = [sys.executable, "-m", "provisioners.localcloud.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def one_sentence(text: str) -> bool:
    """What a person gets to read when something is wrong."""
    return "Traceback" not in text and len(text.strip().splitlines()) == 1


def test_the_life_of_a_machine(local_cloud: LocalCloud) -> None:
    launch_running(local_cloud.provisioner, "n1")
    shown = local_cloud.cli("list")
    assert shown.returncode == 0
    assert [word in shown.stdout for word in ("n1", "local-a", "running")] == [True] * 3
    (listed,) = json.loads(local_cloud.cli("list", "-o", "json").stdout)
    notified = local_cloud.cli("preempt", "n1", "--notice", "600")
    assert "preempted at" in notified.stdout
    assert json.loads(local_cloud.cli("preempt", listed["id"], "-o", "json").stdout)["preempt_at"] > 0
    frozen = json.loads(local_cloud.cli("freeze", "n1", "-o", "json").stdout)
    assert (frozen["state"], frozen["frozen"]) == ("running", True)
    assert "frozen" in local_cloud.cli("list").stdout
    assert json.loads(local_cloud.cli("thaw", "n1", "-o", "json").stdout)["frozen"] is False
    assert local_cloud.cli("freeze", "n1").returncode == 0
    killed = json.loads(local_cloud.cli("kill", "n1", "-o", "json").stdout)
    assert (killed["state"], killed["end_cause"], killed["frozen"]) == ("terminated", "failed", False)
    for verb in ("preempt", "freeze", "thaw"):
        late = local_cloud.cli(verb, "n1")
        assert late.returncode == 5
        assert "it has ended" in late.stderr
        assert one_sentence(late.stderr)


def test_a_node_name_means_its_living_machine(local_cloud: LocalCloud) -> None:
    first = launch_running(local_cloud.provisioner, "n1")
    assert local_cloud.cli("terminate", "n1").returncode == 0
    wait_state(local_cloud.provisioner, first.token, InstanceState.TERMINATED)
    assert json.loads(local_cloud.cli("kill", "n1", "-o", "json").stdout)["end_cause"] == "user"


def test_behaviour_is_set_at_run_time(local_cloud: LocalCloud) -> None:
    done = local_cloud.cli(
        *("set", "-o", "json", "--launch-delay", "2.5", "--listing-lag", "0.5", "--capacity", "local-c=3"),
        *("--type", "local.gpu=1.5:4:V100:2", "--fault", "quota", "--fault", "hang"),
    )
    settings = json.loads(done.stdout)
    assert settings["launch_delay_s"] == 2.5
    assert settings["listing_lag_s"] == 0.5
    assert settings["capacity"] == {"local-a": 16, "local-b": 16, "local-c": 3}
    assert settings["next_launch_faults"] == ["quota", "hang"]
    assert "capacity: " in local_cloud.cli("set").stdout
    offers = local_cloud.provisioner.offers(OfferQuery(gpu="V100", gpus_per_node=2, zones=("local-c",)), TIMEOUT_S)
    assert [(offer.instance_type, offer.usd_per_hour, offer.gpus) for offer in offers] == [("local.gpu", 1.5, 2)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--launch-delay", "-1"], "launch_delay_s: input should be greater than or equal to 0"),
        (["--capacity", "local-a"], "'local-a' is not NAME=VALUE"),
        (["--capacity", "local-a=some"], "invalid literal"),
        (["--capacity", "local-a=-1"], "capacity.local-a: input should be greater than or equal to 0"),
        (["--type", "local.gpu=cheap"], "could not convert string to float"),
        (["--fault", "fire"], "next_launch_faults.0: input should be"),
        (["--colour", "red"], "No such option"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(tmp_path: Path, options: list[str], words: str) -> None:
    for verb in ("set", "serve"):
        done = cli(verb, "--dir", str(tmp_path / "cloud"), *options)
        assert done.returncode == 2
        assert words in done.stderr
    assert not (tmp_path / "cloud").exists()


def test_a_directory_must_be_named() -> None:
    done = cli("list")
    assert done.returncode == 2
    assert "--dir" in done.stderr


def test_unknown_machines_end_with_4(local_cloud: LocalCloud) -> None:
    for verb in ("preempt", "kill", "freeze", "thaw", "terminate"):
        done = local_cloud.cli(verb, "nobody")
        assert done.returncode == 4
        assert "'nobody'" in done.stderr
        assert one_sentence(done.stderr)


def test_an_unreachable_server_ends_with_3(local_cloud: LocalCloud, tmp_path: Path) -> None:
    local_cloud.kill_server()
    for directory in (local_cloud.directory, tmp_path / "nothing"):
        done = cli("list", "--dir", str(directory))
        assert done.returncode == 3
        assert str(directory) in done.stderr
        assert one_sentence(done.stderr)


def test_destroying_what_is_no_cloud_ends_with_4(tmp_path: Path) -> None:
    done = cli("destroy", "--dir", str(tmp_path))
    assert done.returncode == 4
    assert one_sentence(done.stderr)


def test_an_on_demand_machine_is_not_preempted(local_cloud: LocalCloud) -> None:
    request = request_for(local_cloud.provisioner, "n1")
    request = replace(request, offer=replace(request.offer, market=Market.ON_DEMAND))
    assert isinstance(local_cloud.provisioner.launch(request, TIMEOUT_S), Launched)
    done = local_cloud.cli("preempt", "n1")
    assert done.returncode == 5
    assert "only a spot machine can be preempted" in done.stderr


def test_help_does_not_need_a_server() -> None:
    assert "destroy" in cli("--help").stdout
