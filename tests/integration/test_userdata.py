"""User data: what a fresh machine reads, and the dead-man switch as a real shell runs it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from bootstrap.system import facts as system
from provisioners.base import HostKey
from provisioners.userdata import BORN_FILE, HEARD_FILE, SWITCH_PATH, DeadMan, switch_script, user_data
from supervisor.identity import Identity
from tests.support.machines import HOST_KEY, wait_for

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "clouds"
IDENTITY = Identity(b"s" * 32)
KEY = HostKey(
    "ssh-ed25519 AAAApublic spotsup", "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----"
)
# EC2 takes 16 KB, Azure 64 KB, Compute Engine 256 KB
MAX_BYTES = 16384


@pytest.mark.parametrize(("user", "file"), [("ubuntu", "user_data.txt"), ("root", "user_data_root.txt")])
def test_it_is_as_reviewed(user: str, file: str) -> None:
    text = user_data("n1", user, IDENTITY.authorized_keys("n1"), KEY, DeadMan(3600))
    if "SPOTSUP_WRITE_GOLDEN" in os.environ:
        (GOLDEN / file).write_text(text)
    assert text == (GOLDEN / file).read_text()


def test_cloud_init_reads_it_as_it_was_meant() -> None:
    host_key = HostKey(HOST_KEY.public, HOST_KEY.private_openssh)
    text = user_data("n1", "spot", ["ssh-ed25519 AAAAclient daemon\n", "cert-authority ssh-ed25519 B"], host_key)
    assert text.startswith("#cloud-config\n")
    assert len(text) < MAX_BYTES
    config = yaml.safe_load(text)
    assert config["ssh_keys"] == {"ed25519_private": HOST_KEY.private_openssh, "ed25519_public": HOST_KEY.public}
    (user,) = config["users"]
    assert (user["name"], user["ssh_authorized_keys"]) == (
        "spot",
        ["ssh-ed25519 AAAAclient daemon", "cert-authority ssh-ed25519 B"],
    )
    assert config["write_files"] == [{"path": BORN_FILE, "permissions": "0644", "content": "n1\n"}]
    assert "runcmd" not in config


def test_the_largest_fits() -> None:
    text = user_data(
        "n" * 63,
        "u" * 32,
        ["k" * 800] * 2,
        HostKey(HOST_KEY.public, HOST_KEY.private_openssh),
        DeadMan(3600, "x" * 2000),
    )
    assert len(text) < MAX_BYTES


def test_the_switch_is_a_script_that_shells_take() -> None:
    config = yaml.safe_load(user_data("n1", "spot", ["key"], KEY, DeadMan(1800)))
    files = {each["path"]: each for each in config["write_files"]}
    script = files[SWITCH_PATH]
    assert script["permissions"] == "0755"
    assert HEARD_FILE in script["content"]
    assert subprocess.run(["sh", "-n"], input=script["content"], text=True, check=False).returncode == 0
    assert any(SWITCH_PATH in each["content"] for path, each in files.items() if path.endswith(".service"))


def test_bootstrap_looks_where_user_data_writes() -> None:
    assert (system.BORN_FILE, system.HEARD_FILE) == (BORN_FILE, HEARD_FILE)
    config = yaml.safe_load(user_data("n1", "spot", ["key"], KEY, DeadMan(1800)))
    assert ["systemctl", "enable", "--now", system.SWITCH_TIMER] in config["runcmd"]


class Switch:
    """A switch in a folder of its own that ends nothing but writes a file."""

    def __init__(self, folder: Path, after_s: float) -> None:
        self.heard, self.state, self.ended = folder / "a heard", folder / "state", folder / "ended"
        end = f"touch {shlex.quote(str(self.ended))}"
        self.script = switch_script(shlex.quote(str(self.heard)), shlex.quote(str(self.state)), DeadMan(after_s, end))

    def look(self) -> bool:
        """Run it once; True when it has ended the machine."""
        done = subprocess.run(["sh"], input=self.script, text=True, check=False, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")
        return self.ended.exists()


def test_a_machine_that_never_hears_anything_ends_itself(tmp_path: Path) -> None:
    switch = Switch(tmp_path, 1)
    assert not switch.look()
    wait_for(switch.look, "the switch has ended the machine")


def test_a_word_begins_the_count_again(tmp_path: Path) -> None:
    switch = Switch(tmp_path, 5)
    switch.look()
    up = float(Path("/proc/uptime").read_text().split()[0])
    switch.state.write_text(f"{int(up) - 60}\nnever\n")
    switch.heard.touch()
    assert not switch.look()
    assert not switch.look()
    since, seen = switch.state.read_text().splitlines()
    assert int(since) >= int(up)
    switch.state.write_text(f"{int(up) - 60}\n{seen}\n")
    assert switch.look()


@pytest.mark.parametrize("age_s", [-1e6, 1e6])
def test_a_word_under_a_clock_that_jumped_is_a_word(tmp_path: Path, age_s: float) -> None:
    switch = Switch(tmp_path, 5)
    switch.heard.touch()
    switch.look()
    at = switch.heard.stat().st_mtime + age_s
    os.utime(switch.heard, (at, at))
    assert not switch.look()
