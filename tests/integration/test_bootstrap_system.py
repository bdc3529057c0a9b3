"""The steps that change a machine's system: their scripts run in a sandbox, tests/support/sandbox.py."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.agent import scripts as agent_scripts
from bootstrap.facts import System
from bootstrap.model import Paths, Run, Setup, Skip, Unfit
from bootstrap.mounts import step as mount_step
from bootstrap.mounts.model import Mount
from bootstrap.mounts.step import unmount
from bootstrap.steps import PlannedStep, plan
from bootstrap.system.facts import HEARD_FILE, SWITCH_TIMER, UPDATE_UNITS
from bootstrap.templates import fill
from tests.support.agents import a_setup, alive, children, wait_for
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.long

NFS = Mount("nfs", "server:/data", "/mnt/data")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path / "box")
    yield box
    for folder in box.home.glob("*/nodes/*"):
        box.sh(agent_scripts.stop_agent(Paths(str(folder.parent.parent), folder.name), 0.0))


def step(machine: Sandbox, setup: Setup, name: str) -> PlannedStep:
    return next(step for step in plan(machine.facts(setup), setup) if step.name == name)


def just_booted(machine: Sandbox) -> None:
    """The state of a cloud's image a minute after its first boot."""
    for unit in UPDATE_UNITS:
        machine.write(f"usr/lib/systemd/system/{unit}", "")
    machine.write("state/kernels", "linux-image-6.1.0-28-cloud-amd64\nlinux-image-cloud-amd64\n")
    machine.write(f"etc/systemd/system/{SWITCH_TIMER}", "")


def test_updates_kernel_and_dead_man_switch_are_set_once(machine: Sandbox) -> None:
    just_booted(machine)
    setup = a_setup(dead_man=True)
    assert machine.facts(setup).system == System(
        born="n1",
        os="debian",
        version="12",
        kernel=os.uname().release,
        systemd="running",
        root=True,
        updaters=UPDATE_UNITS,
        unheld=("linux-image-6.1.0-28-cloud-amd64", "linux-image-cloud-amd64"),
        clock="synchronized",
    )
    machine.bootstrap(setup, "hygiene")
    assert (machine.home / HEARD_FILE).exists()
    assert "systemctl stop apt-daily.timer" in machine.log
    assert not any("stop" in line and ".service" in line for line in machine.log), "dpkg is not ended in its middle"
    assert isinstance(step(machine, setup, "hygiene").decision, Skip)
    assert machine.bootstrap(setup, "hygiene") == []


@pytest.mark.parametrize("born", ["", "n2"])
def test_nothing_is_done_to_a_machine_that_was_not_made_for_this_node(tmp_path: Path, born: str) -> None:
    machine = Sandbox(tmp_path, born=born)
    just_booted(machine)
    machine.write("state/clock", "no\n")
    (machine.box / "bin/sudo").unlink()
    setup = a_setup(dead_man=True)
    assert machine.facts(setup).system == System(
        born=born, os="debian", version="12", kernel=os.uname().release, systemd="running"
    )
    assert machine.bootstrap(setup, "hygiene") == []
    assert isinstance(step(machine, a_setup(mounts=(NFS,)), "mounts").decision, Unfit)
    done = machine.run(
        Run("hold", fill("system/hold.sh", packages=["linux-image-cloud-amd64"], limit_s=5), 10.0, as_root=True)
    )
    assert done.returncode == 1
    assert "/etc/spotsup/born does not name n1: this machine was not made for it, and is left as it is" in done.stderr
    assert [line for line in machine.log if not line.startswith(("systemctl is-", "systemctl show"))] == []


def test_a_root_command_ends_at_its_limit_with_an_error(machine: Sandbox) -> None:
    done = machine.run(Run("wait", "echo begun >&2; sleep 600", 0.3, as_root=True))
    assert (done.returncode, done.stderr) == (124, "begun\nit did not end within 0.3 s, and was ended\n")
    assert machine.run(Run("fail", "exit 7", 5.0, as_root=True)).returncode == 7


