"""What operators do to a configuration while machines run: credentials of another account, a permission that is
missing, a cloud that is left out. The real daemon and SDK, on EC2's test cloud with real machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.demo.clouds import HandOnTestCloud, opened
from tools.stack import Stack

pytestmark = pytest.mark.nightly
OTHER_ACCOUNT = "210987654321"
# So long, in listings of a second, that two listings and a suspicion would have taken the machine for ended.
LISTINGS = 20


@pytest.fixture
def ec2(own_environment: None, tmp_path: Path) -> Iterator[tuple[Stack, HandOnTestCloud]]:
    """A job runs on one machine of EC2's test cloud."""
    stack = Stack(tmp_path / "stack", cluster="test")
    stack.prepare()
    with opened("aws", stack) as control:
        assert isinstance(control, HandOnTestCloud)
        try:
            _train(stack, control, tmp_path / "code")
            yield stack, control
        finally:
            assert stack.close().processes == ()


def _train(stack: Stack, control: HandOnTestCloud, code: Path) -> None:
    code.mkdir()
    (code / "train.py").write_text("import time\ntime.sleep(3600)\n")
    (code / "job.yaml").write_text(f"name: sleeper\nnodes: 1\nrun: train.py\n{control.job}")
    stack.start_daemon()
    assert stack.ctl("submit", str(code / "job.yaml")).returncode == 0
    stack.wait_for(lambda: status(stack)["state"] == "running", 120.0, "the job to run")


def status(stack: Stack) -> Any:
    return stack.ask("status", "sleeper")


def told(stack: Stack, kind: str) -> list[str]:
    return [event["text"] for event in stack.ask("events") if event["kind"] == kind]


def wait_for_listings(stack: Stack, control: HandOnTestCloud) -> None:
    before = control.calls()["ec2:DescribeInstances"]
    stack.wait_for(lambda: control.calls()["ec2:DescribeInstances"] > before + LISTINGS, 120.0, "listings")


def restart(stack: Stack, toml: str, environ: Mapping[str, str]) -> None:
    stack.stop_daemon()
    (stack.folder / "spotsupd.toml").write_text(toml)
    stack.configure("", environ)
    stack.start_daemon()


def test_with_credentials_of_another_account_no_machine_is_taken_for_ended(ec2: tuple[Stack, HandOnTestCloud]) -> None:
    stack, control = ec2
    toml, environ = (stack.folder / "spotsupd.toml").read_text(), stack.environ
    role = f"arn:aws:iam::{OTHER_ACCOUNT}:role/other"
    sts = boto3.client(
        "sts",
        "us-east-1",
        endpoint_url=control.url,
        aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
    )
    other = sts.assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    theirs = {
        "AWS_ACCESS_KEY_ID": other["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": other["SecretAccessKey"],
        "AWS_SESSION_TOKEN": other["SessionToken"],
    }
    restart(stack, toml, {**environ, **theirs})
    stack.wait_for(lambda: bool(told(stack, "listing-doubted")), 60.0, "people to be told")
    assert f"are of {OTHER_ACCOUNT}, and the machines in the journal are in " in told(stack, "listing-doubted")[0]
    assert stack.ctl("cancel", "sleeper").returncode == 0
    wait_for_listings(stack, control)
    assert [node["state"] for node in status(stack)["node_list"]] == ["terminating"]
    assert len(control.machines()) == 1
    assert not control.calls()["ec2:TerminateInstances"]

    restart(stack, toml, environ)
    stack.wait_for(lambda: not control.left(), 120.0, "the machine to be ended")
    stack.wait_for(lambda: not status(stack)["nodes"]["active"], 60.0, "the node to be gone")


def test_a_cloud_that_is_left_out_while_a_machine_runs_there_is_told_and_put_back(
    ec2: tuple[Stack, HandOnTestCloud],
) -> None:
    stack, control = ec2
    toml, environ = (stack.folder / "spotsupd.toml").read_text(), stack.environ
    without = re.sub(r"(?ms)^\[aws\]\n.*?(?=^\[|\Z)", "", toml).replace("enabled = false", "enabled = true")
    assert without != toml
    restart(stack, without, environ)
    stack.wait_for(lambda: bool(told(stack, "cloud-missing")), 60.0, "people to be told")
    (text,) = told(stack, "cloud-missing")
    assert text.startswith("spotsupd.toml of the leading daemon has no aws any more, and 1 machine of sleeper may run ")
    assert stack.ctl("cancel", "sleeper").returncode == 0
    size = stack.log.stat().st_size
    stack.wait_for(lambda: [node["state"] for node in status(stack)["node_list"]] == ["terminating"], 60.0, "its end")
    assert len(control.machines()) == 1
    assert stack.log.stat().st_size - size < 20_000, "and not a traceback each second"

    restart(stack, toml, environ)
    stack.wait_for(lambda: not control.left(), 120.0, "the machine to be ended")


def test_a_machine_that_may_not_be_ended_is_asked_to_ever_more_seldom_and_shown(
    ec2: tuple[Stack, HandOnTestCloud],
) -> None:
    stack, control = ec2
    control.deny("ec2:TerminateInstances")
    assert stack.ctl("cancel", "sleeper").returncode == 0
    stack.wait_for(lambda: control.calls()["ec2:TerminateInstances"] > 0, 120.0, "a refusal")
    refusals = []
    for _ in range(2):
        before = control.calls()
        wait_for_listings(stack, control)
        refusals.append((control.calls() - before)["ec2:TerminateInstances"])
    assert 0 < refusals[1] < refusals[0]
    (node,) = status(stack)["node_list"]
    assert node["state"] == "terminating"
    assert len(control.machines()) == 1
    control.deny()
    stack.wait_for(lambda: not control.left(), 150.0, "the machine to be ended")
