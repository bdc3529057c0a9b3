"""`make contract-real`, with test clouds in an account's place: what it says, what it spends, what it ends."""

from __future__ import annotations

import getpass
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from provisioners.aws.quota import TABLE
from provisioners.catalog import MachineType
from tests.clouds.azure_arm import open_rule
from tests.clouds.base import CloudServer, wire_cloud
from tests.clouds.machines import real_machines
from tests.contract.verdicts import JUDGES
from tests.demo.clouds import to_toml
from tests.support.programs import program_env
from tests.support.s3 import S3
from tools.stack import ROOT

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

SOON = {
    "SPOTSUP_TEST_CALL_S": "20",
    "SPOTSUP_TEST_PATIENCE_S": "60",
    "SPOTSUP_TEST_LOGIN_S": "20",
    "SPOTSUP_TEST_LOOK_S": "0.1",
}


# A test cloud's nodes are processes of this computer, and so are the paths and times of its jobs.
NODES = f"""
[timing]
listing_s = 1.0
consistency_s = 15.0
orphan_grace_s = 10.0
leader_ttl_s = 3.0
leave_margin_s = 4.0
gather_s = 20.0
[node]
python = "{sys.executable}"
lease_ttl_s = 4.0
[node.env]
GLOO_SOCKET_IFNAME = "lo"
"""


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody's account, and their configuration."""

    server: CloudServer
    config: Path
    cloud: str = "aws"

    @property
    def folder(self) -> Path:
        """Where runs are noted, and reports written."""
        return self.config.parent / "runs"

    def begin(self, *arguments: str, environ: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[str]:
        """As the Makefile does."""
        command = [sys.executable, "-m", "tests.contract.real", "--cloud", self.cloud, "--config", str(self.config)]
        return subprocess.Popen(
            [*command, "--quiet-s", "0.5", "--test-cloud", "--folder", str(self.folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**program_env(), **environ, **self.server.environ, **SOON},
        )

    def run(self, *arguments: str, environ: Mapping[str, str] = MappingProxyType({})) -> tuple[int, str]:
        """(exit code, all that was output)."""
        process = self.begin(*arguments, environ=environ)
        output, _ = process.communicate(timeout=500)
        return process.returncode, output

    def machines(self) -> list[str]:
        """The states of all of EC2's machines that ever were."""
        return [record.past[-1].state for record in self.server.cloud.fleet.records.values()]

    def left(self) -> list[str]:
        """What still costs money."""
        with self.server.cloud.fleet.lock:
            found: list[str] = self.server.cloud.fleet.left()
            return found

    def report(self) -> dict[str, Any]:
        """The last one."""
        found: dict[str, Any] = json.loads((self.folder / f"{self.cloud}.json").read_text())
        return found

    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Number -> (verdict, evidence), of the last report."""
        return {each["number"]: (each["verdict"], each["evidence"]) for each in self.report()["assumptions"]}


@contextmanager
def opened(cloud: str, folder: Path) -> Iterator[Account]:
    """An account in which the small machines of the job are sold."""
    with real_machines(folder / "machines") as machines, wire_cloud(cloud, machines) as server:
        server.cloud.let_daemon_in()
        if cloud == "gcp":
            server.cloud.compute.new_types["e2-medium"] = MachineType(name="e2-medium", vcpus=2, memory_gib=4)
            server.cloud.compute.spot_prices["us-central1", "e2-medium"] = 0.01
        if cloud == "azure":
            small = MachineType(name="Standard_D2as_v5", vcpus=2, memory_gib=8)
            server.cloud.arm.sizes[small.name] = small
            server.cloud.arm.rules = [open_rule(str(machines.ssh_port))]
            server.cloud.arm.prices[small.name] = (0.02, 0.09)
        settings = server.settings(ssh_user=getpass.getuser(), ssh_port=machines.ssh_port)
        values = settings.model_dump(mode="json", exclude_defaults=True)
        table = "".join(f"{key} = {to_toml(value)}\n" for key, value in values.items())
        config = folder / "spotsupd.toml"
        config.write_text(f"[{cloud}]\n{table}{NODES}")
        yield Account(server, config, cloud)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    with opened("aws", tmp_path) as found:
        yield found


# What a run may not see: EC2's end is forced by a termination; nodes that were replaced before their notice was over
# are ended by the daemon; and the API may tell of a preemption before the machine does.
NOT_SEEN = {"aws": {"A18", "A19", "A20"}, "gcp": {"A19", "A20"}, "azure": {"A19", "A20", "Z2"}}


def tried(cloud: str) -> set[str]:
    """The numbers that a run on this cloud tries."""
    return {number for number in JUDGES if number[0] in {"A", {"aws": "E", "gcp": "G", "azure": "Z"}[cloud]}}


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_job_on_each_cloud_holds_and_leaves_nothing(cloud: str, tmp_path: Path) -> None:
    with opened(cloud, tmp_path) as account:
        if cloud == "aws":
            for each in TABLE:  # as a new account: the job needs no GPU
                account.server.cloud.ec2.quotas[each.code] = 0.0 if "Standard" not in each.name else 32.0
        code, output = account.run("--budget-usd", "8")
        assert code == 0, output
        assert ("this job may not need it: the quotas of us-east-1 allow no GPU" in output) == (cloud == "aws")
        report, verdicts = account.report(), account.verdicts()
        held = {number for number, (verdict, _) in verdicts.items() if verdict == "held"}
        assert held | NOT_SEEN[cloud] >= tried(cloud) - {"A24", "E6"}, verdicts
        assert {verdict for verdict, _ in verdicts.values()} <= {"held", "not seen"}
        assert (report["problem"], report["left"], report["ok"]) == ("", [], True)
        assert 0 < report["job_usd"] < report["estimate_usd"] <= 8
        assert account.left() == []
        steps = [each["step"] for each in report["seen"]]
        assert steps[:2] == ["launch", "launch again"]
        assert steps[-2:] == ["finished", "swept"]
        assert "trained on two nodes, lost one, went on with another, and succeeded" in (
            (account.folder / f"{cloud}.md").read_text()
        )


def test_a_preemption_by_ec2s_fault_injection_is_announced_and_survived(account: Account) -> None:
    code, output = account.run("--budget-usd", "8", "--fis-role", "arn:aws:iam::123456789012:role/fis")
    assert code == 0, output
    verdicts = account.verdicts()
    assert "send-spot-instance-interruptions" in verdicts["A17"][1]
    assert {verdicts[number][0] for number in ("A17", "E6")} == {"held"}
    assert {verdicts[number][0] for number in ("A18", "A19", "A20")} <= {"held", "not seen"}
    assert (account.report()["problem"], account.left()) == ("", [])


def test_checkpoints_in_a_bucket_are_gone_on_from_and_removed(account: Account) -> None:
    with S3().running() as s3:
        for name, value in s3.environ.items():  # a role would give it; EC2's test cloud has other credentials
            with account.config.open("a") as file:
                file.write(f'{name} = "{value}"\n')
        code, output = account.run(
            "--budget-usd", "8", "--checkpoints", f"s3://{s3.bucket}/prefix/job-1", environ=s3.environ
        )
        assert code == 0, output
        verdict, evidence = account.verdicts()["A24"]
        assert (verdict, "was complete before the end" in evidence) == ("held", True), evidence
        assert any("index.json" in each.key for each in s3.requests)
        assert s3.keys() == {}
        assert account.left() == []


def without_reasons(account: Account) -> None:
    """EC2 does not say why an instance ended."""
    account.server.cloud.fleet.missing = {"stateReason"}


def keeping_disks(account: Account) -> None:
    """Google keeps the disks of deleted machines."""
    account.server.cloud.fleet.keeps_disks = True


def without_deletions(account: Account) -> None:
    """Azure's log does not come."""
    account.server.cloud.fleet.hides_deletions = True


@pytest.mark.parametrize(
    ("cloud", "breaks", "failed"),
    [
        ("aws", without_reasons, {"A13": "terminated, cause unknown", "E1": "without a reason"}),
        ("gcp", keeping_disks, {"A14": "left: disk "}),
        (
            "azure",
            without_deletions,
            {"A2": "after the launch: machine ", "A13": "said why", "Z1": "no entry named the machine"},
        ),
    ],
)
def test_what_does_not_hold_is_said_by_its_number_and_all_is_ended_nevertheless(
    cloud: str, breaks: Callable[[Account], None], failed: dict[str, str], tmp_path: Path
) -> None:
    with opened(cloud, tmp_path) as account:
        breaks(account)
        code, output = account.run("--budget-usd", "8")
        assert code == 1, output
        verdicts = account.verdicts()
        found = {number for number, (verdict, _) in verdicts.items() if verdict == "did not hold"}
        # Without its deletion, the log may not show why the job's node ended, either.
        assert set(failed) <= found <= {*failed, *({"A18"} if cloud == "azure" else ())}, verdicts
        for number, words in failed.items():
            assert words in verdicts[number][1], verdicts[number]
            assert f"{number} did not hold: " in output
        assert account.left() == []


def test_a_killed_run_is_swept_by_tag_alone(account: Account) -> None:
    process = account.begin("--budget-usd", "8")
    deadline = time.monotonic() + 300
    while sum(each == "running" for each in account.machines()) < 2:  # the job's: the probe has one
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    code, output = account.run("--sweep")
    assert (code, "still runs on this computer" in output) == (1, True), output
    process.kill()
    output, _ = process.communicate(timeout=60)
    name = re.search(r"SWEEP=(contract-\w+)", output)
    assert name is not None
    # Its daemon goes on: what is ended behind its back would come again.
    code, output = account.run("--sweep")
    assert code == 0, output
    assert f"{name[1]}: its daemon is ended" in output
    assert account.left() == []

    code, output = account.run("--sweep")  # and once more: it is known that nothing is left
    assert (code, "nothing was launched" in output) == (0, True), output


def test_an_interrupted_job_is_ended_with_all_its_machines_and_reported(account: Account) -> None:
    process = account.begin("--budget-usd", "8")
    deadline = time.monotonic() + 300
    while sum(each == "running" for each in account.machines()) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)  # an impatient user's second must not keep it from ending machines
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "nothing is left" in output
    assert account.left() == []
    assert account.report()["problem"] == "interrupted"
    assert account.verdicts()["A1"][0] == "held"
    code, output = account.run("--sweep")
    assert (code, "nothing was launched" in output) == (0, True), output


def test_what_cannot_be_paid_or_priced_is_not_begun(account: Account) -> None:
    code, output = account.run("--budget-usd", "0.50")
    assert (code, "and the budget is $0.50" in output) == (2, True), output
    account.server.cloud.fail_next("DescribeSpotPriceHistory", "empty", 20)
    code, output = account.run("--budget-usd", "8")
    assert code == 2, output
    assert "offers no small spot machine" in output or "no budget can be kept" in output
    assert account.machines() == []


def test_the_suite_holds_and_leaves_nothing(account: Account) -> None:
    code, output = account.run("--suite", "--budget-usd", "5")
    assert code == 0, output
    assert int(re.search(r"(\d+) passed", output)[1]) >= 12  # type: ignore[index]
    assert "a real cloud cannot be made to preempt" in output
    assert "a real cloud cannot be made to cut off" in output
    assert "nothing is left" in output
    launched, spent = re.search(r"(\d+) machines; at most \$(\d+\.\d+) of \$5.00 spent", output).groups()  # type: ignore[union-attr]
    assert int(launched) == len(account.machines()) >= 12
    assert 0 < float(spent) < 2
    assert set(account.machines()) == {"terminated"}
    clusters = {record.tags["spotsup-cluster"] for record in account.server.cloud.fleet.records.values()}
    assert all(re.fullmatch(r"contract-[0-9a-f]{8}-\d\d(-default|-another)?", each) for each in clusters)


def test_a_budget_that_could_be_exceeded_ends_it(account: Account) -> None:
    code, output = account.run(
        "--suite", "--budget-usd", "0.20", "--", "-k", "offers_are_sorted or many_machines or same_token"
    )
    assert code == 1, output
    assert "the budget is used up: $" in output
    assert "of $0.20 may have been spent, and one more machine may cost $0." in output
    assert re.search(r"test_offers_are_sorted\S* PASSED", output), output
    assert "nothing is left" in output
    assert 1 <= len(account.machines()) < 8
    assert set(account.machines()) == {"terminated"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_what_it_launched(account: Account, number: signal.Signals) -> None:
    process = account.begin("--suite", "--budget-usd", "5", "--", "-k", "many_machines or carries_its_tags")
    deadline = time.monotonic() + 120
    while len(account.machines()) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    time.sleep(0.2)
    process.send_signal(number)  # an impatient user's second must not keep it from ending machines
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 2, output
    assert "nothing is left" in output
    assert set(account.machines()) == {"terminated"}


def test_what_a_killed_run_left_is_swept_by_its_name(account: Account) -> None:
    process = account.begin("--suite", "--budget-usd", "5", "--", "-k", "many_machines")
    deadline = time.monotonic() + 120
    while not account.machines():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    output, _ = process.communicate(timeout=60)
    name = re.search(r"SWEEP=(contract-\w+)", output)
    assert name is not None
    assert set(account.machines()) != {"terminated"}
    code, output = account.run("--sweep", name[1])
    assert code == 0, output
    assert set(account.machines()) == {"terminated"}


def test_it_does_not_begin_without_what_it_needs(account: Account) -> None:
    for arguments, words in (
        ((), "BUDGET_USD=1 is needed"),
        (("--budget-usd", "0"), "BUDGET_USD is 0"),
        (("--budget-usd", "1", "--config", "/nowhere.toml"), "cannot read the configuration /nowhere.toml"),
        (("--budget-usd", "1", "--cloud", "gcp"), "'gcp' is not configured"),
        (("--sweep", "contract-unknown"), "no run 'contract-unknown' is known here"),
    ):
        code, output = account.run(*arguments)
        assert (code, words in output) == (2, True), output
    account.server.cloud.credentials = "expired"
    code, output = account.run("--budget-usd", "1")
    assert code == 2
    assert "aws is not ready: " in output
    assert account.machines() == []