def test_root_commands_use_sudo_or_the_step_is_unfit(machine: Sandbox) -> None:
    machine.program("id", 'case $1 in -u) echo 1000 ;; *) exec /usr/bin/id "$@" ;; esac')
    machine.program("sudo", '[ "$1" = -n ] && shift\necho sudo >>"$BOX/log"\nexec "$@"')
    just_booted(machine)
    assert machine.facts(a_setup()).system.root
    machine.bootstrap(a_setup(), "hygiene")
    assert "sudo" in machine.log
    assert (machine.box / "state/held").read_text().split() == [
        "linux-image-6.1.0-28-cloud-amd64",
        "linux-image-cloud-amd64",
    ]
    machine.write("state/held", "")
    machine.program("sudo", "echo 'sudo: a password is required' >&2; exit 1")
    refused = step(machine, a_setup(), "hygiene").decision
    assert isinstance(refused, Unfit)
    assert "cannot become root by `sudo -n`" in refused.reason


def test_the_user_lingers_where_his_last_session_would_take_shared_memory_along(machine: Sandbox) -> None:
    """RemoveIPC of logind.conf(5): loaders whose tensors are in /dev/shm fail then, in the middle of an epoch."""
    machine.program("id", 'case $1 in -u) echo 1000 ;; *) exec /usr/bin/id "$@" ;; esac')
    linger = 'case $1 in enable-linger) echo yes >"$BOX/state/linger" ;; show-user) cat "$BOX/state/linger" ;; esac'
    machine.program("loginctl", linger)
    machine.write("state/linger", "no\n")
    assert not machine.facts(a_setup()).system.lingers
    (command,) = machine.bootstrap(a_setup(), "hygiene")
    assert command.what == "let shared memory outlive SSH sessions"
    assert machine.facts(a_setup()).system.lingers
    machine.write("state/linger", "no\n")
    machine.program("loginctl", linger.replace("echo yes", "echo no"))
    with pytest.raises(AssertionError, match="let shared memory outlive SSH sessions"):
        machine.bootstrap(a_setup(), "hygiene")
    machine.program("loginctl", "echo 'User ID 1000 is not logged in or lingering' >&2; exit 1")
    assert machine.facts(a_setup()).system.lingers, "no logind, or no session: nothing is removed"


def test_facts_are_gathered_again_after_the_first_boot(machine: Sandbox) -> None:
    machine.program("cloud-init", "")
    assert [str(command) for command in step(machine, a_setup(), "hygiene").decision] == [  # type: ignore[union-attr] # a tuple: it is running
        "wait for cloud-init",
        "gather facts again: the first boot has ended",
    ]
    machine.write("run/cloud-init/status.json", '{"v1": {\n "stage": "modules-final"\n}}\n')
    machine.write("var/log/cloud-init-output.log", "apt-get is slow today\n")
    done = machine.sh(fill("system/wait_for_cloud_init.sh", limit_s=1, lines=5))
    assert done.returncode == 1
    assert done.stderr == 'apt-get is slow today\ncloud-init has not ended after 1 s; its stage is "modules-final"\n'
    machine.write("run/cloud-init/result.json", "{}")
    assert machine.sh(fill("system/wait_for_cloud_init.sh", limit_s=1, lines=5)).returncode == 0
    assert machine.bootstrap(a_setup(), "hygiene") == []


def test_apts_lock_is_waited_for_and_its_holder_named(machine: Sandbox) -> None:
    lock = machine.write("var/lib/dpkg/lock-frontend", "")
    own = f"lock-frontend\n1: POSIX  ADVISORY  WRITE {os.getpid()} 08:01:{lock.stat().st_ino} 0 EOF\n"
    machine.write(
        "proc/locks", f"1: FLOCK  ADVISORY  WRITE 1 08:01:99 0 EOF\n{own}1: -> POSIX  ADVISORY  WRITE 1 0:0:1 0 EOF\n"
    )
    comm = Path("/proc/self/comm").read_text().strip()
    held = f"{comm} ({os.getpid()}) holds {lock}"
    assert machine.facts(a_setup()).system.locks == (held,)
    done = machine.sh(fill("system/wait_for_apt.sh", limit_s=1))
    assert (done.returncode, done.stderr) == (1, f"apt or dpkg is still at work after 1 s: {held}\n")
    machine.write("proc/locks", "")
    assert machine.sh(fill("system/wait_for_apt.sh", limit_s=1)).returncode == 0


