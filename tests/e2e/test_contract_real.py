"""`make contract-real`, with EC2's test cloud in an account's place: what it skips, what it spends, what it ends."""

from __future__ import annotations

import getpass
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clouds.base import CloudServer, wire_cloud
from tests.clouds.machines import real_machines
from tests.support.programs import program_env
from tools.stack import ROOT

pytestmark = pytest.mark.timeout(600)

SOON = {
    "SPOTSUP_TEST_CALL_S": "20",
    "SPOTSUP_TEST_PATIENCE_S": "60",
    "SPOTSUP_TEST_LOGIN_S": "20",
    "SPOTSUP_TEST_LOOK_S": "0.1",
}


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody's account, and their configuration."""

    server: CloudServer
    config: Path

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """As the Makefile does."""
        command = [sys.executable, "-m", "tests.contract.real", "--cloud", "aws", "--config", str(self.config)]
        return subprocess.Popen(
            [*command, "--quiet-s", "0.5", "--folder", str(self.config.parent / "runs"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**program_env(), **self.server.environ, **SOON},
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """(exit code, all that was output)."""
        process = self.begin(*arguments)
        output, _ = process.communicate(timeout=500)
        return process.returncode, output

    def machines(self) -> list[str]:
        """The states of all machines that ever were."""
        return [record.past[-1].state for record in self.server.cloud.fleet.records.values()]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    with real_machines(tmp_path / "machines") as machines, wire_cloud("aws", machines) as server:
        config = tmp_path / "spotsupd.toml"
        config.write_text(
            f'[aws]\nregions = ["us-east-1"]\nendpoint = "{server.url}"\n'
            f'ssh_user = "{getpass.getuser()}"\nssh_port = {machines.ssh_port}\n'
        )
        server.cloud.let_daemon_in()
        yield Account(server, config)


def test_the_suite_holds_and_leaves_nothing(account: Account) -> None:
    code, output = account.run("--budget-usd", "5")
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
    code, output = account.run("--budget-usd", "0.20", "--", "-k", "offers_are_sorted or many_machines or same_token")
    assert code == 1, output
    assert "the budget is used up: $" in output
    assert "of $0.20 may have been spent, and one more machine may cost $0." in output
    assert re.search(r"test_offers_are_sorted\S* PASSED", output), output
    assert "nothing is left" in output
    assert 1 <= len(account.machines()) < 8
    assert set(account.machines()) == {"terminated"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_what_it_launched(account: Account, number: signal.Signals) -> None:
    process = account.begin("--budget-usd", "5", "--", "-k", "many_machines or carries_its_tags")
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
    process = account.begin("--budget-usd", "5", "--", "-k", "many_machines")
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
