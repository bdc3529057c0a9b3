"""The agent on EC2: its notice from a machine's metadata service, and the sign of life for its dead-man switch."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from spotsup_trainer.agent import dead_man_switch
from spotsup_trainer.agent.aws import AwsReader
from spotsup_trainer.agent.dead_man_switch import DeadManSwitch
from spotsup_trainer.agent.notices import reader_for
from spotsup_trainer.wire import Metadata

from provisioners import userdata
from provisioners.base import Instance
from tests.support.programs import LocalCloud
from tests.support.serving import answering


def test_a_notice_is_read_from_a_machines_own_service(local_cloud: LocalCloud, machine: Instance) -> None:
    reader = reader_for(Metadata("aws", machine.metadata_url))
    assert isinstance(reader, AwsReader)
    began = time.monotonic()
    assert reader.read() is None
    assert time.monotonic() - began >= 1.0
    before = time.time()
    assert local_cloud.cli("preempt", machine.id, "--notice", "120").returncode == 0
    deadline = reader.read()
    assert deadline is not None
    assert before + 119 < deadline < time.time() + 121


def test_a_token_that_is_no_longer_taken_is_renewed(machine: Instance) -> None:
    reader = AwsReader(machine.metadata_url, token_ttl_s=1)
    assert reader.read() is None
    first = reader._token
    assert reader.read() is None
    assert reader._token != first


def test_without_an_address_the_sdks_variable_holds(machine: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.metadata_url)
    assert AwsReader("").read() is None
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ftp://nowhere")
    with pytest.raises(ValueError, match="should look like"):
        AwsReader("")


def service(answers: dict[str, tuple[int, str]]) -> AbstractContextManager[str]:
    """A metadata service that answers by path, 404 elsewhere."""
    return answering(lambda path, _: answers.get(path, (404, "")))


TOKEN = {"/latest/api/token": (200, "a-token")}
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


def test_a_recommendation_is_a_line_in_the_log_and_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with service({**TOKEN, REBALANCE: (200, '{"noticeTime": "2026-11-21T08:00:00Z"}')}) as url:
        reader = AwsReader(url)
        assert reader.read() is None
        assert reader.read() is None
    assert [record.message for record in caplog.records if "higher risk" in record.message] == [
        'EC2 sees a higher risk that this instance will be taken: {"noticeTime": "2026-11-21T08:00:00Z"}'
    ]


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_whatever_ec2_will_do_the_machine_is_lost(action: str) -> None:
    reply = json.dumps({"action": action, "time": "2026-11-21T08:02:00Z"})
    with service({**TOKEN, ACTION: (200, reply)}) as url:
        assert AwsReader(url).read() == 1795248120.0


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "gives no token: HTTP 404"),
        ({**TOKEN, ACTION: (401, "")}, "refuses a new token"),
        ({**TOKEN, ACTION: (500, "broken")}, "HTTP 500"),
        ({**TOKEN, ACTION: (200, "<html>")}, "Expecting value"),
    ],
)
def test_what_is_no_answer_is_an_error_and_no_notice(answers: dict[str, tuple[int, str]], says: str) -> None:
    with service(answers) as url, pytest.raises(ValueError, match=says):
        AwsReader(url).read()


def test_the_switch_and_the_agent_mean_the_same_file() -> None:
    assert dead_man_switch.HEARD_FILE == userdata.HEARD_FILE


class Switch:
    """A file that was touched long ago, and what there is to hear."""

    def __init__(self, folder: Path) -> None:
        self.file, self.run_dir = folder / "heard", folder / "run"
        self.run_dir.mkdir()
        self.file.touch()
        self.age()
        self.answered_at = 0.0

    def age(self) -> None:
        os.utime(self.file, (0, 0))

    def is_fresh(self) -> bool:
        return self.file.stat().st_mtime > 1.0

    def agent(self) -> DeadManSwitch:
        return DeadManSwitch(self.file, lambda: self.answered_at, self.run_dir, self.run_dir / "node.log")


def test_an_answer_of_etcd_touches_the_file_and_silence_does_not(tmp_path: Path) -> None:
    switch = Switch(tmp_path)
    agent = switch.agent()
    agent.update()
    assert not switch.is_fresh()
    switch.answered_at = 1.0
    agent.update()
    assert switch.is_fresh()


@pytest.mark.parametrize("trace", ["progress-3.json", "session-3-0", "node.log"])
def test_training_that_goes_on_touches_the_file_without_etcd(tmp_path: Path, trace: str) -> None:
    switch = Switch(tmp_path)
    agent = switch.agent()
    agent.update()
    (switch.run_dir / trace).touch()
    agent.update()
    assert switch.is_fresh()


def test_the_same_sign_of_life_does_not_touch_the_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_man_switch, "_EVERY_S", 0.0)
    switch = Switch(tmp_path)
    switch.answered_at = 1.0
    agent = switch.agent()
    agent.update()
    switch.age()
    agent.update()
    assert not switch.is_fresh()
    switch.answered_at = 2.0
    agent.update()
    assert switch.is_fresh()


def test_a_machine_without_a_switch_gets_no_file(tmp_path: Path) -> None:
    switch = Switch(tmp_path)
    switch.file.unlink()
    switch.answered_at = 1.0
    switch.agent().update()
    assert not switch.file.exists()
