"""`uv tool` in pipx's place, as docs/install.md says: installed, upgraded, downgraded and removed on a stock host that
systemd has booted. The daemons are paused, so that the local cloud launches nothing: a stored job is enough."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from supervisor.identity import load_identity
from supervisor.model import SCHEMA_VERSION
from tests.acceptance import control
from tests.acceptance.control import Control, build_wheels, ensure_daemon_wheels
from tests.acceptance.documented import INSTALL, command
from tests.acceptance.stock import Network, asked_for, ensure_root, skipped_where_impossible, why_not
from tests.acceptance.test_story import NEWER, OLDER
from tests.support.documents import blocks
from tools.stack import ROOT

# Of the test alone: root file systems are built before it, within limits of their own.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900, func_only=True)]

INSTALL_S = 180.0
UV = "sudo env UV_TOOL_DIR=/opt/spotsup UV_TOOL_BIN_DIR=/usr/local/bin uv tool"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Control]:
    if reason := why_not() or ("" if asked_for() else "takes a minute; in make acceptance"):
        pytest.skip(reason)
    with ExitStack() as stack:
        with skipped_where_impossible():
            network = Network(os.getpid() % 250)
            stack.callback(network.down)
            network.up()
            ours = build_wheels(ROOT, tmp_path / "ours")
            newer = build_wheels(ROOT, tmp_path / "newer", NEWER)
            older = build_wheels(ROOT, tmp_path / "older", OLDER, SCHEMA_VERSION - 1)
            index, root = ensure_daemon_wheels(ROOT, ours), ensure_root(ROOT, control.PACKAGES)
        (tmp_path / "operator").mkdir()
        made = Control(root, network, tmp_path / "control", load_identity(tmp_path / "operator" / "key"))
        stack.callback(made.machine.kill)
        pip, uv = tmp_path / "pip.conf", tmp_path / "uv.toml"
        pip.write_text("[global]\nno-index = true\nfind-links = /srv/index\n")
        uv.write_text('no-index = true\nfind-links = ["/srv/index"]\n')
        places = {ours[0].parent: "/srv/ours", newer[0].parent: "/srv/newer", older[0].parent: "/srv/older"}
        made.boot({**places, index: "/srv/index", pip: "/etc/pip.conf", uv: "/etc/uv/uv.toml"})
        made.run("sudo cloud-init status --wait", 120.0)
        yield made


def status(host: Control) -> dict[str, Any]:
    """What the daemon says, once it answers."""
    asked = "until sudo spotsupctl daemon status -o json 2>/dev/null; do sleep 0.5; done"
    found: dict[str, Any] = json.loads(host.run(asked, 90.0))
    return found


def put(host: Control, version: str, install: str) -> None:
    """Install what is in a folder of wheels, which then is gone; the rest as "Upgrade" says."""
    host.run(
        f"rm -rf ~/wheels && cp -r /srv/{version} ~/wheels && cd ~/wheels && {install} && rm -r ~/wheels", INSTALL_S
    )
    host.run(command("Upgrade", "sudo spotsupd init"))
    host.run(command("Upgrade", "sudo systemctl restart"))


def test_uv_installs_upgrades_downgrades_and_removes(host: Control) -> None:
    began = time.monotonic()
    host.run(command("On a host", "sudo systemctl disable --now etcd"))
    host.run(command("With uv", "sudo env PIPX_HOME"), INSTALL_S)
    install = command("With uv", f"{UV} install --python")
    upgrade = command("With uv", f"{UV} install --upgrade")
    host.run(f"cp -r /srv/ours ~/wheels && cd ~/wheels && {install} && rm -r ~/wheels", INSTALL_S)
    host.run("sudo spotsupd init --cloud local", 120.0)
    host.run(command("On a host", "sudo systemctl enable --now spotsupd"), 120.0)
    print(f"uv installs, init, start: {time.monotonic() - began:.1f} s", flush=True)
    first = status(host)["version"]
    interpreter = host.run("readlink -f /opt/spotsup/spotsup/bin/python")
    assert interpreter.startswith("/usr/bin/python3")
    host.run("sudo spotsupctl daemon pause --reason 'no machines'")
    host.run("mkdir job && touch job/idle.py && sudo spotsupctl submit --name kept --code job -- idle.py")

    put(host, "newer", upgrade)
    now = status(host)
    assert now["version"] == NEWER != first
    assert "newer spotsupd" not in now["headline"]

    # An older one is installed only if that is said, and does not take over what a newer one has written.
    put(host, "older", upgrade.replace("spotsup[aws]", f"spotsup[aws]=={OLDER}"))
    refusal = f"was written by a newer spotsupd (schema {SCHEMA_VERSION}; this one reads {SCHEMA_VERSION - 1})"
    assert refusal in host.run(f"{command('On a host', 'sudo -u spotsup spotsupd check')} || :", 90.0)
    assert status(host)["counters"]["records_refused"] > 0
    assert status(host)["version"] == OLDER

    put(host, "newer", upgrade)
    assert status(host)["version"] == NEWER
    assert [each["name"] for each in json.loads(host.run("sudo spotsupctl list -o json"))] == ["kept"]

    host.run("sudo spotsupctl cancel kept; rm -r job")
    remove = [line for block in blocks(INSTALL, "sh") if block.heading == "Remove" for line in block.commands()]
    uninstall = command("With uv", f"{UV} uninstall")
    host.run("\n".join(uninstall if "pipx uninstall" in line else line for line in remove), 120.0)
    host.run(command("With uv", "sudo uv cache clean"))
    left = host.run("sudo find / -xdev -name '*spotsup*' -not -path '/var/lib/systemd/timers/*'; ps -eo user=,comm=")
    assert "spotsup" not in left
    print(f"all of it: {time.monotonic() - began:.1f} s", flush=True)
