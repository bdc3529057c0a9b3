"""Machines that one has: stock Debian, with and without systemd, as root and as an ordinary user, by the commands of
docs/own-machines.md. At the end nothing of ours is left on them but what that page names."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.installation import eventually
from tests.acceptance.stock import (
    REQUIREMENTS,
    USER,
    Network,
    StockMachine,
    ensure_root,
    ensure_wheels,
    skipped_where_impossible,
    wheels_served,
    why_not,
)
from tools.setup.errors import run
from tools.stack import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

JOB = """\
name: chars
nodes: {min: 1, desired: 2, max: 2}
placement: {cloud: own}
code: code
environment: requirements.txt
run: char_transformer.py --steps 1000000
checkpoints: none
"""
USER_DATA = """\
#cloud-config
disable_root: false
users:
  - name: {user}
    shell: /bin/bash
    ssh_authorized_keys: ["{key}"]
write_files:
  - {{path: /root/.ssh/authorized_keys, permissions: "0600", content: "{key}\\n"}}
"""
PLAIN = """\
ip address add {address}/24 dev host0; ip link set host0 up
useradd --create-home --shell /bin/bash {user}; mkdir -p /run/sshd /home/{user}/.ssh
echo '{key}' >/home/{user}/.ssh/authorized_keys; chown -R {user} /home/{user}
ssh-keygen -A; exec /usr/sbin/sshd -D -e
"""
# What a system writes by itself, and what docs/own-machines.md says that stays.
SYSTEMS_OWN = re.compile(r"/(proc|sys|dev|run|tmp|var/log|var/cache|var/lib/(systemd|cloud|apt|private)|var/tmp)(/.*)?")
OURS = """
for each in $(grep -lzs '^SPOTSUP_' /proc/[0-9]*/environ); do
    tr '\\0' ' ' <"${each%/environ}/cmdline" && echo
done 2>/dev/null
true
"""
# What a restart is for those who look: such a machine here ends where it would be restarted.
RESTART = """
cat /proc/sys/kernel/random/uuid >/run/boot_id
umount /proc/sys/kernel/random/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
for each in $(grep -lzs '^SPOTSUP_' /proc/[0-9]*/environ); do
    kill -9 "$(echo "$each" | tr -cd 0-9)"
