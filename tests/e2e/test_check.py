"""`spotsupd check` as users run it: on this computer alone, and against EC2's test cloud with every fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clouds import aws
from tests.clouds.machines import PaperMachines
from tests.support.programs import LocalCloud, program_env
from tools.stack import ROOT

pytestmark = pytest.mark.e2e

GPU_SPOT_QUOTAS = ("L-3819A6DF", "L-7212CCBC", "L-C4BD4855")


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
    server: aws.AwsServer

    def check(self, more: str = "", *, region: str = "us-east-1", **environ: str) -> Any:
        """What `spotsupd check -o json` says; its exit code fits."""
        text = f'state_dir = "{self.folder}/state"\n[local]\nenabled = false\n'
        text += f'[aws]\nregions = ["{region}"]\nendpoint = "{self.server.url}"\n{more}'
        config = self.folder / "spotsupd.toml"
        config.write_text(text)
        done = spotsupd("--config", str(config), "--embedded-etcd", "-o", "json", **{**aws.ENVIRON, **environ})
        assert done.stderr == ""
        report = json.loads(done.stdout)
        assert done.returncode == (0 if report["ok"] else 1)
        return report

    def the_one_complaint(self, more: str = "", *, region: str = "us-east-1", **environ: str) -> tuple[str, str]:
        """(check, message) of the only finding that is not ok."""
        report = self.check(more, region=region, **environ)
        (wrong,) = [each for each in report["findings"] if not each["ok"]]
        assert wrong["subject"] == "aws"
        assert "\n" not in wrong["message"]
        return wrong["check"], wrong["message"]


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with aws.aws_cloud(PaperMachines()) as server:
        yield Installation(tmp_path, server)


@pytest.mark.main
def test_all_checks_pass_and_nothing_is_launched(installation: Installation) -> None:
    report = installation.check()
    assert report["ok"]
    subjects = [each["subject"] for each in report["findings"]]
    assert list(dict.fromkeys(subjects)) == ["etcd", "ssh", "slack", "aws"]
    messages = {each["check"]: each["message"] for each in report["findings"] if each["subject"] == "aws"}
    assert set(messages) >= {"credentials", "us-east-1 reading", "us-east-1 image", "us-east-1 launching"}
    assert "would have been allowed" in messages["us-east-1 launching"]
    assert not installation.server.cloud.ec2.instances.records
    assert not (installation.folder / "state").exists(), "a check makes nothing"


@pytest.mark.parametrize("mood", ["wrong", "expired"])
def test_invalid_credentials(installation: Installation, mood: str) -> None:
    installation.server.cloud.credentials = mood
    what, message = installation.the_one_complaint()
    assert what == "credentials"
    assert "renew the daemon's AWS credentials" in message
    assert ("computer's clock" in message) == (mood == "expired")


def test_missing_credentials(installation: Installation) -> None:
    what, message = installation.the_one_complaint(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert what == "credentials"
    assert "no AWS credentials found" in message
    assert "aws.profile" in message


def test_a_missing_permission_is_named(installation: Installation) -> None:
    installation.server.cloud.denied = {"ec2:DescribeVolumes"}
    what, message = installation.the_one_complaint()
    assert what == "us-east-1 reading"
    assert "lacks ec2:DescribeVolumes" in message
    assert "docs/permissions/aws-iam-policy.json" in message


def test_an_unknown_image(installation: Installation) -> None:
    report = installation.check('image = "ami-1gone"\n')
    wrong = {each["check"]: each["message"] for each in report["findings"] if not each["ok"]}
    assert set(wrong) == {"us-east-1 image", "us-east-1 launching"}
    for message in wrong.values():
        assert "ami-1gone" in message
        assert "set aws.image" in message


def test_a_deleted_subnet(installation: Installation) -> None:
    report = installation.check('[aws.subnets]\nus-east-1a = "subnet-0gone"\n')
    wrong = {each["check"]: each["message"] for each in report["findings"] if not each["ok"]}
    assert set(wrong) == {"us-east-1 network", "us-east-1 launching"}
    for message in wrong.values():
        assert "subnet-0gone" in message
        assert "set aws.subnets" in message


def test_an_image_parameter_that_the_region_does_not_have(installation: Installation) -> None:
    report = installation.check('image = "/no/such/parameter"\n')
    wrong = next(each["message"] for each in report["findings"] if not each["ok"])
    assert wrong == "us-east-1 has no SSM parameter /no/such/parameter (ParameterNotFound): set aws.image"


def test_no_quota(installation: Installation) -> None:
    for code in GPU_SPOT_QUOTAS:
        installation.server.cloud.ec2.quotas[code] = 0.0
    what, message = installation.the_one_complaint()
    assert what == "us-east-1 quota"
    assert "the quotas of us-east-1 allow no GPU spot instance" in message
    assert message.endswith("request more in Service Quotas")


def test_a_region_without_any_of_the_types(installation: Installation) -> None:
    what, message = installation.the_one_complaint(region="ca-west-1")
    assert what == "ca-west-1 launching"
    assert message == "ca-west-1 offers no instance type of the catalog: remove it from aws.regions"


def test_an_unreachable_cloud(installation: Installation) -> None:
    installation.server.stop()
    what, message = installation.the_one_complaint()
    assert what == "credentials"
    assert "cannot be reached" in message


def test_a_cloud_that_hangs_fails_the_check_in_time(installation: Installation) -> None:
    installation.check()
    installation.server.cloud.fail_next("GetCallerIdentity", "hang", times=9)
    config = str(installation.folder / "spotsupd.toml")
    done = spotsupd("--config", config, "--embedded-etcd", "--timeout", "1", **aws.ENVIRON)
    assert done.returncode == 1
    (wrong,) = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    assert wrong.startswith("not ok  aws, credentials: STS in us-east-1 gave no usable answer")


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
