"""From wheels to a trained job: the daemon is installed on a stock machine as docs/install.md says, runs under its own
confined units, and rents stock machines from EC2's test cloud through boto3."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bootstrap import BootstrapError
from supervisor.identity import load_identity
from supervisor.model import SCHEMA_VERSION
from tests.acceptance import control
from tests.acceptance.control import Control, build_wheels, ensure_daemon_wheels
from tests.acceptance.documented import INSTALL, command, faults
from tests.acceptance.job_folder import job_folder
from tests.acceptance.reading import lost_steps, phases, steps_in
from tests.acceptance.rented import Account, account
from tests.acceptance.stock import (
    REQUIREMENTS,
    USER,
    Network,
    asked_for,
    ensure_root,
    ensure_wheels,
    skipped_where_impossible,
    wheels_served,
    why_not,
)
from tests.support.documents import blocks
from tests.support.s3 import S3
from tools.stack import ROOT

# Of the test alone: root file systems are built before it, within limits of their own.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400, func_only=True)]

INSTALL_S = 300.0
TRAIN_S = 900.0
RELEASE_S = 180.0
NEWER, OLDER = "999.0.0", "0.0.1"
NOTICE_S = 60.0
STEPS, AGAIN = 800, 20
# A round of two takes 80 s for them, and one of fewer is not allowed: so the job outlasts the notice, and cannot end
# without its replacement.
STEP_S = 0.1
Found = TypeVar("Found")

_LEFT = """\
import json, sys
from pathlib import Path
from spotsup_trainer.wire import Keys
from supervisor.config import load_config
from supervisor.journal.connection import login_of
config = load_config(Path("/etc/spotsup/spotsupd.toml"))
etcd = login_of(config).connect()
found = [each.key for each in etcd.range(Keys(config.cluster).run(sys.argv[1]), keys_only=True).kvs]
for what in "user", "role":
    names = etcd.call(f"/v3/auth/{what}/list", {}).get(f"{what}s", [])
    found += [f"{what} {name}" for name in names if name not in ("root", config.etcd.user)]
