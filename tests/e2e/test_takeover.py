"""Leaders are killed and frozen while users send commands: takeovers are quick, and no acknowledged command is lost."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.registers import Users, verdict
from tests.chaos.testbed import Daemon, Testbed, open_testbed
from tests.support.etcd_members import Members

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    # httpcore leaves the socket of a connection that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

LEASE_S = 3.0
TAKEOVER_S = LEASE_S + 2.0
ROUNDS = 3
JOB = """\
name: ticker
nodes: {min: 1, desired: 1, max: 2}
run: train.py STEPS
"""
TRAIN = """\
import sys, time
while True:
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.time()}\\n")
    time.sleep(0.1)
"""


def ticks(file: Path) -> list[float]:
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def leader_of(cluster: Testbed) -> Daemon:
    """The leader, once there is one."""
    cluster.wait_for(lambda: cluster.leader() is not None, 90.0, "a leader")
    found = cluster.leader()
    assert found is not None
    return found


def taken_over(cluster: Testbed, old: Daemon) -> float:
    """Seconds until another daemon than `old` leads."""
    others = [each for each in cluster.daemons if each is not old]
    return cluster.wait_for(lambda: any(each.health().get("leading") for each in others), 90.0, "another to lead")


def yielded(cluster: Testbed, old: Daemon) -> None:
    cluster.wait_for(lambda: old.health().get("headline", "").startswith("standby"), 90.0, "the old leader to yield")


@pytest.mark.parametrize("etcds", [1, 3])
def test_commands_through_leaders_that_die_and_freeze(tmp_path: Path, etcds: int) -> None:
    steps, code = tmp_path / "steps", tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    (code / "job.yaml").write_text(JOB.replace("STEPS", str(steps)))
    with open_testbed(
        tmp_path / "testbed", Members(tmp_path / "testbed" / "etcd", etcds), leader_ttl_s=LEASE_S
    ) as cluster:
        done = cluster.any().ctl("submit", str(code / "job.yaml"))
        assert done.returncode == 0, done.stderr
        cluster.wait_for(lambda: bool(ticks(steps)), 150.0, "the first step")
        cluster.wait_for(lambda: cluster.job("ticker")["state"] == "running", 90.0, "the job to run")
        machines, began = cluster.machines(), time.time()
        users = Users([daemon.socket for daemon in cluster.daemons], seed=etcds)
        users.start()
        took_s = []
        for _ in range(ROUNDS):
            old = leader_of(cluster)
            old.kill()
            took_s.append(taken_over(cluster, old))
            users.use_new_names()
            old.start()

            # frozen for longer than its lease, it loses the lead, and changes nothing when it wakes
            old = leader_of(cluster)
            commits = old.commits()
            old.send(signal.SIGSTOP)
            took_s.append(taken_over(cluster, old))
            old.send(signal.SIGCONT)
            yielded(cluster, old)
            assert old.commits() <= commits + 1, "one may have been in flight"
            users.use_new_names()
        history = users.finish(leader_of(cluster).socket)
        assert users.faults == []
        assert verdict(history) == []
        answered = [call for call in history if call.op.answer == "done" and call.op.kind != "read"]
        assert len(answered) > 20 * ROUNDS
        assert sorted(took_s)[len(took_s) // 2] <= TAKEOVER_S, f"{took_s}; the rest is this computer's load"
        assert cluster.machines() == machines
        seen = [tick for tick in ticks(steps) if tick >= began]
        assert max(after - before for before, after in itertools.pairwise(seen)) < 2.0, "training went on"
        assert cluster.any().ctl("cancel", "ticker").returncode == 0
        cluster.wait_for(lambda: not cluster.machines(), 150.0, "the machine to be released")
        print(f"{len(history)} commands, {len(answered)} done; takeovers {[round(each, 2) for each in took_s]}")
