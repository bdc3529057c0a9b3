"""Several daemons on one etcd: a standby takes over quickly, without touching a machine or losing a command."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.registers import Users, verdict
from tests.chaos.testbed import open_testbed
from tests.e2e.ticking import code_in, ticks, went_on
from tests.support.combinations import others_nightly
from tests.support.etcd_members import Members

# httpcore leaves the socket of a connection that was refused to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

MORE_S = 2.0  # a takeover takes a lease and so much
ROUNDS = 3
NODES = "{min: 1, desired: 1, max: 2}"


def max_commits_meanwhile(since_s: float) -> int:
    """How many commits a leader may have made that were not counted `since_s` before it was stopped: one in flight, and
    some twenty commands of users per second."""
    return 2 + int(50 * since_s)


def test_a_standby_answers_takes_commands_and_takes_over(tmp_path: Path) -> None:
    # the daemon's own default: a busy computer must not take a leader for dead
    lease_s, file = 15.0, code_in(tmp_path, NODES)
    with open_testbed(tmp_path / "testbed", Members(tmp_path / "testbed" / "etcd"), leader_ttl_s=lease_s) as cluster:
        first = cluster.wait_for_leader()
        (second,) = (each for each in cluster.daemons if each is not first)
        name = f":{first.pid}"
        cluster.wait_for(lambda: name in (second.health().get("leader") or ""), 90.0, "the standby to know its leader")

        # a standby stores a command and names the leader, which acts on it
        done = second.ctl("submit", str(file))
        assert (done.returncode, done.stdout) == (0, "ticker\n"), done.stderr
        assert f"{name} leads and acts on commands" in done.stderr
        cluster.wait_for(lambda: bool(ticks(tmp_path)), 150.0, "the first step")
        row = json.loads(second.ctl("status", "ticker", "-o", "json").stdout)
        assert (row["name"], row["sentence"].partition(";")[0]) == ("ticker", "standby")
        machines = cluster.machines()
        node = json.loads(second.ctl("top", "-o", "json").stdout)["nodes"][0]["id"]
        assert node in second.ctl("cost", "ticker").stdout
        done = second.ctl("ssh", node, "--", "echo hello; exit 7")
        assert (done.returncode, done.stdout) == (7, "hello\n"), done.stderr

        # a leader that is frozen for longer than its lease loses the lead, and changes nothing when it wakes
        cluster.wait_for(lambda: cluster.job("ticker")["state"] == "running", 90.0, "the job to run")
        asked, commits = time.monotonic(), first.commits()
        first.send(signal.SIGSTOP)
        since_s = time.monotonic() - asked
        took_s = [cluster.wait_for_takeover(first)]
        first.send(signal.SIGCONT)
        cluster.wait_for_step_down(first)
        assert first.commits() <= commits + max_commits_meanwhile(since_s)
        done = first.ctl("scale", "ticker", "1", "--max", "3", "-o", "json")
        assert json.loads(done.stdout)["nodes"]["max"] == 3, done.stderr

        # and kill -9 of the leader
        second.kill()
        took_s.append(cluster.wait_for_takeover(second))
        assert min(took_s) <= lease_s + MORE_S, "the rest is this computer's load"
        assert cluster.job("ticker")["nodes"]["max"] == 3, "what was acknowledged is stored"
        cluster.wait_for(lambda: cluster.job("ticker")["state"] == "running", 90.0, "the job to be looked after")
        assert cluster.machines() == machines
        made = len(ticks(tmp_path))
        cluster.wait_for(lambda: len(ticks(tmp_path)) > made, 60.0, "another step")
        went_on(tmp_path)
        assert first.ctl("cancel", "ticker").returncode == 0
        cluster.wait_for(lambda: not cluster.machines(), 150.0, "the machine to be released")


@pytest.mark.parametrize("etcds", others_nightly([1], [1, 3]))
def test_commands_through_leaders_that_die_and_freeze(tmp_path: Path, etcds: int) -> None:
    lease_s, members = 3.0, Members(tmp_path / "testbed" / "etcd", etcds)
    file = code_in(tmp_path, NODES)
    with open_testbed(tmp_path / "testbed", members, leader_ttl_s=lease_s) as cluster:
        done = cluster.any().ctl("submit", str(file))
        assert done.returncode == 0, done.stderr
        cluster.wait_for(lambda: bool(ticks(tmp_path)), 150.0, "the first step")
        cluster.wait_for(lambda: cluster.job("ticker")["state"] == "running", 90.0, "the job to run")
        machines, began = cluster.machines(), time.time()
        users = Users([daemon.socket for daemon in cluster.daemons], seed=etcds)
        users.start()
        took_s = []
        for _ in range(ROUNDS):
            old = cluster.wait_for_leader()
            old.kill()
            took_s.append(cluster.wait_for_takeover(old))
            users.use_new_names()
            old.start()

            # frozen for longer than its lease, it loses the lead, and changes nothing when it wakes
            old = cluster.wait_for_leader()
            asked, commits = time.monotonic(), old.commits()
            old.send(signal.SIGSTOP)
            since_s = time.monotonic() - asked
            took_s.append(cluster.wait_for_takeover(old))
            old.send(signal.SIGCONT)
            cluster.wait_for_step_down(old)
            assert old.commits() <= commits + max_commits_meanwhile(since_s)
            users.use_new_names()
        history = users.finish(cluster.wait_for_leader().socket)
        assert users.faults == []
        assert verdict(history) == []
        answered = [call for call in history if call.op.answer == "done" and call.op.kind != "read"]
        assert len(answered) > 20 * ROUNDS
        middle_s = sorted(took_s)[len(took_s) // 2]
        assert middle_s <= lease_s + MORE_S, f"{took_s}; the rest is this computer's load"
        assert cluster.machines() == machines
        went_on(tmp_path, began)
        assert cluster.any().ctl("cancel", "ticker").returncode == 0
        cluster.wait_for(lambda: not cluster.machines(), 150.0, "the machine to be released")
        print(f"{len(history)} commands, {len(answered)} done; takeovers {[round(each, 2) for each in took_s]}")