def test_a_real_lock_is_found_in_proc_locks(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        machine = Sandbox(tmp_path / "box")
        script = fill("system/wait_for_apt.sh", limit_s=0).replace("/var/lib/dpkg/lock-frontend", str(path))
        script = script.replace("/proc/locks", "//proc/locks")  # the real ones
        if str(path.stat().st_ino) not in Path("/proc/locks").read_text():
            pytest.skip("this computer's /proc/locks has no inode")
        done = machine.sh(script)
    assert f"({os.getpid()}) holds {path}" in done.stderr


def test_an_unset_clock_is_waited_for_if_a_service_sets_it(machine: Sandbox) -> None:
    machine.write("state/clock", "no\n")
    assert machine.facts(a_setup()).system.clock == "none"
    machine.write("state/active-chrony", "")
    assert machine.facts(a_setup()).system.clock == "waiting"
    done = machine.sh(fill("system/wait_for_clock.sh", limit_s=1))
    assert done.stderr.startswith("the clock is not synchronized after 1 s: does the time service reach a server")
    machine.write("state/clock", "yes\n")
    assert machine.sh(fill("system/wait_for_clock.sh", limit_s=1)).returncode == 0


def test_a_dead_man_switch_that_user_data_did_not_install_is_a_failure(machine: Sandbox) -> None:
    (command,) = step(machine, a_setup(dead_man=True), "hygiene").decision  # type: ignore[misc] # a tuple: not armed
    assert isinstance(command, Run)
    done = machine.run(command)
    assert done.returncode == 1
    assert "the user data of this machine did not install spotsup-dead-man.timer: nothing would end it" in done.stderr


def mounted(machine: Sandbox) -> list[list[str]]:
    return [line.split()[:4] for line in (machine.box / "proc/mounts").read_text().splitlines()]


def places(machine: Sandbox) -> str:
    """A folder of the sandbox for mountpoints."""
    return f"{machine.box}/mnt"


def test_file_systems_are_mounted_once_and_the_checkpoints_folder_is_proven(machine: Sandbox) -> None:
    out, data = f"{places(machine)}/out", f"{places(machine)}/data"
    setup = a_setup(
        agent_config=f'{{"checkpoints":"{out}/a/ck"}}'.encode(),
        mounts=(Mount("efs", "fs-1.efs.us-east-1.amazonaws.com:/", out), Mount("nfs", "server:/data", data, "ro")),
    )
    done = [str(command) for command in machine.bootstrap(setup, "mounts")]
    assert done[0] == "install the NFS client"
    assert mounted(machine) == [
        ["server:/data", data, "nfs4", "vers=4.1,hard,timeo=600,retrans=2,noresvport,nconnect=4,ro"],
        [
            "fs-1.efs.us-east-1.amazonaws.com:/",
            out,
            "nfs4",
            "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,rw",
        ],
    ]
    assert list(Path(out, "a/ck").iterdir()) == [], "the proof leaves nothing"
    assert machine.bootstrap(setup, "mounts") == []
    stop = unmount(setup.mounts)
    assert machine.run(stop).returncode == 0
    assert mounted(machine) == []
    assert machine.run(stop).returncode == 0, "unmounting twice is no fault"


def test_a_log_folder_that_cannot_be_made_is_not_a_failure(machine: Sandbox) -> None:
    out = f"{places(machine)}/out"
    config = f'{{"checkpoints":"{out}/ck","log_mirror":"{out}/theirs/logs"}}'.encode()
    machine.write("mnt/out/theirs", "a file, where a folder is to be made")
    setup = a_setup(agent_config=config, mounts=(Mount("nfs", "server:/out", out),))
    done = [str(command) for command in machine.bootstrap(setup, "mounts")]
    assert f"make {out}/theirs/logs" in done
    assert machine.bootstrap(setup, "mounts") == []
    with pytest.raises(AssertionError, match=r"File exists|Not a directory"):
        machine.bootstrap(replace(setup, agent_config=config.replace(b"/ck", b"/theirs/ck")), "mounts")


def test_a_mount_that_is_refused_fails_with_the_servers_error(machine: Sandbox) -> None:
    machine.write("state/mount-fails", "")
    wanted = Mount("nfs", "server:/data", f"{places(machine)}/x")
    done = machine.run(Run("mount", mount_step.mount(wanted, 5), 20.0, as_root=True))
    assert done.returncode == 1
    assert done.stderr == (
        "mount.nfs: access denied by server\n"
        f"server:/data cannot be mounted at {wanted.mountpoint}: mount ended with status 32\n"
    )


def test_a_server_that_does_not_answer_is_given_up(machine: Sandbox) -> None:
    machine.write("state/mount-hangs", "")
    wanted = Mount("nfs", "server:/data", f"{places(machine)}/x")
    done = machine.run(Run("mount", mount_step.mount(wanted, 1), 20.0, as_root=True))
    assert done.returncode == 1
    assert "server:/data did not answer within 1 s: may this machine reach it (for NFS: TCP port 2049)?" in done.stderr


@pytest.mark.long
def test_a_mount_that_hangs_is_found_without_hanging(machine: Sandbox) -> None:
    place = f"{places(machine)}/x"
    machine.write("proc/mounts", f"server:/data {place} nfs4 rw,hard 0 0\n")
    machine.program("stat", f'case "$*" in *"-t {place}") exec sleep 600 ;; *) exec /usr/bin/stat "$@" ;; esac')
    setup = a_setup(mounts=(Mount("nfs", "server:/data", place),))
    began = time.monotonic()
    found = machine.facts(setup).mounts.at(place)
    assert found is not None
    assert not found.alive
    assert time.monotonic() - began < 15.0
    done = machine.sh(mount_step.wait_until_alive(setup.mounts[0], 1, probe_s=1))
    assert done.returncode == 1
    assert f"server:/data, mounted at {place}, has not answered for 1 s: its server is down" in done.stderr
    (machine.box / "bin/stat").unlink()
    Path(place).mkdir(parents=True)
    assert machine.sh(mount_step.wait_until_alive(setup.mounts[0], 30)).returncode == 0


def test_a_folder_that_cannot_be_written_to_or_hangs_is_a_failure(machine: Sandbox) -> None:
    paths = Paths(str(machine.home / ".spotsup"), "n1")
    gone = machine.sh(mount_step.prove_folder(f"{machine.box}/nowhere", paths, "k", 5))
    assert gone.returncode == 1
    assert "nowhere, renamed and read back; is it " in gone.stderr
    machine.program("sync", "exec sleep 600")
    hung = machine.sh(mount_step.prove_folder(str(machine.home), paths, "k", 1))
    assert (hung.returncode, hung.stderr) == (
        1,
        f"writing a file to {machine.home} did not end within 1 s: its server hangs\n",
    )
    assert not Path(paths.proof).exists()


def test_a_mount_that_is_in_use_is_unmounted_lazily(machine: Sandbox) -> None:
    place = f"{places(machine)}/x"
    machine.write("proc/mounts", f"server:/data {place} nfs4 rw,hard 0 0\n")
    machine.write("state/umount-hangs", "")
    done = machine.run(Run("unmount", fill("mounts/unmount.sh", places=[place], limit_s=1), 30.0, as_root=True))
    assert done.returncode == 0
    assert f"{place} is in use or its server hangs; it is unmounted lazily" in done.stderr
    assert mounted(machine) == []


def test_scratch_is_a_new_local_disk_the_same_after_a_reboot(machine: Sandbox) -> None:
    place = f"{places(machine)}/scratch"
    setup = a_setup(mounts=(Mount("scratch", "", place),))
    machine.write(
        "state/disks",
        "/dev/root:Amazon Elastic Block Store:ext4:\n"
        "/dev/full:Amazon EC2 NVMe Instance Storage:xfs:data\n"
        "/dev/new:Amazon EC2 NVMe Instance Storage::\n",
    )
    machine.bootstrap(setup, "mounts")
    assert [line for line in machine.log if line.startswith("mkfs")] == [
        "mkfs.ext4 -q -m 0 -L spotsup-scratch /dev/new"
    ]
    assert mounted(machine) == [["/dev/new", place, "ext4", "noatime"]]
    assert machine.bootstrap(setup, "mounts") == []
    machine.write("proc/mounts", "")
    machine.bootstrap(setup, "mounts")
    assert mounted(machine) == [["/dev/new", place, "ext4", "noatime"]]
    assert sum(line.startswith("mkfs") for line in machine.log) == 1


def test_a_disk_with_anything_on_it_is_never_formatted(machine: Sandbox) -> None:
    machine.write("state/disks", "/dev/full:Amazon EC2 NVMe Instance Storage:xfs:data\n")
    wanted = Mount("scratch", "", f"{places(machine)}/scratch")
    script = mount_step.mount_scratch(wanted, "/dev/full", "u", 5, new=True)
    done = machine.run(Run("mount", script, 20.0, as_root=True))
    assert (done.returncode, done.stderr) == (1, "/dev/full is not empty, and stays as it is: xfs\n")
    assert not any(line.startswith("mkfs") for line in machine.log)


def test_without_a_local_disk_scratch_is_a_folder_of_the_boot_disk(machine: Sandbox) -> None:
    place = f"{places(machine)}/scratch"
    setup = a_setup(mounts=(Mount("scratch", "", place),))
    machine.bootstrap(setup, "mounts")
    assert mounted(machine) == [[f"{machine.box}/var/lib/spotsup/scratch{place}", place, "ext4", "rw"]]
    assert machine.bootstrap(setup, "mounts") == []


def test_the_agent_is_a_unit_that_is_started_once_and_stopped_like_any_agent(machine: Sandbox) -> None:
    setup = a_setup(env={"LR": "0.1 'x' \"y\" $z"})
    machine.bootstrap(setup)
    own = machine.home / ".spotsup/nodes/n1"
    wait_for(lambda: "started" in (own / "agent.log").read_text())
    assert (own / "agent.log").read_text() == f"started --config {own}/agent.json 0.1 'x' \"y\" $z\n"
    unit = (machine.box / "run/systemd/system/spotsup-agent-n1.service").read_text()
    assert f'ExecStart=/bin/sh "{own}/agent.sh"\n' in unit
    assert "KillMode=mixed\n" in unit
    assert machine.bootstrap(setup) == []
    first = machine.facts(setup).agent
    assert first
    other = a_setup(agent_config=b'{"job":"other"}')
    machine.bootstrap(other)
    second = machine.facts(other).agent
    assert second
    assert second.pid != first.pid
    assert not alive(first.pid)
    wait_for(lambda: children(second.pid) != [])
    pids = [second.pid, *children(second.pid)]
    done = machine.sh(agent_scripts.stop_agent(Paths("~/.spotsup", "n1"), 20.0))
    assert done.stdout.strip() == "spotsup-agent stopped"
    assert [pid for pid in pids if alive(pid)] == []


def test_two_daemons_that_start_the_unit_at_the_same_time_start_one_agent(machine: Sandbox) -> None:
    setup = a_setup()
    machine.bootstrap(setup, "code", "trainer", "environment")
    *before, start = step(machine, setup, "agent").decision  # type: ignore[misc] # a tuple: it was never started
    for command in before:
        machine.apply(command)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(machine.apply, [start] * 3))
    log = machine.home / ".spotsup/nodes/n1/agent.log"
    wait_for(lambda: "started" in log.read_text())
    assert log.read_text().count("started") == 1
    assert machine.bootstrap(setup) == []


def test_a_unit_that_ends_at_once_is_a_failure_with_its_last_output(machine: Sandbox) -> None:
    setup = a_setup()
    machine.bootstrap(setup, "code", "trainer", "environment")
    *before, start = step(machine, setup, "agent").decision  # type: ignore[misc] # a tuple: it was never started
    for command in before:
        machine.apply(command)
    (machine.home / ".spotsup/nodes/n1/agent.sh").write_text('echo "no etcd here" >>"${0%/*}/agent.log"; exit 1\n')
    assert isinstance(start, Run)
    done = machine.run(start)
    assert (done.returncode, done.stderr) == (1, "no etcd here\nthe agent ended at once, with status 1\n")


def test_the_documented_mount_options_are_those_that_are_used() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "nodes.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(?:nfs|filestore|lustre|scratch)`.* \| (\w+) \| `(\S+)` \|$", text, re.MULTILINE)
    assert documented == list(mount_step.OPTIONS.values())
