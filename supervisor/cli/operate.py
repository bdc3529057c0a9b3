"""Commands for operators: the daemons, and a shell on a node."""

from __future__ import annotations

import datetime as dt
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import connected, node_path, output_option, print_json
from supervisor.cli.completing import complete_nodes

if TYPE_CHECKING:
    from spotsup.transport import Transport


@click.group()
def daemon() -> None:
    """Show, pause and resume the cluster's daemons."""


@daemon.command("status")
@output_option
@click.pass_context
def daemon_status(context: click.Context, output: str) -> None:
    """Show what the daemon that answers does, and which one leads."""
    with connected(context) as client:
        _print(client.get("/v1/health"), output)


@daemon.command("pause")
@click.option("--reason", default="", help="Why; others see it in `daemon status`.")
@output_option
@click.pass_context
def pause_daemons(context: click.Context, reason: str, output: str) -> None:
    """Stop all daemons of the cluster from acting, also after a restart. They still watch, and training goes on."""
    with connected(context) as client:
        _print(client.post("/v1/daemon/pause", {"reason": reason}), output)


@daemon.command("resume")
@output_option
@click.pass_context
def resume_daemons(context: click.Context, output: str) -> None:
    """Let the daemons act again."""
    with connected(context) as client:
        _print(client.post("/v1/daemon/resume"), output)


def _print(health: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(health)
        return
    state = "leader: " if health["leading"] and not health["paused"] else ""
    click.echo(f"{state}{health['headline']}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--jump", metavar="USER@HOST", default="", help="Through this host, where the node cannot be reached.")
@click.argument("node", shell_complete=complete_nodes)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def ssh(context: click.Context, jump: str, node: str, command: tuple[str, ...]) -> None:
    """Log in to a node of a job of yours, or run a command there.

    For example: spotsupctl ssh NODE -- nvidia-smi. The daemon signs a new key for this one node, valid for five
    minutes; a session lasts as long as you like. A machine with another host key than it was given is refused. Your own
    SSH settings hold for the host of --jump alone. The exit code is ssh's.
    """
    with connected(context) as client, logged_in(client, node, jump) as (ssh, _):
        sys.exit(run_ssh([*ssh, *command]))


@contextmanager
def logged_in(
    client: Transport, node: str, jump: str, options: Sequence[str] = ()
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the arguments of an ssh to a node, to which a command may be added, with a key of its own; and the daemon's
    answer.

    Raises SpotsupError where this computer has no ssh.
    """
    from supervisor.errors import SpotsupError

    program, maker = shutil.which("ssh"), shutil.which("ssh-keygen")
    if program is None or maker is None:
        raise SpotsupError("ssh and ssh-keygen are not on the PATH: `apt-get install openssh-client`")
    with tempfile.TemporaryDirectory(prefix="spotsup-ssh-") as folder:  # mode 0700
        key = Path(folder) / "key"
        subprocess.run([maker, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
        login = client.post(node_path(node, "/login"), {"public_key": key.with_suffix(".pub").read_text()})
        place = f"{login['user']}@{login['host']}"
        yield [*ssh_command(program, login, key, jump), *options, "--", place], login


def run_ssh(command: Sequence[str], stdin: int | None = None) -> int:
    """Run it to its end. Returns its exit code."""
    running = subprocess.Popen(command, stdin=stdin)
    # Ctrl-C is for the program on the node; this process still has to remove the key.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = running.wait()
    return code if code >= 0 else 128 - code


def ssh_command(program: str, login: Mapping[str, Any], key: Path, jump: str = "") -> list[str]:
    """Return the ssh command line, without its destination; writes certificate and host key beside the key."""
    hosts = key.with_name("known_hosts")
    key.with_name(f"{key.name}-cert.pub").write_text(login["certificate"] + "\n")  # where ssh looks for it by itself
    hosts.write_text(login["known_hosts"])
    options = [
        *("-F", "none"),  # no variable, port or display of the user's goes to a machine on which a stranger may be root
        *("-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
        *("-o", f'UserKnownHostsFile="{hosts}"', "-o", "GlobalKnownHostsFile=none"),
        *("-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no", "-p", str(login["port"])),
    ]
    return [program, *options, *(_through(jump) if jump else [])]


def _through(jump: str) -> list[str]:
    """Return the option for `[USER@]HOST[:PORT]`, or several with commas. The user's own settings hold for these."""
    *before, last = jump.split(",")
    hops = ["-J", ",".join(before)] if before else []
    host = [quote(part).replace("%", "%%") for part in [*hops, "--", f"ssh://{last}"]]
    return ["-o", f"ProxyCommand=ssh -W '[%h]:%p' {' '.join(host)}"]


@click.command()
@click.option("--job", default="", help="Only what was done to this job.")
@click.option("--user", default="", help="Only what this user did.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The newest so many.")
@output_option
@click.pass_context
def audit(context: click.Context, job: str, user: str, limit: int, output: str) -> None:
    """Show who did what: every submission and change, also those that were refused. For admins.

    The newest 10,000 are kept. Each has the id of its request, and of the token; without one it came from the daemon's
    host.
    """
    with connected(context) as client:
        rows = client.get("/v1/audit", job=job, user=user, limit=str(limit))
    if output == "json":
        print_json(rows)
        return
    for row in rows:
        click.echo(audit_line(row))


def audit_line(row: dict[str, Any]) -> str:
    """Return an entry of the audit log, for people."""
    at = f"{dt.datetime.fromtimestamp(row['at'], dt.UTC):%Y-%m-%d %H:%M:%S}"
    by = (
        f"{row['user'] or 'unknown'} ({row['token']} at {row['address']})" if row["token"] else row["user"] or "unknown"
    )
    what = _VERBS.get(row["action"], row["action"])
    about = f" {row['target']}" if row["target"] else ""
    times = f" {row['count']} times" if row["count"] > 1 else ""
    result = "" if row["status"] < 300 else f": refused{times} ({row['status']})" if row["status"] < 500 else ": failed"
    return f"{at}  {by}  {what}{about}{result}"


_VERBS = {
    "POST /v1/jobs": "submit",
    "PUT /v1/blobs": "upload code",
    "POST /v1/nodes/{node}/drain": "drain",
    "POST /v1/nodes/{node}/login": "ssh",
    "POST /v1/daemon/pause": "daemon pause",
    "POST /v1/daemon/resume": "daemon resume",
    "POST /v1/adopt": "adopt",
    **{f"POST /v1/jobs/{{name}}/{verb}": verb for verb in ("scale", "limits", "cancel", "pause", "resume")},
}
