"""Commands for whoever runs the daemons, or looks into a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from supervisor.cli.common import connected, output_option, print_json


@click.group()
def daemon() -> None:
    """The daemons themselves: how they are, and whether they may act."""


@daemon.command("status")
@output_option
@click.pass_context
def daemon_status(context: click.Context, output: str) -> None:
    """What the daemon that answers does, and who leads."""
    with connected(context) as client:
        _tell(client.get("/v1/health"), output)


@daemon.command("pause")
@click.option("--reason", default="", help="Why, for others to read.")
@output_option
@click.pass_context
def pause_daemons(context: click.Context, reason: str, output: str) -> None:
    """Have no daemon of the cluster do anything, also after a restart: they watch, and training goes on."""
    with connected(context) as client:
        _tell(client.post("/v1/daemon/pause", {"reason": reason}), output)


@daemon.command("resume")
@output_option
@click.pass_context
def resume_daemons(context: click.Context, output: str) -> None:
    """Have the daemons go on."""
    with connected(context) as client:
        _tell(client.post("/v1/daemon/resume"), output)


def _tell(found: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(found)
        return
    state = "paused" if found["paused"] else "leads" if found["leading"] else "stands by"
    click.echo(f"{state}: {found['headline']}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def ssh(context: click.Context, node: str, command: tuple[str, ...]) -> None:
    """Log in to NODE, or run a command there: ssh NODE -- nvidia-smi.

    With the cluster's own key, and only if the machine has the host key that it was given. The exit code is ssh's.
    """
    with connected(context) as client:
        from supervisor.errors import SpotsupError

        program = shutil.which("ssh")
        if program is None:
            raise SpotsupError("there is no ssh on the PATH: `apt-get install openssh-client`")
        access = client.get(f"/v1/nodes/{node}/access")
    with tempfile.TemporaryDirectory(prefix="spotsup-ssh-") as folder:  # for our eyes only: mode 0700
        running = subprocess.Popen(ssh_command(program, access, Path(folder), command))
        # Ctrl-C is for what runs on the node; we have a key to remove.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = running.wait()
    sys.exit(code if code >= 0 else 128 - code)


def ssh_command(program: str, access: dict[str, Any], folder: Path, command: tuple[str, ...]) -> list[str]:
    """ssh with what it needs in `folder`: our key, and the one host key that is right."""
    key, hosts = folder / "key", folder / "known_hosts"
    for file, text in ((key, access["key"]), (hosts, access["known_hosts"])):
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(text)
    options = [
        *("-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
        *("-o", f"UserKnownHostsFile={hosts}", "-o", "GlobalKnownHostsFile=none"),
        *("-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no", "-p", str(access["port"])),
    ]
    return [program, *options, f"{access['user']}@{access['host']}", *command]
