"""`spotsupd check` as users run it: on this computer alone, and against EC2's test cloud with every fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provisioners.base import Market, Offer, Owner
from tests.clouds.base import CloudServer, wire_cloud
from tests.support.machines import launched_by, request_at
from tests.support.programs import LocalCloud, program_env
from tools.stack import ROOT


def spotsupd(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "supervisor.cli.daemon", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={**program_env(), **environ},
    )


@dataclass(frozen=True, slots=True)
class Installation:
    """A configuration that knows EC2 alone, and the cloud behind it."""

    folder: Path
    server: CloudServer

    def check(self, more: str = "", *options: str, **environ: str) -> Any:
        """What `spotsupd check -o json` says; its exit code fits."""
        text = f'state_dir = "{self.folder}/state"\n[local]\nenabled = false\n'
        text += f'[aws]\nregions = ["us-east-1"]\nendpoint = "{self.server.url}"\n{more}'
        config = self.folder / "spotsupd.toml"
        config.write_text(text)
        done = spotsupd(
            "--config", str(config), "--embedded-etcd", "-o", "json", *options, **{**self.server.environ, **environ}
        )
        assert done.stderr == ""
        report = json.loads(done.stdout)
        assert done.returncode == (0 if report["ok"] else 1)
        return report

    def the_one_complaint(self, more: str = "", **environ: str) -> tuple[str, str]:
        """(check, message) of the only finding that is not ok."""
        report = self.check(more, **environ)
        (wrong,) = [each for each in report["findings"] if not each["ok"]]
        assert wrong["subject"] == "aws"
        assert "\n" not in wrong["message"]
        return wrong["check"], wrong["message"]


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with wire_cloud("aws") as server:
        server.cloud.let_daemon_in()
        yield Installation(tmp_path, server)


@pytest.mark.main
def test_all_checks_pass_and_nothing_is_launched(installation: Installation) -> None:
    report = installation.check()
    assert report["ok"]
    subjects = [each["subject"] for each in report["findings"]]
    assert list(dict.fromkeys(subjects)) == ["etcd", "state", "ssh", "secrets", "slack", "aws"]
    messages = {each["check"]: each["message"] for each in report["findings"] if each["subject"] == "aws"}
    assert set(messages) >= {"credentials", "us-east-1 reading", "us-east-1 image", "us-east-1 launching"}
    assert "would have been allowed" in messages["us-east-1 launching"]
    needed = "set aws.instance_profile to one with what docs/permissions/aws-checkpoints-policy.json lists"
    assert messages["checkpoints"] == f"nodes have no role; for `checkpoints` in an object store {needed}"
    assert not installation.server.cloud.fleet.records
    assert not (installation.folder / "state").exists(), "a check makes nothing"


def test_other_installations_in_the_account_are_named_and_left_alone(installation: Installation) -> None:
    provisioner = installation.server.provisioner()
    other = Owner("default", "fedcba9876543210")
    for token, owner in (("a", other), ("b", other), ("c", Owner("vision", other.key_mark))):
        offer = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Market.SPOT, None)
        launched_by(provisioner, replace(request_at(offer, "n1", token=token), owner=owner))
    report = installation.check()
    assert report["ok"]
    (found,) = [each["message"] for each in report["findings"] if each["check"] == "other installations"]
    assert "cluster default with key mark fedcba9876543210 has 2, cluster vision with key mark " in found
    assert "left alone" in found
    assert len(installation.server.cloud.fleet.alive()) == 3


@pytest.mark.parametrize("prefer", ["listed", "cheapest"])
def test_a_job_with_places_is_looked_at_on_the_clouds_that_are_configured(
    installation: Installation, prefer: str
) -> None:
    job = installation.folder / "job.yaml"
    job.write_text(
        f"name: job\nnodes: 2\nrun: train.py\ncheckpoints: none\nprefer: {prefer}\n"
        "placement: [{cloud: aws}, {cloud: azure}]\nresources: {instance_types: [g4dn.xlarge]}\n"
    )
    found = {each["check"]: each["message"] for each in installation.check("", "--job", str(job))["findings"]}
    assert found["machines"].startswith("aws offers g4dn.xlarge in us-east-1")


def test_an_unreachable_cloud(installation: Installation) -> None:
    installation.server.stop()
    what, message = installation.the_one_complaint()
    assert what == "credentials"
    assert "cannot be reached" in message


def test_a_cloud_that_hangs_fails_the_check_in_time(installation: Installation) -> None:
    installation.check()
    installation.server.cloud.fail_next("GetCallerIdentity", "hang", times=9)
    config = str(installation.folder / "spotsupd.toml")
    done = spotsupd("--config", config, "--embedded-etcd", "--timeout", "1", **installation.server.environ)
    assert done.returncode == 1
    (wrong,) = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    said = wrong.removeprefix("not ok  aws, credentials: STS in us-east-1 ")
    # The latter where the time is over before the call: loading the SDK takes that long on a busy computer.
    assert said.startswith(("gave no usable answer", "did not answer in time")), wrong


def test_a_missing_sdk(installation: Installation) -> None:
    (installation.folder / "boto3.py").write_text("raise ImportError('not here')\n")
    what, message = installation.the_one_complaint(PYTHONPATH=str(installation.folder))
    assert what == "set up"
    assert "pip install 'spotsup[aws]'" in message


# -- this computer -------------------------------------------------------------------------------------------


def test_for_the_local_cloud_it_says_what_would_be_started(tmp_path: Path) -> None:
    done = spotsupd("--state-dir", str(tmp_path / "state"), "--embedded-etcd")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok      ") for line in lines)
    assert "etcd would be started, with its data in" in lines[0]
    assert "its server would be started for" in lines[-1]
    assert not (tmp_path / "state").exists()


def test_a_local_cloud_that_runs_is_asked(tmp_path: Path, local_cloud: LocalCloud) -> None:
    config = tmp_path / "spotsupd.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\n[local]\ndir = "{local_cloud.directory}"\n')
    done = spotsupd("--config", str(config), "--embedded-etcd")
    assert done.returncode == 0
    assert "it answers, with" in done.stdout


def test_etcd_a_readable_key_and_a_wrong_webhook(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cluster.key").write_bytes(bytes(32))
    (tmp_path / "state" / "cluster.key").chmod(0o644)
    config = tmp_path / "spotsupd.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\n[etcd]\nendpoints = ["http://127.0.0.1:9"]\n')
    done = spotsupd("--config", str(config), SPOTSUP_SLACK_WEBHOOK="hunter2")
    assert (done.returncode, done.stderr) == (1, "")
    wrong = [line.removeprefix("not ok  ") for line in done.stdout.splitlines() if line.startswith("not ok")]
    assert wrong[0].startswith("etcd, answer: etcd at http://127.0.0.1:9 cannot be used")
    assert "is readable by others (mode 644): `chmod 600` it" in wrong[1]
    assert wrong[2].startswith("slack, webhook: the webhook is not a URL")
    assert "hunter2" not in done.stdout


def test_an_etcd_that_answers(tmp_path: Path, etcd_endpoint: str) -> None:
    config = tmp_path / "spotsupd.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\n[etcd]\nendpoints = ["{etcd_endpoint}"]\n')
    done = spotsupd("--config", str(config))
    assert done.returncode == 0
    assert f"ok      etcd, answer: etcd answers at {etcd_endpoint}" in done.stdout


@pytest.mark.main
def test_no_cloud_and_no_configuration(tmp_path: Path) -> None:
    config = tmp_path / "spotsupd.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\n[local]\nenabled = false\n')
    done = spotsupd("--config", str(config), "--embedded-etcd")
    assert done.returncode == 1
    assert "not ok  clouds, set up: no cloud is configured: add a section" in done.stdout
    missing = spotsupd("--config", str(tmp_path / "nowhere.toml"))
    assert missing.returncode == 2
    assert missing.stderr.startswith("spotsupd: cannot read the configuration")