print(json.dumps(found))
"""


class Installation:
    """The daemon's host, and the account that it rents from."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.network = Network(os.getpid() % 250)
        stack.callback(self.network.down)
        self.network.up()
        ours = build_wheels(ROOT, folder / "wheels")
        newer = build_wheels(ROOT, folder / "newer", NEWER)
        older = build_wheels(ROOT, folder / "older", OLDER, SCHEMA_VERSION - 1)
        index = ensure_daemon_wheels(ROOT, ours)
        torch = ensure_wheels(ROOT, REQUIREMENTS)
        host, node = ensure_root(ROOT, control.PACKAGES), ensure_root(ROOT)
        self.account: Account = stack.enter_context(account(node, self.network, folder))
        # After the account: where that begins, moto forgets everything that it holds.
        self.s3 = stack.enter_context(S3(self.network.host).running())
        self.wheelhouse = stack.enter_context(wheels_served(torch, self.network.host))
        (folder / "operator").mkdir()
        self.control = Control(host, self.network, folder / "control", load_identity(folder / "operator" / "key"))
        stack.callback(self.control.machine.kill)
        self.passed("wheels and root file systems", began)
        began = time.monotonic()
        examples = ROOT / "trainer" / "examples"
        settings = folder / "pip.conf"
        settings.write_text("[global]\nno-index = true\nfind-links = /srv/index\n")
        places = {ours[0].parent: "/srv/wheels", newer[0].parent: "/srv/newer", older[0].parent: "/srv/older"}
        places |= {index: "/srv/index", examples: "/srv/examples"}
        self.control.boot({**places, settings: "/etc/pip.conf"})
        self.run("sudo cloud-init status --wait", 120.0)
        self.passed("the daemon's host boots", began)

    def passed(self, phase: str, began: float) -> None:
        """Note how long a phase took, until now."""
        self.seconds[phase] = round(time.monotonic() - began, 1)
        print(f"{phase}: {self.seconds[phase]} s", flush=True)

    def run(self, script: str, timeout_s: float = 120.0) -> str:
        """On the daemon's host, by its operator."""
        return self.control.run(script, timeout_s)

    def ask(self, command: str) -> Any:
        """What spotsupctl answers."""
        return json.loads(self.run(f"sudo spotsupctl {command} -o json"))

    def install(self) -> None:
        """As docs/install.md says; what else is needed comes from an index."""
        self.run(command("On a host", "sudo systemctl disable --now etcd"))
        self.run(f"cd /srv/wheels && {command('On a host', 'sudo env PIPX_HOME')}", INSTALL_S)

    def initialize(self) -> None:
        """`spotsupd init`, what a person adds to its configuration, and `spotsupd check`."""
        init = command("On a host", "sudo spotsupd init").replace("10.0.0.5", self.control.address)
        init = init.replace("sg-0123456789abcdef0", self.account.security_group(self.control.address))
        self.run(f"{init} --set endpoint={self.account.server.url} --set ssh_user={USER}", INSTALL_S)
        keys = "\n".join(f"{key}={value}" for key, value in self.account.server.environ.items() if "MOTO" not in key)
        node = f'[node]\nwheelhouse = "{self.wheelhouse}"\n'
        self.run(
            f"sudo tee -a /etc/spotsup/environment >/dev/null <<'END'\n{keys}\nEND\n"
            f"sudo tee -a /etc/spotsup/spotsupd.toml >/dev/null <<'END'\n\n{node}END\n"
        )
        checked = self.run(f"{command('On a host', 'sudo systemd-run')} || :")
        assert checked
        assert faults(checked) == []
        self.run(command("On a host", "sudo systemctl enable --now spotsupd"))
        assert "leader" in self.run(command("On a host", "sudo spotsupctl daemon status"))
        # a member of the daemon's group needs no sudo, and no setting
        self.run("sudo useradd --create-home --groups spotsup ann")
        assert "leader" in self.run("cd / && sudo -u ann spotsupctl daemon status")

    def submit(self, name: str, nodes: str, steps: int) -> None:
        """The job of the README, by one command."""
        self.run(job_folder(name, nodes, steps, STEP_S, self.s3))
        assert self.run("cd job && sudo spotsupctl submit job.yaml") == name

    def upgrade(self, wheels: str) -> None:
        """As docs/install.md says."""
        self.run(f"cd {wheels} && {command('Upgrade', 'sudo env PIPX_HOME')}", INSTALL_S)
        self.run(command("Upgrade", "sudo spotsupd init"))
        self.run(command("Upgrade", "sudo systemctl restart"))

    # -- looking -----------------------------------------------------------------------------------------------

    def status(self, job: str) -> dict[str, Any]:
        """The job, as `spotsupctl status` shows it."""
        found: dict[str, Any] = self.ask(f"status {job}")
        return found

    def steps(self, job: str) -> list[tuple[int, int, int]]:
        """(step, round, world size) of each step that the job has printed, in order."""
        printed = self.run(f"sudo spotsupctl logs {job}")
        return steps_in(printed)

    def left_in_etcd(self, job: str) -> list[str]:
        """What a job's nodes may use there: keys of its rendezvous, users, roles."""
        python = "/opt/spotsup/venvs/spotsup/bin/python"
        found: list[str] = json.loads(self.run(f"sudo -u spotsup {python} - {job} <<'END'\n{_LEFT}END\n"))
        return found

    def unit(self, name: str) -> str:
        """A property of the daemon's unit."""
        return self.run(f"systemctl show -p {name} --value spotsupd")

    def eventually(self, what: str, look: Callable[[], Found | None], timeout_s: float) -> Found:
        """What `look` finds, once it finds something. The daemon may be starting meanwhile."""
        deadline, found, why = time.monotonic() + timeout_s, None, ""
        while time.monotonic() < deadline:
            try:
                found, why = look(), ""
            except BootstrapError as error:
                found, why = None, str(error)
            if found:
                return found
            time.sleep(1.0)
        raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{why}\n{self.why()}")

    def why(self) -> str:
        """What the daemon, and the machines' consoles, say when a wait has failed."""
        said = [
            self.run("sudo journalctl -u spotsupd -u spotsup-etcd -n 60 --no-pager -o cat; sudo spotsupctl nodes || :")
        ]
        return "\n".join([*said, *(machine.console for machine in self.account.machines.running())])

    def trains(self, job: str, members: int) -> dict[str, Any] | None:
        """The job, where so many nodes are in its round, and have made a step in it."""
        found = self.status(job)
        in_round = sum(node["state"] == "member" for node in found["node_list"])
        stepped = found["progress_round"] == found["round"] and found["step"] > 0
        return found if in_round == members and stepped and found["state"] == "running" else None

    def released(self, job: str) -> bool:
        """Whether the job has ended, and the cloud bills nothing."""
        return self.status(job)["state"] in {"succeeded", "cancelled"} and not self.account.left()


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    if reason := why_not() or ("" if asked_for() else "takes minutes; in make acceptance"):
        pytest.skip(reason)
    with ExitStack() as stack:
        with skipped_where_impossible():
            made = Installation(tmp_path, stack)
        began = time.monotonic()
        made.install()
        made.passed("pipx installs the wheels", began)
        began = time.monotonic()
        made.initialize()
        made.passed("init, check, start", began)
        yield made


