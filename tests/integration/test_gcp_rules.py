"""The shell that Compute Engine's user data runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provisioners.gcp import launch
from tests.support.machines import HOST_KEY


def run(script: str, etc: Path, programs: Path) -> None:
    path = f"{programs}:{os.environ['PATH']}"
    subprocess.run(
        ["/bin/sh", "-c", script.replace("/etc/", f"{etc}/")],
        env={"PATH": path},
        check=True,
        capture_output=True,
        timeout=30,
    )


def test_the_guest_agents_setting_is_written_once(tmp_path: Path) -> None:
    for _ in range(2):
        run(launch.NO_HOST_KEYS, tmp_path, tmp_path)
    assert (tmp_path / "default/instance_configs.cfg").read_text() == "[InstanceSetup]\nset_host_keys = false\n"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_host_key_that_was_replaced_nevertheless_is_installed_again(tmp_path: Path, replaced: bool) -> None:
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAAother x\n" if replaced else HOST_KEY.public)
    for name in ("cloud-init", "systemctl"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/done\n')
        program.chmod(0o755)
    run(launch.host_key_again(HOST_KEY.public), tmp_path, tmp_path)
    done = tmp_path / "done"
    assert done.exists() is replaced
    if replaced:
        again = "cloud-init single --name ssh --frequency always\nsystemctl try-restart ssh sshd\n"
        assert done.read_text() == again