done 2>/dev/null
true
"""
GONE = {"lost", "failed", "terminating", "gone"}
STAYS = re.compile(r"/(root|home/\w+)/(\.ssh|\.spotsup-own)?(/.*)?")


class Plain(StockMachine):
    """A container without systemd: sshd is its first process but one."""

    def start(self, key: str) -> None:
        """Run it."""
        self._folder.mkdir(parents=True)
        script = PLAIN.format(address=self.address, user=USER, key=key)
        command = [
            *("systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--as-pid2", "--volatile=overlay"),
            *("--directory", str(self._root), "--machine", f"{self._network.bridge}-{self.node}"),
            *("--network-bridge", self._network.bridge, "--resolv-conf=off", "/bin/sh", "-c", script),
        ]
        with (self._folder / "console.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


class Desk:
    """One's own computer, with a home of its own: the commands of the page."""

    def __init__(self, folder: Path, wheels: str, *boxes: StockMachine) -> None:
        self.folder, self.wheels, self.boxes = folder, wheels, boxes
        self._daemon: subprocess.Popen[bytes] | None = None
        self.config = folder / "home/.config/spotsup/spotsupd.toml"
        (folder / "home/.ssh").mkdir(parents=True)
        socket = str(folder / "state" / "spotsupd.sock")
        self.environ = {**os.environ, "HOME": str(folder / "home"), "SPOTSUP_SOCKET": socket}
        self.environ["SSH_AUTH_SOCK"] = ""
        key = folder / "home/.ssh/id_ed25519"
        subprocess.run([_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        self.key = key.with_suffix(".pub").read_text().strip()

    def run(self, *command: str, ok: bool = True) -> str:
        """Run a command of ours; its output."""
        program = Path(sys.executable).with_name(command[0])
        done = run([str(program), *command[1:]], cwd=self.folder, timeout_s=120.0, environ=self.environ)
        print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}", flush=True)
        assert (done.returncode == 0) == ok, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @property
    def config_option(self) -> tuple[str, str]:
        """What finds the configuration."""
        return "--config", str(self.config)

    def start_daemon(self) -> None:
        """Start the daemon, and wait until it answers."""
        program = Path(sys.executable).with_name("spotsupd")
        command = [str(program), "run", "--embedded-etcd", *self.config_option]
        log = self.folder / "daemon.log"
        with log.open("ab") as output:
            self._daemon = subprocess.Popen(
                command,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        ctl = [str(Path(sys.executable).with_name("spotsupctl")), "list"]

        def answers() -> bool:
            return run(ctl, cwd=self.folder, timeout_s=60.0, environ=self.environ).returncode == 0

        eventually("the daemon answers", answers, 120.0, log.read_text)

    def stop(self) -> None:
        """End the daemon, and its etcd with it."""
        if self._daemon is None:
            return
        self._daemon.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._daemon.wait(30.0)
        with suppress(ProcessLookupError):
            os.killpg(self._daemon.pid, signal.SIGKILL)

    def status(self) -> dict[str, Any]:
        """The job's."""
        found: dict[str, Any] = json.loads(self.run("spotsupctl", "status", "chars", "--output", "json"))
        return found


def _program(name: str) -> str:
    found = shutil.which(name) or next(map(str, (ROOT / ".tools").glob(f"**/bin/{name}")), "")
    assert found, f"{name} is not here"
    return found


def files_of(machine: StockMachine) -> dict[str, str]:
    """What is on a machine's disk, and what its users and groups are."""
    (init,) = machine._children()
    root, found = f"/proc/{init}/root", {}
    for folder, folders, names in os.walk(root):
        at = folder.removeprefix(root) or "/"
        folders[:] = [each for each in folders if not SYSTEMS_OWN.fullmatch(f"{at.rstrip('/')}/{each}")]
        for name in [*folders, *names]:
            with suppress(OSError):
                path = Path(folder, name)
                text = path.read_bytes() if at == "/etc" and name in {"passwd", "group", "shadow"} else b""
                found[f"{at.rstrip('/')}/{name}"] = hashlib.sha256(text).hexdigest()
    return found


def ours_on(machine: StockMachine) -> list[str]:
    """The processes that carry a mark of ours."""
    (init,) = machine._children()
    listed = subprocess.run(
        ["nsenter", "-t", init, "-a", "env", "-i", "PATH=/bin:/usr/bin", "sh", "-c", OURS],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    found = Network(os.getpid() % 250)
    with ExitStack() as stack:
        stack.callback(found.down)
        with skipped_where_impossible():
            found.up()
        yield found


@pytest.fixture
def desk(network: Network, tmp_path: Path) -> Iterator[Desk]:
    with ExitStack() as stack:
        with skipped_where_impossible():
            root, wheels = ensure_root(ROOT), ensure_wheels(ROOT, REQUIREMENTS)
        url = stack.enter_context(wheels_served(wheels, network.host))
        box1, box2 = (StockMachine(root, network, tmp_path / f"box{n}", f"box{n}", n) for n in (1, 2))
        box3 = Plain(root, network, tmp_path / "box3", "box3", 3)
        found = Desk(tmp_path, url, box1, box2, box3)
        stack.callback(found.stop)
        for each in found.boxes:
            stack.callback(each.kill)
        for each in (box1, box2):
            each.boot(USER_DATA.format(user=USER, key=found.key), admits=f"ip saddr {network.prefix}.0/24 accept")
        box3.start(found.key)
        for each in found.boxes:
            each.await_sshd()
        wait_for_login(found)
        yield found


def test_a_job_over_hosts_that_one_has(desk: Desk) -> None:
    box1, box2, box3 = desk.boxes
    before = {each.node: files_of(each) for each in (box1, box2)}
    install(desk)
    names = {box.node: f"host-{box.address.replace('.', '-')}" for box in desk.boxes}
    desk.run("spotsupd", "machine", "close", names["box3"], *desk.config_option)
    desk.start_daemon()
    began = time.monotonic()
    desk.run("spotsupctl", "submit", "chars.yaml")
    seconds = {"both train": until(desk, began, {names["box1"], names["box2"]})[0]}

    began = time.monotonic()
    desk.run("spotsupd", "machine", "open", names["box3"], *desk.config_option)
    desk.run("spotsupd", "machine", "close", names["box2"], "--until", "8h", *desk.config_option)
    seconds["closed"], first = until(desk, began, {names["box1"], names["box3"]})
    given_back(box2)

    began = time.monotonic()
    inside(box1, "sh", "-c", RESTART)
    seconds["restarted"], _ = until(desk, began, {names["box1"], names["box3"]}, without=first)

    began = time.monotonic()
    box3.kill()
    seconds["unplugged"], _ = until(desk, began, {names["box1"]})
    desk.run("spotsupctl", "cancel", "chars")
    for each in (box1, box2):
        given_back(each)
        more = {path for path, found in files_of(each).items() if before[each.node].get(path) != found}
        assert sorted(path for path in more if not STAYS.fullmatch(path) or "/machines/" in path) == []
    print(json.dumps(seconds), flush=True)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "own-machines.json").write_text(json.dumps(seconds) + "\n")


def install(desk: Desk) -> None:
    """As docs/own-machines.md has it."""
    box1, box2, box3 = desk.boxes
    hosts, known = f"hosts={USER}@{box1.address},root@{box2.address}", f"known_hosts={desk.folder / 'home/.ssh/known'}"
    begin = ("init", "--kind", "personal", "--cloud", "own", "--set", hosts, "--set", known)
    desk.run("spotsupd", *begin, "--state-dir", str(desk.folder / "state"))
    with desk.config.open("a") as file:
        env = '{GLOO_SOCKET_IFNAME = "host0", OMP_NUM_THREADS = "1"}'
        file.write(f'\n[node]\nwheelhouse = "{desk.wheels}"\nenv = {env}\n')
    # An ordinary user's shared memory would go with his last login.
    add = ("spotsupd", "machine", "add", "--yes", *desk.config_option)
    assert f"loginctl enable-linger {USER}" in desk.run(*add, f"{USER}@{box1.address}", ok=False)
    inside(box1, "loginctl", "enable-linger", USER)
    for user, box in ((USER, box1), ("root", box2), (USER, box3)):
        assert "lets us in" in desk.run(*add, f"{user}@{box.address}")
    desk.run("spotsupd", "machine", "list", *desk.config_option)
    code = desk.folder / "code"
    shutil.copytree(ROOT / "trainer" / "examples", code, ignore=shutil.ignore_patterns("__pycache__"))
    (code / "requirements.txt").write_text("\n".join(REQUIREMENTS))
    (desk.folder / "chars.yaml").write_text(JOB)


def wait_for_login(desk: Desk) -> None:
    """Until the key is where sshd looks for it."""
    for each in desk.boxes:
        (init,) = each._children()
        keys = Path(f"/proc/{init}/root/home/{USER}/.ssh/authorized_keys")
        eventually(f"{each.node} has the key", partial(has, keys, desk.key), 240.0, partial(str, each.console))


def has(path: Path, text: str) -> bool:
    """Whether a file has a text."""
    return path.exists() and text in path.read_text()


def until(desk: Desk, began: float, hosts: set[str], *, without: str = "") -> tuple[float, str]:
    """(seconds until the job trains on these hosts and has no other, the node on the last of them). `without`: a node
    that is to be gone."""
    nodes: dict[str, str] = {}

    def trains() -> bool:
        status = desk.status()
        nodes.clear()
        nodes.update({each["instance_type"]: each["id"] for each in status["node_list"] if each["state"] not in GONE})
        return nodes.keys() == hosts and status["nodes"]["training"] == len(hosts) and without not in nodes.values()

    eventually(f"it trains on {sorted(hosts)}", trains, 600.0, lambda: json.dumps(desk.status())[:3000])
    return round(time.monotonic() - began, 1), nodes[min(hosts)]


def inside(machine: StockMachine, *command: str) -> None:
    """Run a command in a machine, as its root."""
    (init,) = machine._children()
    subprocess.run(
        ["nsenter", "-t", init, "-a", "env", "-i", "PATH=/bin:/usr/bin:/sbin", *command], check=True, timeout=60.0
    )


def given_back(machine: StockMachine) -> None:
    """Until nothing of ours runs there."""
    (init,) = machine._children()
    roots = [Path(f"/proc/{init}/root", home) for home in ("root", f"home/{USER}")]

    def left() -> list[str]:
        files = (str(each) for root in roots for each in root.glob(".spotsup-own/*/machines/*"))
        return [*ours_on(machine), *files]

    eventually(f"{machine.node} is given back", lambda: not left(), 120.0, lambda: "\n".join(left()))