def test_one_command_trains_on_machines_that_have_nothing_of_ours(installation: Installation) -> None:
    assert installation.run("systemctl show -p ActiveState,User --value spotsupd spotsup-etcd").split() == [
        *("spotsup", "active"),
        *("spotsup", "active"),
    ]
    exposure = installation.run("systemd-analyze security --no-pager spotsupd spotsup-etcd | grep Overall")
    assert all(float(each) <= 2.0 for each in re.findall(r": ([\d.]+) ", exposure)), exposure
    # The kernel confines it here, too, not the text alone: filters of system calls beyond those of the container.
    status = "/proc/$(systemctl show -p MainPID --value spotsupd)/status"
    filters = installation.run(f"sudo awk '/^Seccomp_filters/ {{print $2}}' {status} /proc/1/status").split()
    assert int(filters[0]) > int(filters[1])
    assert installation.run(f"sudo awk '/^CapBnd/ {{print $2}}' {status}").strip("0") == ""

    began, submitted_at = time.monotonic(), time.time()
    job = "chars"
    installation.submit(job, "{min: 2, desired: 2, max: 4}", STEPS)
    first = installation.eventually("two nodes train", lambda: installation.trains(job, 2), TRAIN_S)
    installation.passed("submit to the first step", began)
    said = installation.run("sudo journalctl -u spotsupd --no-pager -o cat")
    for name, at in phases(said).items():
        installation.seconds[f"submit to: {name}"] = round(at - submitted_at, 1)
    machines = {machine.node: machine for machine in installation.account.machines.running()}
    assert len(machines) == 2

    began = time.monotonic()
    (victim,) = [node["id"] for node in first["node_list"] if node["rank"] == 1]
    installation.account.preempt(victim, NOTICE_S)

    def replaced() -> bool:
        found = installation.trains(job, 2)
        return found is not None and victim not in {
            each["id"] for each in found["node_list"] if each["state"] == "member"
        }

    installation.eventually(f"{victim} is replaced", replaced, TRAIN_S)
    installation.passed("notice to the replacement's first step", began)
    kinds = {event["kind"] for event in installation.ask(f"events {job} --all")}
    assert {"notice", "replacement-requested", "replacement-joined"} <= kinds

    installation.eventually("the job ends, and all is released", lambda: installation.released(job), TRAIN_S)
    ended = installation.status(job)
    assert (ended["state"], ended["step"], ended["limits"]["app_failures"]["used"]) == ("succeeded", STEPS, 0)
    made = installation.steps(job)
    assert lost_steps(made) == 0
    assert made[-1][0] == STEPS
    assert {world for _, _, world in made} == {2}

    assert installation.account.machines.running() == []

    def nothing_is_left() -> bool:
        # What the job's end is shown by stays with its record: its last round, progress, pauses and result.
        return {key.rpartition("/")[2] for key in installation.left_in_etcd(job)} <= {
            "round",
            "progress",
            "pauses",
            "result",
        }

    installation.eventually("etcd to have no messages, users and roles of the job", nothing_is_left, RELEASE_S)

    began = time.monotonic()
    installation.submit(job, "{min: 2, desired: 2, max: 4}", AGAIN)
    installation.eventually("the job ends again, and all is released", lambda: installation.released(job), TRAIN_S)
    installation.passed(f"once more, {AGAIN} steps, from submit to nothing left", began)
    again = installation.status(job)
    assert (again["state"], again["step"]) == ("succeeded", AGAIN)
    assert again["task_id"] != ended["task_id"]
    assert installation.account.machines.running() == []
    installation.eventually("etcd to have nothing of the second run", nothing_is_left, RELEASE_S)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "story.json").write_text(json.dumps(installation.seconds, indent=1) + "\n")
    print(json.dumps(installation.seconds, indent=1))


def test_training_goes_on_while_the_daemon_is_killed_hangs_is_upgraded_and_downgraded(
    installation: Installation,
) -> None:
    job = "keeper"
    installation.submit(job, "1", STEPS * 100)
    installation.eventually("one node trains", lambda: installation.trains(job, 1), TRAIN_S)
    number = installation.status(job)["round"]

    def goes_on(restarts: int) -> None:
        """A daemon that was started again looks after the same round, which has made steps meanwhile."""
        installation.eventually(
            f"systemd has started the daemon again, {restarts} times",
            lambda: (installation.unit("NRestarts"), installation.unit("ActiveState")) == (str(restarts), "active"),
            180.0,
        )
        before = installation.eventually("the daemon answers", lambda: installation.trains(job, 1), 180.0)
        assert before["round"] == number
        installation.eventually("a step", lambda: installation.status(job)["step"] > before["step"], 120.0)

    installation.run(f"sudo kill -KILL {installation.unit('MainPID')}")
    goes_on(1)
    installation.run("sudo systemctl kill --kill-whom=main -s KILL spotsup-etcd")
    installation.eventually(
        "systemd to start etcd again",
        lambda: (
            installation.run("systemctl show -p NRestarts,ActiveState --value spotsup-etcd").split() == ["1", "active"]
        ),
        120.0,
    )
    goes_on(1)

    # The unit's own limit is a minute; that it is obeyed is seen with a shorter one.
    assert installation.unit("WatchdogUSec") == "1min"
    folder = "/run/systemd/system/spotsupd.service.d"
    installation.run(
        f"sudo mkdir {folder}\nprintf '[Service]\\nWatchdogSec=15\\n' | sudo tee {folder}/soon.conf\n"
        "sudo systemctl daemon-reload\nsudo systemctl restart spotsupd\n"
    )
    goes_on(0)
    installation.run(f"sudo kill -STOP {installation.unit('MainPID')}")
    goes_on(1)
    assert "Watchdog timeout" in installation.run("sudo journalctl -u spotsupd --no-pager -o cat")
    installation.run(f"sudo rm -r {folder}\nsudo systemctl daemon-reload\n")

    installation.upgrade("/srv/newer")
    assert installation.ask("daemon status")["version"] == NEWER
    goes_on(0)

    installation.run(
        "cd /srv/older && sudo env PIPX_HOME=/opt/spotsup PIPX_BIN_DIR=/usr/local/bin "
        f"pipx install --force --pip-args='--find-links .' 'spotsup[aws]=={OLDER}'\nsudo systemctl restart spotsupd",
        INSTALL_S,
    )
    refusal = f"was written by a newer spotsupd (schema {SCHEMA_VERSION}; this one reads {SCHEMA_VERSION - 1})"
    installation.eventually(
        "the older daemon leaves the job alone",
        lambda: refusal in installation.ask("daemon status")["headline"],
        180.0,
    )
    assert installation.ask("daemon status")["version"] == OLDER
    assert installation.ask("nodes") == []
    assert len(installation.account.machines.running()) == 1
    installation.upgrade("/srv/newer")
    goes_on(0)

    made = installation.steps(job)
    assert lost_steps(made) == 0
    assert {number for _, number, _ in made} == {number}

    installation.run(f"sudo spotsupctl cancel {job}")
    installation.eventually("all is released", lambda: installation.released(job), RELEASE_S)
    for block in (each for each in blocks(INSTALL, "sh") if each.heading == "Remove"):
        installation.run(block.text)
    left = installation.run(
        "sudo find / -xdev -name '*spotsup*' -not -path '/var/lib/systemd/timers/*'; ps -eo user=,comm="
    )
    assert "spotsup" not in left
